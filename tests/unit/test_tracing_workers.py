"""Traces of both connectors: random runs of the spec are accepted, each corrupted one is rejected at its line."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from auxout_conformance import recording, tracing
from auxout_conformance.objects import StepMetadata
from auxout_spec import trace
from auxout_spec.calls import (
    BeginStep,
    BuildConnectorMeta,
    Close,
    Exchange,
    PrepareOutput,
    ProcessOutput,
    TakeOutput,
)
from auxout_spec.engine import (
    Abort,
    Add,
    EngineConfig,
    EngineState,
    Event,
    Evict,
    Impossible,
    Land,
    Launch,
    Preempt,
    Reset,
    initial,
    step,
)
from auxout_spec.engine.options import launchable, most_tokens, takes_drafts
from auxout_spec.profiles import PROFILES
from auxout_spec.values import Metadata, Refusal, Row, StepOutput
from auxout_spec.worker import Limits

P32 = PROFILES["0.32"]
LIMITS = Limits(2, 64)
CONFIG = EngineConfig(P32, 2, 2, limits=LIMITS)
HEADER = json.dumps({"auxout": "trace/1", "profile": "0.32", "block_size": 2, "max_objects": 64})


def random_event(draw: random.Random, state: EngineState, number: int) -> Event:
    """Some event; it need not be possible."""
    ready, names = launchable(CONFIG, state), [request.request_id for request in state.requests]
    kind = draw.choices(
        ("add", "launch", "land", "abort", "preempt", "evict", "reset"), (3, 8, 8, 1, 2, 1, 1)
    )[0]
    if kind == "launch" and ready:
        chosen = draw.sample(ready, draw.randint(1, len(ready)))
        lacks = {r.request_id: most_tokens(CONFIG, state, r, skip_hit=False) for r in chosen}
        takers = [r.request_id for r in chosen if takes_drafts(r, lacks[r.request_id])]
        drafts = {name: draw.randint(0, 3) for name in takers}
        tokens = tuple((name, count + drafts.get(name, 0)) for name, count in lacks.items())
        return Launch(tokens, tuple((name, count) for name, count in drafts.items() if count))
    if kind == "land" and state.in_flight:
        flying = [entry for entry in state.in_flight[0].entries if entry.samples]
        return Land(tuple((e.request_id, draw.randint(1, 1 + e.num_drafts)) for e in flying))
    if kind in ("abort", "preempt") and names:
        return (Abort if kind == "abort" else Preempt)(draw.choice(names))
    if kind == "evict":
        return Evict()
    if kind == "reset" and not state.in_flight:
        return Reset()
    return Add(
        f"R{number}", draw.randint(1, 7), draw.randint(0, 3), draw.randint(1, 3), draw.choice(("", "T"))
    )


def random_run(seed: int, length: int = 25) -> list[Exchange]:
    """The calls of one random run of engine, connectors and store."""
    draw, state, exchanges = random.Random(seed), initial(), list[Exchange]()
    for number in range(length):
        try:
            state, made = step(CONFIG, state, random_event(draw, state, number))
        except Impossible:
            continue
        exchanges += made
        if state.problem is not None:
            break
    return exchanges


def checked(exchanges: list[Exchange]) -> tracing.Checked:
    """A trace of these calls, written, read and checked."""
    lines = [HEADER, *(json.dumps(trace.exchange_to_json(exchange)) for exchange in exchanges)]
    recorded = tracing.read(lines)
    return tracing.check(recorded, PROFILES[recorded.profile])


class Corrupted(NamedTuple):
    """One field of one exchange changed."""

    exchange: Exchange
    shows_later: bool = False
    """What a step's batch says is compared when the step is processed."""


