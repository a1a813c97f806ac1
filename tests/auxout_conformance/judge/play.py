"""Plays a scenario on a target and stops at the first wrong answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from auxout_spec import calls
from auxout_spec.calls import WORKER_CALLS, BuildConnectorMeta, Call, Close, Exchange, Halves, TakeOutput
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.deviations import crashes, spoils
from auxout_spec.engine import (
    Abort,
    Add,
    Chunk,
    EngineConfig,
    EngineState,
    Event,
    Impossible,
    Land,
    Launch,
    Preempt,
    Reset,
    Tamper,
    initial,
    step,
)
from auxout_spec.engine.tampering import HASH_KINDS
from auxout_spec.profiles import Profile
from auxout_spec.representation import PLAIN
from auxout_spec.retention import KvCache
from auxout_spec.scenario import Scenario, config_of
from auxout_spec.values import Metadata, Refusal, Result, StepOutput

from ..covered import Covered
from ..observation import Observation, Odd, Raised
from ..setups import Setup
from ..targets.adapter import Offer
from ..targets.drivers import Sizes
from . import diagnosis, worker_diagnosis
from .ledger import ATOMICITY, ATOMICITY_OF, Ledger, failed_in
from .render import describe_call, describe_outcome, describe_usage

EMPTY_STEP = "SCHED-META-3"
LEAVING: dict[str, tuple[type[Event], ...]] = {
    "SCHED-TAKE-12": (Preempt,),
    "WORK-TEAR-1": (Abort, Preempt),
}
"""Clauses about requests that leave, and the events by which they may."""
MISSING_ROWS, MADE_ROOM = "WORK-EMIT-3", "STORE-PUT-3"
SHOWN_BY = {
    "buffers": ("", "WORK-STEP-4"),
    "writes": ("", "WORK-EMIT-7"),
    "generation": ("SCHED-META-4", "SCHED-RESET-1"),
}
"""Parts of a representation, and the clause that is broken where an answer is right without them; if there is one
before it, only answers that seem to break that are looked at."""
USAGE = "usage() after "
NUM_BLOCKS = 1 << 20
"""Of the KV cache of an engine whose profile says nothing of it: more than any play needs."""


class Player(Protocol):
    """What a play needs of a host."""

    offer: Offer
    """Which halves the target has; the spec answers for the other."""

    def new(self, setup: Setup) -> None:
        """Start fresh connectors."""
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

    @property
    def in_usage(self) -> bool:
        """Whether it shows only in what the worker says that it holds."""
        return self.call.startswith(USAGE)


@dataclass
class Play:
    """One scenario in progress: the engine model on one side, a target's session on the other.

    Where the engine drives a worker (``EngineConfig.limits``), a call that the worker must refuse, other than a
    corrupted one, ends the scenario: the engine would be gone. So does a refusal of hashes that are corrupted, where a
    release is known for not looking at them: one that looks may refuse.
    """

    host: Player
    config: EngineConfig
    state: EngineState = field(default_factory=initial)
    ledger: Ledger = field(default_factory=Ledger)
    num_events: int = 0
    num_calls: int = 0
    num_refusals: int = 0
    last_refused: str = ""
    """The clause by which the last call was refused that had to be."""
    advice: list[tuple[str, str]] = field(default_factory=list)
    """SHOULD clauses that do not hold, with a sentence."""
    corrupted: bool = False
    """Whether the event shows corrupted hashes."""
    covered: Covered = field(default_factory=Covered)
    """How large what it showed was."""
    refused_more: bool = False
    """Whether these were refused where the release would not look."""

    @classmethod
    def start(cls, host: Player, config: EngineConfig) -> Play:
        """Fresh connectors and a fresh engine."""
        capacity = config.limits.capacity if config.limits is not None else 0
        ledger = Ledger(block_size=config.block_size, cache=config.cache, capacity=capacity)
        started = cls(host, config, ledger=ledger)
        started._start_over()
        return started

    def _start_over(self) -> None:
        config, limits = self.config, self.config.limits
        sizes = limits and Sizes(limits.block_size, limits.capacity, config.depth, *config.largest_step)
        cache = config.cache or KvCache(config.block_size, config.block_size, NUM_BLOCKS)
        self.host.new(Setup(config.profile.name, sizes, config.representation, cache))

    @property
    def over(self) -> bool:
        """Whether the engine is gone, so that nothing more can happen."""
        return self.refused_more or self.state.problem is not None

    def event(self, event: Event) -> Failure | None:
        """Apply one event to both sides.

        Raises:
            Impossible: no engine can bring it about here; nothing has changed.
        """
        before = Halves(self.state.connector, self.state.worker)
        self.corrupted = any(tampered.kind in HASH_KINDS for tampered in self.state.tampered)
        self.state, exchanges = step(self.config, self.state, event)
        self.num_events += 1
        self.covered.add(self.config, self.state, exchanges)
        for exchange in exchanges:
            config = self.config
            after, _ = calls.apply(config.profile, config.limits, before, exchange.call, config.cache)
            failure = self._exchange(before, exchange, after)
            if failure is not None:
                return failure
            if self.refused_more:
                break
            before = after
        return None

    def _exchange(self, before: Halves, exchange: Exchange, after: Halves) -> Failure | None:
        if self._judged(exchange.call):
            seen = self.host.call(exchange.call)
            self.num_calls += 1
            failure = self._judge(before, exchange, seen)
            if self.refused_more:
                return None
            failure = (
                failure or self._usage_failure(exchange, after, seen) or self._late_failure(exchange, seen)
            )
            if failure is not None:
                return failure
        elif isinstance(exchange.call, Close):
            # The worker that is closed is not the target's, but the engine that starts has a new scheduler connector.
            self._start_over()
        self.ledger.record(exchange.call, before, exchange.result)
        return None

    def _judged(self, call: Call) -> bool:
        """Whether the target has the half that is called."""
        offer = self.host.offer
        return offer.worker if isinstance(call, WORKER_CALLS) else offer.scheduler

    def _judge(self, before: Halves, exchange: Exchange, seen: Observation) -> Failure | None:
        call, right = exchange
        if isinstance(right, Refusal):
            self.num_refusals += 1
            self.last_refused = right.clause
        if self._refuses_more(right, seen.outcome):
            self.refused_more = True
            return None
        if not self._acceptable(right, seen.outcome):
            clause = diagnosis.broken_clause(
                self.config.profile, self.ledger, before, call, right, seen.outcome
            )
            return self._failure(clause, call, right, seen.outcome)
        if isinstance(right, Refusal) and isinstance(seen.outcome, Raised):
            self._advise(call, seen.outcome)
        for clause, text in seen.notes:
            return Failure(clause, self.num_events, describe_call(call), ALL_CLAUSES[clause].sentence, text)
        return None

    def _refuses_more(self, right: Result, outcome: Result | Raised | Odd) -> bool:
        known = self.corrupted and bool(self.config.profile.deviations) and not isinstance(right, Refusal)
        return known and isinstance(outcome, Raised) and outcome.refusal

    def _acceptable(self, right: Result, outcome: Result | Raised | Odd) -> bool:
        """Whether an answer is right; a release that is known for it crashes where it should refuse."""
        if isinstance(right, Refusal) and isinstance(outcome, Raised) and not outcome.refusal:
            return crashes(self.config.profile, right.clause)
        return agrees(right, outcome) or self._is_late(right, outcome)

    def _is_late(self, right: Result, outcome: Result | Raised | Odd) -> bool:
        """Whether a store that writes behind has not yet said that it failed."""
        if not isinstance(right, Refusal) or not right.clause.startswith("STORE-PUT"):
            return False
        return self.host.offer.writes_behind and (outcome is None or isinstance(outcome, StepOutput))

    def _late_failure(self, exchange: Exchange, seen: Observation) -> Failure | None:
        """A store that writes behind says that it failed when the worker is closed, at the latest."""
        right = exchange.result
        if not isinstance(right, Refusal) or not self._is_late(right, seen.outcome):
            return None
        told = self.host.call(Close())
        self.num_calls += 1
        if agrees(right, told.outcome):
            return None
        call = f"close() after {describe_call(exchange.call)}"
        return Failure(
            right.clause,
            self.num_events,
            call,
            describe_outcome(right, {}),
            describe_outcome(told.outcome, {}),
        )

    def _usage_failure(self, exchange: Exchange, after: Halves, seen: Observation) -> Failure | None:
        """What the worker holds, compared with what it should hold."""
        limits, refused = self.config.limits, isinstance(exchange.result, Refusal)
        if seen.usage is None or limits is None or (refused and isinstance(exchange.call, Close)):
            return None
        if isinstance(seen.usage, Raised):
            return self._silent_usage(exchange, after, seen.usage)
        late = refused and not isinstance(seen.outcome, Raised)
        lasting = ATOMICITY_OF.get(type(exchange.call), "") if refused else ""
        if late or (lasting and spoils(self.config.profile, lasting)):
            return None
        found = worker_diagnosis.broken_usage(self.ledger, limits, after.worker, seen.usage, exchange.call)
        if not found:
            return None
        if self.config.profile.fails_requests and (self.ledger.failed or failed_in(after)):
            found = "FAIL-FREE-1"
        found = lasting or found
        should = worker_diagnosis.right_usage(after.worker)
        return Failure(
            found,
            self.num_events,
            USAGE + describe_call(exchange.call),
            describe_usage(should),
            describe_usage(seen.usage),
        )

    def _silent_usage(self, exchange: Exchange, after: Halves, raised: Raised) -> Failure | None:
        """A worker that says what it holds does so after every call that is not refused."""
        if isinstance(exchange.result, Refusal) or self.host.offer.writes_behind:
            return None
        expected = describe_usage(worker_diagnosis.right_usage(after.worker))
        call = USAGE + describe_call(exchange.call)
        return Failure("STORE-REF-1", self.num_events, call, expected, describe_outcome(raised, {}))

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
        if request is not None and not re.search(rf"(?<!\w){re.escape(request)}(?!\w)", raised.message):
            self.advice.append(
                ("SCHED-REFUSE-2", f"{describe_call(call)} was refused with {raised.message!r}")
            )


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

    A refused call is to blame only if all is well without that call, a request's leaving only if all is well where it
    stays, and an empty step only if all is well in a step with requests. Rows are missing because the wrong ones made
    room if all is well where nothing has to.
    """
    if failure.clause not in ALL_CLAUSES:
        return failure  # two answers differ, of which neither is worse
    for name, (seems, clause) in SHOWN_BY.items():
        looks = scenario.representation._replace(**{name: getattr(PLAIN, name)})
        plainer = scenario._replace(events=scenario.events[: failure.event], representation=looks)
        asked = looks != scenario.representation and seems in ("", failure.clause)
        if asked and _played(host, plainer, profile)[1] is None:
            return replace(failure, clause=clause)
    if failure.clause == EMPTY_STEP:
        return _blamed_empty_step(host, scenario, profile, failure)
    events = scenario.events[: failure.event]
    config = config_of(scenario, profile)
    if failure.clause in ATOMICITY:
        others = [_without_refusals(config, events, left_out) for left_out in (False, True)]
    elif failure.clause in LEAVING:
        others = [tuple(event for event in events if not isinstance(event, LEAVING[failure.clause]))]
    elif failure.clause == MISSING_ROWS:
        return _blamed_missing_rows(host, scenario._replace(events=events), profile, failure)
    else:
        return failure
    found = next(
        filter(None, (_found(host, scenario._replace(events=other), profile) for other in others)), ""
    )
    return replace(failure, clause=found) if found else failure


