"""What a search walks over: a start, and what may follow each state.

``Whole`` takes the state as one piece. It is the definition: ``lanes`` must find exactly the same states.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ..engine import EngineState, Event, Impossible, initial, step
from ..values import Refusal
from .canonical import canonical
from .choices import Choice, Options, choices, event_of, options_of
from .model import Left, Model, whole_menu
from .properties import Broken, broken_cover, broken_hit, broken_property
from .witnesses import witnessed


class Move(NamedTuple):
    """One step of the search."""

    choice: Choice
    after: Hashable
    """The state it leads to."""
    broken: Broken | None
    witnesses: int
    """The sometimes-properties that it meets, a bit each."""


class System(Protocol):
    """A transition system over states that compare and hash."""

    def start(self) -> Hashable:
        """Where every trace begins."""
        ...

    def moves(self, state: Hashable) -> Iterator[Move]:
        """Everything that may happen in a state, in a fixed order."""
        ...

    def drained(self, state: Hashable) -> bool:
        """Whether everything that arrived has ended and nothing is under way."""
        ...

    def encoded(self, state: Hashable) -> bytes:
        """A state as bytes: equal for equal states only."""
        ...

    def events(self, taken: Sequence[Choice]) -> tuple[Event, ...]:
        """The engine events of a trace from the start."""
        ...


class WholeState(NamedTuple):
    """A state in one piece."""

    engine: EngineState
    left: Left


class Whole:
    """A model whose states are taken as they are."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.met = 0

    def start(self) -> WholeState:
        """Where every trace begins."""
        return WholeState(initial(), whole_menu(self.model.menu))

    def moves(self, state: Hashable) -> Iterator[Move]:
        """Everything that may happen in a state, in a fixed order."""
        assert isinstance(state, WholeState)
        engine, left = state
        given = all_options(self.model, engine)
        for choice in choices(self.model, engine.paused, len(engine.in_flight), left, given):
            event = event_of(self.model.menu, self.model.ids, choice, given)
            taken = take(self.model, engine, event, self.met)
            if taken is not None:
                after, broken, witnesses = taken
                self.met |= witnesses
                yield Move(choice, WholeState(after, choice.left), broken, witnesses)

    def drained(self, state: Hashable) -> bool:
        """Whether everything that arrived has ended and nothing is under way."""
        assert isinstance(state, WholeState)
        return is_drained(state.engine)

    def encoded(self, state: Hashable) -> bytes:
        """A state as bytes: equal for equal states only."""
        assert isinstance(state, WholeState)
        preempted = sorted(state.engine.preempted)  # a set prints in any order
        return repr((state.engine._replace(preempted=frozenset()), preempted, state.left)).encode()

    def events(self, taken: Sequence[Choice]) -> tuple[Event, ...]:
        """The engine events of a trace from the start."""
        engine = initial()
        events: list[Event] = []
        for choice in taken:
            given = all_options(self.model, engine)
            event = event_of(self.model.menu, self.model.ids, choice, given)
            events.append(event)
            engine = canonical(step(self.model.config, engine, event)[0], self.model.bounded)
        return tuple(events)


def all_options(model: Model, engine: EngineState) -> tuple[Options, ...]:
    """The options of every request id, in order."""
    given = tuple(options_of(model, engine, name) for name in model.ids)
    # Resident blocks belong to a text, not to an id; any will do for the choice to evict.
    return (given[0]._replace(resident=bool(engine.resident)), *given[1:])


def take(
    model: Model, engine: EngineState, event: Event, met: int = 0
) -> tuple[EngineState, Broken | None, int] | None:
    """One event: the canonical state after it, what it broke and what it witnessed; None if it is impossible.

    Args:
        met: witnesses that need not be looked for any more.
    """
    try:
        after, exchanges = step(model.config, engine, event)
    except Impossible:
        return None
    after = canonical(after, model.bounded)
    refused = next((e.result for e in exchanges if isinstance(e.result, Refusal)), None)
    broken = Broken(refused.clause, refused.message) if refused else broken_property(model.config, after)
    broken = broken or broken_cover(model.config, engine, exchanges)
    broken = broken or broken_hit(model.config, engine, event, after)
    return after, broken, witnessed(event, engine, after, exchanges, met)


def is_drained(engine: EngineState) -> bool:
    """Whether everything that arrived has ended and nothing is under way."""
    return not (engine.requests or engine.in_flight or engine.connector.ended or engine.connector.active)
