"""Decode, join and pack a batch of rollouts with ``auxout.client``, against one copy of the bytes.

``python tests/perf/client.py --samples 512`` needs twice the batch in memory: 512 samples of 8192 tokens, 94 layers and
8 experts are 3.2 GB. Prints medians of the ratio; writes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

from auxout.client import Packed, Schema, Trajectory, decode, pack

SCHEMA = Schema(num_layers=94, top_k=8, num_experts=128)
TURNS = 4


def batch(payloads: list[np.ndarray], tokens: np.ndarray) -> Packed:
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
    return pack(conversations)


def main(argv: list[str]) -> int:
    """Measure both in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    shape = (options.samples, options.tokens - 1, *SCHEMA.row_shape)
    source = rng.integers(0, SCHEMA.num_experts, shape, SCHEMA.dtype)
    tokens = np.arange(options.tokens)
    ratios: list[float] = []
    for _ in range(options.rounds + 1):
        started = time.perf_counter()
        copied = source.copy()
        one_copy = time.perf_counter() - started
        del copied
        started = time.perf_counter()
        packed = batch(list(source), tokens)
        ours = time.perf_counter() - started
        del packed
        ratios.append(ours / one_copy)
        print(f"one copy {one_copy:.3f} s, decode + join + pack {ours:.3f} s, ratio {ratios[-1]:.2f}")
    print(f"{source.nbytes / 1e9:.1f} GB: median ratio {statistics.median(ratios[1:]):.2f}, after a warm-up")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
