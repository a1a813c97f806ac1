"""Breadth-first search over a model: every reachable state, the shortest way to each, and what it breaks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

from ..engine import Event
from .model import Model, ModelState, drained, start, successors
from .properties import Broken

Verdict = Literal["OK", "VIOLATION", "DEADLOCK", "CUT"]


class Result(NamedTuple):
    """What a search came to. ``CUT`` means that a limit was reached: it is never a pass."""

    model: str
    verdict: Verdict
    states: int
    transitions: int
    depth: int
    seconds: float
    events: Counter[str]
    """How often each kind of event was taken: a kind that never was proves nothing about it."""
    broken: Broken | None = None
    trace: tuple[Event, ...] = ()
    """The shortest way to what is broken, or to the deadlock."""


class _Search:
    """A breadth-first search in progress."""

    def __init__(self, model: Model, on_states: Callable[[int], None]) -> None:
        self.model, self.on_states = model, on_states
        self.begun = time.monotonic()
        first = start(model)
        self.numbers = {first: 0}
        self.came_from: list[tuple[int, Event | None]] = [(-1, None)]
        self.level = [first]
        self.following: list[ModelState] = []
        self.depth = self.transitions = 0
        self.events: Counter[str] = Counter()

    def result(
        self, verdict: Verdict, broken: Broken | None = None, last: tuple[int, Event | None] = (-1, None)
    ) -> Result:
        """What the search came to, with the way to its last step."""
        return Result(
            self.model.name,
            verdict,
            len(self.numbers),
            self.transitions,
            self.depth,
            time.monotonic() - self.begun,
            self.events,
            broken,
            self.trace(last),
        )

    def trace(self, last: tuple[int, Event | None]) -> tuple[Event, ...]:
        """The shortest way that ends with a step: number of the state before it, and its event."""
        backwards: list[Event] = []
        number, event = last
        while event is not None:
            backwards.append(event)
            number, event = self.came_from[number]
        return tuple(reversed(backwards))

    def expand(self, state: ModelState) -> Result | None:
        """Add the states that follow one; a result if something is broken."""
        number, moved = self.numbers[state], False
        for event, after, broken in successors(self.model, state):
            self.transitions += 1
            self.events[type(event).__name__] += 1
            if broken is not None:
                self.depth += 1
                return self.result("VIOLATION", broken, (number, event))
            moved = moved or after != state
            if after not in self.numbers:
                self.add(after, number, event)
        stuck = not moved and not drained(state)
        return self.result("DEADLOCK", None, self.came_from[number]) if stuck else None

    def add(self, after: ModelState, number: int, event: Event) -> None:
        """A state that was not seen before."""
        self.numbers[after] = len(self.came_from)
        self.came_from.append((number, event))
        self.following.append(after)
        if len(self.came_from) % 4096 == 0:
            self.on_states(len(self.came_from))


def breadth_first(
    model: Model,
    max_states: int = 10_000_000,
    on_states: Callable[[int], None] = lambda states: None,
) -> Result:
    """Explore a model level by level.

    Args:
        max_states: give up beyond so many (``CUT``).
        on_states: told the number of states found, every few thousand.
    """
    search = _Search(model, on_states)
    while search.level:
        for state in search.level:
            ended = search.expand(state)
            if ended is not None:
                return ended
            if len(search.numbers) > max_states:
                return search.result("CUT")
        search.level, search.following = search.following, []
        search.depth += bool(search.level)
    return search.result("OK")
