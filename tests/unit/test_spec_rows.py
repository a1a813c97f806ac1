"""Which rows are right: texts of positions, and the rows behind resident blocks."""

from __future__ import annotations

from auxout_spec.engine import Add, EngineConfig, EngineState, Event, Land, Launch, initial, step
from auxout_spec.engine.rows import hit_rows, text_at
from auxout_spec.values import Row


def after(*events: Event) -> EngineState:
    state = initial()
    for event in events:
        state, _ = step(EngineConfig(block_size=2), state, event)
    return state


def test_a_position_belongs_to_the_run_that_holds_it() -> None:
    tokens = (("A", 3), ("A'", 5))
    assert [text_at(tokens, position) for position in range(7)] == ["A", "A", "A", "A'", "A'", "A'", "A'"]


def test_a_block_that_fills_in_flight_holds_its_own_requests_rows() -> None:
    both = Launch((("A", 1), ("B", 1)))
    state = after(Add("A", 3, 0, 4), Add("B", 3, 0, 4), Launch((("A", 3), ("B", 3))), both, Land(), both)
    rows = {block.name: block.rows for block in state.resident}
    assert rows["A:1"] == (Row("A", 2, 0, 0, "A"), Row("A", 3, 0, 1, "A"))
    assert rows["B:1"] == (Row("B", 2, 0, 0, "B"), Row("B", 3, 0, 1, "B"))


def test_the_rows_of_a_hit_end_with_it_and_those_from_elsewhere_are_nobodys() -> None:
    state = after(Add("A", 4), Launch((("A", 4),)))
    request = state.request("A")
    assert request is not None
    assert len(state.resident) == 2
    assert hit_rows(state, request, 2, hit=2, external=2) == (
        Row("A", 0, 0, 0, "A"),
        Row("A", 1, 0, 0, "A"),
        Row("", 2, 0, 0, "A"),
        Row("", 3, 0, 0, "A"),
    )
