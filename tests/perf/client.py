"""Decode, join and pack a batch of rollouts with ``auxout.client``, against one copy of the bytes.

``python tests/perf/client.py --samples 512`` needs twice the batch in memory: 512 samples of 8192 tokens, 94 layers and
8 experts are 3.2 GB. Prints ratios; writes nothing. Beyond a gigabyte a round, of the plain copy too, takes several
times as long where the system has no huge pages left: then compare the fastest rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from auxout.client import Schema, Trajectory, decode, pack
from auxout.client import torch as tensors

SCHEMA = Schema(num_layers=94, top_k=8, num_experts=128)
TURNS = 4


def batch(
    payloads: list[np.ndarray], tokens: np.ndarray, into: Callable[[list[Trajectory]], object]
) -> object:
    """Each payload is a conversation of some turns, whose rows came turn by turn."""
    conversations: list[Trajectory] = []
    for payload in payloads:
        conversation, start = Trajectory(SCHEMA), 0
        for turn in range(1, TURNS + 1):
            end = len(tokens) * turn // TURNS
            prompt, output = tokens[: end - 100], tokens[end - 100 : end]
            answer = payload[start : end - 1]
            rows = decode(answer, SCHEMA, source="vllm", start=start, num_tokens=end)
            conversation.add_call(prompt, output, rows)
            start = end - 1
        conversations.append(conversation)
    return into(conversations)


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """On the clock, and of the processor: the second hardly depends on what else the machine does."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def main(argv: list[str]) -> int:
    """Measure both in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", action="store_true", help="pack into tensors")
    options = parser.parse_args(argv)
    into = tensors.pack if options.torch else pack
    rng = np.random.default_rng(0)
    shape = (options.samples, options.tokens - 1, *SCHEMA.row_shape)
    source = rng.integers(0, SCHEMA.num_experts, shape, SCHEMA.dtype)
    tokens = np.arange(options.tokens)
    ratios: list[tuple[float, float]] = []
    fastest = [float("inf")] * 2
    for _ in range(options.rounds + 1):
        copy = _seconds(source.copy)
        ours = _seconds(lambda: batch(list(source), tokens, into))
        ratios.append((ours[0] / copy[0], ours[1] / copy[1]))
        fastest = [min(fastest[0], copy[0]), min(fastest[1], ours[0])]
        print(f"one copy {copy[0]:.3f} s, decode + join + pack {ours[0]:.3f} s, ratio {ratios[-1][0]:.2f}")
    wall, processor = (statistics.median(each) for each in zip(*ratios[1:], strict=True))
    print(
        f"{source.nbytes / 1e9:.1f} GB, medians after a warm-up: {wall:.2f}, of processor time {processor:.2f}; "
        f"of the fastest rounds {fastest[1] / fastest[0]:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