def corrupted(exchange: Exchange) -> Iterator[Corrupted]:
    """An exchange with one field changed that the protocol looks at."""
    call, result = exchange
    if isinstance(result, Metadata):
        for wrong in metadata_fields(result):
            yield Corrupted(Exchange(call, wrong))
    if isinstance(call, BeginStep):
        for wrong in metadata_fields(call.metadata):
            yield Corrupted(Exchange(BeginStep(wrong), result))
    if isinstance(call, PrepareOutput):
        (name, start, count), *rest = call.batch
        yield Corrupted(Exchange(PrepareOutput((("nobody", start, count), *rest)), result))
        yield Corrupted(Exchange(PrepareOutput(((name, start + 1, count), *rest)), result), True)
        yield Corrupted(Exchange(PrepareOutput(((name, start, count + 1), *rest)), result), True)
    if isinstance(call, ProcessOutput) and isinstance(result, StepOutput):
        part, *others = call.parts
        for change in (
            {"request_id": "nobody"},
            {"token_start": part.token_start + 1},
            {"rows": part.rows[1:]},
            {"num_rejected": len(part.rows) + 1},
        ):
            yield Corrupted(Exchange(call._replace(parts=(part._replace(**change), *others)), result))
        yield Corrupted(Exchange(call._replace(step=1), result))
        for at, (name, output) in enumerate(result.outputs):
            rest = (*result.outputs[:at], *result.outputs[at + 1 :])
            yield Corrupted(Exchange(call, StepOutput(rest)))
            for wrong in (
                output._replace(token_start=output.token_start + 1),
                output._replace(rows=(*output.rows, Row("x", 0, 0, 0))),
                output._replace(rows=(Row("x", 0, 0, 0), *output.rows[1:])),
            ):
                yield Corrupted(Exchange(call, StepOutput((*rest, (name, wrong)))))
    if isinstance(call, TakeOutput) and call.outputs:
        others = tuple(entry for entry in call.outputs if entry[0] != call.request.request_id)
        yield Corrupted(Exchange(call._replace(outputs=others), result))


def metadata_fields(metadata: Metadata) -> Iterator[Metadata]:
    """Metadata with one field changed."""
    yield metadata._replace(generation=metadata.generation + 1)
    yield metadata._replace(finished_requests=(*metadata.finished_requests, "nobody"))
    if metadata.requests:
        (name, start), *rest = metadata.requests
        yield metadata._replace(requests=((name, start + 1), *rest))
        yield metadata._replace(requests=tuple(rest))
    if metadata.block_hashes:
        (name, hashes), *rest = metadata.block_hashes
        yield metadata._replace(block_hashes=tuple(rest))
        yield metadata._replace(block_hashes=((name, (*hashes[:-1], b"x" * 32)), *rest))


def lands(exchanges: list[Exchange], place: int) -> bool:
    """Whether the step that is prepared at a place is processed later; steps are in launch order."""
    before = sum(isinstance(each.call, PrepareOutput) for each in exchanges[:place])
    return sum(isinstance(each.result, StepOutput) for each in exchanges) > before


def check_runs(seeds: range) -> None:
    for seed in seeds:
        exchanges = random_run(seed)
        found = checked(exchanges)
        assert found.num_calls == len(exchanges), seed
        if isinstance(exchanges[-1].result, Refusal):  # which ended the engine
            assert found.impossible is not None
            assert found.impossible.clause == "ENGINE-CALL-1"
        else:
            assert found.impossible is None, seed


def check_corruptions(wanted: int) -> None:
    """Each is rejected, and the first impossible line is its own, or for a batch a later one."""
    count, seed = 0, 0
    while count < wanted:
        seed += 1
        exchanges, draw = random_run(seed), random.Random(seed)
        for place, exchange in enumerate(exchanges):
            choices = list(corrupted(exchange))
            if not choices or (count + place) % 3:
                continue
            wrong = draw.choice(choices)
            if wrong.shows_later and not lands(exchanges, place):
                continue
            found = checked([*exchanges[:place], wrong.exchange, *exchanges[place + 1 :]]).impossible
            assert found is not None, (seed, place, wrong.exchange)
            assert (found.line > place + 2) if wrong.shows_later else (found.line == place + 2)
            count += 1


def test_random_runs_are_accepted() -> None:
    check_runs(range(100))


def test_corrupted_runs_are_rejected_at_their_line() -> None:
    check_corruptions(150)


