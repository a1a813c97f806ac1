"""What the worker benchmark times: decode steps, prefills, prefix hits, the store, and outputs on their way back.

As in ``workloads``, both sides work on the same requests, and everything that is not timed happens before. Processing
counts until the released worker's writer thread is done with what the call left it.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from hashlib import sha256
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
from workers import MakeWorker, Shape, Worker, batch, rows
from workloads import BLOCK_SIZE, Request, Round, Workload

from auxout.store import ArenaStore

STEPS = 64
"""Decode steps of one population; then another, so that memory stays bounded."""
LARGE = Shape(94, 8)
SMALL_BLOCK_BYTES = 64


def _nothing() -> None:
    """Both sides find what they need as the last step left it."""


class Decoding:
    """Requests that decode, their blocks filling in turn, and a worker of each side that knows them."""

    def __init__(self, makers: Sequence[MakeWorker], shape: Shape, num_requests: int) -> None:
        names = [f"req-{i:06d}" for i in range(num_requests)]
        self.requests = {name: Request(name, 64 + i % BLOCK_SIZE) for i, name in enumerate(names)}
        self._scheduler_output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(names, 1))
        for request in self.requests.values():
            request.append()
        blocks = (64 + STEPS) // BLOCK_SIZE + 3
        self.workers = [make(shape, num_requests, blocks * num_requests) for make in makers]
        # As after a prefix hit: the rows behind the last block boundary come first.
        starts = np.array(
            [(each.num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE for each in self.requests.values()]
        )
        counts = np.array([each.num_tokens for each in self.requests.values()]) - starts
        self.ones, self.zeros = np.ones(num_requests, np.int32), np.zeros(num_requests, np.int32)
        first = rows(shape, int(counts.sum()))
        for worker in self.workers:
            worker.begin(self.metadata(worker))
            worker.run(batch(names, starts, counts), first, self.ones, self.zeros)
        self.rows = rows(shape, num_requests)
        self.next: list[Any] = [None for _ in self.workers]
        """Metadata of the next step, where it was begun already."""

    def metadata(self, worker: Worker) -> Any:
        return worker.scheduler.build_connector_meta(self._scheduler_output, self.requests)

    def look_ahead(self) -> None:
        """One more token for each, and the metadata of the step that computes it."""
        for request in self.requests.values():
            request.append()
        self.next = [self.metadata(worker) for worker in self.workers]

    def advance(self) -> Any:
        """The batch of a step, with one more token for each unless ``look_ahead`` gave it."""
        if self.next[0] is None:
            for request in self.requests.values():
                request.append()
        starts = [request.num_tokens - 1 for request in self.requests.values()]
        return batch(list(self.requests), starts, self.ones)

    def sampled(self) -> list[Request]:
        """The requests as they are once the step's tokens are sampled, which is when their rows are taken."""
        after: list[Request] = []
        for request in self.requests.values():
            after.append(copy(request))
            after[-1]._all_token_ids = [*request._all_token_ids, 0]
        return after

    def step(self, worker: Worker, metadata: Any, the_batch: Any) -> Any:
        worker.begin(metadata)
        outputs = worker.run(the_batch, self.rows, self.ones, self.zeros)
        worker.settle()
        return outputs

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def _populations(makers: Sequence[MakeWorker], shape: Shape, num_requests: int) -> Iterator[Decoding]:
    """One population for each round of a workload."""
    while True:
        decoding = Decoding(makers, shape, num_requests)
        for _ in range(STEPS):
            yield decoding
        decoding.close()


def decode(shape: Shape, num_requests: int) -> Workload:
    """Processing one decode step and beginning the next; the snapshot between is the device's time.

    One in 16 requests has a full block and its key.
    """

    def rounds(makers: Sequence[Any]) -> Iterator[Round]:
        for decoding in _populations(makers, shape, num_requests):
            the_batch = decoding.advance()
            pending: list[Any] = []
            for worker, metadata in zip(decoding.workers, decoding.next, strict=True):
                if metadata is None:
                    worker.begin(decoding.metadata(worker))
                pending.append(worker.prepare(the_batch, decoding.rows, decoding.ones, decoding.zeros))
            decoding.look_ahead()

            def action(worker: Worker, step: Any, metadata: Any) -> Any:
                outputs = step.process_output()
                worker.begin(metadata)
                worker.settle()
                return outputs

            sides = zip(decoding.workers, pending, decoding.next, strict=True)
            yield Round([lambda side=side, do=action: do(*side) for side in sides], _nothing)

    return rounds


