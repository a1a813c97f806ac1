"""A state taken apart into what belongs to one request id each and what belongs to none, and put together again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from ..engine import EngineRequest, EngineState
from ..engine.state import Activation, Block, Entry, Step
from ..scheduler import SchedulerState, Sent
from ..store import Block as Object
from ..store import Key, StoreState
from ..values import BlockHash, RequestId
from ..worker import WorkerRequest, WorkerState
from .canonical import Names

NAME = "A"
"""The id under which every lane is stepped, so that requests that are alike have equal lanes."""

T = TypeVar("T", bound=Hashable)


class Numbered(Generic[T]):
    """Values and their numbers, in order of first sight."""

    def __init__(self) -> None:
        self.numbers: dict[T, int] = {}
        self.values: list[T] = []

    def number(self, value: T) -> int:
        """The number of a value."""
        number = self.numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Shared(NamedTuple):
    """What belongs to no request."""

    generation: int = 0
    steps: tuple[int, ...] = ()
    """The generations of the steps in flight."""
    worker_generation: int = 0
    num_weight_updates: int = 0
    paused: bool = False


class Lane(NamedTuple):
    """Everything that belongs to one request id."""

    request: EngineRequest | None = None
    entries: tuple[Entry | None, ...] = ()
    """Its part of each step in flight."""
    activations: tuple[Activation, ...] = ()
    resident: tuple[Block, ...] = ()
    preempted: bool = False
    sent: Sent | None = None
    ended: tuple[BlockHash, ...] | None = None
    worker: WorkerRequest | None = None
    objects: tuple[tuple[Key, Object], ...] = ()
    references: tuple[tuple[Key, int], ...] = ()


def assembled(shared: Shared, lanes: Sequence[tuple[RequestId, Lane]]) -> EngineState:
    """The state of some lanes, in canonical form if ids are sorted and each lane is."""
    steps = tuple(
        Step(generation, tuple(entry for _, lane in lanes if (entry := lane.entries[at]) is not None))
        for at, generation in enumerate(shared.steps)
    )
    return EngineState(
        SchedulerState(
            shared.generation,
            tuple((name, lane.sent) for name, lane in lanes if lane.sent is not None),
            tuple((name, lane.ended) for name, lane in lanes if lane.ended is not None),
        ),
        tuple(lane.request for _, lane in lanes if lane.request is not None),
        steps,
        tuple(activation for _, lane in lanes for activation in lane.activations),
        tuple(sorted(block for _, lane in lanes for block in lane.resident)),
        shared.num_weight_updates,
        shared.paused,
        frozenset(name for name, lane in lanes if lane.preempted),
        worker=_worker(shared, lanes, steps),
    )


def _worker(shared: Shared, lanes: Sequence[tuple[RequestId, Lane]], steps: tuple[Step, ...]) -> WorkerState:
    return WorkerState(
        shared.worker_generation,
        tuple((name, lane.worker) for name, lane in lanes if lane.worker is not None),
        tuple(tuple(entry.request_id for entry in step.entries) for step in steps),
        StoreState(
            tuple(sorted(item for _, lane in lanes for item in lane.objects)),
            tuple(sorted(item for _, lane in lanes for item in lane.references)),
        ),
    )


def shared_part(engine: EngineState) -> Shared:
    """What belongs to no request."""
    return Shared(
        engine.connector.generation,
        tuple(step.generation for step in engine.in_flight),
        engine.worker.generation,
        engine.num_weight_updates,
        engine.paused,
    )


def split(engine: EngineState) -> tuple[Shared, Lane]:
    """A state with one request id, taken apart."""
    return shared_part(engine), _lane(engine, NAME, engine.resident, engine.worker.store)


def split_all(engine: EngineState, ids: Sequence[RequestId], names: Names) -> tuple[Shared, tuple[Lane, ...]]:
    """A state taken apart, each lane under the common name."""
    store = engine.worker.store
    owner = {block_hash: tokens[-1][0].rstrip("'") for block_hash, tokens in names.tokens.items()}
    lanes: list[Lane] = []
    for name in ids:
        own = StoreState(
            tuple(item for item in store.objects if owner[item[0][1]] == name),
            tuple(item for item in store.references if owner[item[0][1]] == name),
        )
        resident = tuple(block for block in engine.resident if owner[block.block_hash] == name)
        lanes.append(renamed_lane(names, _lane(engine, name, resident, own), {name: NAME}))
    return shared_part(engine), tuple(lanes)


def renamed_lane(names: Names, lane: Lane, exchanged: Mapping[RequestId, RequestId]) -> Lane:
    """A lane under another name."""
    other: Lane = names.renamed(lane, exchanged)
    return other._replace(
        resident=tuple(sorted(other.resident)),
        objects=tuple(sorted(other.objects)),
        references=tuple(sorted(other.references)),
    )


def extended(shared: Shared, lane: Lane) -> tuple[Shared, Lane]:
    """A lane beside which a step of others was launched."""
    return shared._replace(steps=(*shared.steps, shared.generation)), lane._replace(
        entries=(*lane.entries, None)
    )


def _lane(engine: EngineState, name: RequestId, resident: tuple[Block, ...], store: StoreState) -> Lane:
    return Lane(
        engine.request(name),
        tuple(
            next((entry for entry in step.entries if entry.request_id == name), None)
            for step in engine.in_flight
        ),
        tuple(activation for activation in engine.activations if activation.request_id == name),
        resident,
        name in engine.preempted,
        dict(engine.connector.active).get(name),
        dict(engine.connector.ended).get(name),
        dict(engine.worker.requests).get(name),
        store.objects,
        store.references,
    )
