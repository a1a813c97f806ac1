"""Reference and arena store on the same random batches: the same refusals, blocks and references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from auxout.errors import ProtocolViolation as FastViolation
from auxout.store import ArenaStore
from auxout_reference.errors import ProtocolViolation
from auxout_reference.store import BlockStore
from auxout_spec import store as spec
from auxout_spec.values import Refusal, Row

MAX_OBJECTS = 4
KEYS = st.lists(st.sampled_from([bytes([n]) for n in range(8)]), max_size=5)
BATCHES = st.tuples(KEYS, KEYS, KEYS)
"""Written, retained, released."""


def clause(call: Callable[..., object], *args: Any) -> str | None:
    """What a call is refused for."""
    try:
        call(*args)
    except (ProtocolViolation, FastViolation) as violation:
        return violation.clause
    return None


def put(arena: ArenaStore, values: Sequence[int], keys: list[bytes], *moved: list[bytes]) -> None:
    """Write a block of each value; slots of a refused batch are given back, as the worker does it."""
    slots = arena.take(len(keys))
    for slot, value in zip(slots, values, strict=True):
        arena.blocks[slot] = value
    try:
        arena.put(keys, slots, *moved)
    except FastViolation:
        arena.give_back(slots)
        raise


@given(st.lists(st.tuples(BATCHES, KEYS), max_size=30))
def test_random_batches(calls: list[tuple[tuple[list[bytes], ...], list[bytes]]]) -> None:
    reference = BlockStore(MAX_OBJECTS)
    arena = ArenaStore(max_objects=MAX_OBJECTS, block_shape=(1, 1, 1), dtype="uint8", num_spare=5)
    value = 0
    for (keys, retain, release), wanted in calls:
        values = [(value + n) % 256 for n in range(len(keys))]
        value += len(keys)
        objects = [((0, key), np.full((1, 1, 1), v, np.uint8)) for key, v in zip(keys, values, strict=True)]
        moved = [[(0, key) for key in part] for part in (retain, release)]
        refused = clause(reference.put, objects, *moved)
        assert clause(put, arena, values, keys, retain, release) == refused
        slots = arena.find(wanted)
        if slots is None:
            assert clause(reference.read, [(0, key) for key in wanted]) == "STORE-READ-1"
        elif wanted:
            assert arena.blocks[slots][:, 0].tolist() == reference.read([(0, k) for k in wanted]).tolist()
        assert arena.num_objects == len(reference.objects)
        assert arena.num_references == sum(reference.references.values())
        assert arena.num_free + arena.num_objects == len(arena.blocks)


@given(st.lists(BATCHES, max_size=30))
def test_random_batches_of_a_store_that_grows(batches: list[tuple[list[bytes], ...]]) -> None:
    """The spec's store and the reference's; objects are numbered, and a key may be written twice in a batch."""
    state, reference, number = spec.EMPTY, BlockStore(MAX_OBJECTS, grows=True), 0
    for keys, retain, release in batches:
        objects = []
        for key in keys:
            number += 1
            objects.append(((0, key), number))
        moved = [tuple((0, key) for key in part) for part in (retain, release)]
        blocks = [(key, np.full((1, 1, 1), each, np.uint16)) for key, each in objects]
        written = tuple((key, (Row("A", each, 0, 0),)) for key, each in objects)
        after = spec.put(state, MAX_OBJECTS, written, *moved, grows=True)
        refused = clause(reference.put, blocks, *moved)
        assert refused == (after.clause if isinstance(after, Refusal) else None)
        state = state if isinstance(after, Refusal) else after
        held = [(key, rows[0].position) for key, rows in state.objects]
        assert held == [(key, int(rows[0, 0, 0])) for key, rows in reference.objects.items()]
        assert dict(state.references) == reference.references
        assert max(state.grown, MAX_OBJECTS) == reference.max_objects
