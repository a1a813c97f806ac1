"""The arena and the background writer: what goes where, limits, errors, closing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from auxout import ProtocolViolation, StoreError
from auxout.store import ArenaStore, BackgroundStore


def arena(max_objects: int = 2, num_spare: int = 2) -> ArenaStore:
    return ArenaStore(max_objects=max_objects, block_shape=(2, 1, 1), dtype="uint8", num_spare=num_spare)


def fill(store: Any, *values: int) -> list[int]:
    slots = store.take(len(values))
    for slot, value in zip(slots, values, strict=True):
        store.blocks[slot] = value
    return slots


def stored(store: Any, *keys: bytes) -> list[int] | None:
    """The values of blocks; None if one is missing."""
    slots = store.find(keys)
    return None if slots is None else store.blocks[slots][:, 0, 0, 0].tolist()


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        pytest.fail(f"got {actual!r}, expected {expected!r}")


def refused(clause: str, call: Callable[..., object], *args: Any) -> None:
    with pytest.raises(ProtocolViolation, match=clause):
        call(*args)


def test_blocks_are_published_where_they_lie() -> None:
    store = arena()
    slots = fill(store, 1, 2)
    store.put([b"x", b"y"], slots)
    expect((store.find([b"y", b"x"]), stored(store, b"y", b"x")), (slots[::-1], [2, 1]))
    expect((store.find([b"x", b"z"]), store.find([b"x", b"z"], {b"z": 7})), (None, [slots[0], 7]))


def test_a_key_keeps_its_first_rows_and_the_slot_is_free_again() -> None:
    store = arena()
    store.put([b"x"], fill(store, 1))
    store.put([b"x", b"y", b"y"], fill(store, 2, 3, 4))
    expect((stored(store, b"x", b"y"), store.num_objects, store.num_free), ([1, 3], 2, 2))


def test_the_oldest_idle_block_makes_room() -> None:
    store = arena()
    store.put([b"x", b"y"], fill(store, 1, 2))
    expect(stored(store, b"x"), [1])  # read, so younger than y
    store.put([b"z"], fill(store, 3))
    expect((stored(store, b"y"), stored(store, b"x", b"z")), (None, [1, 3]))
    store.put([b"x"], fill(store, 9))  # written again, so younger than z
    store.put([b"w"], fill(store, 4))
    expect((stored(store, b"z"), stored(store, b"x", b"w"), store.num_free), (None, [1, 4], 2))


def test_referenced_blocks_stay() -> None:
    store = arena()
    store.put([b"x", b"y"], fill(store, 1, 2), [b"x", b"x", b"y"])
    refused("STORE-PUT-3", store.put, [b"z"], fill(store, 3))
    expect((store.num_objects, store.num_references), (2, 3))
    store.put([], [], [], [b"x", b"y"])
    store.put([b"z"], fill(store, 3))
    expect((stored(store, b"y"), stored(store, b"x", b"z")), (None, [1, 3]))


def test_a_batch_does_not_evict_itself_but_what_it_releases() -> None:
    store = arena(max_objects=1)
    refused("STORE-PUT-3", store.put, [b"x", b"y"], fill(store, 1, 2))
    expect(store.num_objects, 0)
    store.put([b"x", b"y"], fill(store, 1, 2), [b"x", b"y"], [b"x"])
    expect((stored(store, b"x"), stored(store, b"y"), store.num_references), (None, [2], 1))
    store = arena()
    store.put([b"x", b"y"], fill(store, 1, 2))
    refused("STORE-PUT-3", store.put, [b"x", b"z"], fill(store, 3, 4), [b"y"])
    store.put([b"x", b"z"], fill(store, 3, 4))  # x is the oldest, but of the batch
    expect((stored(store, b"y"), stored(store, b"x", b"z")), (None, [1, 4]))


def test_more_is_not_released_than_was_retained() -> None:
    store = arena()
    store.put([], [], [b"x"])
    refused("STORE-PUT-4", store.put, [b"y"], fill(store, 1), [b"z"], [b"x", b"x"])
    refused("STORE-PUT-4", store.put, [], [], [], [b"y"])
    expect((store.num_references, store.num_objects), (1, 0))
    store.put([], [], [b"x", b"z"], [b"x", b"x", b"z"])
    expect(store.num_references, 0)


def test_slots_are_used_again_and_the_arena_grows_when_they_do_not_suffice() -> None:
    store = arena(max_objects=1, num_spare=1)
    expect(sorted(store.take(2)), [0, 1])
    store.give_back([1])
    expect((store.num_free, store.take(1), store.num_free), (1, [1], 0))
    store.blocks[:] = [[[[5]], [[5]]], [[[6]], [[6]]]]
    slots = store.take(3)
    expect((len(set(slots) | {0, 1}), store.blocks[:2, 0, 0, 0].tolist()), (5, [5, 6]))
    store.give_back(slots[:2])
    expect((len(set(store.take(4)) | {0, 1, slots[2]}), len(store.blocks) >= 7), (7, True))


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_the_arena_begins_where_a_cache_line_does(dtype: str) -> None:
    for block_size in range(1, 9):
        store = ArenaStore(max_objects=2, block_shape=(block_size, 3, 1), dtype=dtype, num_spare=1)
        for count in (1, 4):  # the second makes it grow
            fill(store, *range(count))
            expect(store.blocks.ctypes.data % 64, 0)
            expect((store.blocks.dtype, store.blocks.shape[1:]), (np.dtype(dtype), (block_size, 3, 1)))


def test_a_store_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        arena(max_objects=0)


def test_eviction_does_not_look_at_referenced_blocks() -> None:
    store = ArenaStore(max_objects=1001, block_shape=(1, 1, 1), dtype="uint8", num_spare=1)
    keys = [str(n).encode() for n in range(1000)]
    store.put(keys, store.take(1000), keys)
    store.put([b"x"], store.take(1))
    looked: list[object] = []

    class Watched(dict[bytes, int]):
        def __contains__(self, key: object) -> bool:
            looked.append(key)
            return super().__contains__(key)

    store._references = Watched(store._references)
    store.put([b"y"], store.take(1))
    expect((stored(store, b"x"), len(looked) < 10), (None, True))


# --- the background writer


class Gate(ArenaStore):
    """A store whose writes wait for a gate, and fail on request."""

    def __init__(self) -> None:
        super().__init__(max_objects=2, block_shape=(2, 1, 1), dtype="uint8", num_spare=2)
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.gate.set()
        self.failure: BaseException | None = None

    def put(self, *args: Any) -> None:
        self.entered.set()
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        super().put(*args)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.gate.set()


def test_a_reader_waits_for_what_was_put_before(gate: Gate) -> None:
    store = BackgroundStore(gate)
    gate.gate.clear()
    keys, slots = [b"x"], fill(store, 1)
    store.put(keys, slots, [b"x"])
    keys.append(b"?")  # the caller goes on
    threading.Timer(0.01, gate.gate.set).start()
    expect((stored(store, b"x"), store.num_objects, store.num_references), ([1], 1, 1))
    store.require_room([b"y"])
    refused("STORE-PUT-3", store.require_room, [b"y", b"z"])
    store.give_back(store.take(3))
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.put([], [], [b"x"])


def test_slots_that_wait_for_the_writer_are_taken_before_the_arena_grows(gate: Gate) -> None:
    store = BackgroundStore(gate)
    store.put([b"x", b"x"], fill(store, 1, 2))
    store.take(2)
    gate.gate.clear()
    store.put([b"x"], [0])
    threading.Timer(0.01, gate.gate.set).start()
    store.take(1)
    expect(len(gate.blocks), 4)
    store.close()


@pytest.mark.parametrize("failure", [OSError("disk full"), ProtocolViolation("STORE-PUT-3", None, "no room")])
def test_what_a_write_raises_surfaces_at_every_later_call(gate: Gate, failure: BaseException) -> None:
    store = BackgroundStore(gate)
    gate.failure = failure
    store.put([], [], [b"x"])
    with pytest.raises(StoreError, match=r"disk full|STORE-PUT-3"):
        store.find([b"x"])
    gate.failure = None
    with pytest.raises(StoreError):
        store.put([], [], [b"x"])
    with pytest.raises(StoreError):
        store.take(1)
    expect(gate.num_references, 0)  # nothing is written after a failure
    with pytest.raises(StoreError):
        store.close()
    expect(len(gate.blocks), 0)
    store.close()


def test_what_waits_behind_a_failure_is_not_written(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BackgroundStore(gate)
    failures = [OSError("disk full")]

    def put(*args: Any) -> None:
        gate.gate.wait()
        if failures:
            raise failures.pop()
        ArenaStore.put(gate, *args)

    monkeypatch.setattr(gate, "put", put)
    gate.gate.clear()
    store.put([], [], [b"x"])
    store.put([], [], [b"y"])
    gate.gate.set()
    with pytest.raises(StoreError, match="disk full"):
        store.find([b"y"])
    expect((gate.num_references, failures), (0, []))
    with pytest.raises(StoreError, match="disk full"):
        store.close()


def test_a_full_queue_holds_up_the_caller(gate: Gate) -> None:
    store = BackgroundStore(gate, max_pending=1)
    gate.gate.clear()
    store.put([], [], [b"x"])
    gate.entered.wait()
    store.put([], [], [b"x"])
    done = threading.Event()

    def put() -> None:
        store.put([], [], [b"x"])
        done.set()

    thread = threading.Thread(target=put)
    thread.start()
    expect(done.wait(0.05), False)
    gate.gate.set()
    thread.join()
    expect(store.num_references, 3)
    store.close()


def test_closing_drops_what_waits_and_leaves_a_writer_that_hangs(gate: Gate) -> None:
    store = BackgroundStore(gate, close_timeout=0.05)
    gate.gate.clear()
    store.put([], [], [b"x"])
    gate.entered.wait()
    store.put([], [], [b"x"])
    store.close()
    expect(len(gate.blocks), 4)  # the writer may still use it
    gate.gate.set()


def test_values_of_any_type_survive() -> None:
    store = ArenaStore(max_objects=1, block_shape=(1, 1, 2), dtype="uint16")
    slots = store.take(1)
    store.blocks[slots[0]] = [[300, 65535]]
    store.put([b"x"], slots)
    expect(store.blocks[store.find([b"x"])].tolist(), [[[[300, 65535]]]])
    expect(store.blocks.dtype, np.dtype("uint16"))
