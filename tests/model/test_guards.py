"""Every environment guard does something: without it another verdict comes out, or more of the same happens."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from auxout_spec.engine import GUARDS, Add, Chunk, Reset
from auxout_spec.explorer.model import Menu, Model
from auxout_spec.explorer.search import explore

PAIR = (Add("A", 3, 0, 2), Add("B", 3, 0, 2))
TWO = Menu(PAIR, preemptions=1, aborts=1, stops=True)
ONE = TWO._replace(adds=TWO.adds[:1])
SESSION = Menu((Add("A", 3, 0, 2, session=True),), chunks=(Chunk("A", 2),))
SETTLED = SESSION._replace(preemptions=1, stops=True, settled_turns=True)
SHARED = Menu((Add("A", 3, 0, 2, text="T"), Add("B", 5, 0, 1, text="T")))
ELSEWHERE = Menu((Add("A", 6, 6, 2),), loads=1, external=(4,))
WAITED_FOR = ELSEWHERE._replace(waits_for_loads=True, load_failures=True)


class Needed(NamedTuple):
    """A model in which nothing breaks; without the guard it ends like this."""

    guard: str
    menu: Menu
    end: str
    """A clause, or a verdict."""
    length: int
    profile: str = "0.32"
    depth: int = 2


NEEDED = (
    Needed("ENV-ADD-1", Menu((Add("A", 3, 0, 1), Add("A", 3, 0, 1)), aborts=1, settled_ids=True), "WORK-CAPTURE-2", 8),
    Needed("ENV-ADD-2", Menu((Add("A", 4, 0, 3, text="T", cut=1), Add("B", 5, 0, 1, text="T"))), "ROW-EXACT-1", 6),
    Needed("ENV-LAUNCH-2", Menu(PAIR[:1]), "DEADLOCK", 4),
    Needed("ENV-LAUNCH-5", SESSION, "WORK-CAPTURE-2", 9, "0.31", 1),
    Needed("ENV-HIT-1", SHARED, "WORK-CAPTURE-4", 3),
    Needed("ENV-LOAD-1", ELSEWHERE._replace(prefill_chunks=(2,)), "WORK-CAPTURE-3", 5, depth=1),
    Needed("ENV-LOAD-2", WAITED_FOR, "WORK-CAPTURE-4", 5),
    Needed("ENV-RESUME-1", TWO, "WORK-CAPTURE-2", 7),
    Needed("ENV-RESUME-2", TWO, "WORK-BEGIN-1", 5),
    Needed("ENV-LAND-2", Menu((Add("A", 3, 0, 3),)), "WORK-CAPTURE-5", 3),
    Needed("ENV-PREEMPT-1", SETTLED, "WORK-CAPTURE-2", 12, "0.31", 1),
    Needed("ENV-RESET-1", Menu(PAIR, resets=(Reset(running=True),), pauses=1), "WORK-BEGIN-3", 4, "0.31"),
    Needed("ENV-RESET-2", Menu((Add("A", 4, 0, 1), Add("B", 4, 0, 1)), resets=(Reset(kept=True),)), "WORK-BEGIN-3", 5),
)  # fmt: skip


@pytest.mark.parametrize("needed", NEEDED, ids=lambda needed: needed.guard)
def test_without_it_the_protocol_breaks(needed: Needed) -> None:
    model = Model("m", "", needed.menu, profile=needed.profile, depth=needed.depth)
    assert explore(model).verdict == "OK"
    result = explore(model._replace(removed_guards=frozenset({needed.guard})))
    assert result.verdict != "OK"
    end = result.broken.clause if result.broken is not None else result.verdict
    assert (end, len(result.trace)) == (needed.end, needed.length)


BOUNDS = {
    "ENV-LAUNCH-1": ONE,
    "ENV-LAUNCH-3": ONE,
    "ENV-LAUNCH-6": WAITED_FOR,
    "ENV-EVICT-1": SHARED._replace(evictions=1),
}
"""Models in which more happens without the guard, and nothing breaks."""


@pytest.mark.parametrize("guard", BOUNDS)
def test_without_it_there_is_more_and_nothing_breaks(guard: str) -> None:
    """The worker is not told when a load ends, nor which blocks the prefix cache still finds."""
    model = Model("m", "", BOUNDS[guard])
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


def test_every_guard_has_its_test() -> None:
    by_role = {
        role: {guard.id for guard in GUARDS.values() if guard.role == role} for role in ("needed", "bound")
    }
    assert {needed.guard for needed in NEEDED} == by_role["needed"]
    assert {*BOUNDS, "ENV-LAUNCH-4"} == by_role["bound"]
