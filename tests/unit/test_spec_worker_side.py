"""The engine and its worker: which calls a corruption makes, and what the run is worth after a refusal."""

from __future__ import annotations

import pytest

from auxout_spec.calls import (
    BeginStep,
    BuildConnectorMeta,
    Exchange,
    Halves,
    PrepareOutput,
    ProcessOutput,
    RequestFinished,
    TakeOutput,
    apply,
)
from auxout_spec.deviations import Deviation
from auxout_spec.engine import (
    Abort,
    Add,
    EngineConfig,
    EngineState,
    Event,
    Impossible,
    Land,
    Launch,
    Tamper,
    initial,
    step,
)
from auxout_spec.profiles import PROFILES
from auxout_spec.values import Refusal
from auxout_spec.worker import Limits

SOUND = EngineConfig(limits=Limits(2, 100))
A = Add("A", 4, max_tokens=9)
LAUNCH, DECODE, LAND = Launch((("A", 4),)), Launch((("A", 1),)), Land()
SETTLED, FLYING = (A, LAUNCH, LAND), (A, LAUNCH)


def released(*deviations: Deviation) -> EngineConfig:
    return SOUND._replace(profile=PROFILES["0.32"]._replace(deviations=frozenset(deviations)))


def play(*events: Event, config: EngineConfig = SOUND) -> tuple[EngineState, tuple[Exchange, ...]]:
    state, exchanges = initial(), tuple[Exchange, ...]()
    for event in events:
        state, exchanges = step(config, state, event)
    return state, exchanges


def made(exchanges: tuple[Exchange, ...]) -> list[tuple[type, str]]:
    """The calls, each with the clause by which it was refused."""
    return [(type(e.call), e.result.clause if isinstance(e.result, Refusal) else "") for e in exchanges]


BEGINS = [
    (SETTLED, "old_generation", "WORK-BEGIN-2"),
    (FLYING, "new_generation", "WORK-BEGIN-3"),
    (SETTLED, "run_and_end", "WORK-BEGIN-1"),
    (SETTLED, "late_start", "WORK-BEGIN-4"),
    (SETTLED, "unknown_end", "WORK-BEGIN-5"),
    (SETTLED, "unknown_hashes", "WORK-BEGIN-5"),
]


@pytest.mark.parametrize(("before", "kind", "clause"), BEGINS)
def test_corrupted_metadata_is_shown_before_the_sound_one(
    before: tuple[Event, ...], kind: str, clause: str
) -> None:
    state, exchanges = play(*before, Tamper(kind, "A", 1), DECODE)  # type: ignore[arg-type]
    assert made(exchanges) == [
        (BuildConnectorMeta, ""),
        (BeginStep, clause),
        (BeginStep, ""),
        (PrepareOutput, ""),
    ]
    assert (state, exchanges[2:]) == (play(*before, DECODE)[0], play(*before, DECODE)[1][1:])


def test_a_corrupted_batch_is_shown_before_the_sound_one() -> None:
    state, exchanges = play(*SETTLED, Tamper("unknown_batch", "A"), DECODE)
    refused = (PrepareOutput, "WORK-STEP-2")
    assert made(exchanges) == [(BuildConnectorMeta, ""), (BeginStep, ""), refused, (PrepareOutput, "")]
    assert state == play(*SETTLED, DECODE)[0]


@pytest.mark.parametrize("amount", [1, 4])
def test_a_gap_shows_when_the_step_is_processed_and_ends_the_engine(amount: int) -> None:
    state, exchanges = play(*SETTLED, Tamper("skip_ahead", "A", amount), DECODE)
    assert made(exchanges) == [(BuildConnectorMeta, ""), (BeginStep, ""), (PrepareOutput, "")]
    assert exchanges[2].call == PrepareOutput((("A", 4 + amount, 1),))
    assert not state.tampered
    held = state.worker
    state, exchanges = step(SOUND, state, LAND)
    assert made(exchanges) == [(ProcessOutput, "WORK-CAPTURE-3")]
    assert state.problem is not None
    assert (state.problem.clause, state.worker) == ("WORK-CAPTURE-3", held)


@pytest.mark.parametrize(
    ("before", "tamper", "clause"),
    [
        (FLYING, Tamper("reject_more", "A", 1), "WORK-CAPTURE-5"),
        ((*FLYING, DECODE), Tamper("other_step", "A"), "WORK-STEP-1"),
    ],
)
def test_a_corrupted_report_is_shown_before_the_sound_one(
    before: tuple[Event, ...], tamper: Tamper, clause: str
) -> None:
    state, exchanges = play(*before, tamper, LAND)
    assert made(exchanges) == [(ProcessOutput, clause), (ProcessOutput, ""), (TakeOutput, "")]
    assert (state, exchanges[1:]) == play(*before, LAND)
    corrupted = exchanges[0].call
    assert isinstance(corrupted, ProcessOutput)
    later = tamper.kind == "other_step"
    assert (corrupted.step, corrupted.parts[0].num_sampled) == ((1, 0) if later else (0, 1))


