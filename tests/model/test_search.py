"""The explorer finds the same states whichever way it looks at a model."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Sequence
from itertools import permutations
from typing import Any, cast

import pytest

from auxout_spec.engine import Add, Chunk, Reset, initial
from auxout_spec.explorer import search
from auxout_spec.explorer.canonical import Names
from auxout_spec.explorer.choices import Choice
from auxout_spec.explorer.lanes import Lanes, State
from auxout_spec.explorer.model import Left, Menu, Model
from auxout_spec.explorer.progress import never_drains
from auxout_spec.explorer.properties import Broken
from auxout_spec.explorer.search import Result, explore
from auxout_spec.explorer.simulation import simulate
from auxout_spec.explorer.system import Move, System, Whole, WholeState, take

ONE = Menu((Add("A", 3, max_tokens=3),), preemptions=1, aborts=1, stops=True, drafts=1)
TWO = Menu((Add("A", 3, max_tokens=1), Add("B", 3, max_tokens=1)))
CACHE = Menu(
    (Add("A", 3, max_tokens=1), Add("B", 2, start=1, max_tokens=1)),
    evictions=1,
    resets=(Reset(weights=True),),
    drained_resets=True,
    pauses=1,
    skips_hits=True,
)
STEPS = Menu(
    (Add("A", 3, max_tokens=2), Add("B", 2, start=1, max_tokens=1)),
    prefill_chunks=(2,),
    preemptions=1,
    resets=(Reset(running=True),),
    drained_resets=True,
    empty_steps=True,
)
MANY = Menu((Add("A", 3, max_tokens=3), Add("B", 3)), aborts=1, preemptions=1, stops=True)
SESSION = Menu((Add("A", 3, session=True, max_tokens=1),), chunks=(Chunk("A", 1), Chunk("A", 2)))
SHARED = Menu(
    (Add("A", 3, max_tokens=2, text="T"), Add("B", 5, max_tokens=1, text="T")),
    prefill_chunks=(2,),
    preemptions=1,
    evictions=1,
    skips_hits=True,
)
SHARED_RESET = Menu(
    (Add("A", 4, max_tokens=1, text="T"), Add("B", 4, max_tokens=1, text="T"), Add("C", 2, max_tokens=1)),
    resets=(Reset(running=True, weights=True),),
    drained_resets=True,
)
ELSEWHERE = Menu(
    (Add("A", 4, 4, 1), Add("B", 4, 4, 1)), external=(2, 4), loads=2, load_failures=True, preemptions=1
)
KNOWN = Menu(
    (Add("A", 3, max_tokens=1, text="T"), Add("B", 5, max_tokens=1, text="T"), Add("C", 5, text="T")),
    evictions=1,
    external=(2, 4),
    loads=1,
    known_rows=True,
)
CUT = Menu((Add("A", 4, 4, 1, text="T", cut=1), Add("B", 5, text="T")), preemptions=1)
SHARED_LOADS = Menu(
    (Add("A", 3, 3, max_tokens=1, text="T"), Add("B", 5, 5, max_tokens=2, text="T")),
    external=(2, 4),
    loads=2,
    load_failures=True,
    evictions=1,
    preemptions=1,
)
MODELS = [
    Model("one", "", ONE),
    Model("two", "", TWO),
    Model("cache", "", CACHE, depth=1),
    Model("steps", "", STEPS, depth=1),
    Model("steps", "", STEPS, profile="0.31", depth=1),
    Model("session", "", SESSION, depth=1),
    Model("session", "", SESSION, profile="0.31", depth=1),
    Model("id again", "", Menu((Add("A", 2, max_tokens=1), Add("B", 2), Add("A", 3, max_tokens=1)))),
    Model("abort and reset", "", TWO._replace(aborts=1, resets=(Reset(),))),
    Model("shared text", "", SHARED, depth=1),
    Model("shared text and resets", "", SHARED_RESET, depth=1),
    Model("elsewhere", "", ELSEWHERE),
    Model("elsewhere, waited for", "", ELSEWHERE._replace(external=(2,), waits_for_loads=True)),
    Model("elsewhere, back", "", ELSEWHERE._replace(recompute=True)),
    Model("elsewhere, known rows", "", KNOWN),
    Model("elsewhere, known rows that are wrong", "", KNOWN._replace(load_failures=True)),
    Model("cut", "", CUT),
    Model("shared text and loads", "", SHARED_LOADS, depth=1),
    Model("shared text and loads again", "", SHARED_LOADS._replace(recompute=True), depth=1),
]


def outcome(result: Result) -> tuple[Any, ...]:
    """What must not depend on how the search goes about it."""
    counts = (result.states, result.transitions, result.depth) if result.verdict == "OK" else ()
    broken = result.broken and result.broken.clause
    return result.verdict, counts, result.events if counts else None, broken, len(result.trace)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.name} {model.profile}")
def test_requests_stepped_one_by_one_reach_the_same_states(model: Model) -> None:
    one_by_one, whole = explore(model), explore(model._replace(whole=True))
    assert model.separable
    assert outcome(one_by_one) == outcome(whole)
    assert one_by_one.witnesses == whole.witnesses


@pytest.mark.parametrize("number", [0, 1, 2, 4, 9, 12, 14, 16])
def test_lanes_put_together_are_those_states(number: int) -> None:
    model = MODELS[number]
    lanes, seen = Lanes(model), set[Hashable]()
    for state in reachable(lanes):
        *_, left = cast("State", state)
        seen.add(WholeState(lanes.engine(state), lanes.lefts.values[left]))
    assert seen == set(reachable(Whole(model)))


def test_the_same_search_twice_is_the_same() -> None:
    first, second = explore(MODELS[0]), explore(MODELS[0])
    assert first._replace(seconds=0) == second._replace(seconds=0)


@pytest.mark.parametrize("whole", [False, True])
def test_depth_first_and_digests_change_no_count(whole: bool) -> None:
    model = Model("one", "", ONE, whole=whole)
    breadth, depth = explore(model), explore(model, order="depth")
    compact = explore(model, compact=True)
    assert (breadth.states, breadth.transitions) == (depth.states, depth.transitions)
    assert (breadth.states, breadth.transitions, breadth.depth) == (
        compact.states,
        compact.transitions,
        compact.depth,
    )
    assert depth.depth >= breadth.depth
    assert compact.bytes_not_kept > 0 == breadth.bytes_not_kept


def test_a_limit_is_no_pass() -> None:
    told: list[int] = []
    result = explore(MODELS[0], max_states=50, on_states=told.append)
    assert (result.verdict, result.states) == ("CUT", 51)
    assert told == []


def test_tells_how_far_it_is() -> None:
    told: list[int] = []
    result = explore(Model("two", "", MANY), on_states=told.append)
    assert told == list(range(4096, result.states + 1, 4096))
    assert told


def test_walks_of_a_seed_are_the_same() -> None:
    model = Model("abort and reset", "", TWO._replace(aborts=1, resets=(Reset(),)))
    first, second, third = (simulate(model, seed, runs=400) for seed in (1, 1, 2))
    assert first._replace(seconds=0) == second._replace(seconds=0)
    assert first.verdict == "VIOLATION"
    assert first.broken is not None
    assert first.broken.clause == "WORK-BEGIN-3"
    assert first.trace != third.trace
    calm = simulate(Model("two", "", TWO), 1, runs=3, max_steps=4)
    assert (calm.verdict, calm.depth) == ("CUT", 4)


@pytest.mark.parametrize(
    ("adds", "menu"),
    [
        (2, Menu((), aborts=1, preemptions=1)),
        (2, Menu((), resets=(Reset(),), drained_resets=True)),
        (3, Menu((), aborts=1)),
    ],
)
def test_interchangeable_ids_leave_one_state_of_each_orbit(adds: int, menu: Menu) -> None:
    menu = menu._replace(adds=tuple(Add(name, 3, max_tokens=1) for name in "ABC"[:adds]))
    model = Model("orbits", "", menu)
    reduced = explore(model._replace(symmetric=True))
    names = Names(model.block_size)
    orbits = {
        min(
            repr(names.renamed_engine(state.engine, dict(zip("ABC", other, strict=False))))
            for other in permutations("ABC"[:adds])
        )
        + repr(state.left)
        for state in cast("Iterator[WholeState]", reachable(Whole(model)))
    }
    assert reduced.states == len(orbits)
    assert reduced.states < explore(model).states


def reachable(system: System) -> Iterator[Hashable]:
    """Every state, found without the search."""
    found: dict[Hashable, None] = {system.start(): None}
    waiting: list[Hashable] = list(found)
    while waiting:
        state = waiting.pop()
        yield state
        for move in system.moves(state):
            if move.after not in found:
                found[move.after] = None
                waiting.append(move.after)


def test_a_counterexample_with_interchangeable_ids_can_be_played() -> None:
    menu = TWO._replace(aborts=1, resets=(Reset(),))
    plain, reduced = explore(Model("m", "", menu)), explore(Model("m", "", menu, symmetric=True))
    assert len(plain.trace) == len(reduced.trace)
    played = play(Model("m", "", menu), reduced)
    assert played is not None
    assert played.clause == "WORK-BEGIN-3"


def play(model: Model, result: Result) -> Broken | None:
    """What the events of a trace break."""
    engine, broken = initial(), None
    for event in result.trace:
        taken = take(model, engine, event)
        assert taken is not None
        engine, broken, _ = taken
    return broken


class Graph:
    """A system given by its edges."""

    def __init__(self, edges: dict[int, list[int]], ends: set[int]) -> None:
        self.edges, self.ends = edges, ends

    def start(self) -> Hashable:
        return 0

    def moves(self, state: Any) -> Iterator[Move]:
        for target in self.edges.get(state, ()):
            yield Move(Choice("to", (target,), Left(0, 0, 0, 0, (), 0, ())), target, None, 0)

    def drained(self, state: Any) -> bool:
        return state in self.ends

    def encoded(self, state: Any) -> bytes:
        return str(state).encode()

    def events(self, taken: Sequence[Choice]) -> tuple[Any, ...]:
        return tuple(choice.picks[0] for choice in taken)


@pytest.mark.parametrize("order", ["breadth", "depth"])
@pytest.mark.parametrize(
    ("edges", "verdict", "trace"),
    [
        ({0: [1], 1: [9]}, "OK", ()),
        ({0: [1, 2], 1: [9], 2: [2]}, "DEADLOCK", (2,)),
        ({0: [1, 2], 1: [9], 2: [3], 3: [2]}, "STUCK", (2,)),
    ],
)
def test_tells_dead_ends_apart(
    monkeypatch: pytest.MonkeyPatch,
    order: Any,
    edges: dict[int, list[int]],
    verdict: str,
    trace: tuple[int, ...],
) -> None:
    monkeypatch.setattr(search, "system_of", lambda model: Graph(edges, {9}))
    result = explore(Model("graph", "", TWO), order=order)
    assert (result.verdict, result.trace) == (verdict, trace)


def test_backward_reachability() -> None:
    assert never_drains(3, array("L", [0, 1]), array("L", [1, 2]), [2]) is None
    assert never_drains(3, array("L", [0, 1]), array("L", [1, 0]), [2]) == 0
    assert never_drains(4, array("L", [0, 1, 2, 3]), array("L", [3, 0, 1, 3]), [3]) is None
    assert never_drains(4, array("L", [0, 2, 1, 3]), array("L", [3, 1, 2, 3]), [3]) == 1


def test_events_of_every_kind_are_possible() -> None:
    kinds = {kind for model in MODELS for kind in explore(model).events}
    assert kinds == {
        *("add", "launch", "empty", "land", "abort", "preempt", "evict", "reset", "pause", "resume", "chunk"),
        *("end", "load", "loaded"),
    }