def _found(host: Player, scenario: Scenario, profile: Profile) -> str:
    """The clause that is broken in a scenario, empty if none is or if it is impossible."""
    try:
        _, failure = _played(host, scenario, profile)
    except Impossible:
        return ""
    if failure is not None and failure.clause == EMPTY_STEP:
        failure = _blamed_empty_step(host, scenario, profile, failure)
    return failure.clause if failure else ""


def _blamed_missing_rows(host: Player, scenario: Scenario, profile: Profile, failure: Failure) -> Failure:
    """Only a play that comes as far says that all is well."""
    try:
        running, same = _played(host, scenario._replace(store=_num_blocks(scenario)), profile)
    except Impossible:
        return failure
    is_well = same is None and running.num_events == len(scenario.events) and not running.over
    return replace(failure, clause=MADE_ROOM) if is_well else failure


def _num_blocks(scenario: Scenario) -> int:
    """As many as all tokens of a scenario may fill, in all its generations."""
    arriving = [event for event in scenario.events if isinstance(event, Add | Chunk)]
    tokens = sum(event.prompt if isinstance(event, Add) else event.tokens for event in arriving)
    again = 1 + sum(isinstance(event, Preempt | Reset) for event in scenario.events)
    return max(
        scenario.store,
        again * (tokens + sum(event.max_tokens for event in arriving)) // scenario.block_size + 1,
    )


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
        if running.over:
            break
    return running, None


