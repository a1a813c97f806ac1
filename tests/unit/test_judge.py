"""The judge: which clause a wrong answer breaks, and how calls and answers read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from auxout_conformance import runner
from auxout_conformance.hosts import InProcess
from auxout_conformance.judge import Failure, Play, describe_call, describe_outcome, play
from auxout_conformance.judge.play import blamed
from auxout_conformance.observation import Observation, Odd, Raised
from auxout_conformance.setups import Setup
from auxout_conformance.targets import resolve
from auxout_conformance.targets.adapter import Offer
from auxout_spec import calls
from auxout_spec.calls import (
    BuildConnectorMeta,
    Call,
    Close,
    Halves,
    RequestFinished,
    Reset,
    TakeOutput,
    Unpack,
)
from auxout_spec.deviations import Deviation
from auxout_spec.engine import (
    Abort,
    Add,
    Chunk,
    EngineConfig,
    Event,
    Impossible,
    Land,
    Launch,
    Pause,
    Preempt,
    Tamper,
)
from auxout_spec.engine import Reset as ResetEvent
from auxout_spec.engine import Unpack as UnpackEvent
from auxout_spec.engine.state import block_hash
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import Scenario
from auxout_spec.values import (
    Hashes,
    Metadata,
    Refusal,
    RequestView,
    Result,
    Row,
    Rows,
    StepOutput,
)
from auxout_spec.worker import Limits

Outcome = Result | Raised | Odd
Wrong = Callable[[Any], Outcome]


def h(number: int, name: str = "A", block_size: int = 2) -> bytes:
    """Block hash ``number`` of a request's own text."""
    return block_hash(((name, (number + 1) * block_size),))


class Liar:
    """Answers as the spec does; the call number ``at`` of an event that is announced gets another answer."""

    offer = Offer(scheduler=True, worker=False)

    def __init__(self) -> None:
        self.at = -1
        self.wrong: Wrong = lambda right: right

    def new(self, setup: Setup) -> None:
        self._profile, self._state = PROFILES[setup.profile], Halves()

    def call(self, call: Call) -> Observation:
        self._state, right = calls.apply(self._profile, None, self._state, call)
        self.at -= 1
        if self.at == -1:
            return Observation(self.wrong(right))
        refusal = Raised("AssertionError", right.message, True) if isinstance(right, Refusal) else right
        return Observation(refusal)


def named(wrong: Wrong, *events: Event, call: int = 0, profile: str = "0.32", depth: int = 2) -> str:
    """The clause that the judge names when a call of the last event is answered wrongly; empty if none."""
    liar = Liar()
    running = Play.start(liar, EngineConfig(PROFILES[profile], 2, depth))
    for event in events[:-1]:
        assert running.event(event) is None
    liar.at, liar.wrong = call, wrong
    failure = running.event(events[-1])
    return failure.clause if failure else ""


# Wrong answers, as functions of the right one.


def changed(**fields: Any) -> Wrong:
    def change(right: Metadata) -> Metadata:
        assert isinstance(right, Metadata)
        return right._replace(**fields)

    return change


def finished(*names: str) -> Wrong:
    return changed(finished_requests=names)


def hashes(**entries: tuple[bytes, ...]) -> Wrong:
    return changed(block_hashes=tuple(entries.items()))


def starts(**entries: int) -> Wrong:
    return changed(requests=tuple(entries.items()))


def answer(outcome: Outcome) -> Wrong:
    return lambda right: outcome


def rows(*numbers: int) -> Wrong:
    """Some rows of A's own text in generation 0, all of its first step."""
    return answer(Rows(tuple(Row("A", number, 0, 0, "A") for number in numbers)))


CRASH = answer(Raised("KeyError", "'A'", False))
REFUSED = answer(Raised("AssertionError", "no", True))
NOTHING = answer(None)
ODD = answer(Odd("something else"))
UNKNOWN = Row("<no such row>", -1, -1, -1)

