"""Searching a model: every reachable state, the shortest way to each, and what it breaks.

Everything is tried, breadth first (the counterexample is a shortest one) or depth first. Numbers of states and
transitions are the same in every run on every machine.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from hashlib import blake2b
from typing import Literal, NamedTuple

from ..engine import Event
from .choices import Choice
from .lanes import Lanes
from .model import Model
from .progress import never_drains
from .properties import Broken
from .system import System, Whole
from .witnesses import names_of

Verdict = Literal["OK", "VIOLATION", "DEADLOCK", "STUCK", "CUT"]
Order = Literal["breadth", "depth"]


class Result(NamedTuple):
    """What a search came to.

    ``DEADLOCK`` is a state in which nothing is possible and something is left, ``STUCK`` one from which everything
    that is possible leads to no end. ``CUT`` means that not everything was tried: it is never a pass.
    """

    model: str
    verdict: Verdict
    states: int
    transitions: int
    depth: int
    """The longest of the shortest ways, or depth first the longest way that was tried."""
    seconds: float
    """Processor time."""
    events: Counter[str]
    """How often each kind of choice was taken: a kind that never was proves nothing about it."""
    witnesses: tuple[str, ...] = ()
    """The sometimes-properties that were met."""
    broken: Broken | None = None
    trace: tuple[Event, ...] = ()
    """The way to what is broken, or to where nothing goes on."""
    bytes_not_kept: int = 0
    """With compaction: how much longer the states are than what was kept of them."""


def system_of(model: Model) -> System:
    """How a model's states are represented."""
    return Lanes(model) if model.separable else Whole(model)


def explore(
    model: Model,
    order: Order = "breadth",
    max_states: int = 20_000_000,
    compact: bool = False,
    on_states: Callable[[int], None] = lambda states: None,
) -> Result:
    """Try everything that a model allows.

    Args:
        max_states: give up beyond so many (``CUT``).
        compact: keep a 64-bit digest of each state instead of the state; two states with one digest would hide
            each other (a chance of one in a million at six million states).
        on_states: told the number of states found, every few thousand.
    """
    search = _Search(model, max_states, compact, on_states)
    collects = gc.isenabled()
    gc.disable()  # states are never garbage; looking for cycles among millions costs a third of the time
    try:
        return search.breadth_first() if order == "breadth" else search.depth_first()
    finally:
        if collects:
            gc.enable()


class _Search:
    """A search in progress."""

    def __init__(
        self, model: Model, max_states: int, compact: bool, on_states: Callable[[int], None]
    ) -> None:
        self.model, self.max_states, self.compact, self.on_states = model, max_states, compact, on_states
        self.begun = time.process_time()
        self.system = system_of(model)
        self.numbers: dict[Hashable, int] = {}
        self.came_from: list[tuple[int, Choice] | None] = []
        self.drained: list[int] = []
        self.sources, self.targets = array("I"), array("I")
        self.following: list[tuple[int, Hashable]] = []
        self.depth = self.transitions = self.witnesses = self.bytes_not_kept = 0
        self.events: Counter[str] = Counter()
        self.number(self.system.start(), None)

    def breadth_first(self) -> Result:
        """Level by level."""
        level, self.following = self.following, []
        while level:
            for number, state in level:
                for ended in self.expand(number, state):
                    if ended is not None:
                        return ended
            level, self.following = self.following, []
            self.depth += bool(level)
        return self.complete()

    def depth_first(self) -> Result:
        """Each state before its siblings."""
        stack = [self.expand(*self.following.pop())]
        while stack:
            self.depth = max(self.depth, len(stack) - 1)
            for ended in stack[-1]:
                if ended is not None:
                    return ended
                if self.following:
                    stack.append(self.expand(*self.following.pop()))
                    break
            else:
                stack.pop()
        return self.complete()

    def expand(self, number: int, state: Hashable) -> Iterator[Result | None]:
        """Take every move of a state: None after each, or what ends the search."""
        moved = False
        for choice, following, broken, witnesses in self.system.moves(state):
            self.transitions += 1
            self.events[choice.kind] += 1
            self.witnesses |= witnesses
            if broken is not None:
                self.depth += 1
                yield self.result("VIOLATION", broken, (number, choice))
            after = self.number(following, (number, choice))
            moved = moved or after != number
            self.sources.append(number)
            self.targets.append(after)
            if len(self.came_from) > self.max_states:
                yield self.result("CUT")
            yield None
        if self.system.drained(state):
            self.drained.append(number)
        elif not moved:
            yield self.result("DEADLOCK", None, self.came_from[number])

    def number(self, state: Hashable, origin: tuple[int, Choice] | None) -> int:
        """A state's number; one that was not seen before is to be expanded."""
        key = self.digest(state) if self.compact else state
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.came_from)
            self.came_from.append(origin)
            self.following.append((number, state))
            if number % 4096 == 4095:
                self.on_states(number + 1)
        return number

    def digest(self, state: Hashable) -> int:
        """64 bits of a state."""
        encoded = self.system.encoded(state)
        self.bytes_not_kept += len(encoded) - 8
        return int.from_bytes(blake2b(encoded, digest_size=8).digest(), "big")

    def complete(self) -> Result:
        """Everything was tried; whether from everywhere everything can end."""
        stuck = never_drains(len(self.came_from), self.sources, self.targets, self.drained)
        if stuck is not None:
            return self.result("STUCK", None, self.came_from[stuck])
        return self.result("OK")

    def result(
        self, verdict: Verdict, broken: Broken | None = None, last: tuple[int, Choice] | None = None
    ) -> Result:
        """What the search came to, with the way to its last step."""
        return Result(
            self.model.name,
            verdict,
            len(self.came_from),
            self.transitions,
            self.depth,
            time.process_time() - self.begun,
            self.events,
            names_of(self.witnesses),
            broken,
            self.system.events(self.trace(last)),
            self.bytes_not_kept,
        )

    def trace(self, last: tuple[int, Choice] | None) -> list[Choice]:
        """The way that ends with a step: number of the state before it, and its choice."""
        backwards: list[Choice] = []
        while last is not None:
            backwards.append(last[1])
            last = self.came_from[last[0]]
        return backwards[::-1]
