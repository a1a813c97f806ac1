"""Spec, reference and fast worker on the same random calls, legal and illegal, result by result.

Blocks have two or three tokens and requests share texts, so that blocks are hit, evicted and written twice. Every row
computed has a value of its own. A refused call must be refused for the same clause, and change nothing: whatever
the next calls return would show it.
"""

from __future__ import annotations

import logging
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

import auxout_reference
from auxout.core import WorkerCore as FastCore
from auxout.store import ArenaStore, BackgroundStore
from auxout_reference.worker import WorkerCore as ReferenceCore
from auxout_spec import worker as spec
from auxout_spec.profiles import LATEST, SPECIFIED
from auxout_spec.values import Metadata, Outputs, Refusal, Row

NAMES = "ABCD"
SHAPE = (2, 1)
MAX_IN_FLIGHT = 3
SEEDS = range(100)
NUM_CALLS = 80


def expect(actual: object, expected: object, what: str) -> None:
    """Compare without an assert statement, so that ``python -O`` compares too."""
    if actual != expected:
        pytest.fail(f"{what}: got {actual!r}, expected {expected!r}")


def as_array(rows: tuple[Row, ...]) -> np.ndarray[Any, Any]:
    """Rows as bytes: the computation's number in two ids."""
    numbers = np.array([row.computation for row in rows], np.uint16)
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, *SHAPE)


