"""``make bench-gpu``: a step's capture, snapshot and copy on CUDA, against the copy alone.

Prints microseconds for one step: the routers' writes, the narrowing snapshot, the copy to the host, the same bytes
copied from pinned to pinned memory without anything else (the floor), and what the host spends on enqueueing. Exits
with 0 and a sentence where there is no CUDA device.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

from auxout._snapshots import RingSnapshots
from auxout.routed_experts import Batch
from auxout.worker import RoutedExpertsCapturer

SHAPES = ((48, 8, 256), (94, 8, 256), (61, 8, 512))
"""(layers, top_k, experts)."""
TOKENS = (32, 256, 1024, 8192)
ROUNDS = 50


def main() -> int:
    """Print the table."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds, median of {ROUNDS}")
    print(
        f"{'layers x top_k, tokens':28} {'writes':>8} {'snapshot':>9} {'copy':>8} {'floor':>8} {'enqueue':>8}"
    )
    for layers, top_k, experts in SHAPES:
        for tokens in TOKENS:
            print(_line(layers, top_k, experts, tokens), flush=True)
    return 0


def _line(layers: int, top_k: int, experts: int, tokens: int) -> str:
    model = SimpleNamespace(
        get_total_num_hidden_layers=lambda: layers,
        get_num_experts=lambda: experts,
        get_num_experts_per_tok=lambda: top_k,
    )
    parallel = SimpleNamespace(data_parallel_rank=0, tensor_parallel_size=1)
    config = SimpleNamespace(model_config=model, parallel_config=parallel)
    capturer = RoutedExpertsCapturer(tokens, config, "cuda")
    ring = RingSnapshots(capturer.device_buffer, capturer.output_dtype, 1, torch.cuda)
    chosen = torch.randint(0, experts, (layers, tokens, top_k), dtype=torch.int32, device="cuda")
    rows = capturer.device_buffer.to(capturer.output_dtype)
    host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
    taken: list[Any] = []

    def writes() -> None:
        for layer in range(layers):
            capturer.store(layer, chosen[layer], Batch())

    def snapshot() -> None:
        taken.append(ring.take(tokens))

    def copy() -> None:
        ring.start_copy(taken[-1])
        torch.cuda.current_stream().wait_event(taken[-1].slot.copied)

    def floor() -> None:
        host.copy_(rows, non_blocking=True)

    columns: dict[str, list[float]] = {
        name: [] for name in ("writes", "snapshot", "copy", "floor", "enqueue")
    }
    for _ in range(ROUNDS + 5):
        for action in (writes, snapshot, copy, floor):
            columns[action.__name__].append(_device_time(action))
        ring.release(taken.pop())
        torch.cuda.synchronize()
        before = time.perf_counter()
        snapshot()
        ring.start_copy(taken[-1])
        columns["enqueue"].append((time.perf_counter() - before) * 1e6)
        torch.cuda.synchronize()
        ring.release(taken.pop())
    numbers = [f"{median(values[5:]):8.1f}" for values in columns.values()]
    return f"{f'{layers} x {top_k} {rows.dtype}'.replace('torch.', ''):18} {tokens:>9} " + " ".join(numbers)


def _device_time(action: Any) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    action()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000


if __name__ == "__main__":
    sys.exit(main())
