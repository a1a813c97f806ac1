"""A step's outputs read like a dictionary, before and after pickling."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from auxout import AuxRequestOutput
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
    assert [(start, end) for start, end, _ in made.parts.values()] == [(0, 1), (far, far + 1)]


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
