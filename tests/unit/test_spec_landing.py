"""What a landing does once something went wrong, and what a turn leaves behind."""

from __future__ import annotations

import pytest

from auxout_spec.calls import ProcessOutput
from auxout_spec.deviations import Deviation
from auxout_spec.engine import (
    Add,
    Chunk,
    EngineConfig,
    EngineState,
    Event,
    Impossible,
    Land,
    Launch,
    Reset,
    Tamper,
    initial,
    options,
    step,
)
from auxout_spec.profiles import PROFILES
from auxout_spec.worker import Limits

ALONE = EngineConfig()
DEVIANT = EngineConfig(PROFILES["0.32"]._replace(deviations=frozenset(Deviation)))
"""A release: what it must refuse, it may take."""
A = Add("A", 4, max_tokens=3)
LAUNCH = Launch((("A", 4),))


def play(*events: Event, config: EngineConfig = ALONE) -> EngineState:
    state = initial()
    for event in events:
        state, _ = step(config, state, event)
    return state


@pytest.mark.parametrize(
    ("before", "event", "why"),
    [
        ((A, LAUNCH, Tamper("shrink_hashes", "A", 1)), Land(), "hash lists are corrupted at a launch"),
        ((A, LAUNCH, Land(), Tamper("cut_rows", "A", 1)), Reset(running=True), "nothing is corrupted at a reset"),
        ((A, LAUNCH, Land(), Tamper("shrink_hashes", "A", 1)), Reset(running=True), "nothing is corrupted at a"),
    ],
)  # fmt: skip
def test_a_release_too_is_only_shown_a_corruption_where_it_belongs(
    before: tuple[Event, ...], event: Event, why: str
) -> None:
    state = play(*before, config=DEVIANT)
    with pytest.raises(Impossible, match=f"^ENV-TAMPER-1: {why}"):
        step(DEVIANT, state, event)


def test_nothing_is_taken_of_a_step_that_the_worker_refused() -> None:
    config = EngineConfig(block_size=4, limits=Limits(4, 100))
    state = play(Add("A", 8), Launch((("A", 1),), external=(("A", 7),)), config=config)
    after, exchanges = step(config, state, Land())
    assert [type(exchange.call) for exchange in exchanges] == [ProcessOutput]
    assert after.problem is not None
    assert after.problem.clause == "WORK-CAPTURE-4"
    assert after.in_flight == state.in_flight


def test_a_new_turn_takes_drafts_only_once_it_has_sampled() -> None:
    session = Add("A", 4, max_tokens=9, session=True)
    state = play(session, LAUNCH, Land(stop=(("A", 1),)), Chunk("A", 2), Launch((("A", 1),)))
    (request,) = state.requests
    assert (request.status, request.num_uncomputed_tokens) == ("running", 1)
    assert not options.takes_drafts(request, 1)