class Engine:
    """Draws calls that an engine might make, and some that it must not; keeps the spec's state beside."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.limits = spec.Limits(self.random.choice((1, 2, 3)), self.random.choice((2, 4, 8, 50)))
        self.careful = self.random.random() < 0.7
        self.state = spec.INITIAL
        self.texts: dict[str, str] = {}
        self.scheduled: dict[str, int] = {}
        """Request -> next position to schedule."""
        self.due: list[str] = []
        self.steps: list[tuple[tuple[str, ...], list[int], list[tuple[Row, ...]]]] = []
        self.computations = 0

    def known(self) -> dict[str, spec.WorkerRequest]:
        return dict(self.state.requests)

    def chance(self, share: float) -> bool:
        return self.random.random() < (share / 10 if self.careful else share)

    def metadata(self) -> Metadata:
        """Metadata of a step, and the requests it schedules as ``due``."""
        known = self.known()
        generation = self.state.generation
        if self.chance(0.1) or (not self.state.in_flight and self.random.random() < 0.05):
            generation += self.random.choice((1, 1, 1, -1))
        if generation != self.state.generation and (not self.state.in_flight or self.chance(0.1)):
            known = {}
        self.due = [
            name
            for name in self.random.sample(NAMES, self.random.randint(0, len(NAMES)))
            if name not in known or not known[name].finished
        ]
        finished = [
            name
            for name in known
            if (name not in self.due or self.chance(0.05)) and self.random.random() < 0.3
        ]
        return Metadata(
            generation,
            tuple((name, self.emit_start(name, known.get(name))) for name in self.due),
            tuple(
                (name, hashes)
                for name in dict.fromkeys((*known, *self.due))
                if (hashes := self.hashes(name, known.get(name)))
            ),
            tuple(finished),
        )

    def held(self, metadata: Metadata) -> Metadata:
        """The same, with what the scheduler starts and stops holding (profile 0.33); seldom more than it holds."""
        references = dict(self.state.store.references)
        of_requests = Counter(
            (self.state.generation, key) for request in self.known().values() for key in request.keys
        )
        stored = [block_hash for (generation, block_hash), _ in self.state.store.objects if not generation]
        retained = self.random.sample(stored, min(len(stored), self.random.randint(0, 2)))
        free = [
            key[1]
            for key, count in references.items()
            if key[0] == self.state.generation and count > of_requests[key]
        ]
        released = self.random.sample(free, self.random.randint(0, len(free)))
        if self.chance(0.05):
            released.append(b"none")
        return metadata._replace(retained_block_hashes=tuple(retained), released_block_hashes=tuple(released))

    def emit_start(self, name: str, request: spec.WorkerRequest | None) -> int:
        if request is None:
            self.texts[name] = self.random.choice("xy")
            self.scheduled[name] = self.limits.block_size * self.random.choice((0, 0, 1))
            return self.random.choice((0, 0, 1, 3))
        return request.emit_cursor + (self.random.choice((-1, 1)) if self.chance(0.2) else 0)

    def hashes(self, name: str, request: spec.WorkerRequest | None) -> tuple[bytes, ...]:
        count = len(request.keys) if request else 0
        end = self.scheduled[name] // self.limits.block_size + 1
        if request is None and self.scheduled[name]:
            new = self.random.randint(1, 3)  # it hits a block, so its hash is known
        else:
            new = self.random.randint(0, max(end - count, 0)) if self.random.random() < 0.8 else 0
        return tuple(f"{self.texts[name]}{block:03}".encode() for block in range(count, count + new))

    def step(self) -> tuple[tuple[str, ...], list[int], list[tuple[Row, ...]]]:
        """The batch of the metadata that was accepted last."""
        starts, rows = [], []
        for name in self.due:
            start = self.scheduled[name] + (self.random.choice((-1, 1, 2)) if self.chance(0.05) else 0)
            count = self.random.choice((1, 1, 1, 2, 3, 7))
            starts.append(max(start, 0))
            self.computations += count
            first = self.computations - count
            rows.append(tuple(Row(name, start + i, 0, first + i) for i in range(count)))
            self.scheduled[name] = start + count
        return tuple(self.due), starts, rows


class Pair:
    """The spec's state and the workers under test, called alike."""

    def __init__(self, seed: int, *workers: Any, roomy: bool = False, profile: str = LATEST) -> None:
        self.engine = Engine(seed)
        self.engine.limits = self.engine.limits._replace(profile=SPECIFIED[profile])
        if roomy:
            self.engine.limits = self.engine.limits._replace(capacity=1000)
        self.workers = [
            worker(
                block_size=self.engine.limits.block_size,
                shape_per_token=SHAPE,
                dtype="uint8",
                max_objects=self.engine.limits.capacity,
                max_in_flight=MAX_IN_FLIGHT,
                profile=profile,
            )
            for worker in workers
        ]
        self.pending: list[list[Any]] = []
        self.seen: set[str] = set()
        self.delivered: list[tuple[Any, Any, str]] = []

    def begin(self) -> None:
        metadata = self.engine.metadata()
        if self.engine.limits.profile.reads_kv_cache:
            metadata = self.engine.held(metadata)
        self.engine.state, refusal = spec.begin_step(self.engine.limits, self.engine.state, metadata)
        self.call("begin_step", refusal, [(as_metadata(metadata),) for _ in self.workers])
        if refusal is not None:
            self.engine.due = []
            return
        if self.engine.due and len(self.engine.state.in_flight) < MAX_IN_FLIGHT:
            self.prepare()

    def prepare(self) -> None:
        names, starts, rows = self.engine.step()
        self.engine.state, refusal = spec.prepare_output(self.engine.state, names)
        expect(refusal, None, "prepare_output")
        self.engine.steps.append((names, starts, rows))
        live = as_array(tuple(row for part in rows for row in part))
        bounds = np.cumsum([0, *map(len, rows)])
        self.pending.append(
            [worker.prepare_output(names, starts, bounds.tolist(), live) for worker in self.workers]
        )
        live[:] = 255  # the next step overwrites it

    def process(self) -> None:
        if not self.engine.state.in_flight:
            return
        names, starts, rows = self.engine.steps[0]
        random = self.engine.random
        sampled = [random.choice((0, 1, 1)) for _ in names]
        rejected = [
            random.randint(0, len(part)) if random.random() < 0.2 and not last else 0
            for part, last in zip(rows, self.last(names), strict=True)
        ]
        parts = tuple(map(spec.Part, names, starts, rows, sampled, rejected))
        self.engine.state, outputs = spec.process_output(self.engine.limits, self.engine.state, parts)
        refusal = outputs if isinstance(outputs, Refusal) else None
        arguments = [(pending, sampled, np.array(rejected)) for pending in self.pending[0]]
        returned = self.call("process_output", refusal, arguments)
        if refusal is None:
            del self.engine.steps[0], self.pending[0]
            for worker, output in zip(self.workers, returned, strict=True):
                expect(read(output), wanted(outputs), f"{type(worker).__module__} returned")
                self.delivered.append((output, wanted(outputs), type(worker).__module__))

    def last(self, names: tuple[str, ...]) -> list[bool]:
        """Whether the oldest step is a request's last in flight: then nothing follows what is rejected."""
        return [self.engine.known()[name].num_in_flight == 1 and self.engine.careful for name in names]

    def call(self, method: str, refusal: Refusal | None, arguments: list[tuple[Any, ...]]) -> list[Any]:
        if refusal is None:
            return [getattr(w, method)(*args) for w, args in zip(self.workers, arguments, strict=True)]
        self.seen.add(refusal.clause)
        for worker, args in zip(self.workers, arguments, strict=True):
            with pytest.raises(AssertionError) as caught:
                getattr(worker, method)(*args)
            expect(caught.value.clause, refusal.clause, f"{type(worker).__module__} refused: {caught.value}")
        return []

    def compare_usage(self) -> None:
        state = self.engine.state
        requests = [request for _, request in state.requests]
        expected = (
            len(requests),
            len(state.in_flight),
            sum(count for _, count in state.store.references),
            len(state.store.objects),
            sum(len(each.tail) + sum(len(rows) for _, rows in each.pending) for each in requests),
        )
        for worker in self.workers:
            expect(tuple(worker.usage()), expected, f"{type(worker).__module__} usage")


