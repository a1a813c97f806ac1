"""What a worker is shown of a corruption, value by value; beside it everything stays as it was."""

from __future__ import annotations

import pytest

from auxout_spec.calls import ProcessOutput
from auxout_spec.engine import EngineState, Impossible, Tamper, initial
from auxout_spec.engine.state import Entry
from auxout_spec.engine.tampering import (
    NOBODY,
    REPORT_KINDS,
    captured_whole,
    tampered_batches,
    tampered_entries,
    tampered_metadata,
    tampered_reports,
)
from auxout_spec.values import Metadata, Row
from auxout_spec.worker import Part, WorkerRequest, WorkerState

H = bytes(range(32))
METADATA = Metadata(3, (("A", 5), ("B", 7)), (("C", (H,)),), ("D",))
BATCH = (("A", 5, 1), ("B", 7, 2))


def corrupted(*events: Tamper) -> EngineState:
    return initial()._replace(tampered=events)


def part(name: str, start: int, rejected: int = 0) -> Part:
    return Part(name, start, tuple(Row(name, at, 0, 0) for at in (start, start + 1)), 1, rejected)


FLYING = ((part("A", 5), part("B", 7)), (part("A", 7),), (part("B", 9),))


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (Tamper("old_generation", "A", 2), METADATA._replace(generation=1)),
        (Tamper("new_generation", "A", 2), METADATA._replace(generation=5)),
        (Tamper("run_and_end", "A"), METADATA._replace(finished_requests=("D", "A"))),
        (Tamper("late_start", "A", 2), METADATA._replace(requests=(("A", 7), ("B", 7)))),
        (Tamper("unknown_end", "A"), METADATA._replace(finished_requests=("D", NOBODY))),
        (Tamper("unknown_hashes", "A"), METADATA._replace(block_hashes=(("C", (H,)), (NOBODY, (bytes(32),))))),
        (Tamper("old_generation", "A", 0), None),
        (Tamper("old_generation", "A", -1), None),
        (Tamper("new_generation", "A", 0), None),
        (Tamper("new_generation", "A", -1), None),
        (Tamper("run_and_end", "D"), None),
        (Tamper("unknown_batch", "A"), None),
        (Tamper("reject_more", "A", 1), None),
    ],
)  # fmt: skip
def test_metadata(event: Tamper, shown: Metadata | None) -> None:
    assert list(tampered_metadata(corrupted(event), METADATA)) == ([] if shown is None else [shown])


def test_batches() -> None:
    assert list(tampered_batches(corrupted(Tamper("unknown_batch", "A")), BATCH)) == [
        (*BATCH, (NOBODY, 0, 1))
    ]
    assert list(tampered_batches(corrupted(Tamper("unknown_end", "A", 1)), BATCH)) == []


def entry(name: str, skipped: int = 0) -> Entry:
    return Entry(name, 6, 2, 0, True, 0, 0, skipped=skipped)


CAPTURED = WorkerRequest(4, capture_cursor=6, scheduled_cursor=6)


def knowing(*events: Tamper, **known: object) -> EngineState:
    """An engine whose worker knows A, as CAPTURED but for some fields."""
    requests = (("A", CAPTURED._replace(**known)),)
    return corrupted(*events)._replace(worker=WorkerState(requests=requests))


@pytest.mark.parametrize(
    ("event", "skipped"),
    [
        (Tamper("skip_ahead", "A", 1), (1, 0)),
        (Tamper("skip_ahead", "A", 3), (3, 0)),
        (Tamper("unknown_batch", "A", 1), (0, 0)),
    ],
)
def test_entries(event: Tamper, skipped: tuple[int, int]) -> None:
    shown = tampered_entries(knowing(event), (entry("A"), entry("B")))
    assert shown == (entry("A", skipped[0]), entry("B", skipped[1]))
    assert [each.reported_start for each in shown] == [6 + each for each in skipped]


@pytest.mark.parametrize(
    ("known", "whole"),
    [
        ({}, True),
        ({"capture_cursor": 7}, True),
        ({"capture_cursor": 0, "scheduled_cursor": 0}, True),
        ({"capture_cursor": 5}, False),
        ({"capture_cursor": -1, "scheduled_cursor": 0}, False),
        ({"num_in_flight": 1}, False),
        ({"finished": True}, False),
    ],
)
def test_whose_gap_is_noticed(known: dict[str, object], whole: bool) -> None:
    assert captured_whole(knowing(**known), "A") is whole


def test_a_gap_is_not_noticed_of_somebody_unknown_or_forgotten() -> None:
    assert not captured_whole(knowing(), "B")
    later = initial().connector._replace(generation=1)
    assert not captured_whole(knowing()._replace(connector=later), "A")


@pytest.mark.parametrize(
    ("event", "names"),
    [
        (Tamper("skip_ahead", "A"), "AB"),
        (Tamper("skip_ahead", "B", 1), "AB"),
        (Tamper("skip_ahead", "A", 1), "B"),
        (Tamper("skip_ahead", "A", 1), ""),
    ],
)
def test_a_gap_that_nobody_notices(event: Tamper, names: str) -> None:
    with pytest.raises(Impossible, match=r"^ENV-TAMPER-1: the worker does not notice what is skipped of"):
        tampered_entries(knowing(event), tuple(map(entry, names)))


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (Tamper("reject_more", "A", 1), ProcessOutput((part("A", 5, 3), part("B", 7)))),
        (Tamper("other_step", "A"), ProcessOutput((part("A", 7),), 1)),
        (Tamper("reject_more", "A", 0), None),
        (Tamper("reject_more", "A", -1), None),
        (Tamper("late_start", "A", 1), None),
    ],
)
def test_reports(event: Tamper, shown: ProcessOutput | None) -> None:
    assert list(tampered_reports(corrupted(event), FLYING)) == ([] if shown is None else [shown])


@pytest.mark.parametrize("kind", REPORT_KINDS)
def test_a_step_alone_is_not_another_one(kind: str) -> None:
    event = Tamper(kind, "B", 1)  # type: ignore[arg-type]
    shown = list(tampered_reports(corrupted(event), FLYING[:1]))
    assert shown == ([ProcessOutput((part("A", 5), part("B", 7, 3)))] if kind == "reject_more" else [])
