"""The judge of a worker: which clause a wrong answer breaks, and what the worker must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from auxout_conformance.judge import Play, play
from auxout_conformance.objects import LATER_ROW, UNKNOWN_ROW
from auxout_conformance.observation import Observation, Odd, Raised, Usage
from auxout_conformance.setups import Setup
from auxout_conformance.targets.adapter import Offer
from auxout_spec import calls
from auxout_spec.calls import Call, Halves, ProcessOutput
from auxout_spec.engine import Abort, Add, EngineConfig, Event, Land, Launch, Preempt, Reset
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import Scenario
from auxout_spec.values import Refusal, RequestOutput, Result, Row, StepOutput
from auxout_spec.worker import Limits, WorkerState

Outcome = Result | Raised | Odd
Wrong = Callable[[Any], Outcome]
Holds = Callable[[Usage], Usage]
LIMITS = Limits(2, 3)


class Liar:
    """A worker that answers as the spec does and holds what it should, but for one call.

    ``at`` counts the worker's calls of an event that is announced.
    """

    offer = Offer(scheduler=False, worker=True)

    def __init__(self) -> None:
        self.at = -1
        self.wrong: Wrong = lambda right: right
        self.holds: Holds = lambda usage: usage

    def new(self, setup: Setup) -> None:
        self._state = Halves()

    def call(self, call: Call) -> Observation:
        self._state, right = calls.apply(PROFILES["0.32"], LIMITS, self._state, call)
        self.at -= 1
        usage = usage_of(self._state.worker)
        if self.at == -1:
            return Observation(self.wrong(right), usage=self.holds(usage))
        return Observation(accepted(right), usage=usage)


def usage_of(worker: WorkerState) -> Usage:
    requests = [request for _, request in worker.requests]
    rows = sum(len(each.tail) + sum(len(rows) for _, rows in each.pending) for each in requests)
    references = sum(count for _, count in worker.store.references)
    return Usage(len(requests), len(worker.in_flight), references, len(worker.store.objects), rows)


def accepted(right: Result) -> Outcome:
    """The right answer as a worker gives it."""
    return Raised("ValueError", "no", True) if isinstance(right, Refusal) else right


def named(events: tuple[Event, ...], call: int, wrong: Wrong = accepted, holds: Holds | None = None) -> str:
    """The clause that the judge names when a worker's call of the last event goes wrong; empty if none."""
    liar = Liar()
    running = Play.start(liar, EngineConfig(PROFILES["0.32"], 2, 2, limits=LIMITS))
    for event in events[:-1]:
        assert running.event(event) is None
    liar.at, liar.wrong = call, wrong
    liar.holds = holds or liar.holds
    failure = running.event(events[-1])
    return failure.clause if failure else ""


# Wrong answers, as functions of the right one.


def rows(change: Callable[[tuple[Row, ...]], tuple[Row, ...]]) -> Wrong:
    """Other rows for each request."""

    def wrong(right: StepOutput) -> StepOutput:
        return StepOutput(
            tuple((name, RequestOutput(own.token_start, change(own.rows))) for name, own in right.outputs)
        )

    return wrong


def each(**fields: Any) -> Wrong:
    return rows(lambda right: tuple(row._replace(**fields) for row in right))


def shifted(by: int) -> Wrong:
    return rows(lambda right: tuple(row._replace(position=row.position + by) for row in right))


def replaced(row: Row) -> Wrong:
    return rows(lambda right: (row,) * len(right))


FIRST_SHIFTED = rows(lambda right: (right[0]._replace(position=right[0].position + 2), *right[1:]))
REFUSED: Wrong = lambda right: Raised("AssertionError", "no", True)  # noqa: E731
CRASH: Wrong = lambda right: Raised("KeyError", "'A'", False)  # noqa: E731
ODD: Wrong = lambda right: Odd("something else")  # noqa: E731
NO_OUTPUT: Wrong = lambda right: StepOutput(())  # noqa: E731
ONE_MORE: Wrong = lambda right: StepOutput((*right.outputs, ("X", RequestOutput(0, ()))))  # noqa: E731

# Beginnings of scenarios. Blocks are two tokens, two steps may be in flight, the store holds three blocks.
A3 = (Add("A", 3, max_tokens=4), Launch((("A", 3),)))
A3_LANDED = (*A3, Land())
DECODE = Launch((("A", 1),))
ENDED = (*A3, Abort("A"), Launch())
HIT = (Add("A", 3, max_tokens=1, text="T"), Launch((("A", 3),)), Land(), Add("B", 3, text="T"))
"""B's first block is resident and stored."""
AGAIN = (
    Add("A", 3, max_tokens=1, text="T"), Launch((("A", 3),)), Land(), Launch(), Reset(),
    Add("B", 3, max_tokens=1, text="T"), Launch((("B", 3),)), Land(),
)  # fmt: skip
"""One block in two generations."""
DRAFTED = (Add("A", 1, max_tokens=9), DECODE, Land(), Launch((("A", 3),), (("A", 2),)))
"""Two drafts in flight."""
REJECTED = (
    Add("A", 1, max_tokens=9), Add("B", 1, max_tokens=9), Launch((("A", 1), ("B", 1))), Land(),
    Launch((("A", 3),), (("A", 2),)),
)  # fmt: skip
"""Two drafts of A in flight, none of which is accepted."""