# Beginnings of scenarios. Blocks are two tokens.
A4 = (Add("A", 4, max_tokens=4), Launch((("A", 4),)))
A4_LANDED = (*A4, Land())
CHUNK = Launch((("A", 2),))
TWO = (Add("A", 4, max_tokens=4), Add("B", 4, max_tokens=4))
BOTH = (*TWO, Launch((("A", 4), ("B", 4))))
PREEMPTED = (*A4_LANDED, Preempt("A"))
DECODED = (Add("A", 3, max_tokens=4), Launch((("A", 3),)), Land())
"""One hash was sent, a second is due."""
SWEPT = (*A4_LANDED, Pause(True), ResetEvent(True), Pause(False))
"""A was active when the reset came; its preemption was dropped."""
KEPT = (*A4_LANDED, ResetEvent(kept=True))
"""A was active when the reset came and keeps its KV."""
RESTART = (
    Add("A", 3, max_tokens=1),
    Launch((("A", 3),)),
    Land(),
    Add("A", 3, text="T"),
    Launch((("A", 3),)),
)
"""A ended with a hash that was not sent, and starts again in the next metadata."""
REUSED = (Add("A", 4, 3, max_tokens=1), Launch((("A", 4),)), Land(), Launch(), Add("A", 4, 5, text="T"))
"""The id's last emit start was 3; now its prompt start lies beyond its prompt."""
SHRUNK_LAUNCH = (Tamper("shrink_hashes", "A", 1), Launch())
SHRUNK_ABORT = (Tamper("shrink_hashes", "A", 1), Abort("A"))
NO_OUTPUT = (*A4, Tamper("no_output", "A"), Land())
REPLACED = (Add("A", 3, max_tokens=1, session=True), Launch((("A", 3),)), Land(), Launch(), Chunk("A", 1))
"""The next turn's token took the place of the one that had completed a block, whose hash was sent."""
REPLACED_LAUNCH = (*REPLACED, Launch((("A", 1),)))


class Line(NamedTuple):
    """One line of the table below."""

    clause: str
    wrong: Wrong
    events: tuple[Event, ...]
    call: int = 0
    profile: str = "0.32"


