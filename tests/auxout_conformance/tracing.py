"""Checks a trace: whether a scheduler connector that keeps the protocol can have made these answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from auxout_spec import calls, trace
from auxout_spec.calls import BuildConnectorMeta, Exchange
from auxout_spec.profiles import Profile
from auxout_spec.scheduler import INITIAL
from auxout_spec.values import Refusal

from .judge import describe_call, describe_outcome
from .judge.diagnosis import broken_clause
from .judge.ledger import Ledger
from .judge.play import agrees
from .observation import Raised
from .recording import FORMAT


class MalformedTrace(ValueError):
    """A file that is not a trace; the message says which line and why."""


@dataclass(frozen=True)
class Impossible:
    """The first line that no correct connector can have written."""

    line: int
    """1-based, the header included."""
    clause: str
    call: str
    expected: str
    actual: str


@dataclass(frozen=True)
class Checked:
    """A trace that was read to its end or to its first impossible line."""

    num_calls: int
    impossible: Impossible | None


@dataclass(frozen=True)
class Recorded:
    """A trace as it was read."""

    profile: str
    """The protocol version that its recorder named; empty if none."""
    exchanges: list[tuple[int, Exchange]]
    """The calls with their line numbers."""


def read(lines: Iterable[str]) -> Recorded:
    """A trace from its lines.

    Raises:
        MalformedTrace: a line is not what a recorder writes.
    """
    exchanges: list[tuple[int, Exchange]] = []
    profile = None
    for number, line in enumerate(lines, 1):
        data = _parsed(number, line)
        if profile is None:
            if data.get("auxout") != FORMAT:
                raise MalformedTrace(f'line 1: expected "auxout": "{FORMAT}"')
            profile = str(data.get("profile", ""))
            continue
        try:
            exchanges.append((number, trace.exchange_from_json(data)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedTrace(f"line {number}: not a recorded call ({error})") from None
    if profile is None:
        raise MalformedTrace("the trace is empty")
    return Recorded(profile, exchanges)


def check(exchanges: Iterable[tuple[int, Exchange]], profile: Profile) -> Checked:
    """Follow a trace with the spec's transitions to the first answer that it does not allow."""
    state, ledger, count = INITIAL, Ledger(), 0
    for line, (call, answer) in exchanges:
        count += 1
        after, right = calls.apply(profile, state, call)
        seen = Raised("", answer.message, refusal=True) if isinstance(answer, Refusal) else answer
        if not agrees(right, seen):
            clause = broken_clause(profile, ledger, state, call, right, seen)
            views = dict(ledger.views)
            if isinstance(call, BuildConnectorMeta):
                views |= {view.request_id: view for view in call.requests}
            found = Impossible(
                line,
                clause,
                describe_call(call),
                describe_outcome(right, views),
                describe_outcome(seen, views),
            )
            return Checked(count, found)
        ledger.record(call, state, right)
        state = after
    return Checked(count, None)


def _parsed(number: int, line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        raise MalformedTrace(f"line {number}: not JSON") from None
    if not isinstance(data, dict):
        raise MalformedTrace(f"line {number}: a trace has one object a line")
    return data
