"""Joining one long conversation with ``auxout.client``, beside other frameworks' own functions on the same data.

``python tests/perf/client_frameworks.py --write`` fetches their wheels, measures, and writes the table of
docs/client.md. Each framework gets the payload that it gets from its engine, and does its own work: from the answers of
four calls to one array or tensor. What is ours reads the same payload and ends with the same. Times are medians, taken
in turn, after one round that does not count; "one copy" is a copy of the result's rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from auxout.client import Schema, Trajectory, decode, to_array
from auxout.client import torch as tensors
from client_tools import frameworks
from client_tools.frameworks import Call, Job

SCHEMA = Schema(num_layers=94, top_k=8, num_experts=128)
NUM_CALLS = 4
Payload = Callable[[Call], Any]


class Contest(NamedTuple):
    """One framework and what it does."""

    wheel: str
    what: str
    calls: list[Call]
    theirs: Job
    ours: Job


def calls_of(num_tokens: int, *, resumed: bool, start: Callable[[int], int]) -> list[Call]:
    """Calls of one conversation, equally long.

    Args:
        resumed: each goes on where the one before was interrupted; else it is a turn, a tenth of it new prompt.
        start: of the first row, by the number of tokens before the call.
    """
    rows = np.random.default_rng(0).integers(
        0, SCHEMA.num_experts, (num_tokens - 1, *SCHEMA.row_shape), SCHEMA.dtype
    )
    tokens, calls, known = list(range(num_tokens)), list[Call](), 0
    for number in range(1, NUM_CALLS + 1):
        end = num_tokens * number // NUM_CALLS
        new = (end - known) // 10 if not (resumed and calls) else 0
        first = start(known)
        prompt, output = tokens[: known + new], tokens[known + new : end]
        calls.append(Call(prompt, output, first, rows[first : end - 1], tokens[known : known + new]))
        known = end
    return calls


def ours(calls: Sequence[Call], source: Any, payload: Payload, keep: Any, as_tensor: bool) -> Job:
    """The same with ``auxout.client``, of payloads that are there."""
    payloads = [payload(call) for call in calls]

    def job() -> Any:
        conversation = Trajectory(SCHEMA)
        for call, each in zip(calls, payloads, strict=True):
            num_tokens = len(call.prompt) + len(call.output)
            rows = decode(each, SCHEMA, source=source, start=call.start, num_tokens=num_tokens)
            conversation.add_call(call.prompt, call.output, rows, keep=keep)
        return tensors.pad([conversation]).rows[0] if as_tensor else to_array(conversation).rows

    return job


def contests(num_tokens: int) -> list[Contest]:
    """All of them, on conversations of a length."""

    def from_zero(known: int) -> int:
        return 0

    resumed = calls_of(num_tokens, resumed=True, start=from_zero)
    turns = calls_of(num_tokens, resumed=False, start=from_zero)
    starts = calls_of(num_tokens, resumed=False, start=lambda known: max(known - 1, 0))
    return [
        Contest(
            frameworks.VERL,
            "arrays of a rollout resumed three times",
            resumed,
            frameworks.verl_job(resumed),
            ours(resumed, "vllm", lambda call: call.rows, "first", False),
        ),
        Contest(
            frameworks.AREAL,
            "SGLang's base64 of the same",
            resumed,
            frameworks.areal_job(resumed),
            ours(resumed, "sglang", _sglang, "first", False),
        ),
        Contest(
            frameworks.SKYRL,
            "nested lists of four turns, to a batch of one",
            turns,
            frameworks.skyrl_job(turns),
            ours(turns, "lists", lambda call: call.rows.tolist(), "last", True),
        ),
        Contest(
            frameworks.VERIFIERS,
            "base64 of four turns, each with its start",
            starts,
            frameworks.verifiers_job(starts),
            ours(starts, "mapping", _mapping, "first", False),
        ),
    ]


def _sglang(call: Call) -> str:
    return frameworks.sglang_answer(call, aborted=False)["meta_info"]["routed_experts"]


def _mapping(call: Call) -> dict[str, Any]:
    return frameworks.verifiers_payload(call)


def check(contest: Contest) -> None:
    """Ours has the rows of the last call and those before; what others return is judged by client-check, not here.

    Raises:
        AssertionError: it has not.
    """
    rows = np.asarray(contest.ours())
    known = {call.start: call.rows for call in contest.calls}
    for start, values in known.items():
        assert np.array_equal(rows[start : start + len(values)], values)
    assert len(rows) == len(contest.calls[-1].prompt) + len(contest.calls[-1].output)


def measure(contest: Contest, rounds: int) -> tuple[float, float, float]:
    """Median seconds of theirs, ours and one copy of the result's rows."""
    result = np.asarray(contest.ours())
    jobs: list[Job] = [contest.theirs, contest.ours, result.copy]
    taken: list[list[float]] = [[] for _ in jobs]
    for _ in range(rounds + 1):
        for job, times in zip(jobs, taken, strict=True):
            started = time.perf_counter()
            job()
            times.append(time.perf_counter() - started)
    theirs, mine, copy = (statistics.median(times[1:]) for times in taken)
    return theirs, mine, copy


def table(num_tokens: int, rounds: int) -> str:
    """The measurements as a Markdown table."""
    lines = ["| framework | from four answers to one result | its own, ms | auxout, ms | one copy, ms |"]
    lines.append("|" + " --- |" * 5)
    for contest in contests(num_tokens):
        check(contest)
        times = " | ".join(f"{seconds * 1000:.1f}" for seconds in measure(contest, rounds))
        lines.append(f"| {contest.wheel} | {contest.what} | {times} |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="put the table into docs/client.md")
    options = parser.parse_args(argv)
    made = table(options.tokens, options.rounds)
    print(made)
    if options.write:
        frameworks.write_measured("benchmark", made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