TABLE = (
    # Metadata: generation, requests, emit starts.
    Line("SCHED-META-4", changed(generation=1), A4),
    Line("SCHED-RESET-1", changed(generation=0), (ResetEvent(), Launch())),
    Line("SCHED-RESET-1", changed(generation=3), (ResetEvent(), ResetEvent(), Launch())),
    Line("SCHED-META-4", changed(generation=2), (ResetEvent(), Launch(), Launch())),
    Line("SCHED-META-1", starts(), A4),
    Line("SCHED-META-1", starts(A=0, B=0), A4),
    Line("SCHED-META-1", NOTHING, A4),
    Line("SCHED-ACCEPT-1", CRASH, A4),
    Line("SCHED-META-1", ODD, A4),
    Line("SCHED-ACCEPT-1", REFUSED, A4),
    Line("SCHED-META-3", CRASH, (Launch(),)),
    Line("SCHED-META-2", starts(B=0, A=0), BOTH),
    Line("SCHED-EMIT-1", starts(A=1), A4),
    Line("SCHED-EMIT-2", starts(A=5), (*A4_LANDED, Launch((("A", 1),)))),
    Line("SCHED-EMIT-5", starts(A=0), (*A4_LANDED, Launch((("A", 1),)))),
    Line("SCHED-EMIT-3", starts(A=4), (Add("A", 4, 6), Launch((("A", 4),))), 0, "0.31"),
    Line("SCHED-EMIT-4", starts(A=6), (Add("A", 4, 6), Launch((("A", 4),)))),
    Line("SCHED-EMIT-4", starts(A=5), (*REUSED, Launch((("A", 4),)))),
    Line("SCHED-EMIT-5", starts(A=3), (*REUSED, Launch((("A", 4),)))),
    Line("SCHED-EMIT-3", starts(A=4), (*REUSED, Launch((("A", 4),))), 0, "0.31"),
    # Terminal events.
    Line("SCHED-TERM-1", finished(), (*BOTH, Abort("A"), Land(), Launch((("B", 1),)))),
    Line("SCHED-META-3", finished(), (*A4, Abort("A"), Launch())),
    Line("SCHED-TERM-7", finished(), (*BOTH, Land(), Preempt("A"), Launch((("B", 1),)))),
    Line("SCHED-RESTART-1", finished(), RESTART),
    Line("SCHED-RESTART-1", CRASH, RESTART),
    Line("SCHED-TERM-4", finished("A", "A"), (*A4, Abort("A"), Launch())),
    Line("SCHED-RESET-3", finished("A"), (*SWEPT, Launch())),
    Line("SCHED-RESET-4", finished("A"), (*KEPT, Abort("A"), Launch())),
    Line("SCHED-TERM-2", finished("A"), (*PREEMPTED, Launch(), Launch())),
    Line("SCHED-TERM-2", finished("A"), (*A4_LANDED, Launch((("A", 1),)))),
    Line("SCHED-TERM-3", finished("A"), (Add("A", 4), Abort("A"), Launch())),
    Line("SCHED-TERM-6", finished("B", "A"), (*BOTH, Abort("A"), Abort("B"), Launch())),
    # Hashes.
    Line("SCHED-HASH-1", hashes(), A4),
    Line("SCHED-HASH-1", hashes(A=(h(0),)), A4),
    Line("SCHED-HASH-1", hashes(A=(h(0), b"x")), A4),
    Line("SCHED-HASH-2", hashes(A=(h(0), h(1), h(1))), A4),
    Line("SCHED-HASH-2", hashes(A=(h(0), h(1))), (*DECODED, Launch((("A", 1),)))),
    Line("SCHED-HASH-2", hashes(A=(h(0), h(1))), (*DECODED, Abort("A"), Launch())),
    Line("SCHED-HASH-3", hashes(), (*DECODED, Launch((("A", 1),)))),
    Line("SCHED-HASH-3", hashes(A=(b"x",)), (*DECODED, Launch((("A", 1),)))),
    Line("SCHED-HASH-4", hashes(A=(h(1), h(0))), A4),
    Line("SCHED-HASH-5", hashes(A=()), (Add("A", 1), Launch((("A", 1),)))),
    Line("SCHED-HASH-6", hashes(), (*DECODED, Launch())),
    Line("SCHED-HASH-7", hashes(A=(h(0), h(1))), (Add("A", 4), Launch())),
    Line("SCHED-HASH-7", hashes(X=(h(0),)), (Launch(),)),
    Line("SCHED-HASH-11", hashes(), (*PREEMPTED, Launch(), Launch((("A", 1),)))),
    Line("SCHED-TERM-5", hashes(), (*DECODED, Abort("A"), Launch())),
    Line("SCHED-TERM-9", hashes(A=(h(0),)), (*PREEMPTED, Launch(), Launch())),
    Line("SCHED-RESTART-2", hashes(A=(h(1),)), RESTART),
    Line("SCHED-RESTART-2", hashes(), RESTART),
    Line("SCHED-RESTART-3", changed(finished_block_hashes=()), RESTART),
    Line("SCHED-RESTART-3", changed(finished_block_hashes=(("A", (h(0),)),)), A4),
    # Resets.
    Line("SCHED-ACCEPT-1", CRASH, (ResetEvent(),)),
    Line("SCHED-ACCEPT-1", REFUSED, (ResetEvent(),)),
    Line("SCHED-RESET-2", hashes(), (*KEPT, Launch((("A", 1),)))),
    Line("SCHED-RESET-2", hashes(), (*SWEPT, Launch((("A", 5),)))),
    Line("SCHED-RESET-3", hashes(A=(h(1),)), (*SWEPT, Launch())),
    Line("SCHED-RESET-4", hashes(A=(h(1),)), (*KEPT, Launch())),
    # Rows. The first step computed positions 0 to 3.
    Line("SCHED-TAKE-3", rows(0, 1, 2), A4_LANDED),
    Line("SCHED-TAKE-3", rows(0, 2, 1, 3), A4_LANDED),
    Line("SCHED-TAKE-3", NOTHING, A4_LANDED),
    Line("SCHED-ACCEPT-1", CRASH, A4_LANDED),
    Line("SCHED-TAKE-4", NOTHING, (Add("A", 4, 4), Launch((("A", 4),)), Land())),
    Line("SCHED-TAKE-4", ODD, (Add("A", 4, 4), Launch((("A", 4),)), Land())),
    Line("SCHED-TAKE-5", rows(), (*A4, Tamper("shift_start", "A", 9), Land())),
    Line("SCHED-TAKE-5", REFUSED, (*A4, Tamper("shift_start", "A", 9), Land())),
    Line("SCHED-TAKE-8", rows(0, 1, 2, 3), (*A4, Tamper("shift_start", "A", 1), Land())),
    Line("SCHED-TAKE-9", answer(Rows((UNKNOWN,) * 4)), A4_LANDED),
    Line("SCHED-TAKE-11", answer(Rows((Row("B", 0, 0, 0, "B"),) * 4)), (*BOTH, Land())),
    Line("SCHED-TAKE-12", NOTHING, (*A4, Preempt("A"), Land())),
    Line("SCHED-TAKE-12", rows(), (*A4, Preempt("A"), Land())),
    Line("SCHED-TAKE-3", rows(0), (*A4, Preempt("A"), Land())),
    # Ends.
    Line("SCHED-ACCEPT-1", REFUSED, (*A4, Abort("A"))),
    Line("SCHED-ACCEPT-1", REFUSED, (*A4, Preempt("A"))),
    Line("SCHED-TERM-4", CRASH, (*PREEMPTED, Abort("A"))),
    Line("SCHED-TERM-3", CRASH, (Add("A", 4), Abort("A"))),
    Line("SCHED-TERM-3", ODD, (Add("A", 4), Abort("A"))),
    # What must be refused: answered, or broken by another exception.
    Line("SCHED-HASH-8", answer(Metadata(0, (), (), ())), (*A4, *SHRUNK_LAUNCH)),
    Line("SCHED-REFUSE-1", CRASH, (*A4, *SHRUNK_LAUNCH)),
    Line("SCHED-TERM-8", NOTHING, (*A4, *SHRUNK_ABORT)),
    Line("SCHED-REFUSE-1", CRASH, (*A4, *SHRUNK_ABORT)),
    Line("SCHED-HASH-9", NOTHING, REPLACED_LAUNCH),
    Line("SCHED-HASH-9", REFUSED, REPLACED_LAUNCH),
    Line("SCHED-HASH-9", REFUSED, (*REPLACED, Abort("A"))),
    Line("SCHED-HASH-12", answer(Metadata(0, (("A", 0),), (), ())), REPLACED_LAUNCH),
    Line("SCHED-HASH-10", NOTHING, (Add("A", 4), Tamper("mix_lengths", "A", 1), Launch((("A", 4),)))),
    Line("SCHED-TAKE-1", NOTHING, NO_OUTPUT),
    Line("SCHED-REFUSE-1", CRASH, NO_OUTPUT),
    Line("SCHED-TAKE-2", rows(), (*A4, Tamper("no_entry", "A"), Land())),
    Line("SCHED-TAKE-7", rows(0, 1, 2), (*A4, Tamper("cut_rows", "A", 1), Land())),
    Line("WIRE-HASH-2", answer(Hashes(())), (UnpackEvent(b"ab", -1),)),
    Line("WIRE-HASH-2", answer(Raised("ZeroDivisionError", "", False)), (UnpackEvent(b"ab", 0),)),
    Line("WIRE-HASH-3", answer(Hashes((b"ab", b"c"))), (UnpackEvent(b"abc", 2),)),
    # After a refusal everything that goes wrong may come from it.
    Line("SCHED-REFUSE-3", hashes(), (*DECODED, Tamper("shrink_hashes", "A", 0), Launch(), Launch())),
    Line("SCHED-REFUSE-3", CRASH, (*A4, *SHRUNK_LAUNCH, Launch())),
    Line("SCHED-REFUSE-4", finished(), (*A4, *SHRUNK_ABORT, Abort("A"), Launch())),
    Line("SCHED-REFUSE-4", CRASH, (*A4, *SHRUNK_ABORT, Abort("A"))),
    Line("SCHED-REFUSE-5", hashes(A=(h(0),)), (*NO_OUTPUT, Launch((("A", 1),)))),
    # Packed values.
    Line("WIRE-HASH-1", answer(Hashes((b"ab",))), (UnpackEvent(b"abcd", 2),)),
    Line("WIRE-HASH-1", CRASH, (UnpackEvent(b"abcd", 2),)),
    Line("WIRE-HASH-1", answer(Hashes(())), (UnpackEvent(b"ab", 2),)),
    Line("WIRE-HASH-4", answer(Hashes((b"",))), (UnpackEvent(b"", 2),)),
    Line("WIRE-HASH-4", REFUSED, (UnpackEvent(b"", 2),)),
)


