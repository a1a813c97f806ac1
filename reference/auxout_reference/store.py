"""The store: immutable blocks of rows under keys, with reference counts and a limit.

A referenced block is written once; writing its key again changes nothing. When room is needed the oldest blocks
without a reference go, never one that is being written. A key may be referenced before its block exists. What is
missing is an error, never other rows. From profile 0.33 on the store grows where nothing may go, and new rows replace
those of a block without a reference, whose KV was computed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Key = tuple[int, bytes]
"""Generation and block hash."""


class BlockStore:
    """At most ``max_objects`` blocks, each of rows ``(block_size, num_layers, top_k)``."""

    def __init__(self, max_objects: int, grows: bool = False) -> None:
        """Start empty.

        Args:
            grows: it grows and replaces, as from profile 0.33 on.
        """
        self.max_objects = max_objects
        self.grows = grows
        self.objects: dict[Key, NDArray[Any]] = {}
        """The oldest first."""
        self.references: dict[Key, int] = {}
        """Counts above zero."""

    def copy(self) -> BlockStore:
        """A store with the same content that changes on its own; blocks are shared, nobody changes them."""
        other = BlockStore(self.max_objects, self.grows)
        other.objects = dict(self.objects)
        other.references = dict(self.references)
        return other

    def put(
        self,
        objects: Sequence[tuple[Key, NDArray[Any]]],
        retain: Sequence[Key] = (),
        release: Sequence[Key] = (),
    ) -> None:
        """Write blocks and move references, or leave the store as it was.

        Args:
            objects: keys with their rows; the first rows of a referenced key stay (STORE-PUT-1), and before
                profile 0.33 of any.
            retain: keys that get a reference more, before ``release`` is applied.
            release: keys that lose one; those left with none become the youngest, in this order.

        Raises:
            ProtocolViolation: a key is released more often than retained (STORE-PUT-4), or the blocks do not
                fit beside the referenced ones (STORE-PUT-3).
        """
        references = _moved(self.references, retain, release)
        freed = [key for key in release if key not in references]
        held = dict(self.objects)
        fixed = self.references.keys() & held.keys()
        for key, rows in objects:
            if self.grows and key not in fixed:
                held.pop(key, None)
            held[key] = held.pop(key, rows)
        for key in freed:
            if key in held:
                held[key] = held.pop(key)
        written = {key for key, _ in objects} - set(freed)
        evictable = [key for key in held if key not in references and key not in written]
        excess = max(len(held) - self.max_objects, 0)
        if excess > len(evictable) and not self.grows:
            what = f"{excess} blocks too many, {len(evictable)} can be evicted (limit {self.max_objects})"
            raise ProtocolViolation("STORE-PUT-3", None, what)
        for key in evictable[:excess]:
            del held[key]
        if len(held) > self.max_objects:
            self.max_objects = max(len(held), 2 * self.max_objects)
        self.objects, self.references = held, references

    def read(self, keys: Sequence[Key]) -> NDArray[Any]:
        """The rows of one or more consecutive blocks, joined; reading makes them the youngest.

        Raises:
            ProtocolViolation: a block is not stored (STORE-READ-1).
        """
        missing = [key for key in keys if key not in self.objects]
        if missing:
            what = f"{len(missing)} of {len(keys)} blocks are not in the store"
            raise ProtocolViolation("STORE-READ-1", None, what)
        for key in keys:
            self.objects[key] = self.objects.pop(key)
        return np.concatenate([self.objects[key] for key in keys])


def _moved(references: dict[Key, int], retain: Sequence[Key], release: Sequence[Key]) -> dict[Key, int]:
    """The counts after retaining and releasing."""
    moved = dict(references)
    for key in retain:
        moved[key] = moved.get(key, 0) + 1
    for key in release:
        if key not in moved:
            raise ProtocolViolation("STORE-PUT-4", None, "a key is released more often than it was retained")
        moved[key] -= 1
        if moved[key] == 0:
            del moved[key]
    return moved
