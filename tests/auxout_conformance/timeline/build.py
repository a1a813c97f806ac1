"""Builds a timeline: plays a scenario on the spec, twice where no worker is part of it.

A scenario that judges a scheduler connector assumes a right worker. The worker and store lanes then show the spec's own
worker beside it, until it refuses something, as the released worker would.
"""

from __future__ import annotations

from collections.abc import Iterable

from auxout_spec.calls import Exchange, RequestFinished
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.deviations import Deviation
from auxout_spec.engine import EngineConfig, EngineState, Event, Impossible, initial, step
from auxout_spec.explorer.model import UNBOUNDED
from auxout_spec.profiles import LATEST, named
from auxout_spec.scenario import Scenario, config_of
from auxout_spec.values import BlockHash
from auxout_spec.worker import Limits

from ..judge import describe_call
from ..verdicts import Violation
from . import lanes
from .lanes import Change
from .model import LANES, Column, Flight, Line, Timeline, Wrong

_NO_WORKER = "the worker refused event {}; what it would do afterwards is not shown"


def build(events: Iterable[Event], config: EngineConfig, wrong: Wrong | None = None) -> Timeline:
    """The timeline of some events in an engine, up to the first that it cannot bring about.

    Args:
        wrong: what is broken in the last event.
    """
    columns: list[Column] = []
    flights: list[Flight] = []
    engine, beside, note = initial(), _Beside(config), ""
    exchanges: tuple[Exchange, ...] = ()
    places: dict[BlockHash, int] = {}
    for number, event in enumerate(events, 1):
        before = engine
        try:
            engine, exchanges = step(config, before, event)
        except Impossible as error:
            note = f"event {number} cannot happen here: {error}"
            break
        _learn(places, engine, exchanges)
        change = Change(event, before, engine, exchanges, places)
        columns.append(Column(number, lanes.title(event), _cells(change, beside.follow(change))))
        _fly(flights, change, number - 1)
        if engine.problem is not None:
            # Whatever the engine did next, it would do without its worker.
            break
    if not note and beside.refused_at:
        note = _NO_WORKER.format(beside.refused_at) if beside.refused_at < len(columns) else ""
    if wrong is not None and columns:
        columns[-1] = _marked(columns[-1], exchanges, wrong)
    sizes = config.block_size, config.depth, config.profile.name
    return Timeline(*sizes, tuple(columns), tuple(flights), wrong, note)


def of_violation(violation: Violation, deviations: frozenset[Deviation] = frozenset()) -> Timeline:
    """The timeline of a violation, to the call whose answer was wrong.

    Args:
        deviations: those of the release that was judged with its known findings.
    """
    scenario = violation.scenario
    profile = named(scenario.profile or LATEST)._replace(deviations=deviations)
    sentence = ALL_CLAUSES[violation.clause].sentence if violation.clause in ALL_CLAUSES else ""
    wrong = Wrong(violation.clause, sentence, violation.call, violation.expected, violation.actual)
    return build(scenario.events[: violation.event], config_of(scenario, profile), wrong)


def of_scenario(scenario: Scenario, profile: str) -> Timeline:
    """The timeline of a scenario as it should go."""
    return build(scenario.events, config_of(scenario, named(profile)))


class _Beside:
    """The spec's worker and store: part of the engine, or run beside one that assumes a right worker."""

    def __init__(self, config: EngineConfig) -> None:
        self._own = config.limits is None
        self._config = config._replace(
            limits=config.limits or Limits(config.block_size, UNBOUNDED, config.profile.fails_requests)
        )
        self._state = initial()
        self.refused_at = 0
        """The event at which the worker beside refused; 0: none."""
        self._number = 0

    def follow(self, change: Change) -> Change | None:
        """The same event with a worker; None after the worker refused."""
        self._number += 1
        if not self._own:
            return change
        if self.refused_at:
            return None
        before = self._state
        self._state, exchanges = step(self._config, before, change.event)
        if self._state.problem is not None:
            self.refused_at = self._number
        return change._replace(before=before, after=self._state, exchanges=exchanges)


def _cells(change: Change, with_worker: Change | None) -> tuple[tuple[Line, ...], ...]:
    cells = {
        "engine": tuple(lanes.engine(change)),
        "scheduler": tuple(lanes.scheduler(change)),
        "channel": tuple(lanes.channel(change)),
        "worker": tuple(lanes.worker(with_worker)) if with_worker else (),
        "store": tuple(lanes.store(with_worker)) if with_worker else (),
    }
    return tuple(cells[lane] for lane in LANES)


def _learn(places: dict[BlockHash, int], state: EngineState, exchanges: Iterable[Exchange]) -> None:
    lists = [request.block_hashes for request in state.requests]
    lists += [each.call.request.block_hashes for each in exchanges if isinstance(each.call, RequestFinished)]
    for hashes in lists:
        for place, block_hash in enumerate(hashes):
            places.setdefault(block_hash, place)


def _fly(flights: list[Flight], change: Change, column: int) -> None:
    """Note the steps that this event launched or landed."""
    before, after = change.before.in_flight, change.after.in_flight
    if len(after) < len(before):
        number = next(place for place, flight in enumerate(flights) if flight.last is None)
        flights[number] = flights[number]._replace(last=column)
    for launched in after[len(before) :]:
        parts = tuple(
            lanes.ranged("", entry.request_id, entry.token_start, entry.token_start + entry.num_tokens)
            for entry in launched.entries
        )
        flights.append(Flight(len(flights) + 1, column, None, parts))


def _marked(column: Column, exchanges: Iterable[Exchange], wrong: Wrong) -> Column:
    """The column with the call of that description marked as wrong."""
    for lane in ("scheduler", "worker"):
        calls = [describe_call(each.call) for each in lanes.calls_of(lane, exchanges)]
        numbers = [number for number, call in enumerate(calls) if wrong.call and wrong.call.endswith(call)]
        place = LANES.index(lane)
        lines = [at for at, line in enumerate(column.cells[place]) if line.tone == "call"]
        if numbers and len(lines) > numbers[0]:
            cell, at = list(column.cells[place]), lines[numbers[0]]
            cell[at] = cell[at]._replace(tone="wrong")
            return column._replace(cells=(*column.cells[:place], tuple(cell), *column.cells[place + 1 :]))
    return column