@pytest.mark.parametrize("line", TABLE, ids=lambda line: line.clause)
def test_a_wrong_answer_has_its_clause(line: Line) -> None:
    assert named(line.wrong, *line.events, call=line.call, profile=line.profile) == line.clause
    assert named(accepted, *line.events, call=line.call, profile=line.profile) == ""


def accepted(right: Result) -> Outcome:
    """The right answer as a connector gives it."""
    return Raised("ValueError", "no", True) if isinstance(right, Refusal) else right


def test_the_order_of_hash_entries_means_nothing() -> None:
    other = hashes(B=(h(0, "B"), h(1, "B")), A=(h(0), h(1)))
    assert named(other, *BOTH) == ""


def test_the_second_call_of_an_event_can_be_the_wrong_one() -> None:
    ends = (Add("A", 4, max_tokens=1), Launch((("A", 4),)), Land())
    assert named(REFUSED, *ends, call=1) == "SCHED-ACCEPT-1"
    assert named(NOTHING, *BOTH, Land(), call=1) == "SCHED-TAKE-3"


@pytest.mark.parametrize(
    ("end", "clause"),
    [(Preempt("A"), "SCHED-TERM-7"), (Abort("A"), "SCHED-TERM-1")],
    ids=["preempt", "abort"],
)
def test_an_event_that_never_comes_is_not_blamed_on_the_empty_step(end: Event, clause: str) -> None:
    class Forgetful(Liar):
        """Forgets every terminal event, whatever the step."""

        def call(self, call: Call) -> Observation:
            seen = super().call(call)
            if isinstance(seen.outcome, Metadata):
                return Observation(seen.outcome._replace(finished_requests=()))
            return seen

    class Skipping(Liar):
        """Says nothing in a step without requests."""

        def call(self, call: Call) -> Observation:
            seen = super().call(call)
            if isinstance(call, calls.BuildConnectorMeta) and not call.scheduled:
                return Observation(Metadata(0, (), (), ()))
            return seen

    scenario = Scenario((*A4, end, Launch()), depth=1)
    for liar, named_clause in ((Forgetful(), clause), (Skipping(), "SCHED-META-3")):
        _, failure = play(liar, scenario, PROFILES["0.32"])
        assert failure is not None
        assert (failure.clause, failure.event) == (named_clause, 4)


