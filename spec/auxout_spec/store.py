"""The store: immutable blocks of rows under keys, with reference counts and a limit.

A referenced object is written once; writing its key again changes nothing. The oldest unreferenced objects make
room, never one of the batch being written, and a key may be referenced before its object exists. What is missing
is an error, never other rows (STORE-READ-1).

Profile 0.33 changes two things: a store whose objects may not go grows instead of refusing the batch, and rows written
for an unreferenced key replace those stored, as they belong to KV that was computed again. Here it grows for good; one
that gives room back is better (STORE-GROW-2).
"""

from __future__ import annotations

from typing import NamedTuple

from .values import BlockHash, Refusal, Row

Key = tuple[int, BlockHash]
"""Generation and block hash."""
Block = tuple[Row, ...]
"""The rows of one hash block."""


class StoreState(NamedTuple):
    """What the store holds."""

    objects: tuple[tuple[Key, Block], ...] = ()
    """In order of age, the oldest first."""
    references: tuple[tuple[Key, int], ...] = ()
    """Counts above zero, sorted by key."""
    grown: int = 0
    """Objects that fit since it grew; 0: as many as it was built for."""


EMPTY = StoreState()


def put(
    state: StoreState,
    capacity: int,
    objects: tuple[tuple[Key, Block], ...],
    retain: tuple[Key, ...] = (),
    release: tuple[Key, ...] = (),
    grows: bool = False,
) -> StoreState | Refusal:
    """Write objects and move references, or leave the store as it was (STORE-PUT-1 to -5, STORE-GROW-1).

    From profile 0.33 on rows written for an unreferenced key replace those stored (STORE-REPLACE-1).

    Args:
        capacity: objects that it was built for.
        retain: keys that get a reference more; before ``release`` is applied.
        release: keys that lose one; those left with none become the youngest, in this order.
        grows: it grows and replaces, as from profile 0.33 on.
    """
    references = _counted(dict(state.references), retain, release)
    if isinstance(references, Refusal):
        return references
    freed = tuple(key for key in release if key not in references)
    held = dict(state.objects)
    fixed = held.keys() & dict(state.references).keys()
    for key, block in objects:
        first = held.pop(key, block)
        held[key] = first if key in fixed or not grows else block
    for key in freed:
        if key in held:
            held[key] = held.pop(key)
    written = {key for key, _ in objects} - set(freed)
    free = [key for key in held if key not in references and key not in written]
    room = max(capacity, state.grown)
    excess = len(held) - room
    if excess > len(free) and not grows:
        return Refusal("STORE-PUT-3", f"the batch needs {excess} objects evicted, {len(free)} can be")
    for key in free[: max(excess, 0)]:
        del held[key]
    grown = max(len(held), 2 * room) if len(held) > room else state.grown
    return StoreState(tuple(held.items()), tuple(sorted(references.items())), grown)


def read(state: StoreState, keys: tuple[Key, ...]) -> tuple[StoreState, tuple[Row, ...] | Refusal]:
    """The rows of consecutive blocks; reading makes them the youngest (STORE-READ-1)."""
    held = dict(state.objects)
    missing = [key for key in keys if key not in held]
    if missing:
        return state, Refusal("STORE-READ-1", f"{len(missing)} of {len(keys)} blocks are not in the store")
    rows = tuple(row for key in keys for row in held[key])
    for key in keys:
        held[key] = held.pop(key)
    return state._replace(objects=tuple(held.items())), rows


def _counted(
    references: dict[Key, int], retain: tuple[Key, ...], release: tuple[Key, ...]
) -> dict[Key, int] | Refusal:
    for key in retain:
        references[key] = references.get(key, 0) + 1
    for key in release:
        if key not in references:
            return Refusal("STORE-PUT-4", "a key is released more often than it was retained")
        references[key] -= 1
        if not references[key]:
            del references[key]
    return references
