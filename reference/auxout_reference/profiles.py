"""The protocol versions, and in what they differ for these connectors."""

from __future__ import annotations

from typing import NamedTuple


class Profile(NamedTuple):
    """One protocol version, named after the vLLM releases that speak it."""

    name: str
    clamps_prompt_start: bool
    """A prompt start beyond the prompt is cut to its length (SCHED-EMIT-4) instead of kept (SCHED-EMIT-3)."""
    reads_kv_cache: bool = False
    """The scheduler connector is built with the KV cache, and keeps rows for what is resident in it (``retention``)."""
    store_grows: bool = False
    """A store full of what may not go grows, and new rows replace unreferenced ones (STORE-GROW-1, STORE-REPLACE-1)."""
    reads_unkeyed: bool = False
    """Rows are also returned from full blocks that have no key yet (WORK-EMIT-3)."""


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("0.31", clamps_prompt_start=False),
        Profile("0.32", clamps_prompt_start=True),
        Profile("0.33", True, reads_kv_cache=True, store_grows=True, reads_unkeyed=True),
    )
}
"""Every version by name, the newest last."""
LATEST = "0.32"
"""The newest version by which implementations are judged."""


def profile_named(name: str) -> Profile:
    """The version of a name.

    Raises:
        ValueError: there is none.
    """
    if name not in PROFILES:
        raise ValueError(f"profile {name!r} is not known; known are {', '.join(PROFILES)}")
    return PROFILES[name]