def as_metadata(metadata: Metadata) -> Any:
    return auxout_reference.AuxOutputConnectorMetadata(
        metadata.generation,
        dict(metadata.requests),
        {name: packed(hashes) for name, hashes in metadata.block_hashes},
        metadata.finished_requests,
        packed(metadata.retained_block_hashes),
        packed(metadata.released_block_hashes),
    )


def packed(hashes: tuple[bytes, ...]) -> Any:
    return auxout_reference.PackedBlockHashes(b"".join(hashes), len(hashes[0])) if hashes else None


def wanted(outputs: Outputs | Refusal) -> dict[str, tuple[int, bytes]]:
    assert not isinstance(outputs, Refusal)
    return {name: (output.token_start, as_array(output.rows).tobytes()) for name, output in outputs}


def read(outputs: Any) -> dict[str, tuple[int, bytes]]:
    for name, output in outputs.items():
        expect((output.rows.dtype, output.rows.shape[1:], output.error), (np.uint8, SHAPE, None), name)
    return {name: (output.token_start, output.rows.tobytes()) for name, output in outputs.items()}


def play(seed: int, *workers: Any, roomy: bool = False, profile: str = LATEST) -> set[str]:
    """Random calls, with the clauses that were refused.

    Args:
        roomy: the store has room for all, and what is held is compared at the end only.
    """
    pair = Pair(seed, *workers, roomy=roomy, profile=profile)
    for _ in range(NUM_CALLS):
        pair.engine.random.choice((pair.begin, pair.process))()
        if not roomy:
            pair.compare_usage()
    pair.compare_usage()
    for output, expected, name in pair.delivered:
        expect(read(output), expected, f"{name}, read at the end")
    return pair.seen


WORKERS = (ReferenceCore, FastCore)


class Lenient(Pair):
    """Reference and fast worker that fail requests, on calls of an engine that goes wrong; they agree in everything.

    The spec's state goes on as if the wrong call had not been, and only says what comes next.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.engine.careful = False
        limits = self.engine.limits
        self.workers = [
            worker(
                block_size=limits.block_size,
                shape_per_token=SHAPE,
                dtype="uint8",
                max_objects=limits.capacity,
                max_in_flight=MAX_IN_FLIGHT,
                errors="request",
            )
            for worker in WORKERS
        ]
        self.started: set[str] = set()
        self.batches: list[tuple[list[str], list[int]]] = []

    def attempt(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Both return, or both refuse for one clause."""
        results = []
        for worker, args in zip(self.workers, arguments, strict=True):
            try:
                results.append(getattr(worker, method)(*args))
            except AssertionError as error:
                results.append(error)
        clauses = [getattr(result, "clause", None) for result in results]
        expect(clauses[1], clauses[0], f"{method}, refusal")
        self.seen.update(clause for clause in clauses if clause)
        return [] if clauses[0] else results

    def begin(self) -> None:
        random, engine = self.engine.random, self.engine
        generation = engine.state.generation + random.choice((*[0] * 60, 1, 1, -1))
        names = random.sample(NAMES, random.randint(0, len(NAMES)))
        starts = {name: self.emit_start(name) for name in names}
        hashes = {
            name: tuple(
                f"{engine.texts[name]}{random.randint(0, 4)}".encode() for _ in range(random.randint(1, 3))
            )
            for name in NAMES
            if random.random() < 0.4 and name in engine.texts
        }
        finished = tuple(name for name in NAMES if random.random() < 0.15)
        metadata = as_metadata(Metadata(generation, tuple(starts.items()), tuple(hashes.items()), finished))
        if self.attempt("begin_step", [(metadata,)] * 2):
            newest = max(generation, engine.state.generation)
            engine.state = engine.state._replace(generation=newest)
            self.prepare_some(names)

    def emit_start(self, name: str) -> int:
        engine = self.engine
        if name not in self.started or engine.random.random() < 0.1:
            self.started.add(name)
            engine.texts[name] = engine.random.choice("xy")
            engine.scheduled[name] = engine.limits.block_size * engine.random.choice((0, 0, 1))
        return engine.random.choice((0, 0, 0, 1, 3))

    def prepare_some(self, names: list[str]) -> None:
        strangers = [name for name in self.engine.texts if name not in names and self.engine.chance(0.05)]
        self.engine.due = [*names, *strangers]
        batch, starts, rows = self.engine.step()
        live = as_array(tuple(row for part in rows for row in part))
        bounds = np.cumsum([0, *map(len, rows)])
        pending = self.attempt("prepare_output", [(batch, starts, bounds, live)] * 2)
        if pending:
            self.pending.append(pending)
            self.batches.append((list(batch), [len(part) for part in rows]))

    def process(self) -> None:
        if not self.pending:
            return
        random = self.engine.random
        batch, lengths = self.batches[0]
        sampled = [random.choice((0, 1, 1)) for _ in batch]
        rejected = [random.choice((0, 0, 0, 0, 1, length, length + 1)) for length in lengths]
        outputs = self.attempt(
            "process_output", [(pending, sampled, rejected) for pending in self.pending[0]]
        )
        del self.pending[0], self.batches[0]
        reference, fast = (
            {n: (each.token_start, each.rows.tolist(), reason(each)) for n, each in output.items()}
            for output in outputs
        )
        expect(fast, reference, "outputs")

    def compare_usage(self) -> None:
        reference, fast = (tuple(worker.usage()) for worker in self.workers)
        expect(fast, reference, "usage")
        expect(self.workers[1].failures, self.workers[0].failures, "failures")