def whole_step(shape: Shape, num_requests: int) -> Workload:
    """A decode step through all processes: metadata built, pickled, read; rows processed, pickled, taken."""

    def rounds(makers: Sequence[Any]) -> Iterator[Round]:
        for decoding in _populations(makers, shape, num_requests):
            the_batch, sampled = decoding.advance(), decoding.sampled()

            def action(
                worker: Worker,
                decoding: Decoding = decoding,
                the_batch: Any = the_batch,
                sampled: list[Request] = sampled,
            ) -> None:
                metadata = pickle.loads(pickle.dumps(decoding.metadata(worker), protocol=5))
                outputs = decoding.step(worker, metadata, the_batch)
                returned = pickle.loads(pickle.dumps(outputs, protocol=5))
                take = worker.scheduler.take_output
                for request in sampled:
                    take(request, returned)

            yield Round(
                [lambda worker=worker, do=action: do(worker) for worker in decoding.workers], _nothing
            )

    return rounds


def outputs_dumps(shape: Shape, num_requests: int) -> Workload:
    """Pickling a decode step's outputs."""

    def rounds(makers: Sequence[Any]) -> Iterator[Round]:
        for decoding in _populations(makers, shape, num_requests):
            the_batch = decoding.advance()
            made = [decoding.step(w, decoding.metadata(w), the_batch) for w in decoding.workers]
            yield Round([lambda each=each: pickle.dumps(each, protocol=5) for each in made], _nothing)

    return rounds


def outputs_loads(shape: Shape, num_requests: int) -> Workload:
    """Unpickling them, and taking every request's rows."""

    def rounds(makers: Sequence[Any]) -> Iterator[Round]:
        for decoding in _populations(makers, shape, num_requests):
            the_batch = decoding.advance()
            made = [decoding.step(w, decoding.metadata(w), the_batch) for w in decoding.workers]
            sent = [pickle.dumps(each, protocol=5) for each in made]
            sampled = decoding.sampled()

            def action(worker: Worker, data: bytes, sampled: list[Request] = sampled) -> None:
                outputs, take = pickle.loads(data), worker.scheduler.take_output
                for request in sampled:
                    take(request, outputs)

            sides = zip(decoding.workers, sent, strict=True)
            yield Round([lambda side=side, do=action: do(*side) for side in sides], _nothing)

    return rounds


