"""Profiles: the protocol as one vLLM release defines it.

A profile is a handful of parameters. Two profiles differ in nothing but the fields below, so
``difference(PROFILES["0.31"], PROFILES["0.32"])`` *is* the difference between the two protocol versions.

Each has a variant of ours for engines that must outlive one request's inconsistency: under ``0.32+request`` the
connectors refuse no call for it, and that request fails alone (``per_request``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .deviations import Deviation


class Profile(NamedTuple):
    """The parameters of one protocol version."""

    name: str
    clamps_prompt_start: bool
    """Emit start: the prompt start is cut to the prompt's length (SCHED-EMIT-3 / SCHED-EMIT-4)."""
    truncates_session_hashes: bool
    """Engine: a session's hash list is cut at the token its next chunk discards."""
    guards_running_reset: bool
    """Engine: a reset of running requests needs a paused engine with nothing in flight (ENV-RESET-1)."""
    reads_kv_cache: bool = False
    """The scheduler connector is built with the KV cache: it sends hashes of computed blocks only, keeps the rows of
    resident KV, and bounds hits by the rows that are known (SCHED-RETAIN, SCHED-RELEASE, SCHED-HIT)."""
    store_grows: bool = False
    """A store full of what may not go grows; new rows replace unreferenced ones (STORE-GROW-1, STORE-REPLACE-1)."""
    reads_unkeyed: bool = False
    """Rows are also returned from full blocks that have no key yet (WORK-EMIT-3)."""
    resumes_sessions: bool = False
    """Engine: what a stop cuts off no longer counts as computed, a session's next turn keeps all tokens but the last,
    and one whose turn ends while it is preempted goes on."""
    gives_up_hits: bool = False
    """Engine: KV found elsewhere is not loaded at all unless the rows of all of it are known."""
    fails_requests: bool = False
    """Where a request is inconsistent it fails, and the call is answered (FAIL-ALONE-1), instead of being refused."""
    deviations: frozenset[Deviation] = frozenset()
    """Where released code departs from it (``deviations``); none in the protocol itself."""


_ALL = (
    Profile("0.31", clamps_prompt_start=False, truncates_session_hashes=False, guards_running_reset=True),
    Profile("0.32", clamps_prompt_start=True, truncates_session_hashes=True, guards_running_reset=False),
    Profile(
        "0.33",
        clamps_prompt_start=True,
        truncates_session_hashes=True,
        guards_running_reset=False,
        reads_kv_cache=True,
        store_grows=True,
        reads_unkeyed=True,
        resumes_sessions=True,
        gives_up_hits=True,
    ),
)
LATEST = "0.32"
"""The newest profile that implementations are judged by; what our own follow unless told otherwise."""
SPECIFIED: dict[str, Profile] = {profile.name: profile for profile in _ALL}
"""Every profile by name, from the oldest on, those included that nothing is judged by yet."""
PROFILES: dict[str, Profile] = dict(list(SPECIFIED.items())[: list(SPECIFIED).index(LATEST) + 1])
"""The profiles that implementations are judged by."""


PER_REQUEST = "+request"
"""What the name of a profile's variant ends with."""


def named(name: str) -> Profile:
    """The profile of a name, or its variant.

    Raises:
        KeyError: there is none.
    """
    plain = SPECIFIED[name.removesuffix(PER_REQUEST)]
    return plain._replace(name=name, fails_requests=name != plain.name)


def is_judged(name: str) -> bool:
    """Whether a name is that of a profile, or of a variant, by which implementations are judged."""
    return name.removesuffix(PER_REQUEST) in PROFILES


def is_specified(name: str) -> bool:
    """Whether a name is that of a profile, or of a variant, at all."""
    return name.removesuffix(PER_REQUEST) in SPECIFIED


def since(name: str) -> tuple[str, ...]:
    """The names of a profile and of all later ones."""
    return tuple(SPECIFIED)[list(SPECIFIED).index(name) :]


def difference(old: Profile, new: Profile) -> dict[str, tuple[object, object]]:
    """Parameters in which two profiles differ, as ``name -> (old value, new value)``; names excluded."""
    pairs = zip(Profile._fields, old, new, strict=True)
    return {name: (a, b) for name, a, b in pairs if a != b and name != "name"}