def reason(output: Any) -> str | None:
    """The clause of an output's error."""
    return None if output.error is None else output.error.rsplit("[", 1)[1]


def test_requests_that_fail(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    seen: set[str] = set()
    for seed in SEEDS:
        pair = Lenient(seed)
        for _ in range(NUM_CALLS):
            pair.engine.random.choice((pair.begin, pair.process))()
            pair.compare_usage()
        seen |= set(pair.workers[0].failures)
    expect(
        seen,
        {
            "WORK-BEGIN-1",
            "WORK-BEGIN-2",
            "WORK-BEGIN-3",
            "WORK-BEGIN-4",
            "WORK-BEGIN-5",
            "WORK-STEP-2",
            "WORK-CAPTURE-2",
            "WORK-CAPTURE-3",
            "WORK-CAPTURE-4",
            "WORK-CAPTURE-5",
            "WORK-EMIT-3",
            "STORE-PUT-3",
            "STORE-READ-1",
        },
        "clauses that requests failed for",
    )


def test_random_calls() -> None:
    seen: set[str] = set()
    for seed in SEEDS:
        seen |= play(seed, *WORKERS)
    expect(
        seen,
        {
            "WORK-BEGIN-1",
            "WORK-BEGIN-2",
            "WORK-BEGIN-3",
            "WORK-BEGIN-4",
            "WORK-CAPTURE-2",
            "WORK-CAPTURE-3",
            "WORK-CAPTURE-4",
            "WORK-EMIT-3",
            "STORE-PUT-3",
            "STORE-READ-1",
        },
        "clauses that were broken",
    )


def test_random_calls_of_profile_0_33() -> None:
    """The reference alone; nothing is refused for lack of room."""
    seen = set[str]().union(*(play(seed, ReferenceCore, profile="0.33") for seed in SEEDS))
    assert {"STORE-PUT-4", "STORE-READ-1", "WORK-BEGIN-3"} <= seen
    assert "STORE-PUT-3" not in seen


class LateStore(BackgroundStore):
    """Behind a writer that is as slow as can be: it gets to work only when somebody waits for it."""

    def __init__(self, store: ArenaStore) -> None:
        self._late: list[list[list[Any]]] = []
        super().__init__(store)

    def put(self, *batch: Any) -> None:
        self._late.append([list(each) for each in batch])

    def _settle(self) -> None:
        late, self._late = self._late, []
        for batch in late:
            super().put(*batch)
        super()._settle()


def late_core(**given: Any) -> FastCore:
    block_shape = (given["block_size"], *given["shape_per_token"])
    arena = ArenaStore(max_objects=given["max_objects"], block_shape=block_shape, dtype="uint8", num_spare=9)
    return FastCore(**given, store=LateStore(arena))


def test_a_slow_writer_changes_no_result() -> None:
    seen: set[str] = set()
    for seed in SEEDS:
        # A batch that does not fit ends a store with a writer.
        seen |= play(seed, late_core, roomy=True)
    expect({"STORE-READ-1", "WORK-EMIT-3"} <= seen, True, "reads of what is not there are among the calls")