def _long_request(name: str, num_tokens: int, block_size: int) -> Any:
    hashes = [sha256(f"{name}/{block}".encode()).digest() for block in range(num_tokens // block_size)]
    return SimpleNamespace(
        request_id=name,
        num_tokens=num_tokens,
        num_prompt_tokens=num_tokens,
        num_output_tokens=0,
        sampling_params=SimpleNamespace(routed_experts_prompt_start=0),
        block_hashes=hashes,
        is_finished=lambda: False,
    )


def _start(worker: Worker, request: Any, *others: Any) -> Any:
    step = SimpleNamespace(num_scheduled_tokens={request.request_id: request.num_tokens})
    return worker.scheduler.build_connector_meta(step, {each.request_id: each for each in (request, *others)})


def _end(worker: Worker, request: Any, *others: Any) -> None:
    worker.scheduler.request_finished(request)
    requests = {each.request_id: each for each in others}
    worker.begin(worker.scheduler.build_connector_meta(SimpleNamespace(num_scheduled_tokens={}), requests))
    worker.settle()


def prefill(shape: Shape, num_tokens: int, only_begin: bool = False) -> Workload:
    """One prompt, computed whole, its keys known.

    Args:
        only_begin: time only what happens before the forward pass.
    """

    def rounds(makers: Sequence[Any]) -> Iterator[Round]:
        workers = [make(shape, 16, 4 * num_tokens // shape.block_size) for make in makers]
        prompt, one, zero = rows(shape, num_tokens), np.ones(1, np.int32), np.zeros(1, np.int32)
        for serial in count():
            request = _long_request(f"p{serial}", num_tokens, shape.block_size)
            the_batch = batch([request.request_id], [0], [num_tokens])

            def begin(worker: Worker, metadata: Any) -> None:
                worker.begin(metadata)
                worker.settle()

            def process(worker: Worker, the_batch: Any = the_batch) -> Any:
                outputs = worker.run(the_batch, prompt, one, zero)
                worker.settle()
                return outputs

            def both(worker: Worker, metadata: Any, process: Callable[[Worker], Any] = process) -> Any:
                worker.begin(metadata)
                return process(worker)

            action = begin if only_begin else both
            begun = [(worker, _start(worker, request)) for worker in workers]
            yield Round([lambda each=each, do=action: do(*each) for each in begun], _nothing)
            for worker in workers:
                if only_begin:
                    process(worker)
                _end(worker, request)

    return rounds


def prefix_hit(shape: Shape, num_tokens: int) -> Workload:
    """One prompt of which all but the last block is stored."""

    def rounds(makers: Sequence[Any]) -> Iterator[Round]:
        workers = [make(shape, 16, 4 * num_tokens // shape.block_size) for make in makers]
        prompt, one, zero = rows(shape, num_tokens), np.ones(1, np.int32), np.zeros(1, np.int32)
        first = _long_request("first", num_tokens, shape.block_size)
        hit = num_tokens - shape.block_size
        last_rows = prompt[hit:]
        for worker in workers:
            worker.begin(_start(worker, first))
            worker.run(batch(["first"], [0], [num_tokens]), prompt, one, zero)
        for serial in count():
            request = _long_request("first", num_tokens, shape.block_size)
            request.request_id = f"h{serial}"
            the_batch = batch([request.request_id], [hit], [shape.block_size])

            def action(worker: Worker, metadata: Any, the_batch: Any = the_batch) -> Any:
                worker.begin(metadata)
                outputs = worker.run(the_batch, last_rows, one, zero)
                worker.settle()
                return outputs

            begun = [(worker, _start(worker, request, first)) for worker in workers]
            yield Round([lambda each=each, do=action: do(*each) for each in begun], _nothing)
            for worker in workers:
                _end(worker, request, first)

    return rounds


def evicting_put(num_referenced: int) -> Workload:
    """Writing one block into a full store, behind so many older blocks that are referenced."""

    def rounds(makers: Sequence[Any]) -> Iterator[Round]:
        from vllm.distributed.aux_output_connector import store as released

        capacity = num_referenced + 16
        original = released.BlockObjectStore(
            max_bytes=capacity * SMALL_BLOCK_BYTES, object_nbytes=SMALL_BLOCK_BYTES
        )
        fast = ArenaStore(
            max_objects=capacity,
            block_shape=(1, 1, SMALL_BLOCK_BYTES),
            dtype="uint8",
            num_spare=num_referenced,
        )
        payload = bytes(range(SMALL_BLOCK_BYTES))
        block = np.frombuffer(payload, np.uint8)
        held = [str(n) for n in range(num_referenced)]
        original.put([released.BlockObject(key, payload) for key in held], retain_keys=held)
        keys = [key.encode() for key in held]
        fast.put(keys, fast.take(num_referenced), keys)

        def put(serial: int) -> None:
            original.put([released.BlockObject(f"k{serial}", payload)])

        def put_fast(serial: int) -> None:
            slots = fast.take(1)
            fast.blocks[slots[0], 0, 0] = block
            fast.put([b"k%d" % serial], slots)

        for serial in range(16):
            put(serial)
            put_fast(serial)
        for serial in count(16):
            yield Round([lambda s=serial: put(s), lambda s=serial: put_fast(s)], _nothing)

    return rounds


FORWARD_SECONDS = 5e-4


def busy(make: MakeWorker, shape: Shape, num_requests: int, num_populations: int) -> tuple[list[float], int]:
    """Wall times of decode steps while another Python thread computes, in seconds; steps during which it did.

    Between steps this thread waits, as for a forward pass, so that the other one has its turn.

    Raises:
        RuntimeError: the other thread did not run between the steps of a population.
    """
    stop = threading.Event()
    progress = [0]

    def compute() -> None:
        while not stop.is_set():
            progress[0] += 1

    thread, times, num_interrupted = threading.Thread(target=compute), list[float](), 0
    thread.start()
    try:
        for _ in range(num_populations):
            decoding, first = Decoding([make], shape, num_requests), progress[0]
            worker = decoding.workers[0]
            for _ in range(STEPS):
                the_batch, metadata = decoding.advance(), decoding.metadata(worker)
                time.sleep(FORWARD_SECONDS)
                seen, before = progress[0], time.perf_counter()
                decoding.step(worker, metadata, the_batch)
                times.append(time.perf_counter() - before)
                num_interrupted += progress[0] != seen
            decoding.close()
            if progress[0] == first:
                raise RuntimeError("the other thread never ran")
    finally:
        stop.set()
        thread.join()
    return times, num_interrupted


def copies(shape: Shape, num_requests: int, num_rows: int, num_samples: int = 40) -> list[float]:
    """Processor times of copying that many rows of each request into blocks of a large arena, in seconds.

    Nothing but the copy that every worker has to make: with one row a request each goes to a block of its own, as in
    a decode step, else they fill blocks. No block is touched again before 256 MB others were.
    """
    blocks_each = -(-num_rows // shape.block_size)
    needed = num_requests * blocks_each
    num_blocks = max(needed, (256 << 20) // shape.block_bytes)
    arena = np.ones((num_blocks, shape.block_size, shape.num_layers, shape.top_k), shape.dtype)
    order = np.random.default_rng(0).permutation(num_blocks - num_blocks % needed).reshape(-1, needed)
    source = rows(shape, num_requests * num_rows).numpy()
    times: list[float] = []
    for sample in range(num_samples):
        slots = order[sample % len(order)]
        source ^= 1  # as fresh as rows that have just arrived
        before = time.process_time_ns()
        if num_rows == 1:
            arena[slots, sample % shape.block_size] = source
        else:
            arena[slots] = source.reshape(needed, *arena.shape[1:])
        times.append((time.process_time_ns() - before) * 1e-9)
    return times


SIZES = (32, 256, 1024)
CASES: dict[str, Workload] = {
    **{f"decode 94x8, {n} requests": decode(LARGE, n) for n in SIZES},
    **{f"decode 48x8, {n} requests": decode(Shape(48, 8), n) for n in SIZES},
    **{f"decode 61x8 uint16, {n} requests": decode(Shape(61, 8, "uint16"), n) for n in SIZES},
    **{f"pickle outputs 94x8, {n} requests": outputs_dumps(LARGE, n) for n in SIZES},
    **{f"unpickle and take outputs 94x8, {n} requests": outputs_loads(LARGE, n) for n in SIZES},
    **{f"prefill 8k 94x8, block {size}": prefill(Shape(94, 8, block_size=size), 8192) for size in (16, 64)},
    **{
        f"begin_step of a prefill 8k 94x8, block {size}": prefill(Shape(94, 8, block_size=size), 8192, True)
        for size in (16, 64)
    },
    **{
        f"prefix hit 8k 94x8, block {size}": prefix_hit(Shape(94, 8, block_size=size), 8192)
        for size in (16, 64)
    },
    **{f"evicting put behind {n:,} referenced blocks": evicting_put(n) for n in (10_000, 100_000)},
    **{f"whole decode step 94x8, {n} requests": whole_step(LARGE, n) for n in SIZES},
}
COPIES = {
    **{f"decode 94x8, {n} requests": (LARGE, n, 1) for n in SIZES},
    **{f"8k 94x8, block {size}": (Shape(94, 8, block_size=size), 1, 8192) for size in (16, 64)},
}
