"""Checks a trace: whether connectors that keep the protocol can have made these answers.

A trace holds the calls of a scheduler connector, of a worker, or of both. With both it also shows the way between
them: what the one sent must be what the other got (CHAN); and what the engine owes them (ENGINE).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from auxout_spec import calls, duties, reading, trace
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
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.duties import CacheReset, Note
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
    entries: list[tuple[int, Exchange | Note]]
    """The calls, and what was noted between them, with their line numbers."""
    limits: Limits | None = None
    """The sizes of the worker, if its calls are recorded."""


def read(lines: Iterable[str]) -> Recorded:
    """A trace from its lines.

    Raises:
        MalformedTrace: a line is not what a recorder writes.
    """
    entries: list[tuple[int, Exchange | Note]] = []
    profile = limits = None
    for number, line in enumerate(lines, 1):
        try:
            data = reading.table(reading.parse(line), "a line of a trace")
            if profile is None:
                profile, limits = _profile(data), _limits(data)
            else:
                entries.append((number, trace.entry_from_json(data)))
        except Malformed as error:
            raise MalformedTrace(f"line {number}: {error}") from None
    if profile is None:
        raise MalformedTrace("the trace is empty")
    for number, entry in entries:
        if limits is None and isinstance(entry, Exchange) and isinstance(entry.call, WORKER_CALLS):
            raise MalformedTrace(
                f"line {number}: a worker's call, but line 1 names no block_size and max_objects"
            )
    return Recorded(profile, entries, limits)


def check(recorded: Recorded, profile: Profile) -> Checked:
    """Follow a trace with the spec's transitions to the first call or answer that it does not allow."""
    return _Checking(recorded, profile).run()


class _Checking:
    """A trace being followed."""

    def __init__(self, recorded: Recorded, profile: Profile) -> None:
        self._recorded, self._profile, self._limits = recorded, profile, recorded.limits
        self._state, self._owed = Halves(), duties.NOTHING
        self._ledger = Ledger(block_size=self._limits.block_size if self._limits else 1)
        calls_made = [entry for _, entry in recorded.entries if isinstance(entry, Exchange)]
        self._channel = Channel.of(calls_made)
        self._notes_resets = any(isinstance(entry, CacheReset) for _, entry in recorded.entries)
        self._num_calls = 0

    def run(self) -> Checked:
        """To the end, or to the first impossible line."""
        for line, entry in self._recorded.entries:
            if not isinstance(entry, Exchange):
                self._owed = duties.noted(self._owed, entry)
                continue
            self._num_calls += 1
            wrong = self._wrong(*entry)
            if wrong is not None:
                clause, expected, actual = wrong
                found = Impossible(line, clause, describe_call(entry.call), expected, actual)
                return Checked(self._num_calls, found)
        return Checked(self._num_calls, None)

    def _wrong(self, call: Call, answer: Result) -> tuple[str, str, str] | None:
        """The clause that a call or its answer breaks, what is right and what is wrong; None if all is in order."""
        lost = self._channel.lost(call)
        if lost is not None:
            return *lost, "another one"
        after, right = calls.apply(self._profile, self._limits, self._state, call)
        breach = self._breach(call, right)
        if breach is not None:
            return breach.clause, ALL_CLAUSES[breach.clause].sentence, breach.message
        seen = Raised("", answer.message, refusal=True) if isinstance(answer, Refusal) else answer
        if not agrees(right, seen):
            clause = broken_clause(self._profile, self._ledger, self._state, call, right, seen)
            views = dict(self._ledger.views)
            if isinstance(call, BuildConnectorMeta):
                views |= {view.request_id: view for view in call.requests}
            return clause, describe_outcome(right, views), describe_outcome(seen, views)
        if isinstance(right, Refusal) and self._channel.both:
            return "ENGINE-CALL-1", "no such call", f"a call that is rightly refused ({right.message})"
        self._owed = duties.after(self._owed, call, right)
        self._channel.record(call, right)
        self._ledger.record(call, self._state, right)
        self._state = after
        return None

    def _breach(self, call: Call, right: Result) -> Refusal | None:
        """The duty that the engine breaks by a call; most show only in a trace of both connectors."""
        if isinstance(right, Refusal) and ALL_CLAUSES[right.clause].component == "ENGINE":
            return right
        if not self._channel.both:
            return None
        return duties.breach(self._owed, self._state.scheduler, call, self._notes_resets)


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
