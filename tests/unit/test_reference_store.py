"""The reference's store alone: what a worker never does with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auxout_reference import ProtocolViolation
from auxout_reference.store import BlockStore

X, Y, Z = ((0, name.encode()) for name in "xyz")


def block(value: int) -> np.ndarray[Any, Any]:
    return np.full((2, 1, 1), value, np.uint8)


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        pytest.fail(f"got {actual!r}, expected {expected!r}")


def test_reading_and_writing_again_make_the_youngest() -> None:
    store = BlockStore(2)
    store.put([(X, block(1)), (Y, block(2))])
    expect(store.read([Y, X])[:, 0, 0].tolist(), [2, 2, 1, 1])
    expect(list(store.objects), [Y, X])
    store.put([(Y, block(3))])
    expect((list(store.objects), store.read([Y])[0, 0, 0]), ([X, Y], 2))  # STORE-PUT-1
    store.put([(Z, block(4))])
    expect(list(store.objects), [Y, Z])


def test_a_key_released_too_often_is_refused() -> None:
    store = BlockStore(2)
    store.put([], [X, X], [X])
    with pytest.raises(ProtocolViolation, match="STORE-PUT-4"):
        store.put([(Y, block(1))], [Z], [X, X])
    expect((store.references, store.objects), ({X: 1}, {}))


def test_blocks_of_one_batch_do_not_evict_each_other() -> None:
    store = BlockStore(1)
    with pytest.raises(ProtocolViolation, match="STORE-PUT-3"):
        store.put([(X, block(1)), (Y, block(2))])
    expect(store.objects, {})
    store.put(
        [(X, block(1)), (Y, block(2))], [X], [X]
    )  # a key whose last reference goes with the batch may go
    expect(list(store.objects), [Y])
