"""The protocol versions, and in what they differ for these connectors."""

from __future__ import annotations

from typing import NamedTuple


class Profile(NamedTuple):
    """One protocol version, named after the vLLM releases that speak it."""

    name: str
    clamps_prompt_start: bool
    """A prompt start beyond the prompt is cut to its length (SCHED-EMIT-4) instead of kept (SCHED-EMIT-3)."""


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("0.31", clamps_prompt_start=False),
        Profile("0.32", clamps_prompt_start=True),
    )
}
"""Every version by name, the newest last."""
LATEST = list(PROFILES)[-1]


def profile_named(name: str) -> Profile:
    """The version of a name.

    Raises:
        ValueError: there is none.
    """
    if name not in PROFILES:
        raise ValueError(f"profile {name!r} is not known; known are {', '.join(PROFILES)}")
    return PROFILES[name]
