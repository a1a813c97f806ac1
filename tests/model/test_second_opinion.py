"""Another checker, and another reading of the menu, come to the numbers on record.

Of the spec only ``step`` and the properties are used here. What may happen is enumerated anew, by trying; a state is
kept as it comes, and two are one if they differ only in the order of what has none. minicheck searches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import minicheck
import pytest

from auxout_spec.engine import (
    Abort,
    End,
    EngineRequest,
    EngineState,
    Event,
    Evict,
    Impossible,
    Land,
    Launch,
    Preempt,
    initial,
    step,
)
from auxout_spec.explorer.manifest import load
from auxout_spec.explorer.model import Menu, Model
from auxout_spec.explorer.models import MODELS
from auxout_spec.explorer.properties import broken_cover, broken_property
from auxout_spec.values import Refusal

EXPECTED = load()
ENUMERATED = (
    *("adds", "prefill_chunks", "stops", "aborts", "preemptions", "evictions", "resets", "drained_resets"),
    *("chunks", "max_running", "skips_hits", "settled_turns"),
)
"""What of a menu is enumerated here; a model with more needs more of it."""


class Spent(NamedTuple):
    """What of the menu was used up."""

    adds: int = 0
    aborts: int = 0
    preemptions: int = 0
    evictions: int = 0
    chunks: int = 0
    resets: frozenset[int] = frozenset()


class Node:
    """A state of the search; equal to those that differ in nothing but the order of what has none."""

    def __init__(self, engine: EngineState, spent: Spent, broken: bool = False) -> None:
        self.engine, self.spent, self.broken = engine, spent, broken
        self.key = unordered(engine), spent, broken
        self.hash = hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.key == other.key

    def __hash__(self) -> int:
        return self.hash


def unordered(engine: EngineState) -> EngineState:
    """The engine with sets where the order has no meaning."""
    changes: dict[str, Any] = {
        "connector": engine.connector._replace(
            active=frozenset(engine.connector.active), ended=frozenset(engine.connector.ended)
        ),
        "requests": frozenset(engine.requests),
        "in_flight": tuple(flying._replace(entries=frozenset(flying.entries)) for flying in engine.in_flight),
        "activations": frozenset(engine.activations),
        "resident": frozenset(engine.resident),
        "worker": engine.worker._replace(
            in_flight=tuple(frozenset(names) for names in engine.worker.in_flight),
            store=engine.worker.store._replace(objects=frozenset(engine.worker.store.objects)),
        ),
    }
    return engine._replace(**changes)


class SecondOpinion:
    """A model as minicheck takes it; counts the transitions it is asked for."""

    def __init__(self, model: Model) -> None:
        self.model, self.menu, self.transitions = model, model.menu, 0
        assert model.menu._replace(**{field: getattr(Menu(()), field) for field in ENUMERATED}) == Menu(())

    def protocol(self) -> minicheck.Protocol:
        return minicheck.Protocol(
            name=self.model.name,
            candidate=False,
            fields=("node",),
            initial=(Node(initial(), Spent()),),
            transitions=self.following,
            invariants={"nothing breaks": lambda state: not state["node"].broken},
            goal=lambda state: idle(state["node"].engine),
        )

    def following(self, state: tuple[Node]) -> list[tuple[str, tuple[Node]]]:
        (node,) = state
        found: list[tuple[str, tuple[Node]]] = []
        for event, spent in () if node.broken else self.events(node.engine, node.spent):
            try:
                after, exchanges = step(self.model.config, node.engine, event)
            except Impossible:
                continue
            broken = any(isinstance(exchange.result, Refusal) for exchange in exchanges)
            broken = broken or broken_property(self.model.config, after) is not None
            broken = broken or broken_cover(self.model.config, node.engine, exchanges) is not None
            found.append((type(event).__name__, (Node(after, spent, broken),)))
        self.transitions += len(found)
        return found

    def events(self, engine: EngineState, spent: Spent) -> Iterator[tuple[Event, Spent]]:
        menu = self.menu
        if spent.adds < len(menu.adds):
            yield menu.adds[spent.adds], spent._replace(adds=spent.adds + 1)
        for event in (*self.launches(engine), *self.landings(engine)):
            yield event, spent
        for request in engine.requests:
            if spent.aborts < menu.aborts:
                yield Abort(request.request_id), spent._replace(aborts=spent.aborts + 1)
            turns = request.session and request.num_in_flight_tokens > 0
            if spent.preemptions < menu.preemptions and not (menu.settled_turns and turns):
                yield Preempt(request.request_id), spent._replace(preemptions=spent.preemptions + 1)
            if request.status == "waiting_for_chunk":
                yield End(request.request_id), spent
        if spent.evictions < menu.evictions:
            yield Evict(), spent._replace(evictions=spent.evictions + 1)
        for number in set(range(len(menu.resets))) - spent.resets:
            if not (menu.drained_resets and engine.in_flight):
                yield menu.resets[number], spent._replace(resets=spent.resets | {number})
        if spent.chunks < len(menu.chunks):
            yield menu.chunks[spent.chunks], spent._replace(chunks=spent.chunks + 1)

    def launches(self, engine: EngineState) -> Iterator[Launch]:
        """Every step of some requests; one without any only if it has news to tell, or lets a request resume."""
        ways = [(None, *self.ways(engine, request)) for request in sorted(engine.requests)]
        for picks in product(*ways):
            chosen = [pick for pick in picks if pick is not None]
            running = {request.request_id for request in engine.requests if request.status == "running"}
            running |= {launch.tokens[0][0] for launch in chosen}
            if chosen and len(running) <= (self.menu.max_running or len(running)):
                yield Launch(*(tuple(pair for launch in chosen for pair in launch[at]) for at in range(3)))
        after, _ = step(self.model.config, engine, Launch())
        if (after.connector, after.preempted) != (engine.connector, engine.preempted):
            yield Launch()

    def ways(self, engine: EngineState, request: EngineRequest) -> list[Launch]:
        """Every step of one request: all that it lacks, or a chunk, with its hit or without; those alike are one."""
        found: dict[EngineState, Launch] = {}
        for hits in ((), ((request.request_id, 0),)) if self.menu.skips_hits else ((),):
            ways = [Launch(((request.request_id, n),), (), hits) for n in range(1, request.num_tokens + 1)]
            ways = [way for way in ways if self.possible(engine, way)]
            for way in ways:
                if way is ways[-1] or way.tokens[0][1] in self.menu.prefill_chunks:
                    found.setdefault(step(self.model.config, engine, way)[0], way)
        return list(found.values())

    def possible(self, engine: EngineState, event: Event) -> bool:
        try:
            step(self.model.config, engine, event)
        except Impossible:
            return False
        return True

    def landings(self, engine: EngineState) -> Iterator[Land]:
        """Everything the oldest step may bring; one request stops at a time."""
        sampling = [
            e.request_id for e in (engine.in_flight[0].entries if engine.in_flight else ()) if e.samples
        ]
        stops = [None, *(name for name in sampling if engine.request(name))] if self.menu.stops else [None]
        if engine.in_flight:
            yield from (Land((), ((name, 1),) if name else ()) for name in stops)


def idle(engine: EngineState) -> bool:
    return not (engine.requests or engine.in_flight or engine.connector.ended or engine.connector.active)


@pytest.mark.parametrize(
    "name",
    [
        *("same-prompt", "recomputed", "conversation", "session-0.32"),
        pytest.param("default", marks=pytest.mark.slow),
    ],
)
def test_the_same_states_and_transitions(name: str) -> None:
    opinion, expected = SecondOpinion(MODELS[name]), EXPECTED[name]
    found = minicheck.check_safety(opinion.protocol())
    assert found["exhaustive"]
    assert found["properties"]["nothing breaks"]["holds"] is True
    assert (found["reachable_states"], opinion.transitions) == (expected.states, expected.transitions)


@pytest.mark.parametrize("name", ["same-prompt", "session-0.32"])
def test_everything_can_end_from_everywhere(name: str) -> None:
    found = minicheck.check_liveness(SecondOpinion(MODELS[name]).protocol())
    assert (found["holds"], found["reachable_states"]) == (True, EXPECTED[name].states)


@pytest.mark.parametrize(
    "name",
    ["found-rows-evicted", "found-session-in-flight", "found-abort-and-reset", "found-hashes-truncated"],
)
def test_the_same_shortest_way_to_what_breaks(name: str) -> None:
    found = minicheck.check_safety(SecondOpinion(MODELS[name]).protocol())["properties"]["nothing breaks"]
    assert found["holds"] is False
    start, *way = found["counterexample"]
    assert (len(way), start["state"]["node"].engine) == (EXPECTED[name].length, initial())
