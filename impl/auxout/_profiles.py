"""The protocol versions, and which vLLM releases speak them."""

from __future__ import annotations

PROFILES = ("0.31", "0.32")
"""Names, the newest last; each is the first two numbers of its releases."""
LATEST = PROFILES[-1]


def checked(profile: str) -> str:
    """The profile, if there is such a one.

    Raises:
        ValueError: it is not known.
    """
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}; choose one of {', '.join(PROFILES)}")
    return profile
