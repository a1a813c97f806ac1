"""What a target did with one call, in the spec's values."""

from __future__ import annotations

from typing import Any, NamedTuple

from auxout_spec import trace
from auxout_spec.clauses import CLAUSES
from auxout_spec.values import Result


class Raised(NamedTuple):
    """The call raised. ``refusal``: an exception by which an implementation refuses a call (SCHED-REFUSE-1)."""

    type: str
    message: str
    refusal: bool


class Odd(NamedTuple):
    """The call returned something that has not the shape of a result."""

    text: str


class Usage(NamedTuple):
    """What a worker says that it holds after a call."""

    requests: int
    steps_in_flight: int
    references: int
    """Sum of the store's reference counts."""
    objects: int
    """Blocks in the store."""
    buffered_rows: int
    """Rows outside the store: of incomplete blocks and of blocks without a key."""


class Observation(NamedTuple):
    """The outcome of a call, and what else was noticed."""

    outcome: Result | Raised | Odd
    notes: tuple[tuple[str, str], ...] = ()
    """Clauses that it breaks besides, each with a sentence."""
    usage: Usage | None = None
    """After a call of a worker that can tell."""
    traits: tuple[str, ...] = ()
    """How it is made, as far as the protocol leaves that open: fields by their types, rows by who owns them."""


def to_json(observation: Observation) -> dict[str, Any]:
    """For the pipe to a foreign target's process."""
    outcome = observation.outcome
    data: dict[str, Any] = {
        "notes": [list(note) for note in observation.notes],
        "traits": list(observation.traits),
    }
    if observation.usage is not None:
        data["usage"] = list(observation.usage)
    if isinstance(outcome, Raised):
        return {"raised": outcome._asdict(), **data}
    if isinstance(outcome, Odd):
        return {"odd": outcome.text, **data}
    return {"result": trace.result_to_json(outcome), **data}


def from_json(data: dict[str, Any]) -> Observation:
    """Read back; a foreign process may have written anything, so errors are for the caller to judge."""
    notes = tuple((CLAUSES[clause].id, str(text)) for clause, text in data["notes"])
    usage = Usage(*map(int, data["usage"])) if "usage" in data else None
    traits = tuple(map(str, data["traits"]))
    if "raised" in data:
        return Observation(Raised(**data["raised"]), notes, usage, traits)
    if "odd" in data:
        return Observation(Odd(str(data["odd"])), notes, usage, traits)
    return Observation(trace.result_from_json(data["result"]), notes, usage, traits)