class Line(NamedTuple):
    """One line of the table below."""

    clause: str
    wrong: Wrong
    events: tuple[Event, ...]
    call: int = 0


TABLE = (
    # Calls that are in order and refused.
    Line("WORK-ACCEPT-1", REFUSED, A3),
    Line("WORK-ACCEPT-1", CRASH, A3),
    Line("WORK-ACCEPT-1", ODD, A3),
    Line("WORK-ACCEPT-1", REFUSED, A3, 1),
    Line("WORK-ACCEPT-1", REFUSED, A3_LANDED),
    Line("WORK-BEGIN-2", REFUSED, (Reset(), Launch())),
    Line("WORK-TEAR-1", REFUSED, ENDED),
    Line("WORK-TEAR-1", REFUSED, (*ENDED, Land())),
    Line("WORK-EMIT-3", REFUSED, (*HIT, Launch((("B", 1),)), Land())),
    # Outputs.
    Line("WORK-EMIT-1", NO_OUTPUT, A3_LANDED),
    Line("WORK-EMIT-1", ONE_MORE, A3_LANDED),
    Line("WORK-EMIT-1", rows(lambda right: right[:-1]), A3_LANDED),
    Line("WORK-EMIT-1", rows(lambda right: ()), A3_LANDED),
    Line("WORK-EMIT-4", replaced(UNKNOWN_ROW), A3_LANDED),
    Line("WORK-STEP-3", replaced(LATER_ROW), A3_LANDED),
    Line("STORE-READ-2", each(generation=1), A3_LANDED),
    Line("ROW-EXACT-2", each(text="T"), A3_LANDED),
    Line("ROW-EXACT-1", shifted(1), A3_LANDED),
    Line("WORK-KEYS-1", shifted(2), (*HIT, Launch((("B", 1),)), Land())),
    Line("ROW-EXACT-1", FIRST_SHIFTED, (*HIT, Launch((("B", 1),)), Land())),
    Line(
        "WORK-CAPTURE-3",
        REFUSED,
        (*REJECTED, Launch((("B", 1), ("A", 1))), Land(), Abort("B"), Launch(), Land()),
    ),
    Line("WORK-CAPTURE-1", rows(lambda right: (*right, Row("A", 2, 0, 1, "A"))), (*DRAFTED, Land())),
)


@pytest.mark.parametrize("line", TABLE, ids=lambda line: line.clause)
def test_a_wrong_answer_has_its_clause(line: Line) -> None:
    assert named(line.events, line.call) == ""
    assert named(line.events, line.call, line.wrong) == line.clause


@pytest.mark.parametrize(
    ("clause", "field", "by", "events", "call"),
    [
        ("WORK-STEP-1", "steps_in_flight", 1, A3_LANDED, 0),
        ("WORK-STEP-1", "steps_in_flight", -1, A3, 1),
        ("WORK-TEAR-2", "requests", 1, (*A3_LANDED, Abort("A"), Launch()), 0),
        ("WORK-TEAR-1", "requests", -1, A3, 0),
        ("STORE-REF-1", "references", 1, (*A3_LANDED, Abort("A"), Launch()), 0),
        ("STORE-PUT-4", "references", -1, A3, 0),
        ("STORE-PUT-2", "objects", 3, A3_LANDED, 0),
        ("WORK-PUBLISH-1", "objects", 1, A3, 0),
        ("WORK-PUBLISH-1", "objects", -1, A3_LANDED, 0),
        ("STORE-READ-2", "objects", -1, AGAIN, 0),
        ("WORK-PUBLISH-1", "objects", -2, AGAIN, 0),
        ("WORK-PUBLISH-1", "objects", 1, AGAIN, 0),
        ("WORK-TEAR-2", "buffered_rows", 1, (*A3_LANDED, Abort("A"), Launch()), 0),
    ],
)
def test_holding_something_else_has_its_clause(
    clause: str, field: str, by: int, events: tuple[Event, ...], call: int
) -> None:
    assert (
        named(events, call, holds=lambda usage: usage._replace(**{field: getattr(usage, field) + by}))
        == clause
    )


@pytest.mark.parametrize("leave", [Abort("A"), Preempt("A")])
def test_an_end_is_to_blame_only_where_all_is_well_without_it(leave: Event) -> None:
    """This worker processes no step at all, whoever ended."""

    class Refuses(Liar):
        def call(self, call: Call) -> Observation:
            seen = super().call(call)
            return Observation(REFUSED(None)) if isinstance(call, ProcessOutput) else seen

    scenario = Scenario((*A3, leave, Launch(), Land()), store=LIMITS.capacity)
    _, failure = play(Refuses(), scenario, PROFILES["0.32"])
    assert failure is not None
    assert failure.clause == "WORK-ACCEPT-1"


def test_rows_may_be_kept_as_an_implementation_likes_while_a_request_lives() -> None:
    assert named(A3_LANDED, 0, holds=lambda usage: usage._replace(buffered_rows=7)) == ""