def test_a_paused_engine_cannot_tell_an_empty_step_from_others() -> None:
    scenario = Scenario((*A4, Abort("A"), Pause(), Launch()))

    class Silent(Liar):
        def call(self, call: Call) -> Observation:
            seen = super().call(call)
            empty = isinstance(call, calls.BuildConnectorMeta) and not call.scheduled
            return Observation(Metadata(0, (), (), ())) if empty else seen

    _, failure = play(Silent(), scenario, PROFILES["0.32"])
    assert failure is not None
    assert failure.clause == "SCHED-META-3"


def test_notes_name_their_own_clause_once_the_answer_is_right() -> None:
    class Noting(Liar):
        def call(self, call: Call) -> Observation:
            return super().call(call)._replace(notes=(("SCHED-META-5", "it was changed"),))

    failure = Play.start(Noting(), EngineConfig()).event(Launch())
    assert failure is not None
    assert (failure.clause, failure.actual) == ("SCHED-META-5", "it was changed")
    assert failure.expected.startswith("Building it changes neither")


# Playing.


def test_play_stops_at_the_first_wrong_answer() -> None:
    bad = InProcess(resolve("known-bad:event-without-hashes"))
    scenario = Scenario((*DECODED, Abort("A"), Launch(), Launch()))
    running, failure = play(bad, scenario, PROFILES["0.32"])
    assert failure == Failure(
        "SCHED-TERM-5",
        5,
        "build_connector_meta({})",
        "generation 0, requests {}, block_hashes {A: [#1]}, finished_requests [A]",
        "generation 0, requests {}, block_hashes {}, finished_requests [A]",
    )
    assert running.num_events == 5
    assert running.num_calls == 4


def test_play_counts() -> None:
    reference = InProcess(resolve("reference"))
    running, failure = play(reference, Scenario((*A4, *SHRUNK_ABORT, Abort("A"), Launch())), PROFILES["0.32"])
    assert failure is None
    assert (running.num_events, running.num_calls, running.num_refusals) == (6, 4, 1)
    assert running.advice == []


def test_an_impossible_event_is_the_scenario_s_fault() -> None:
    reference = InProcess(resolve("reference"))
    with pytest.raises(Impossible):
        play(reference, Scenario((Land(),)), PROFILES["0.32"])


def test_with_deviations_a_play_ends_where_the_scenario_no_longer_fits() -> None:
    reference = InProcess(resolve("reference"))
    profile = PROFILES["0.32"]._replace(deviations=frozenset((Deviation.ASSERT_ONLY,)))
    running, failure = play(reference, Scenario((Launch(), Land(), Launch())), profile)
    assert failure is None
    assert running.num_events == 1


