"""The fast core where it differs from the reference in how it works: many requests, our own metadata, its own store."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import auxout
from auxout import AuxOutputConnectorMetadata, PackedBlockHashes, ProtocolViolation, StoreError, WorkerCore
from auxout.store import ArenaStore, BackgroundStore

BLOCK = 4


def core(**options: Any) -> WorkerCore:
    settings: dict[str, Any] = {
        "block_size": BLOCK,
        "shape_per_token": (1, 1),
        "dtype": "uint16",
        "max_objects": 64,
        **options,
    }
    return WorkerCore(**settings)


def meta(requests: dict[str, int], hashes: dict[str, bytes], *finished: str) -> AuxOutputConnectorMetadata:
    packed = {name: PackedBlockHashes(data, 2) for name, data in hashes.items()}
    return AuxOutputConnectorMetadata(0, requests, packed, finished)


def rows(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.uint16).reshape(-1, 1, 1)


def read(outputs: Any) -> dict[str, Any]:
    return {name: [each.token_start, *each.rows[:, 0, 0].tolist()] for name, each in outputs.items()}


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        pytest.fail(f"got {actual!r}, expected {expected!r}")


def test_as_many_requests_as_come() -> None:
    worker = core()
    names = [f"r{n}" for n in range(300)]
    for step in range(6):
        worker.begin_step(meta(dict.fromkeys(names, step), {}))
        values = rows(*range(step * 1000, step * 1000 + 300))
        pending = worker.prepare_output(names, [step] * 300, list(range(301)), values)
        outputs = read(worker.process_output(pending, [1] * 300, [0] * 300))
        expect(outputs, {name: [step, step * 1000 + n] for n, name in enumerate(names)})
    expect(tuple(worker.usage()), (300, 0, 0, 0, 1800))
    worker.begin_step(meta({}, {}, *names))
    expect(tuple(worker.usage()), (0, 0, 0, 0, 0))


def test_metadata_of_our_scheduler_connector_before_and_after_pickling() -> None:
    for through in (lambda value: value, lambda value: pickle.loads(pickle.dumps(value, 5))):
        scheduler, worker = auxout.AuxOutputSchedulerConnector(), core()
        request = SimpleNamespace(
            request_id="A",
            num_tokens=9,
            num_prompt_tokens=9,
            num_output_tokens=0,
            sampling_params=SimpleNamespace(routed_experts_prompt_start=0),
            block_hashes=[b"ab", b"cd"],
        )
        step = SimpleNamespace(num_scheduled_tokens={"A": 9})
        for start in (0, 9):
            worker.begin_step(through(scheduler.build_connector_meta(step, {"A": request})))
            count = request.num_tokens - start
            pending = worker.prepare_output(["A"], [start], [0, count], rows(*range(start, start + count)))
            outputs = worker.process_output(pending, [1], [0])
            expect(read(outputs), {"A": [start, *range(start, start + count)]})
            request.num_tokens += 1
            request.num_output_tokens += 1
        expect(tuple(worker.usage()), (1, 0, 2, 2, 2))


def test_an_emit_start_beyond_32_bits() -> None:
    worker, far = core(), 2**33
    starts = auxout.connector.EmitStarts(auxout._wire.Roster(("A",)), [far])
    worker.begin_step(AuxOutputConnectorMetadata(0, starts, {}, ()))
    pending = worker.prepare_output(["A"], [0], [0, 1], rows(7))
    expect(read(worker.process_output(pending, [1], [0])), {})


@pytest.mark.parametrize(("data", "size", "clause"), [(b"abc", 2, "WIRE-HASH-3"), (b"ab", 0, "WIRE-HASH-2")])
def test_packed_hashes_of_a_wrong_length_change_nothing(data: bytes, size: int, clause: str) -> None:
    worker = core()
    metadata = AuxOutputConnectorMetadata(0, {"A": 0}, {"A": PackedBlockHashes(data, size)}, ())
    with pytest.raises(ProtocolViolation, match=clause):
        worker.begin_step(metadata)
    expect(tuple(worker.usage()), (0, 0, 0, 0, 0))


WRONG_LENGTH = "packed hashes of 3 bytes cannot be cut into items of 2 [WIRE-HASH-3]"


@pytest.mark.parametrize("field", ["block_hashes", "replaced_block_hashes"])
def test_packed_hashes_of_a_wrong_length_fail_their_request_alone(field: str) -> None:
    worker, torn = core(errors="request"), {"A": PackedBlockHashes(b"abc", 2)}
    hashes = {"block_hashes": {}, "replaced_block_hashes": {}, field: torn}
    worker.begin_step(AuxOutputConnectorMetadata(0, {"A": 0, "B": 0}, finished_requests=(), **hashes))
    pending = worker.prepare_output(["A", "B"], [0, 0], [0, 1, 2], rows(7, 8))
    outputs = worker.process_output(pending, [1, 1], [0, 0])
    expect((outputs["A"].error, outputs["B"].error), ("request A: " + WRONG_LENGTH, None))
    expect(outputs["B"].rows.ravel().tolist(), [8])
    expect(worker.failures, {"WIRE-HASH-3": 1})


def test_rows_that_have_not_arrived() -> None:
    worker = core()
    worker.begin_step(meta({"A": 0}, {}))
    step = worker.launch(["A"], [0], [0, 1], 1)
    with pytest.raises(ProtocolViolation, match="not arrived"):
        worker.process_output(step, [1], [0])
    step.rows = rows(3)
    expect(read(worker.process_output(step, [1], [0])), {"A": [0, 3]})


def test_a_refused_step_gives_its_slots_back() -> None:
    store = ArenaStore(max_objects=1, block_shape=(BLOCK, 1, 1), dtype="uint16", num_spare=8)
    worker = core(max_objects=1, store=store)
    worker.begin_step(meta({"A": 0}, {"A": b"abcd"}))
    pending = worker.prepare_output(["A"], [0], [0, 9], rows(*range(9)))
    for _ in range(20):
        with pytest.raises(ProtocolViolation, match="STORE-PUT-3"):
            worker.process_output(pending, [1], [0])
    expect((store.num_free, len(store.blocks)), (9, 9))


def test_a_background_store_that_failed_ends_the_worker() -> None:
    store = BackgroundStore(ArenaStore(max_objects=1, block_shape=(BLOCK, 1, 1), dtype="uint16", num_spare=8))
    worker = core(max_objects=1, store=store)
    worker.begin_step(meta({"A": 0}, {"A": b"abcd"}))
    pending = worker.prepare_output(["A"], [0], [0, 9], rows(*range(9)))
    worker.process_output(pending, [1], [0])
    with pytest.raises(StoreError, match="STORE-PUT-3"):
        worker.usage()
    with pytest.raises(StoreError):
        worker.begin_step(meta({"B": 0}, {"B": b"ef"}))
    with pytest.raises(StoreError):
        worker.close()
    expect(tuple(worker.usage()), (0, 0, 0, 0, 0))


def test_rows_read_back_come_before_rows_of_the_step_in_pickles_too() -> None:
    worker = core()
    worker.begin_step(meta({"A": 0}, {"A": b"ab"}))
    pending = worker.prepare_output(["A"], [0], [0, 5], rows(*range(5)))
    worker.process_output(pending, [1], [0])
    worker.begin_step(meta({"B": 2, "A": 5, "C": 0}, {"B": b"ab", "C": b"ab"}))
    values = rows(40, 50, 60)
    pending = worker.prepare_output(["B", "A", "C"], [4, 5, 4], [0, 1, 2, 3], values)
    outputs = worker.process_output(pending, [1, 1, 1], [0, 0, 0])
    expected = {"B": [2, 2, 3, 40], "A": [5, 50], "C": [0, 0, 1, 2, 3, 60]}
    expect((read(outputs), list(outputs)), (expected, ["B", "A", "C"]))
    expect(read(pickle.loads(pickle.dumps(outputs, 5))), expected)