def _without_refusals(config: EngineConfig, events: tuple[Event, ...], left_out: bool) -> tuple[Event, ...]:
    """The events without any refusal: where one is gone, a corruption behind it may be refused that was not before.

    Args:
        left_out: refused events are left out, and not only the corruptions that they show.
    """
    fewer = _with_fewer_refusals(config, events, left_out)
    return events if fewer == events else _without_refusals(config, fewer, left_out)


def _with_fewer_refusals(
    config: EngineConfig, events: tuple[Event, ...], left_out: bool
) -> tuple[Event, ...]:
    """The events without those that the spec refuses or that are impossible; a landing stays, without its corruption.

    If its output is refused even so, its request started beyond its prompt, which it then does not: it starts at the
    end of it, since what lies before may have been loaded from elsewhere and is not the worker's.
    """
    kept, beyond = list[Event](), set[str]()
    for event, refused in _refusals(config, events):
        is_corrupted = bool(kept) and isinstance(kept[-1], Tamper)
        while refused != [] and kept and isinstance(kept[-1], Tamper):
            kept.pop()
        if refused is None:
            continue
        of_worker = any(isinstance(call, WORKER_CALLS) for call in refused)
        if left_out and refused and not of_worker and not isinstance(event, Land):
            continue
        kept.append(event)
        if not is_corrupted:
            beyond |= {call.request.request_id for call in refused if isinstance(call, TakeOutput)}
    return tuple(
        _within_its_prompt(event) if isinstance(event, Add | Chunk) and event.request in beyond else event
        for event in kept
    )


