"""``make soak``: a million steps of both connectors under an engine that does everything, and memory stays as it is.

Requests of shared texts start, hit stored blocks, are computed in chunks and with drafts, are preempted and aborted;
generations change; two steps are in flight. Every returned row is checked against its position, text and generation.
Metadata and outputs cross between the two as they do in one process, or pickled. At the end nothing is left but stored
blocks. With --keep, half of the requests keep their rows until they end, which hold at most twice their size.
Options: --steps, --seed, --writer, --keep.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import sys
import time
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from auxout import WorkerCore
from auxout.connector import AuxOutputSchedulerConnector
from auxout.store import ArenaStore, BackgroundStore

BLOCK_SIZE = 4
SHAPE = (2, 2)
MAX_OBJECTS = 128
MAX_REQUESTS = 6
NUM_TEXTS = 20
MAX_TOKENS = 60
DEPTH = 2


class Request:
    """One activation, as the engine sees it, with what the scheduler connector reads of it."""

    sampling_params: Any = SimpleNamespace(routed_experts_prompt_start=0)

    def __init__(self, name: str, text: int, start: int, length: int) -> None:
        self.request_id, self.text, self.length = name, text, length
        self.scheduled = self.computed = start
        self.emit = 0
        self.in_flight = 0
        self.block_hashes: list[bytes] = []
        self.num_tokens = self.num_prompt_tokens = start + 1
        self.is_running = False
        self.kept: list[np.ndarray[Any, Any]] | None = None
        """Its rows, if it keeps them."""

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def is_finished(self) -> bool:
        return False


class Engine:
    """Draws steps and checks what comes back."""

    def __init__(self, core: WorkerCore, seed: int, keep: bool = False) -> None:
        self.core = core
        self.keep = keep
        self.num_oversized = 0
        """Requests whose rows held more than twice their size."""
        self.connector = AuxOutputSchedulerConnector()
        self.random = Random(seed)
        self.generation = 0
        self.serial = 0
        self.requests: dict[str, Request] = {}
        self.steps: list[tuple[Any, list[tuple[Request, int, int]], int]] = []
        self.stored: set[tuple[int, int, int]] = set()
        """Generation, text and number of blocks that were computed; some may be evicted since."""
        self.num_rows = 0
        self.set_rows()

    def run(self, num_steps: int, report_every: int) -> list[float]:
        """Peak memory in MB at every report."""
        peaks: list[float] = []
        started = time.monotonic()
        for step in range(1, num_steps + 1):
            while len(self.steps) >= DEPTH or (self.steps and self.random.random() < 0.4):
                self.land()
            self.launch()
            if step % report_every == 0:
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
                rate = step / (time.monotonic() - started)
                print(
                    f"{step:>9} steps  {rate:6.0f} a second  {self.num_rows} rows  {peaks[-1]:.0f} MB",
                    flush=True,
                )
        while self.steps:
            self.land()
        for request in list(self.requests.values()):
            self.end(request)
        self.core.begin_step(self.metadata([]))
        return peaks

    def launch(self) -> None:
        random = self.random
        if not self.steps and random.random() < 0.01:
            self.next_generation()
        while len(self.requests) < random.randint(1, MAX_REQUESTS):
            self.start()
        for each in [each for each in self.requests.values() if random.random() < 0.02 and each.is_running]:
            self.end(each)
        batch = [each for each in self.requests.values() if random.random() < 0.8]
        parts = [(each, each.scheduled, self.count(each)) for each in batch]
        for each, start, count in parts:
            self.extend(each, start + count)
        self.core.begin_step(self.metadata(parts))
        if not parts:
            return
        rows = np.concatenate([self.rows(each, start, count) for each, start, count in parts])
        bounds = np.cumsum([0, *(count for _, _, count in parts)])
        pending = self.core.prepare_output(
            [each.request_id for each in batch], [start for _, start, _ in parts], bounds, rows
        )
        rows[:] = 255
        for each, start, count in parts:
            each.scheduled, each.is_running = start + count, True
            each.in_flight += 1
        self.steps.append((pending, parts, self.generation))

    def land(self) -> None:
        pending, parts, generation = self.steps.pop(0)
        rejected = []
        for each, start, count in parts:
            each.in_flight -= 1
            alone = each.in_flight == 0 and each.scheduled == start + count
            rejected.append(self.random.randint(0, count - 1) if alone and self.random.random() < 0.3 else 0)
        outputs = self.sent(self.core.process_output(pending, [1] * len(parts), rejected))
        for (each, start, count), dropped in zip(parts, rejected, strict=True):
            end = start + count - dropped
            each.scheduled -= dropped
            each.computed = end
            each.num_tokens = end + 1
            rows = self.connector.take_output(each, outputs)
            expected = self.rows(each, each.emit, end - each.emit)
            start_is_right = outputs[each.request_id].token_start == each.emit
            if rows is None or not start_is_right or not np.array_equal(rows, expected):
                raise RuntimeError(f"{each.request_id} got other rows than [{each.emit}, {end})")
            if each.kept is not None:
                each.kept.append(rows)
            self.num_rows += len(expected)
            each.emit = end
            for block in range(start // BLOCK_SIZE, min(end // BLOCK_SIZE, len(each.block_hashes))):
                self.stored.add((generation, each.text, block))
            if end >= each.length and each.in_flight == 0 and self.requests.get(each.request_id) is each:
                self.end(each)

    def start(self) -> None:
        """A request of one of a few texts; whole blocks at its begin may be hit."""
        random = self.random
        self.serial += 1
        text = random.randrange(NUM_TEXTS)
        hit = 0
        while hit < 14 and (self.generation, text, hit) in self.stored and random.random() < 0.9:
            hit += 1
        length = random.randint(hit * BLOCK_SIZE + 1, MAX_TOKENS)
        request = Request(f"r{self.serial}", text, hit * BLOCK_SIZE, length)
        if not self.resident(request, hit):
            request = Request(f"r{self.serial}", text, 0, length)
        if self.keep and random.random() < 0.5:
            request.kept = []
        self.requests[request.request_id] = request

    def resident(self, request: Request, num_blocks: int) -> bool:
        """Whether the store still has the blocks of a hit; a real engine does not know, and fails closed."""
        prefix = self.generation.to_bytes(8, "little", signed=True)
        return self.core._store.find([prefix + self.hash(request, b) for b in range(num_blocks)]) is not None

    def end(self, request: Request) -> None:
        del self.requests[request.request_id]
        self.connector.request_finished(request)
        if request.kept:
            memory = [rows if rows.base is None else rows.base for rows in request.kept]
            held = sum({id(each): each.nbytes for each in memory}.values())
            self.num_oversized += held > 2 * sum(rows.nbytes for rows in request.kept)

    def count(self, request: Request) -> int:
        left = max(request.length - request.scheduled, 1)
        return min(self.random.choice((1, 1, 1, 2, 3, 9)), left)

    def extend(self, request: Request, end: int) -> None:
        """Hash the blocks that the step completes; sometimes, once a request runs, only with the next step."""
        late = request.is_running and self.random.random() < 0.3
        known = (request.scheduled if late else end) // BLOCK_SIZE
        request.block_hashes += [self.hash(request, n) for n in range(len(request.block_hashes), known)]

    def hash(self, request: Request, block: int) -> bytes:
        return bytes([request.text, block])

    def rows(self, request: Request, start: int, count: int) -> np.ndarray[Any, Any]:
        """Generation, text and position of each row."""
        return self.table[request.text, start : start + count]

    def next_generation(self) -> None:
        """Every row of every position is another one from now on."""
        self.generation += 1
        self.connector.reset()
        self.requests.clear()
        self.stored.clear()
        self.set_rows()

    def set_rows(self) -> None:
        """Generation, text and position of each row."""
        self.table = np.zeros((NUM_TEXTS, 2 * MAX_TOKENS, *SHAPE), np.uint8)
        self.table[:, :, 0, 0] = self.generation % 251
        self.table[:, :, 0, 1] = np.arange(NUM_TEXTS)[:, None]
        self.table[:, :, 1] = np.arange(2 * MAX_TOKENS)[:, None]

    def metadata(self, parts: list[tuple[Request, int, int]]) -> Any:
        step: Any = SimpleNamespace(num_scheduled_tokens={each.request_id: count for each, _, count in parts})
        return self.sent(self.connector.build_connector_meta(step, self.requests))

    def sent(self, message: Any) -> Any:
        """As it arrives at the other side: the same, or from another process."""
        return pickle.loads(pickle.dumps(message, protocol=5)) if self.random.random() < 0.5 else message


def soak(
    num_steps: int, seed: int = 0, writer: bool = False, report_every: int = 100_000, keep: bool = False
) -> list[float]:
    """Run, and raise if a row is wrong or something is left; the peaks of memory in MB."""
    store: Any = ArenaStore(
        max_objects=MAX_OBJECTS, block_shape=(BLOCK_SIZE, *SHAPE), dtype="uint8", num_spare=16 * MAX_REQUESTS
    )
    num_slots = len(store.blocks)
    if writer:
        store = BackgroundStore(store)
    core = WorkerCore(
        block_size=BLOCK_SIZE,
        shape_per_token=SHAPE,
        dtype="uint8",
        max_objects=MAX_OBJECTS,
        max_in_flight=DEPTH,
        store=store,
    )
    engine = Engine(core, seed, keep)
    peaks = engine.run(num_steps, report_every)
    if engine.connector._sent or engine.connector._ended:
        raise RuntimeError("the scheduler connector still knows requests")
    # Rows of one step may be views: of the step after which the connector noticed that rows are kept.
    if engine.num_oversized > MAX_REQUESTS:
        raise RuntimeError(f"rows of {engine.num_oversized} requests held more than twice their size")
    left = core.usage()
    if left[:3] != (0, 0, 0) or left.buffered_rows or left.objects > MAX_OBJECTS:
        raise RuntimeError(f"left behind: {left}")
    if len(store.blocks) != num_slots or (not writer and store.num_free != num_slots - left.objects):
        raise RuntimeError(f"slots are lost, or the arena grew: {len(store.blocks)} of {num_slots}")
    core.close()
    return peaks


def main(argv: list[str]) -> int:
    """Soak, and print how memory went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--writer", action="store_true", help="with the background writer")
    parser.add_argument("--keep", action="store_true", help="requests keep their rows")
    options = parser.parse_args(argv)
    report_every = max(options.steps // 10, 1)
    peaks = soak(options.steps, options.seed, options.writer, report_every, options.keep)
    print(f"nothing left; peak memory {peaks[0]:.0f} MB after a tenth, {peaks[-1]:.0f} MB at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
