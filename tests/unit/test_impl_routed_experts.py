"""Capture layouts: the shipped vectors, and what self checks find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auxout import routed_experts
from auxout.routed_experts import Batch, Slice

VECTORS = routed_experts.vectors()


def cases(group: str) -> Any:
    return pytest.mark.parametrize("case", VECTORS[group], ids=lambda case: str(case.get("name", case)))


def batch(case: dict[str, Any]) -> Batch:
    return Batch(case.get("dp"), case.get("dp_rank", 0), case.get("tp", 1), case.get("shards"))


@cases("locate")
def test_locate(case: dict[str, Any]) -> None:
    if case.get("refuse"):
        with pytest.raises(ValueError, match=f"ids of {case['num_ids']} tokens"):
            routed_experts.locate(case["num_ids"], batch(case))
        return
    expected = Slice(case["start"], case["stop"], case.get("gather", False))
    assert routed_experts.locate(case["num_ids"], batch(case)) == expected


@cases("row_dtype")
def test_row_dtype(case: dict[str, Any]) -> None:
    if case.get("refuse"):
        with pytest.raises(ValueError, match="routed experts"):
            routed_experts.row_dtype(case["num_experts"])
    else:
        assert routed_experts.row_dtype(case["num_experts"]) == case["dtype"]


@cases("logical_ids")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_logical_ids(case: dict[str, Any], kind: str) -> None:
    make: Any = np.array if kind == "numpy" else pytest.importorskip("torch").tensor
    table = case.get("physical_to_logical")
    options = {
        "num_shared": case.get("num_shared", 0),
        "physical_to_logical": None if table is None else make(table),
    }
    if case.get("refuse"):
        with pytest.raises(ValueError, match="slots"):
            routed_experts.logical_ids(make(case["ids"]), case["top_k"], **options)
    else:
        ids = routed_experts.logical_ids(make(case["ids"]), case["top_k"], **options)
        assert ids.tolist() == case["logical"]


def test_a_refused_length_names_what_was_expected() -> None:
    with pytest.raises(ValueError, match=r"expects 5, 8 of all ranks, or a shard of 3, or 9 of all shards"):
        routed_experts.locate(6, Batch([3, 5], 1, 2, [5, 4]))


def good_rows() -> np.ndarray[Any, Any]:
    """Three tokens, a dense layer and two routed ones."""
    rows = np.zeros((3, 3, 2), np.int32)
    rows[:, 1], rows[:, 2] = [[0, 1], [2, 3], [1, 0]], [[7, 6], [5, 4], [0, 7]]
    return rows


def test_good_rows_have_no_fault() -> None:
    assert routed_experts.faults(good_rows(), 8, (1, 2)) == []
    assert routed_experts.faults(good_rows()[:0], 8, (1, 2)) == []


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        ((1, 2, 0), 8, "layer 2: id 8 of 8 experts in row 1"),
        ((0, 1, 1), -1, "layer 1: id -1 of 8 experts in row 0"),
        ((2, 1, 0), 0, "layer 1: an expert comes twice in row 2"),
        ((slice(None), 1), 0, "layer 1: all rows are zero; its router does not report what it chooses"),
    ],
)
def test_faults(place: Any, value: int, fault: str) -> None:
    rows = good_rows()
    rows[place] = value
    assert routed_experts.faults(rows, 8, (1, 2)) == [fault]


def test_one_choice_of_one_row_may_be_expert_zero() -> None:
    assert routed_experts.faults(np.zeros((1, 1, 1), np.int32), 8, (0,)) == []
