"""A state taken apart into what belongs to one request id each and what belongs to none, and put together again."""

from __future__ import annotations

from collections import Counter
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
"""The id under which lanes with private texts are stepped, so that requests that are alike have equal lanes."""

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


class Pool(NamedTuple):
    """The blocks of rows that requests with a common text find: resident KV, and the store's objects."""

    resident: tuple[Block, ...] = ()
    objects: tuple[tuple[Key, Object], ...] = ()


class Lane(NamedTuple):
    """Everything that belongs to one request id; the store's references follow from the worker's (STORE-REF-1)."""

    name: RequestId = NAME
    request: EngineRequest | None = None
    entries: tuple[Entry | None, ...] = ()
    """Its part of each step in flight."""
    activations: tuple[Activation, ...] = ()
    preempted: bool = False
    sent: Sent | None = None
    ended: tuple[BlockHash, ...] | None = None
    worker: WorkerRequest | None = None
    own: Pool = Pool()
    """The blocks of its text, if that is its own."""


def assembled(shared: Shared, lanes: Sequence[Lane], pool: Pool) -> EngineState:
    """The state of some lanes, in canonical form if they are sorted by name and each is.

    Args:
        pool: the blocks that belong to none of them.
    """
    steps = tuple(
        Step(generation, tuple(entry for lane in lanes if (entry := lane.entries[at]) is not None))
        for at, generation in enumerate(shared.steps)
    )
    return EngineState(
        SchedulerState(
            shared.generation,
            tuple((lane.name, lane.sent) for lane in lanes if lane.sent is not None),
            tuple((lane.name, lane.ended) for lane in lanes if lane.ended is not None),
        ),
        tuple(lane.request for lane in lanes if lane.request is not None),
        steps,
        tuple(activation for lane in lanes for activation in lane.activations),
        tuple(sorted(block for part in (pool, *(lane.own for lane in lanes)) for block in part.resident)),
        shared.num_weight_updates,
        shared.paused,
        frozenset(lane.name for lane in lanes if lane.preempted),
        worker=_worker(shared, lanes, pool, steps),
    )


def _worker(shared: Shared, lanes: Sequence[Lane], pool: Pool, steps: tuple[Step, ...]) -> WorkerState:
    requests = tuple((lane.name, lane.worker) for lane in lanes if lane.worker is not None)
    references = Counter((shared.worker_generation, key) for _, kept in requests for key in kept.keys)
    return WorkerState(
        shared.worker_generation,
        requests,
        tuple(tuple(entry.request_id for entry in step.entries) for step in steps),
        StoreState(
            tuple(sorted(item for part in (pool, *(lane.own for lane in lanes)) for item in part.objects)),
            tuple(sorted(references.items())),
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


def pool_of(engine: EngineState) -> Pool:
    """All blocks of a state."""
    return Pool(engine.resident, engine.worker.store.objects)


def lane_of(engine: EngineState, name: RequestId) -> Lane:
    """What belongs to a request id, blocks apart."""
    return Lane(
        name,
        engine.request(name),
        tuple(
            next((entry for entry in step.entries if entry.request_id == name), None)
            for step in engine.in_flight
        ),
        tuple(activation for activation in engine.activations if activation.request_id == name),
        name in engine.preempted,
        dict(engine.connector.active).get(name),
        dict(engine.connector.ended).get(name),
        dict(engine.worker.requests).get(name),
    )


def private_lanes(engine: EngineState, ids: Sequence[RequestId], names: Names) -> tuple[Lane, ...]:
    """The lanes of a state whose requests have texts of their own, each under the common name."""
    resident, objects = pool_of(engine)
    owner = {block_hash: tokens[-1][0].rstrip("'") for block_hash, tokens in names.tokens.items()}
    lanes: list[Lane] = []
    for name in ids:
        own = Pool(
            tuple(block for block in resident if owner[block.block_hash] == name),
            tuple(item for item in objects if owner[item[0][1]] == name),
        )
        lanes.append(renamed_lane(names, lane_of(engine, name)._replace(own=own), {name: NAME}))
    return tuple(lanes)


def renamed_lane(names: Names, lane: Lane, exchanged: Mapping[RequestId, RequestId]) -> Lane:
    """A lane under another name."""
    other: Lane = names.renamed(lane, exchanged)
    resident, objects = other.own
    return other._replace(own=Pool(tuple(sorted(resident)), tuple(sorted(objects))))


def extended(shared: Shared, lane: Lane) -> tuple[Shared, Lane]:
    """A lane beside which a step of others was launched."""
    return shared._replace(steps=(*shared.steps, shared.generation)), lane._replace(
        entries=(*lane.entries, None)
    )