def test_a_release_is_of_no_use_after_a_refusal_that_spoils_it() -> None:
    late = (*SETTLED, Tamper("late_start", "A", 1))
    state, exchanges = play(*late, DECODE, config=released(Deviation.WORKER_NOT_ATOMIC))
    assert made(exchanges) == [(BuildConnectorMeta, ""), (BeginStep, "WORK-BEGIN-4")]
    assert state.problem is not None
    assert state.problem.clause == "WORK-BEGIN-4"
    more = (*FLYING, Tamper("reject_more", "A", 1))
    state, exchanges = play(*more, LAND, config=released(Deviation.WORKER_STEP_LOST))
    assert made(exchanges) == [(ProcessOutput, "WORK-CAPTURE-5")]
    assert state.problem is not None
    assert state.problem.clause == "WORK-CAPTURE-5"


@pytest.mark.parametrize("deviation", [Deviation.WORKER_NOT_ATOMIC, Deviation.WORKER_STEP_LOST])
def test_what_is_spoiled_by_the_other_call_is_not_by_this(deviation: Deviation) -> None:
    """A refused batch spoils what a refused begin_step does; only a report that is refused loses its step."""
    at_launch = (*SETTLED, Tamper("late_start", "A", 1), DECODE)
    at_landing = (*FLYING, Tamper("reject_more", "A", 1), LAND)
    spoiled = [
        play(*events, config=released(deviation))[0].problem is not None for events in (at_launch, at_landing)
    ]
    assert spoiled == [
        deviation is each for each in (Deviation.WORKER_NOT_ATOMIC, Deviation.WORKER_STEP_LOST)
    ]


@pytest.mark.parametrize(
    ("before", "tamper", "event", "deviations"),
    [
        (SETTLED, Tamper("new_generation", "A", 1), DECODE, ()),
        (SETTLED, Tamper("unknown_end", "A"), DECODE, (Deviation.UNKNOWN_REQUEST_CRASHES,)),
        (SETTLED, Tamper("unknown_batch", "A"), DECODE, (Deviation.UNKNOWN_REQUEST_CRASHES,)),
        ((*FLYING, DECODE), Tamper("other_step", "A"), LAND, (Deviation.ANY_STEP_ORDER,)),
    ],
)
def test_what_the_worker_does_not_look_at_is_not_corrupted(
    before: tuple[Event, ...], tamper: Tamper, event: Event, deviations: tuple[Deviation, ...]
) -> None:
    config = released(*deviations)
    state, _ = play(*before, tamper, config=config)
    with pytest.raises(Impossible, match=r"^ENV-TAMPER-1: the worker does not look at that"):
        step(config, state, event)


def test_a_step_that_the_worker_does_not_begin_has_no_batch() -> None:
    again = (Add("A", 4, text="T"), LAUNCH)
    state, exchanges = play(*SETTLED, Abort("A"), *again)
    assert made(exchanges) == [(BuildConnectorMeta, ""), (BeginStep, "WORK-BEGIN-1")]
    assert state.problem is not None
    assert state.problem.clause == "WORK-BEGIN-1"


def test_a_step_without_requests_has_no_batch() -> None:
    _, exchanges = play(*SETTLED, Abort("A"), Launch())
    assert made(exchanges) == [(BuildConnectorMeta, ""), (BeginStep, "")]
    assert made(play(*SETTLED, Abort("A"))[1]) == [(RequestFinished, "")]


B = Add("B", 1)


@pytest.mark.parametrize(
    ("before", "event", "config"),
    [
        ((*SETTLED, Tamper("late_start", "A", 1), Tamper("cut_rows", "A", 1)), DECODE, EngineConfig()),
        ((*SETTLED, Tamper("late_start", "A", 1)), Abort("A"), SOUND),
        ((*FLYING, Tamper("reject_more", "A", 1)), Abort("A"), SOUND),
        ((A, Launch((("A", 2),)), Tamper("cut_rows", "A", 1)), LAND, SOUND),
        ((*SETTLED, B, Tamper("run_and_end", "A")), Launch((("B", 1),)), SOUND),
        ((*SETTLED, Tamper("skip_ahead", "A", 1)), Abort("A"), SOUND),
        ((*SETTLED, Tamper("skip_ahead", "A", 1), Tamper("late_start", "A", 1)), Abort("A"), SOUND),
    ],
)
def test_a_corruption_that_nobody_sees(before: tuple[Event, ...], event: Event, config: EngineConfig) -> None:
    state, _ = play(*before, config=config)
    with pytest.raises(
        Impossible, match=f"^ENV-TAMPER-1: {type(event).__name__} does not show the corruption"
    ):
        step(config, state, event)


@pytest.mark.parametrize(
    ("before", "config"), [(SETTLED, EngineConfig()), (FLYING, SOUND), ((*SETTLED, DECODE), SOUND)]
)
def test_a_gap_that_nobody_notices(before: tuple[Event, ...], config: EngineConfig) -> None:
    state, _ = play(*before, Tamper("skip_ahead", "A", 1), config=config)
    with pytest.raises(Impossible, match=r"^ENV-TAMPER-1: the worker does not notice what is skipped of A"):
        step(config, state, DECODE)


def test_other_corruptions_come_beside_a_gap() -> None:
    late = Tamper("late_start", "A", 1)
    state, exchanges = play(*SETTLED, Tamper("skip_ahead", "A", 1), late, DECODE)
    assert made(exchanges)[1:] == [(BeginStep, "WORK-BEGIN-4"), (BeginStep, ""), (PrepareOutput, "")]
    assert state.in_flight[0].entries[0].skipped == 1


def test_a_worker_has_its_sizes() -> None:
    with pytest.raises(AssertionError, match="a call of a worker without limits"):
        apply(PROFILES["0.32"], None, Halves(), PrepareOutput(()))