@pytest.mark.parametrize(
    ("deviations", "clause"),
    [
        ((Deviation.BUILD_NOT_ATOMIC, Deviation.UNKNOWN_REQUEST_CRASHES), ""),
        ((Deviation.BUILD_NOT_ATOMIC,), "WORK-REFUSE-1"),
    ],
)
def test_a_crash_is_accepted_where_a_release_is_known_to_crash(
    deviations: tuple[Deviation, ...], clause: str
) -> None:
    class Crashes:
        """After the refused build, B's first hashes count as sent, and the worker never hears of B but its end."""

        offer = Offer(scheduler=True, worker=True)

        def new(self, setup: Setup) -> None:
            assert setup.sizes is not None
            self._limits = Limits(setup.sizes.block_size, setup.sizes.capacity)
            self._state = Halves()

        def call(self, call: Call) -> Observation:
            self._state, right = calls.apply(judged, self._limits, self._state, call)
            if not isinstance(right, Refusal):
                return Observation(right)
            known = right.clause != "WORK-BEGIN-5"
            return Observation(Raised("AssertionError" if known else "KeyError", right.message, known))

    judged = PROFILES["0.32"]._replace(deviations=frozenset(deviations))
    events = (
        Add("A", 2),
        Launch((("A", 1),)),
        Add("B", 1),
        Tamper("shrink_hashes", "A", 0),
        Launch((("B", 1),)),
        Abort("B"),
        Launch(),
    )
    _, failure = play(Crashes(), Scenario(events, block_size=1, depth=3, store=9), judged)
    assert (failure.clause if failure else "") == clause


class WritesBehind:
    """A worker whose store writes behind: that a batch does not fit is told when it is closed, or never."""

    offer = Offer(scheduler=False, worker=True, writes_behind=True)

    def __init__(self, tells: bool) -> None:
        self._tells = tells
        self.closed = 0

    def new(self, setup: Setup) -> None:
        assert setup.sizes is not None
        self._limits = Limits(setup.sizes.block_size, setup.sizes.capacity)
        self._profile = PROFILES[setup.profile]
        self._state, self._failed = Halves(), False

    def call(self, call: Call) -> Observation:
        if isinstance(call, Close):
            self.closed += 1
            raised = Raised("BlockObjectStoreError", "publication failed", True)
            return Observation(raised if self._tells and self._failed else None)
        self._state, right = calls.apply(self._profile, self._limits, self._state, call)
        self._failed |= isinstance(right, Refusal)
        return Observation(StepOutput(()) if isinstance(right, Refusal) else right)


@pytest.mark.parametrize("tells", [True, False])
def test_a_store_that_writes_behind_must_say_that_it_failed(tells: bool) -> None:
    host = WritesBehind(tells)
    scenario = Scenario((Add("A", 4), Launch((("A", 4),)), Land()), block_size=2, depth=1, store=1)
    played, failure = play(host, scenario, PROFILES["0.32"])
    assert host.closed == 1
    assert played.over
    assert (failure.clause if failure else "") == ("" if tells else "STORE-PUT-3")
    assert failure is None or failure.call.startswith("close() after process_output(A[0, 4)")


def test_a_refusal_that_does_not_name_the_request_is_advice() -> None:
    class Terse(Liar):
        def call(self, call: Call) -> Observation:
            seen = super().call(call)
            if isinstance(seen.outcome, Raised):
                return Observation(seen.outcome._replace(message="no"))
            return seen

    running, failure = play(Terse(), Scenario((*A4, *SHRUNK_ABORT)), PROFILES["0.32"])
    assert failure is None
    assert running.advice == [("SCHED-REFUSE-2", "request_finished(A) was refused with 'no'")]


@pytest.mark.parametrize("target", ["reference", "impl"])
@pytest.mark.parametrize("then", [(), (Land(),), (Tamper("cut_rows", "A", 1), Land())])
def test_who_looks_where_a_release_does_not_is_right(target: str, then: tuple[Event, ...]) -> None:
    """And the example is over: the engine of the release goes on, this one's does not."""
    unlooking = PROFILES["0.31"]._replace(deviations=frozenset((Deviation.MIXED_LENGTHS_PACKED,)))
    start = (Add("A", 2), Tamper("mix_lengths", "A"), Launch((("A", 2),)))
    scenario = Scenario((*start, *then), profile="0.31", block_size=1, depth=1, store=8)
    played, failure = play(InProcess(resolve(target, "0.31")), scenario, unlooking)
    assert failure is None
    assert played.over
    assert (played.num_events, played.num_calls) == (3, 1)


