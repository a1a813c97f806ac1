"""The protocol versions, and which vLLM releases speak them."""

from __future__ import annotations

PROFILES = ("0.31", "0.32")
"""Names, the newest last; each is the first two numbers of its releases."""
LATEST = PROFILES[-1]