def _refusals(config: EngineConfig, events: Sequence[Event]) -> Iterator[tuple[Event, list[Call] | None]]:
    """The events with the calls that the spec refuses; None for an event that is impossible, and does nothing."""
    state = initial()
    for event in events:
        try:
            state, exchanges = step(config, state, event)
        except Impossible:
            state = state._replace(tampered=())
            yield event, None
        else:
            yield event, [each.call for each in exchanges if isinstance(each.result, Refusal)]


def _within_its_prompt(event: Add | Chunk) -> Event:
    return event._replace(start=max(event.prompt - event.cut - 1, 0) if isinstance(event, Add) else 0)


def agrees(right: Result, outcome: Result | Raised | Odd) -> bool:
    """Whether an answer is the spec's; the order of hash entries means nothing."""
    if isinstance(right, Refusal):
        return isinstance(outcome, Raised) and outcome.refusal
    if isinstance(right, Metadata) and isinstance(outcome, Metadata):
        return without_order(right) == without_order(outcome)
    if isinstance(right, StepOutput) and isinstance(outcome, StepOutput):
        return dict(right.outputs) == dict(outcome.outputs)
    return type(right) is type(outcome) and right == outcome


def without_order(metadata: Metadata) -> tuple[object, ...]:
    """Metadata without the order of hash entries, which means nothing."""
    hashes, apart = dict(metadata.block_hashes), dict(metadata.finished_block_hashes)
    again = dict(metadata.replaced_block_hashes)
    rest = metadata._replace(block_hashes=(), finished_block_hashes=(), replaced_block_hashes=())
    return rest, hashes, apart, again
