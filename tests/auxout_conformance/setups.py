"""What the connectors of a play are built for."""

from __future__ import annotations

from typing import NamedTuple

from auxout_spec.representation import PLAIN, Representation
from auxout_spec.retention import KvCache

from .targets.drivers import Sizes


class Setup(NamedTuple):
    """What the connectors of a play are built for; every play starts with fresh ones."""

    profile: str
    """The name of the protocol version; empty: their own default."""
    sizes: Sizes | None = None
    """What the worker is built for; None: it takes no part."""
    representation: Representation = PLAIN
    """What the calls look like to the connectors."""
    cache: KvCache = KvCache(1, 1, 1)
    """The engine's KV cache, for a scheduler connector that is built with it."""
