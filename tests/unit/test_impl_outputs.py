"""A step's outputs read like a dictionary, before and after pickling."""

from __future__ import annotations

import pickle
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auxout import (
    AuxOutputConnectorMetadata,
    AuxOutputSchedulerConnector,
    AuxRequestOutput,
    PackedBlockHashes,
    WorkerCore,
)
from auxout._outputs import StepOutputs
from auxout._wire import Roster

BUFFER = np.arange(24, dtype=np.uint16).reshape(6, 2, 2)


def outputs(*, ids: tuple[str, ...] = ("A", "B", "C"), errors: dict[str, str] | None = None) -> StepOutputs:
    """A has one row, B two, C none; row 1 is nobody's."""
    starts, begins, ends = (np.array(each) for each in ([5, 0, 9], [0, 2, 4], [1, 4, 4]))
    return StepOutputs(Roster(ids), starts, (begins, ends), BUFFER[:4], errors or {})


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol=5))


def read(value: Any) -> Any:
    return [(name, each.token_start, each.rows.tolist(), each.error) for name, each in value.items()]


EXPECTED = [("A", 5, BUFFER[:1].tolist(), None), ("B", 0, BUFFER[2:4].tolist(), None), ("C", 9, [], None)]


@pytest.mark.parametrize("through", [lambda value: value, sent, lambda value: sent(sent(value))])
def test_reads_like_a_dictionary(through: Any) -> None:
    made = through(outputs())
    assert read(made) == EXPECTED
    assert (list(made), len(made), "B" in made, "D" in made) == (["A", "B", "C"], 3, True, False)
    assert isinstance(made["A"], AuxRequestOutput)
    assert (made["C"].rows.shape, made["C"].rows.dtype) == ((0, 2, 2), np.uint16)
    assert (made.get("B").token_start, made.get("D"), made.get("D", 7)) == (0, None, 7)
    with pytest.raises(KeyError):
        made["D"]
    assert repr(made).startswith("StepOutputs({'A': AuxRequestOutput(")


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_with_every_protocol(protocol: int) -> None:
    assert read(pickle.loads(pickle.dumps(outputs(), protocol))) == EXPECTED


def test_pickles_only_rows_that_are_due() -> None:
    assert sent(outputs())._buffer.tolist() == BUFFER[[0, 2, 3]].tolist()
    ranges = np.array([0]), np.array([1])
    large = StepOutputs(Roster(("A",)), np.array([0]), ranges, np.zeros((10_000, 2, 2), np.uint8), {})
    assert len(pickle.dumps(large, protocol=5)) < 500


