"""Who may be scheduled, and what a request enters a step with: KV of hits and loads, rows behind it, drafts."""

from __future__ import annotations

import pytest

from auxout_spec.engine import (
    Add,
    Chunk,
    EngineConfig,
    EngineState,
    Event,
    Evict,
    Impossible,
    Land,
    Launch,
    Load,
    Pause,
    Preempt,
    Reset,
    initial,
    options,
    step,
)
from auxout_spec.worker import Limits


def without(guard: str) -> EngineConfig:
    return EngineConfig(removed_guards=frozenset({guard}))


def play(*events: Event, removed: str = "") -> EngineState:
    state = initial()
    for event in events:
        state, _ = step(without(removed), state, event)
    return state


def launch(tokens: int, drafts: int = 0, external: int = 0) -> Launch:
    return Launch(
        (("A", tokens),), (("A", drafts),) if drafts else (), (), (("A", external),) if external else ()
    )


def test_without_its_guard_a_load_moves_a_running_request_on() -> None:
    state = play(Add("A", 4), launch(1), launch(1, external=1), removed="ENV-LOAD-1")
    assert state.requests[0].num_computed_tokens == 3


def test_only_drafts_fill_up_a_batch() -> None:
    assert [play(Add("A", 1), launch(1 + n, n)).in_flight[0].entries[0].fills_up for n in (0, 1)] == [
        False,
        True,
    ]


def test_kv_kept_over_a_reset_ends_where_the_turn_did() -> None:
    """Accepted drafts behind the stop have rows, but the next turn writes other tokens there."""
    cut = Land(sampled=(("A", 3),), stop=(("A", 1),))
    session = (Add("A", 4, max_tokens=9, session=True), launch(4), Land(), launch(3, drafts=2), cut)
    state = play(*session, Reset(kept=True), Chunk("A", 2), launch(2))
    assert [row.position for row in state.activations[-1].rows] == [0, 1, 2, 3, 4]


def test_rows_of_a_block_that_is_filled_in_the_same_step_and_of_a_load_behind_it() -> None:
    both = Launch((("A", 4), ("B", 2)), hits=(("B", 4),), external=(("B", 2),))
    state = play(Add("A", 4, text="T"), Add("B", 8, text="T"), both)
    rows = next(a.rows for a in state.activations if a.request_id == "B")
    assert [(row.request, row.position) for row in rows] == [
        *(("A", position) for position in range(4)),
        *(("", position) for position in (4, 5)),
    ]


A, STOP = Add("A", 4, max_tokens=3), Land(stop=(("A", 1),))
SESSION = Add("A", 4, max_tokens=9, session=True)
LAUNCHABLE: tuple[tuple[str, tuple[Event, ...]], ...] = (
    ("ENV-LAUNCH-1", (A, launch(4), launch(1))),
    ("ENV-LAUNCH-3", (Add("A", 4, max_tokens=1), launch(4))),
    ("ENV-LAUNCH-4", (A, Pause())),
    ("ENV-LAUNCH-5", (SESSION, launch(4), STOP)),
    ("ENV-LAUNCH-6", (A, Load("A", 2))),
    ("ENV-RESUME-1", (A, launch(4), Preempt("A"), Launch())),
    ("ENV-RESUME-2", (A, launch(4), Land(), Preempt("A"))),
)
"""A request that a guard keeps from being scheduled."""


@pytest.mark.parametrize(("guard", "before"), LAUNCHABLE)
def test_options_follow_the_guards(guard: str, before: tuple[Event, ...]) -> None:
    state = play(*before)
    assert options.launchable(EngineConfig(), state) == ()
    assert options.launchable(without(guard), state) == state.requests


def test_a_request_that_lacks_nothing_or_is_in_no_queue_is_not_scheduled() -> None:
    assert options.launchable(without("ENV-LAUNCH-6"), play(A, Load("A", 4))) == ()
    lost = play(SESSION, launch(4), Preempt("A"), Launch(), STOP)
    assert lost.requests[0].status == "lost"
    assert options.launchable(without("ENV-LAUNCH-5"), lost) == ()


def test_only_a_request_that_does_not_run_is_admitted() -> None:
    """One whose load failed whole runs on without KV."""
    back = Land(failed=(("A", 0),), recompute=True)
    (request,) = play(A, launch(1, external=3), back).requests
    assert (request.status, request.holds_kv, options.admissible(request)) == ("running", False, False)


def test_blocks_of_unsettled_tokens_are_not_filled() -> None:
    (request,) = play(Add("A", 4, max_tokens=9), launch(4)).requests
    assert options.filled_blocks(EngineConfig(), request, num_left=0) == request.block_hashes
    assert options.filled_blocks(EngineConfig(), request, num_left=2) == request.block_hashes[:1]


def test_only_what_was_loaded_can_fail() -> None:
    flying = [play(A, event) for event in (launch(4), launch(3, external=1))]
    assert [options.runs_on_load(state, state.in_flight[0].entries[0]) for state in flying] == [False, True]


def test_a_load_of_one_token_may_fail() -> None:
    assert play(A, launch(3, external=1), Land(failed=(("A", 0),))).requests == ()


def test_a_load_of_an_activation_that_a_reset_ended_has_nobody_to_fail() -> None:
    state = play(A, launch(1, external=3), Reset(running=True), launch(4))
    assert state.requests[0].status == "running"
    with pytest.raises(Impossible, match=r"^ENV-FORM-1: nothing was loaded for A with this step"):
        step(EngineConfig(), state, Land(failed=(("A", 0),)))


GIVES_UP = EngineConfig(
    EngineConfig().profile._replace(gives_up_hits=True), block_size=3, limits=Limits(3, 100)
)


def one_block_known() -> EngineState:
    """A request whose KV is gone and whose first block has rows; a second one waits with the same text."""
    state = initial()
    events = (Add("A", 4, max_tokens=1, text="T"), launch(4), Land(), Evict(), Add("B", 7, text="T"))
    for event in events:
        state, _ = step(GIVES_UP, state, event)
    return state


@pytest.mark.parametrize(
    ("hit", "external", "loaded"), [(0, 3, 3), (1, 2, 2), (0, 2, 0), (0, 4, 0), (0, 6, 0), (3, 3, 0)]
)
def test_kv_whose_rows_are_not_all_known_is_given_up(hit: int, external: int, loaded: int) -> None:
    state = one_block_known()
    (request,) = state.requests
    assert options.num_known_blocks(state, request) == 1
    assert options.num_loaded(GIVES_UP, state, request, hit, external) == loaded
    assert options.num_loaded(EngineConfig(), state, request, hit, external) == external


@pytest.mark.parametrize(("external", "tokens", "entry"), [(3, 4, (3, 4, 3)), (6, 7, (0, 7, 0))])
def test_a_step_starts_behind_what_is_loaded(external: int, tokens: int, entry: tuple[int, int, int]) -> None:
    event = Launch((("B", tokens),), external=(("B", external),))
    (launched,) = step(GIVES_UP, one_block_known(), event)[0].in_flight[0].entries
    assert (launched.token_start, launched.num_tokens, launched.num_external_tokens) == entry
