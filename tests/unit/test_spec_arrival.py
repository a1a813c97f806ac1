"""Arrivals, turns and the engine's end."""

from __future__ import annotations

import pytest

from auxout_spec import calls
from auxout_spec.engine import (
    Add,
    Chunk,
    Close,
    EngineConfig,
    EngineState,
    Event,
    Impossible,
    Land,
    Launch,
    initial,
    step,
)
from auxout_spec.engine.state import Entry
from auxout_spec.worker import Limits

ALONE, WITH_WORKER = EngineConfig(), EngineConfig(limits=Limits(2, 100))


def play(*events: Event, config: EngineConfig = ALONE) -> EngineState:
    state = initial()
    for event in events:
        state, _ = step(config, state, event)
    return state


@pytest.mark.parametrize("prompt", [0, -1])
def test_a_prompt_has_a_token(prompt: int) -> None:
    with pytest.raises(Impossible, match=r"^ENV-FORM-1: prompt and max_tokens are at least 1"):
        step(ALONE, initial(), Add("A", prompt))


def test_an_engine_that_closes_starts_anew() -> None:
    busy = play(Add("A", 4), Launch((("A", 4),)), config=WITH_WORKER)
    assert busy.worker != initial().worker
    after, exchanges = step(WITH_WORKER, busy, Close())
    assert after == initial()
    assert [exchange.call for exchange in exchanges] == [calls.Close()]


@pytest.mark.parametrize(
    ("config", "event", "why"),
    [(ALONE, Close(), "there is no worker to close"), (WITH_WORKER, Close(False), "what was closed starts again")],
)  # fmt: skip
def test_a_close_that_is_none(config: EngineConfig, event: Close, why: str) -> None:
    with pytest.raises(Impossible, match=f"^ENV-FORM-1: {why}"):
        step(config, initial(), event)


def test_rows_of_accepted_tokens_that_a_stop_cut_are_replaced_by_those_of_the_next_turn() -> None:
    """The last block of the old turn has rows of its own, which are not those of the new one's tokens."""
    cut = Land(sampled=(("A", 3),), stop=(("A", 1),))
    before = (Launch((("A", 4),)), Land(), Launch((("A", 3),), drafts=(("A", 2),)), cut)
    state = play(Add("A", 4, max_tokens=9, session=True), *before, Chunk("A", 3), Launch((("A", 3),)))
    blocks = {block.name: [(row.position, row.computation) for row in block.rows] for block in state.resident}
    assert blocks["A':2"] == [(4, 1), (5, 2)]
    assert blocks["A':3"] == [(6, 2), (7, 2)]


def test_an_entry_by_default_loads_nothing_on_sound_kv() -> None:
    entry = Entry("A", 0, 1, 0, True, 0, 0)
    assert (entry.num_external_tokens, entry.on_invalid_kv, entry.fills_up) == (0, False, False)