@pytest.mark.slow
def test_ten_thousand_random_runs_are_accepted() -> None:
    check_runs(range(10_000))


@pytest.mark.slow
def test_two_thousand_corrupted_runs_are_rejected_at_their_line() -> None:
    check_corruptions(2000)


def test_random_runs_reach_every_call() -> None:
    kinds = {type(exchange.call) for seed in range(20) for exchange in random_run(seed)}
    assert kinds >= {BuildConnectorMeta, BeginStep, PrepareOutput, ProcessOutput, TakeOutput}


def test_a_worker_s_trace_needs_its_sizes() -> None:
    line = json.dumps(trace.exchange_to_json(Exchange(Close(), None)))
    with pytest.raises(
        tracing.MalformedTrace, match="line 2: a worker's call, but line 1 names no block_size"
    ):
        tracing.read([json.dumps({"auxout": "trace/1"}), line])


# The recorder.


class Pending:
    """A step in flight of the worker below."""

    def __init__(self, worker: Any, step: Any) -> None:
        self.worker, self.step = worker, step
        self.counts: tuple[Any, Any] = ((), ())

    def enqueue_cpu_copy(self, num_sampled: Any, num_rejected: Any) -> None:
        self.counts = num_sampled, num_rejected

    def process_output(self) -> Any:
        return self.worker.core.process_output(self.step, *self.counts)


class Worker:
    """The reference's worker behind vLLM's interface."""

    special = 7

    def __init__(self, rows: np.ndarray[Any, Any]) -> None:
        from auxout_conformance.targets.drivers import Sizes
        from auxout_conformance.targets.loading import LoadSpec, load

        make = load(LoadSpec("module", "auxout_reference.connector,auxout_reference.worker")).worker
        assert make is not None
        self.core: Any = vars(make("0.32", Sizes(2, 64, 2)))["_core"]
        self.rows = rows

    def begin_step(self, metadata: Any) -> None:
        self.core.begin_step(metadata)

    def prepare_output(self, batch: Any) -> Pending | None:
        if not batch.req_ids:
            return None
        bounds = batch.query_start_loc_np
        starts = batch.num_computed_tokens_np
        return Pending(self, self.core.prepare_output(batch.req_ids, starts, bounds, self.rows))

    def close(self) -> None:
        self.core.close()


def test_what_a_worker_s_recorder_writes_is_accepted() -> None:
    rows = np.arange(16, dtype=np.uint16).reshape(4, 2, 2)
    file, worker = io.StringIO(), Worker(rows)
    recorder = recording.WorkerRecorder(
        worker, recording.Trace(file, "0.32", block_size=2, max_objects=64), lambda count: worker.rows[:count]
    )
    recorder.begin_step(None)
    recorder.begin_step(StepMetadata.of(Metadata(0, (("A", 0),), (("A", (b"a" * 32, b"b" * 32)),), ())))
    batch = SimpleNamespace(
        req_ids=["A"], query_start_loc_np=np.array([0, 4]), num_computed_tokens_np=np.array([0])
    )
    pending = recorder.prepare_output(batch)
    counts = np.zeros(1, int), np.zeros(1, int)
    pending.enqueue_cpu_copy(*counts)
    counts[0][0] = 1
    assert pending.worker is worker
    assert np.array_equal(pending.process_output()["A"].rows, rows)
    empty = SimpleNamespace(req_ids=[], query_start_loc_np=np.array([0]), num_computed_tokens_np=np.array([]))
    assert recorder.prepare_output(empty) is None
    with pytest.raises(AssertionError):
        recorder.begin_step(StepMetadata.of(Metadata(0, (("A", 0),), (), ("A",))))
    recorder.close()
    assert recorder.special == 7
    recorded = tracing.read(file.getvalue().splitlines())
    names = [type(exchange.call).__name__ for _, exchange in recorded.entries]
    assert names == ["BeginStep", "PrepareOutput", "ProcessOutput", "BeginStep", "Close"]
    assert tracing.check(recorded, P32).impossible is None
