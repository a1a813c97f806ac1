"""What a target did with one call, in the spec's values."""

from __future__ import annotations

from typing import Any, NamedTuple

from auxout_spec import reading, trace
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.reading import Malformed
from auxout_spec.values import Result


class Raised(NamedTuple):
    """The call raised. ``refusal``: an exception by which an implementation refuses a call (SCHED-REFUSE-1)."""

    type: str
    message: str
    refusal: bool


class Odd(NamedTuple):
    """The call returned something that does not have the shape of a result."""

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
    usage: Usage | Raised | None = None
    """After a call of a worker that has a method for it."""
    traits: tuple[str, ...] = ()
    """How it is made, as far as the protocol leaves that open: fields by their types, rows by who owns them."""


def to_json(observation: Observation) -> dict[str, Any]:
    """For the pipe to a foreign target's process."""
    outcome = observation.outcome
    data: dict[str, Any] = {
        "notes": [list(note) for note in observation.notes],
        "traits": list(observation.traits),
    }
    if isinstance(observation.usage, Raised):
        data["usage"] = observation.usage._asdict()
    elif observation.usage is not None:
        data["usage"] = list(observation.usage)
    if isinstance(outcome, Raised):
        return {"raised": outcome._asdict(), **data}
    if isinstance(outcome, Odd):
        return {"odd": outcome.text, **data}
    return {"result": trace.result_to_json(outcome), **data}


def from_json(data: Any) -> Observation:
    """Read back; a foreign process may have written anything.

    Raises:
        Malformed: it is no observation.
    """
    kinds = ("raised", "odd", "result")
    fields = reading.record(data, "an answer", ("notes", "traits"), ("usage", *kinds))
    notes = tuple(map(_note, reading.array(fields["notes"], "notes")))
    traits = tuple(reading.text(trait, "a trait") for trait in reading.array(fields["traits"], "traits"))
    usage = _usage(fields["usage"]) if "usage" in fields else None
    kind = [name for name in kinds if name in fields]
    if len(kind) != 1:
        raise Malformed(f"an answer has one of {', '.join(kinds)}")
    return Observation(_outcome(kind[0], fields[kind[0]]), notes, usage, traits)


def _outcome(kind: str, data: Any) -> Result | Raised | Odd:
    if kind == "odd":
        return Odd(reading.text(data, "odd"))
    if kind == "result":
        return trace.result_from_json(data)
    return _raised(data)


def _raised(data: Any) -> Raised:
    fields = reading.record(data, "raised", Raised._fields)
    words = (reading.text(fields[name], name) for name in ("type", "message"))
    return Raised(*words, refusal=reading.boolean(fields["refusal"], "refusal"))


def _note(data: Any) -> tuple[str, str]:
    note = reading.array(data, "a note")
    if len(note) != 2 or reading.text(note[0], "the clause of a note") not in ALL_CLAUSES:
        raise Malformed("a note is a clause and a sentence")
    return note[0], reading.text(note[1], "a note")


def _usage(data: Any) -> Usage | Raised:
    if isinstance(data, dict):
        return _raised(data)
    numbers = [reading.integer(number, "usage") for number in reading.array(data, "usage")]
    if len(numbers) != len(Usage._fields):
        raise Malformed(f"usage has {len(Usage._fields)} numbers")
    return Usage(*numbers)