def test_a_refusal_of_what_is_in_order_stays_wrong() -> None:
    class Refuses(Liar):
        def call(self, call: Call) -> Observation:
            return Observation(Raised("ValueError", "no", True))

    deviant = PROFILES["0.31"]._replace(deviations=frozenset((Deviation.MIXED_LENGTHS_PACKED,)))
    _, failure = play(Refuses(), Scenario((Add("A", 2), Launch((("A", 2),)))), deviant)
    assert failure is not None


# What a refused call is to blame for.

LATE = "emit-start-one-late"
LOST = "event-without-hashes"
AFTER_REFUSED = (
    (LATE, "SCHED-EMIT-2", (*A4_LANDED, *SHRUNK_LAUNCH, Launch((("A", 1),)))),
    (LATE, "SCHED-EMIT-2", (*NO_OUTPUT, Launch((("A", 1),)))),
    (LOST, "SCHED-TERM-5", (*DECODED, Tamper("shrink_hashes", "A", 0), Abort("A"), Abort("A"), Launch())),
    (
        "refused-take-forgets",
        "SCHED-REFUSE-5",
        (*A4, Tamper("cut_rows", "A", 1), Land(), Launch((("A", 1),))),
    ),
    ("one-row-short", "SCHED-TAKE-3", (Add("A", 1), Launch((("A", 1),)), Preempt("A"), Land())),
    ("stale-output-dropped", "SCHED-TAKE-12", (Add("A", 1), Launch((("A", 1),)), Preempt("A"), Land())),
    ("refused-end-forgets", "SCHED-REFUSE-4", (*A4, *SHRUNK_ABORT, Abort("A"), Launch())),
    (
        "refused-build-counts",
        "SCHED-REFUSE-3",
        (
            *TWO,
            Launch((("B", 4),)),
            Tamper("shrink_hashes", "B", 1),
            Launch((("A", 4), ("B", 1))),
            Launch((("A", 4),)),
        ),
    ),
)


@pytest.mark.parametrize(("bad", "clause", "events"), AFTER_REFUSED, ids=[row[1] for row in AFTER_REFUSED])
def test_a_refusal_is_to_blame_only_if_all_is_well_without_it(
    bad: str, clause: str, events: tuple[Event, ...]
) -> None:
    scenario = Scenario(events, profile="0.32")
    host = InProcess(resolve(f"known-bad:{bad}"))
    _, failure = play(host, scenario, PROFILES["0.32"])
    assert failure is not None
    assert (failure.clause, failure.event) == (clause, len(events))
    found = runner.replay(scenario, f"known-bad:{bad}")
    assert found is not None
    assert found.clause == clause


def test_a_worker_that_lacks_the_rows_before_a_prompt_start_has_no_say_in_who_is_to_blame() -> None:
    """Without the refused output the request starts within its prompt, but not in rows loaded from elsewhere."""
    loaded = Launch((("A", 2),), external=(("A", 2),))
    events = (Add("A", 4, start=5, max_tokens=1), loaded, Land(), Launch())
    scenario = Scenario(events, profile="0.31", block_size=1, depth=1, store=8)
    found = runner.replay(scenario, f"known-bad:{LOST}")
    assert found is not None
    assert (found.clause, found.scenario.events) == ("SCHED-TERM-5", events)


@pytest.mark.parametrize(
    ("bad", "clause", "events"),
    [
        (
            LOST,
            "SCHED-TERM-5",
            (
                Add("A", 1, start=3, max_tokens=3),
                Launch((("A", 1),)),
                Land(),
                Launch((("A", 4),), (("A", 3),)),
                Tamper("cut_rows", "A", 2),
                Land((("A", 3),)),
                Launch(),
            ),
        ),
        (
            "generation-kept",
            "SCHED-RESET-1",
            (
                Add("A", 3, start=3, max_tokens=1),
                Launch((("A", 3),)),
                Tamper("cut_rows", "A", 1),
                Land(),
                Launch(),
                Add("A", 1, start=2, max_tokens=1),
                Launch((("A", 1),)),
                Land(),
                ResetEvent(),
                Launch(),
            ),
        ),
    ],
)
def test_a_corruption_that_is_refused_only_without_another_refusal_is_not_to_blame(
    bad: str, clause: str, events: tuple[Event, ...]
) -> None:
    found = runner.replay(Scenario(events, profile="0.31", block_size=1, depth=1), f"known-bad:{bad}")
    assert found is not None
    assert (found.clause, found.scenario.events) == (clause, events)