@pytest.mark.parametrize(("begins", "ends"), [([1, 0], [2, 1]), ([0, 0], [1, 1]), ([0, 2], [2, 2])])
def test_rows_may_lie_anywhere_in_the_buffer(begins: list[int], ends: list[int]) -> None:
    made = StepOutputs(
        Roster(("A", "B")), np.array([5, 7]), (np.array(begins), np.array(ends)), BUFFER[:2], {}
    )
    expected = [BUFFER[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]
    assert [each.rows.tolist() for each in made.values()] == expected
    assert [each.rows.tolist() for each in sent(made).values()] == expected


@pytest.mark.parametrize("through", [lambda value: value, sent])
def test_one_row_each_needs_no_ranges(through: Any) -> None:
    made = through(StepOutputs(Roster(("A", "B")), np.array([5, 7]), None, BUFFER[:2], {}))
    assert read(made) == [("A", 5, BUFFER[:1].tolist(), None), ("B", 7, BUFFER[1:2].tolist(), None)]


def test_positions_go_up_to_the_last_that_the_wire_can_carry() -> None:
    far = (1 << 32) - 1
    made = StepOutputs(Roster(("A", "B")), np.array([0, far], "<u4"), None, BUFFER[:2], {})
    assert [(start, end) for start, end, _ in made.split(copy=False).values()] == [(0, 1), (far, far + 1)]


def test_any_id_and_errors_survive() -> None:
    made = sent(outputs(ids=("A\0B", "", "C"), errors={"": "failed"}))
    assert [(name, each.error) for name, each in made.items()] == [
        ("A\0B", None),
        ("", "failed"),
        ("C", None),
    ]


def test_rows_in_memory_of_the_transport_are_copied() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(outputs(), protocol=5, buffer_callback=buffers.append)
    shared = bytes(buffers[0].raw())
    for received in (pickle.loads(data, buffers=[shared]), sent(outputs())):
        assert read(received) == EXPECTED
        assert received["A"].rows.flags.writeable


NUM_REQUESTS, NUM_STEPS = 256, 200
ROW = (48, 8)


def decode_step(step: int, num_requests: int = NUM_REQUESTS) -> StepOutputs:
    """One row for each request, of the step's number."""
    ids = tuple(f"r{n}" for n in range(num_requests))
    rows = np.full((num_requests, *ROW), step, np.uint8)
    return StepOutputs(Roster(ids), np.full(num_requests, step), None, rows, {})


def take_all(connector: AuxOutputSchedulerConnector, made: StepOutputs, end: int) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    for name in made:
        request: Any = SimpleNamespace(request_id=name, num_tokens=end + 1, is_finished=lambda: False)
        taken[name] = connector.take_output(request, made)
    return taken


def look_up(connector: AuxOutputSchedulerConnector, made: StepOutputs, end: int) -> dict[str, Any]:
    return {name: each.rows for name, each in made.items()}


@pytest.mark.parametrize("take", [take_all, look_up])
@pytest.mark.parametrize("through", [lambda value: value, sent], ids=["in one process", "pickled"])
@pytest.mark.parametrize(("first", "excess"), [(0, 0), (50, NUM_REQUESTS)])
def test_rows_of_one_request_do_not_keep_those_of_the_others(
    through: Any, take: Any, first: int, excess: int
) -> None:
    """Where a request begins to keep rows later, ``excess`` rows of one step may be held once."""
    connector = AuxOutputSchedulerConnector()
    kept = []
    tracemalloc.start()
    try:
        for step in range(first + NUM_STEPS):
            rows = take(connector, through(decode_step(step)), step + 1)["r7"]
            if step >= first:
                kept.append(rows)
            del rows
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert [rows.ravel()[[0, -1]].tolist() for rows in kept] == [[n, n] for n in range(first, step + 1)]
    of_rows = NUM_STEPS * kept[0].nbytes
    objects = NUM_STEPS * 250  # an array without its rows, and its place in the list
    assert of_rows <= held < 2 * of_rows + objects + excess * kept[0].nbytes


def test_rows_that_nobody_keeps_are_views_of_their_step() -> None:
    connector = AuxOutputSchedulerConnector()
    take_all(connector, decode_step(0), 1)
    for step in range(1, 4):
        made = decode_step(step)
        assert all(
            np.shares_memory(rows, made._buffer) for rows in take_all(connector, made, step + 1).values()
        )
        del made
    kept = take_all(connector, decode_step(4), 5)["r0"]
    for step in range(5, 8):
        made = decode_step(step)
        assert not any(
            np.shares_memory(r, made._buffer) for r in take_all(connector, made, step + 1).values()
        )
    assert kept.base.shape[0] == NUM_REQUESTS


def test_only_rows_much_smaller_than_their_step_are_copied() -> None:
    def made(*lengths: int) -> StepOutputs:
        ends = np.cumsum(lengths)
        ids = tuple(str(n) for n in range(len(lengths)))
        ranges = ends - lengths, ends
        return StepOutputs(Roster(ids), np.zeros(len(ids)), ranges, np.zeros((int(ends[-1]), 2, 2), "u2"), {})

    def shared(outputs: StepOutputs) -> list[bool]:
        return [np.shares_memory(each.rows, outputs._buffer) for each in outputs.values()]

    assert shared(made(8192)) == [True]
    assert shared(made(5, 3)) == [True, False]
    assert shared(made(4, 4)) == [True, True]
    assert shared(made(3, 3, 3)) == [False] * 3
    assert shared(decode_step(0, 1)) == [True]
    assert shared(decode_step(0, 3)) == [False] * 3


def test_what_is_cut_off_is_not_kept() -> None:
    made = StepOutputs(Roster(("A",)), np.array([0]), (np.array([0]), np.array([6])), BUFFER, {})
    connector = AuxOutputSchedulerConnector()
    for accepted, is_copied in ((6, False), (3, False), (2, True), (0, True)):
        rows = take_all(connector, made, accepted)["A"]
        assert rows.tolist() == BUFFER[:accepted].tolist()
        assert (rows.base is None) == is_copied


WAYS = [lambda value: value] + [
    lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol)) for protocol in range(6)
]


@pytest.mark.parametrize("take", [take_all, look_up])
@pytest.mark.parametrize("through", WAYS)
def test_rows_can_be_written_without_changing_others(through: Any, take: Any) -> None:
    connector = AuxOutputSchedulerConnector()
    core = WorkerCore(block_size=2, shape_per_token=(2, 2), dtype="uint8", max_objects=8)
    hashes = {name: PackedBlockHashes(name.encode(), 1) for name in "ABC"}
    core.begin_step(AuxOutputConnectorMetadata(0, dict.fromkeys("ABC", 0), hashes, ()))
    first = core.prepare_output("ABC", [0, 0, 0], [0, 2, 4, 6], np.full((6, 2, 2), 1, np.uint8))
    core.process_output(first, [0, 0, 0], [0, 0, 0])
    # The first two rows are read back from the store.
    core.begin_step(AuxOutputConnectorMetadata(0, dict.fromkeys("ABC", 0), {}, ()))
    second = core.prepare_output("ABC", [2, 2, 2], [0, 1, 2, 3], np.full((3, 2, 2), 2, np.uint8))
    outputs = through(core.process_output(second, [1, 1, 1], [0, 0, 0]))
    for taken in take(connector, outputs, 3).values():
        assert taken[:, 0, 0].tolist() == [1, 1, 2]
        assert taken.flags.writeable
        taken[:] = 9
    core.begin_step(AuxOutputConnectorMetadata(0, {"D": 0}, {"D": PackedBlockHashes(b"A", 1)}, ()))
    third = core.prepare_output("D", [2], [0, 1], np.full((1, 2, 2), 3, np.uint8))
    assert core.process_output(third, [1], [0])["D"].rows[:, 0, 0].tolist() == [1, 1, 3]
