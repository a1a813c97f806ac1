"""Profiles: the protocol as one vLLM release defines it, and where that release departs from its own rules.

A profile is a handful of parameters. Two profiles differ in nothing but the fields below, so
``difference(PROFILES["0.31"], PROFILES["0.32"])`` *is* the difference between the two protocol versions.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Deviation(str, Enum):
    """A way in which released code departs from a clause; each is a known finding of some version.

    A released implementation is judged against the spec *with* its deviations, result by result, so that a
    known fault never hides a second one.
    """

    RESTART_OVERWRITTEN = "restart-overwritten"
    """The hashes of an activation that starts are overwritten by those of the one that ended (SCHED-RESTART-2)."""
    REPLACED_HASH_UNNOTICED = "replaced-hash-unnoticed"
    """That hashes which were sent have been replaced is not said (SCHED-HASH-12)."""
    MIXED_LENGTHS_PACKED = "mixed-lengths-packed"
    """Hashes of different lengths are packed as if they had one (SCHED-HASH-10)."""
    BUILD_NOT_ATOMIC = "build-not-atomic"
    """A refused build_connector_meta has already counted earlier requests' hashes as sent (SCHED-REFUSE-3)."""
    FINISH_NOT_ATOMIC = "finish-not-atomic"
    """A refused request_finished has already forgotten the request (SCHED-REFUSE-4)."""
    NEGATIVE_ITEM_SIZE_EMPTY = "negative-item-size-empty"
    """A packed value with a negative item size iterates to nothing (WIRE-HASH-2)."""
    RAGGED_DATA_SHORT_HASH = "ragged-data-short-hash"
    """Packed data that is not a multiple of the item size ends in a shorter hash (WIRE-HASH-3)."""
    ASSERT_ONLY = "assert-only"
    """Refusals are assert statements and vanish under ``python -O`` (SCHED-REFUSE-6)."""
    WORKER_NOT_ATOMIC = "worker-not-atomic"
    """A refused begin_step has changed the worker (WORK-REFUSE-2); nothing after a refusal can be judged."""
    WORKER_STEP_LOST = "worker-step-lost"
    """A refused process_output has taken its step out of flight (WORK-REFUSE-3)."""
    UNKNOWN_REQUEST_CRASHES = "unknown-request-crashes"
    """Metadata that names a request which the worker does not know raises KeyError (WORK-REFUSE-1)."""
    ANY_STEP_ORDER = "any-step-order"
    """A step that is not the oldest in flight is processed (WORK-STEP-1)."""
    LAST_OF_STEP_KEPT = "last-of-step-kept"
    """Of two requests that compute a block in one step, the last one's rows are stored (STORE-PUT-1)."""
    WORKER_ASSERT_ONLY = "worker-assert-only"
    """The worker's refusals are assert statements and vanish under ``python -O`` (WORK-REFUSE-4)."""


class Profile(NamedTuple):
    """The parameters of one protocol version."""

    name: str
    clamps_prompt_start: bool
    """Emit start: the prompt start is cut to the prompt's length (SCHED-EMIT-3 / SCHED-EMIT-4)."""
    truncates_session_hashes: bool
    """Engine: a session's hash list is cut at the token its next chunk discards."""
    guards_running_reset: bool
    """Engine: a reset of running requests needs a paused engine with nothing in flight (ENV-RESET-1)."""
    deviations: frozenset[Deviation] = frozenset()


PROFILES: dict[str, Profile] = {
    "0.31": Profile(
        "0.31",
        clamps_prompt_start=False,
        truncates_session_hashes=False,
        guards_running_reset=True,
    ),
    "0.32": Profile(
        "0.32",
        clamps_prompt_start=True,
        truncates_session_hashes=True,
        guards_running_reset=False,
    ),
}

LATEST = "0.32"
"""The newest profile; what our own implementations follow unless told otherwise."""


def difference(old: Profile, new: Profile) -> dict[str, tuple[object, object]]:
    """Parameters in which two profiles differ, as ``name -> (old value, new value)``; names excluded."""
    pairs = zip(Profile._fields, old, new, strict=True)
    return {name: (a, b) for name, a, b in pairs if a != b and name != "name"}
