"""Every environment guard does something: without it other things happen, or other verdicts come out."""

from __future__ import annotations

import pytest

from auxout_spec.engine import Add, Chunk, Reset
from auxout_spec.explorer.model import Menu, Model
from auxout_spec.explorer.search import explore

TWO = Menu((Add("A", 3, 0, 2), Add("B", 3, 0, 2)), preemptions=1, aborts=1, stops=True)
SESSION = Menu((Add("A", 3, 0, 2, session=True),), chunks=(Chunk("A", 2),))
RUNNING = TWO._replace(preemptions=0, aborts=0, stops=False, resets=(Reset(running=True),), pauses=1)
ALIGNED = Menu((Add("A", 4, 0, 1), Add("B", 4, 0, 1)), resets=(Reset(kept=True),))


@pytest.mark.parametrize(
    ("guard", "model", "clause", "length"),
    [
        ("ENV-LAUNCH-5", Model("m", "", SESSION, profile="0.31", depth=1), "WORK-CAPTURE-2", 9),
        ("ENV-RESUME-1", Model("m", "", TWO), "SCHED-TAKE-7", 7),
        ("ENV-RESUME-2", Model("m", "", TWO), "WORK-BEGIN-1", 5),
        ("ENV-RESET-1", Model("m", "", RUNNING, profile="0.31"), "WORK-BEGIN-3", 4),
        ("ENV-RESET-2", Model("m", "", ALIGNED), "WORK-BEGIN-3", 5),
    ],
)
def test_without_it_the_protocol_breaks(guard: str, model: Model, clause: str, length: int) -> None:
    assert explore(model).verdict == "OK"
    result = explore(model._replace(removed_guards=frozenset({guard})))
    assert result.broken is not None
    assert (result.broken.clause, len(result.trace)) == (clause, length)


@pytest.mark.parametrize("guard", ["ENV-LAUNCH-1", "ENV-LAUNCH-3"])
def test_without_it_more_is_in_flight_and_nothing_breaks(guard: str) -> None:
    model = Model("m", "", TWO._replace(adds=TWO.adds[:1]))
    guarded, free = (
        explore(model),
        explore(model._replace(removed_guards=frozenset({guard})), max_states=3000),
    )
    assert guarded.verdict == "OK"
    assert free.verdict in ("OK", "CUT")
    assert free.states > guarded.states


def test_a_pause_only_matters_to_what_waits_for_it() -> None:
    """Scheduling may stop at any time anyway, so ENV-LAUNCH-4 excludes nothing by itself."""
    model = Model("m", "", TWO._replace(pauses=1, aborts=0))
    free = explore(model._replace(removed_guards=frozenset({"ENV-LAUNCH-4"})))
    assert (free.verdict, free.states) == ("OK", explore(model).states)
