"""Checks a trace: whether connectors that keep the protocol can have made these answers.

A trace holds the calls of a scheduler connector, of a worker, or of both. With both it also shows the way between
them: what the one sent must be what the other got (CHAN).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from auxout_spec import calls, reading, trace
from auxout_spec.calls import (
    WORKER_CALLS,
    BeginStep,
    BuildConnectorMeta,
    Call,
    Close,
    Exchange,
    Halves,
    PrepareOutput,
    ProcessOutput,
    TakeOutput,
)
from auxout_spec.profiles import Profile
from auxout_spec.reading import Malformed
from auxout_spec.values import Metadata, Outputs, Refusal, Result, StepOutput
from auxout_spec.worker import Limits

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
    limits: Limits | None = None
    """The sizes of the worker, if its calls are recorded."""


def read(lines: Iterable[str]) -> Recorded:
    """A trace from its lines.

    Raises:
        MalformedTrace: a line is not what a recorder writes.
    """
    exchanges: list[tuple[int, Exchange]] = []
    profile = limits = None
    for number, line in enumerate(lines, 1):
        try:
            data = reading.table(reading.parse(line), "a line of a trace")
            if profile is None:
                profile, limits = _profile(data), _limits(data)
            else:
                exchanges.append((number, trace.exchange_from_json(data)))
        except Malformed as error:
            raise MalformedTrace(f"line {number}: {error}") from None
    if profile is None:
        raise MalformedTrace("the trace is empty")
    for number, exchange in exchanges:
        if limits is None and isinstance(exchange.call, WORKER_CALLS):
            raise MalformedTrace(
                f"line {number}: a worker's call, but line 1 names no block_size and max_objects"
            )
    return Recorded(profile, exchanges, limits)


def check(
    exchanges: Sequence[tuple[int, Exchange]], profile: Profile, limits: Limits | None = None
) -> Checked:
    """Follow a trace with the spec's transitions to the first call or answer that it does not allow."""
    state, ledger, count = Halves(), Ledger(block_size=limits.block_size if limits else 1), 0
    channel = Channel.of([exchange for _, exchange in exchanges])
    for line, (call, answer) in exchanges:
        count += 1
        lost = channel.lost(call)
        if lost is not None:
            clause, expected = lost
            return Checked(count, Impossible(line, clause, describe_call(call), expected, "another one"))
        after, right = calls.apply(profile, limits, state, call)
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
        channel.record(call, right)
        ledger.record(call, state, right)
        state = after
    return Checked(count, None)


@dataclass
class Channel:
    """The way between the connectors, and from a step's batch to its report."""

    both: bool
    """Whether the trace holds the calls of both connectors."""
    built: deque[Metadata]
    """Metadata that no step began with yet."""
    batches: deque[tuple[tuple[str, int, int], ...]]
    """Of the steps in flight."""
    outputs: Outputs | None = None
    """What the worker returned last."""

    @classmethod
    def of(cls, exchanges: Iterable[Exchange]) -> Channel:
        """The empty channel of a trace."""
        kinds = {type(exchange.call) for exchange in exchanges}
        return cls({BuildConnectorMeta, BeginStep} <= kinds, deque(), deque())

    def lost(self, call: Call) -> tuple[str, str] | None:
        """The clause that a call breaks by what it was given, and what is right; None if it is in order."""
        if isinstance(call, BeginStep) and self.both:
            due = self.built[0] if self.built else None
            if due is None or not agrees(due, call.metadata):
                return "CHAN-META-1", f"begin_step({describe_outcome(due, {})})"
        if isinstance(call, TakeOutput) and self.both:
            name = call.request.request_id
            if dict(call.outputs or ()).get(name) != dict(self.outputs or ()).get(name):
                return "CHAN-OUT-1", describe_outcome(StepOutput(self.outputs or ()), {})
        if isinstance(call, ProcessOutput) and call.step < len(self.batches):
            batch = self.batches[call.step]
            if tuple((part.request_id, part.token_start, len(part.rows)) for part in call.parts) != batch:
                return "WORK-STEP-1", describe_call(PrepareOutput(batch))
        return None

    def record(self, call: Call, right: Result) -> None:
        """Add a call that was in order."""
        if isinstance(call, Close):
            self.built.clear()
            self.batches.clear()
        if isinstance(right, Refusal):
            return
        if isinstance(right, Metadata):
            self.built.append(right)
        elif isinstance(call, BeginStep) and self.both:
            self.built.popleft()
        elif isinstance(call, PrepareOutput):
            self.batches.append(call.batch)
        elif isinstance(right, StepOutput):
            self.batches.popleft()
            self.outputs = right.outputs


def _profile(header: dict[str, Any]) -> str:
    if header.get("auxout") != FORMAT:
        raise Malformed(f'expected "auxout": "{FORMAT}"')
    return reading.text(header.get("profile", ""), "profile")


def _limits(header: dict[str, Any]) -> Limits | None:
    if not header.keys() & {"block_size", "max_objects"}:
        return None
    block_size, max_objects = (
        reading.integer(header.get(name), name, 1) for name in ("block_size", "max_objects")
    )
    return Limits(block_size, max_objects)
