"""Plays a scenario on a target and stops at the first wrong answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from auxout_spec import calls
from auxout_spec.calls import BuildConnectorMeta, Call, Exchange
from auxout_spec.clauses import CLAUSES
from auxout_spec.engine import (
    Add,
    EngineConfig,
    EngineState,
    Event,
    Impossible,
    Land,
    Launch,
    Tamper,
    initial,
    step,
)
from auxout_spec.profiles import Profile
from auxout_spec.scenario import Scenario, config_of
from auxout_spec.scheduler import SchedulerState
from auxout_spec.values import Metadata, Refusal, Result

from ..observation import Observation, Odd, Raised
from . import diagnosis
from .ledger import Ledger
from .render import describe_call, describe_outcome

ATOMICITY = frozenset(("SCHED-REFUSE-3", "SCHED-REFUSE-4", "SCHED-REFUSE-5"))

EMPTY_STEP = "SCHED-META-3"


class Player(Protocol):
    """What a play needs of a host."""

    def new(self, profile: str) -> None:
        """Start a fresh connector."""
        ...

    def call(self, call: Call) -> Observation:
        """Make one call."""
        ...


@dataclass(frozen=True)
class Failure:
    """The first wrong answer of a scenario."""

    clause: str
    event: int
    """1-based."""
    call: str
    expected: str
    actual: str


@dataclass
class Play:
    """One scenario in progress: the engine model on one side, a target's session on the other."""

    host: Player
    config: EngineConfig
    state: EngineState = field(default_factory=initial)
    ledger: Ledger = field(default_factory=Ledger)
    num_events: int = 0
    num_calls: int = 0
    num_refusals: int = 0
    advice: list[tuple[str, str]] = field(default_factory=list)
    """SHOULD clauses that do not hold, with a sentence."""

    @classmethod
    def start(cls, host: Player, config: EngineConfig) -> Play:
        """A fresh connector and a fresh engine."""
        host.new(config.profile.name)
        return cls(host, config)

    def event(self, event: Event) -> Failure | None:
        """Apply one event to both sides.

        Raises:
            Impossible: no engine can bring it about here; nothing has changed.
        """
        before = self.state.connector
        self.state, exchanges = step(self.config, self.state, event)
        self.num_events += 1
        for exchange in exchanges:
            failure = self._exchange(before, exchange)
            if failure is not None:
                return failure
            before = self._after(before, exchange)
        return None

    def _exchange(self, before: SchedulerState, exchange: Exchange) -> Failure | None:
        seen = self.host.call(exchange.call)
        self.num_calls += 1
        failure = self._judge(before, exchange, seen)
        if failure is None:
            self.ledger.record(exchange.call, before, exchange.result)
        return failure

    def _judge(self, before: SchedulerState, exchange: Exchange, seen: Observation) -> Failure | None:
        call, right = exchange
        if isinstance(right, Refusal):
            self.num_refusals += 1
        if not agrees(right, seen.outcome):
            clause = diagnosis.broken_clause(
                self.config.profile, self.ledger, before, call, right, seen.outcome
            )
            return self._failure(clause, call, right, seen.outcome)
        if isinstance(right, Refusal) and isinstance(seen.outcome, Raised):
            self._advise(call, seen.outcome)
        for clause, text in seen.notes:
            return Failure(clause, self.num_events, describe_call(call), CLAUSES[clause].sentence, text)
        return None

    def _failure(self, clause: str, call: Call, right: Result, actual: Result | Raised | Odd) -> Failure:
        views = dict(self.ledger.views)
        if isinstance(call, BuildConnectorMeta):
            views |= {view.request_id: view for view in call.requests}
        expected = describe_outcome(right, views)
        return Failure(
            clause, self.num_events, describe_call(call), expected, describe_outcome(actual, views)
        )

    def _advise(self, call: Call, raised: Raised) -> None:
        request = getattr(getattr(call, "request", None), "request_id", None)
        if request is not None and request not in raised.message:
            self.advice.append(
                ("SCHED-REFUSE-2", f"{describe_call(call)} was refused with {raised.message!r}")
            )

    def _after(self, before: SchedulerState, exchange: Exchange) -> SchedulerState:
        return calls.apply(self.config.profile, before, exchange.call)[0]


def play(
    host: Player, scenario: Scenario, profile: Profile, kind: type[Play] = Play
) -> tuple[Play, Failure | None]:
    """Play a whole scenario.

    Args:
        kind: how answers are judged.

    Under a profile with deviations the engine may go another way than the scenario's author meant, for example
    because a call was not refused; the play ends where the scenario no longer fits.

    Raises:
        Impossible: an event that no engine can bring about, under a profile without deviations.
    """
    running, failure = _played(host, scenario, profile, kind)
    return running, failure and blamed(host, scenario, profile, failure)


def blamed(host: Player, scenario: Scenario, profile: Profile, failure: Failure) -> Failure:
    """The failure with its true cause.

    A refused call is to blame only if all is well without that call, and an empty step only if all is well in a step
    with requests.
    """
    if failure.clause == EMPTY_STEP:
        return _blamed_empty_step(host, scenario, profile, failure)
    if failure.clause not in ATOMICITY:
        return failure
    events = scenario.events[: failure.event]
    without = _without_refusals(config_of(scenario, profile), events)
    try:
        _, same = _played(host, scenario._replace(events=without), profile)
    except Impossible:
        return failure
    return failure if same is None else replace(failure, clause=same.clause)


def _blamed_empty_step(host: Player, scenario: Scenario, profile: Profile, failure: Failure) -> Failure:
    events = scenario.events[: failure.event - 1]
    name = "X" * (1 + max((len(getattr(event, "request", "")) for event in events), default=0))
    events = (*events, Add(name, 1), Launch(((name, 1),)))
    try:
        _, same = _played(host, scenario._replace(events=events, depth=scenario.depth + 1), profile)
    except Impossible:
        return failure
    return failure if same is None else replace(failure, clause=same.clause)


def _played(
    host: Player, scenario: Scenario, profile: Profile, kind: type[Play] = Play
) -> tuple[Play, Failure | None]:
    running = kind.start(host, config_of(scenario, profile))
    for event in scenario.events:
        try:
            failure = running.event(event)
        except Impossible:
            if not profile.deviations:
                raise
            break
        if failure is not None:
            return running, failure
    return running, None


def _without_refusals(config: EngineConfig, events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The events without those that the spec refuses; a landing stays, without its corruption."""
    state, kept = initial(), list[Event]()
    for event in events:
        state, exchanges = step(config, state, event)
        if any(isinstance(exchange.result, Refusal) for exchange in exchanges):
            while kept and isinstance(kept[-1], Tamper):
                kept.pop()
            if not isinstance(event, Land):
                continue
        kept.append(event)
    return tuple(kept)


def agrees(right: Result, outcome: Result | Raised | Odd) -> bool:
    """Whether an answer is the spec's; the order of hash entries means nothing."""
    if isinstance(right, Refusal):
        return isinstance(outcome, Raised) and outcome.refusal
    if isinstance(right, Metadata) and isinstance(outcome, Metadata):
        return _comparable(right) == _comparable(outcome)
    return type(right) is type(outcome) and right == outcome


def _comparable(metadata: Metadata) -> tuple[object, ...]:
    """Metadata without the order of hash entries, which means nothing."""
    hashes, apart = dict(metadata.block_hashes), dict(metadata.finished_block_hashes)
    return metadata._replace(block_hashes=(), finished_block_hashes=()), hashes, apart
