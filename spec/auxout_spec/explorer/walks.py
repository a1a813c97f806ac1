"""Walks that together take every transition of a model: what is to be tried on code, where a search tries the spec.

Code cannot be put into a state; it gets there by calls. So each walk begins at the start, goes a shortest way to a
state of which something was not tried yet, and from there on takes what was not, as long as there is any.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from ..engine import Event
from .choices import Choice
from .model import Model
from .search import system_of


class Walk(NamedTuple):
    """Events from the start of a model."""

    events: tuple[Event, ...]
    num_known: int
    """So many of them only lead to the others, which no walk took before."""


class Graph:
    """The transitions of a model, out of every state or of those that are nearest to the start."""

    def __init__(self, model: Model, max_states: int) -> None:
        """Find them, breadth first.

        Args:
            max_states: leave out what follows states beyond so many.
        """
        self._system = system_of(model)
        self._came_from: list[tuple[int, Choice] | None] = [None]
        """How each state is reached first: the state before and the choice."""
        self._untaken: list[list[tuple[Choice, int]]] = []
        """Choices of each state that no walk took, and where they lead; -1: it is over, something broke."""
        self._numbers: dict[Hashable, int] = {self._system.start(): 0}
        states = list(self._numbers)
        for number, state in enumerate(states):
            if number == max_states:
                break
            self._untaken.append(self._moves(number, state, states))
        self.complete = len(self._untaken) == len(states)
        """Whether no state was left out."""
        self.transitions = sum(map(len, self._untaken))

    def walks(self) -> Iterator[Walk]:
        """Walks that take each transition for the first time in one of them; they can be asked for once."""
        for number in range(len(self._untaken)):
            while self._untaken[number]:
                before, after = self._way_to(number), self._onward(number)
                yield Walk(self._system.events([*before, *after]), len(before))

    def _moves(self, number: int, state: Hashable, states: list[Hashable]) -> list[tuple[Choice, int]]:
        moves: list[tuple[Choice, int]] = []
        for choice, following, broken, _ in self._system.moves(state):
            after = -1 if broken is not None else self._numbers.setdefault(following, len(states))
            if after == len(states):
                states.append(following)
                self._came_from.append((number, choice))
            moves.append((choice, after))
        return moves

    def _way_to(self, number: int) -> list[Choice]:
        backwards: list[Choice] = []
        while (origin := self._came_from[number]) is not None:
            number, choice = origin
            backwards.append(choice)
        return backwards[::-1]

    def _onward(self, number: int) -> list[Choice]:
        taken: list[Choice] = []
        while 0 <= number < len(self._untaken) and self._untaken[number]:
            choice, number = self._untaken[number].pop()
            taken.append(choice)
        return taken