def test_what_is_impossible_without_a_refusal_is_left_out() -> None:
    """Were A preempted, it could not be scheduled while its output is in flight, nor land a second time."""
    step_of_one = Launch((("A", 1),))
    refused = (Tamper("shrink_hashes", "A"), Preempt("A"))
    events = (Add("A", 1), step_of_one, *refused, step_of_one, Land(), Land(), ResetEvent(), Launch())
    scenario = Scenario(events, profile="0.32", block_size=1, depth=2)
    found = runner.replay(scenario, "known-bad:events-kept-over-reset")
    assert found is not None
    assert (found.clause, found.scenario.events) == ("SCHED-RESET-3", events)


def test_blame_stays_where_the_scenario_is_impossible_without_the_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = Failure("SCHED-REFUSE-3", 2, "", "", "")
    module = sys.modules[blamed.__module__]
    monkeypatch.setattr(module, "_without_refusals", lambda config, events, left_out: (Land(),))
    assert blamed(Liar(), Scenario(A4), PROFILES["0.32"], failure) is failure


# How calls and answers read.

VIEW = RequestView("A", 5, 4, 1, 0, (h(0), h(1)))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (BuildConnectorMeta((), ()), "build_connector_meta({})"),
        (BuildConnectorMeta((("A", 4), ("B", 1)), (VIEW,)), "build_connector_meta({A: 4, B: 1})"),
        (TakeOutput(VIEW, ()), "take_output(A)"),
        (RequestFinished(VIEW), "request_finished(A)"),
        (Reset(), "reset()"),
        (Unpack(b"ab", 2), "list(PackedBlockHashes('6162', 2))"),
    ],
)
def test_describe_call(call: Call, text: str) -> None:
    assert describe_call(call) == text


def test_long_runs_of_hashes_are_told_by_their_ends() -> None:
    hashes = tuple(number.to_bytes(4, "big") * 8 for number in range(100_000))
    views = {"A": VIEW._replace(block_hashes=hashes)}
    unknown = b"\xab" * 32

    def told(*found: bytes) -> str:
        text = describe_outcome(Metadata(0, (), (("A", found),), ()), views)
        return text.split("block_hashes ")[1].split(", finished")[0]

    assert told(*hashes) == "{A: [#0..#99999]}"
    assert told(*hashes[:500], *hashes[501:]) == "{A: [#0..#499, #501..#99999]}"
    assert told(unknown, *hashes[:50]) == "{A: [#abababab, #0..#49]}"
    assert told(*hashes[:6]) == "{A: [#0, #1, #2, #3, #4, #5]}"
    assert told(*hashes[6::-1]) == "{A: [#6, #5, #4, #3, #2, #1, #0]}"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (None, "None"),
        (Odd("a list"), "a list"),
        (Raised("KeyError", "'A'", False), "raised KeyError: 'A'"),
        (Refusal("SCHED-TAKE-1", "no output"), "refused (no output)"),
        (Hashes(()), "[]"),
        (Hashes((b"ab", b"c")), "[6162, 63]"),
        (Rows(()), "0 rows"),
        (Rows((Row("A", 3, 0, 0),)), "1 row A[3, 4)"),
        (Rows((Row("A", 3, 1, 0), Row("A", 4, 1, 2))), "2 rows A[3, 5) of generation 1"),
        (Rows((Row("A", 3, 0, 0), Row("A", 5, 0, 0))), "2 rows A[3, 4) A[5, 6)"),
        (Rows((Row("A", 3, 0, 0), Row("B", 4, 0, 0))), "2 rows A[3, 4) B[4, 5)"),
        (Rows((Row("A", 0, 0, 0), UNKNOWN)), "2 rows A[0, 1) 1 unknown"),
        (Rows((UNKNOWN, UNKNOWN)), "2 rows 1 unknown 1 unknown"),
        (
            Metadata(1, (("A", 4),), (("B", (b"abcd",)), ("A", (h(1), b"?"))), ("C", "D"), (("A", (h(0),)),)),
            (
                "generation 1, requests {A: 4}, block_hashes {A: [#1, #3f], B: [#61626364]}, "
                "finished_requests [C, D], finished_block_hashes {A: [#0]}"
            ),
        ),
    ],
)
def test_describe_outcome(outcome: Outcome, text: str) -> None:
    assert describe_outcome(outcome, {"A": VIEW}) == text
