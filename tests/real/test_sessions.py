"""Ours is never the worse choice: streaming sessions with nothing left out, with the original pair and with ours.

Engines are drawn until ``AUXOUT_REAL_SESSIONS`` sessions have had all their turns with the original;
``AUXOUT_REAL_SEED`` is the first engine's seed, for a replay.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from . import pairs, released
from .released import Setting
from .traffic import Mix, Played, play

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.filterwarnings("default")]

NUM_SESSIONS = int(os.environ.get("AUXOUT_REAL_SESSIONS", "20"))
FIRST_SEED = int(os.environ.get("AUXOUT_REAL_SEED", "0"))
SESSIONS_PER_ENGINE = 8
OURS = ("impl", "impl per request", "impl's scheduler connector")
KNOWN_ENDS = (
    "capture moved backwards",
    "cannot run and finish in one step",
    "generation changed with output in flight",
    "emit cursor moved ahead",
    "object does not exist",
    "assert num_new_tokens > 0",
    "assert request.num_output_placeholders >= 0",
)
"""How a release ends: docs/findings.md. The last two are assertions of its scheduler."""


def draw(seed: int, asynchronous: bool) -> tuple[Setting, Mix]:
    """An engine, and its traffic. What ends the releases is in some of them only."""
    random = Random(seed)

    def rarely(value: float) -> float:
        return value if random.random() < 0.15 else 0.0

    block_size, num_drafts = random.choice([4, 16]), random.choice([0, 0, 0, 3])
    setting = Setting(
        asynchronous,
        num_drafts,
        num_blocks=random.randint(55, 150) if block_size == 4 else random.randint(15, 45),
        max_num_seqs=random.choice([2, 4, 8, 16]),
        max_num_batched_tokens=random.choice([16, 32, 64, 128]),
        block_size=block_size,
    )
    # Where a step is in flight when a turn stops, or drafts are accepted beyond it, each release breaks.
    safe = not asynchronous and not num_drafts
    mix = Mix(
        num_sessions=random.randint(2, 6),
        num_others=random.randint(0, 8),
        longest_turn=random.choice([1, 1, 6]) if num_drafts else 6,
        sharing=random.choice([0.0, 0.0, 0.5]),
        early_stops=random.choice([0.0, 0.3]) if safe else rarely(0.05),
        queued=random.choice([0.0, 0.1]),
        raised=rarely(0.05),
        any_reset=rarely(0.01),
        again=rarely(0.2),
    )
    return setting, mix


def worse(ours: Played, original: Played) -> Iterator[str]:
    """What the original does better, up to its end."""
    if ours.end is not None and (original.end is None or ours.end < original.end):
        yield f"ends after {ours.end} actions, the original after {original.end}: {ours.why}"
        return
    if len(ours.delivered) < len(original.delivered):
        yield f"{len(ours.delivered)} outputs, {len(original.delivered)} of the original"
    for number, (got, other) in enumerate(zip(ours.delivered, original.delivered, strict=False)):
        if got._replace(num_wrong=0) != other._replace(num_wrong=0) or got.num_wrong > other.num_wrong:
            yield f"output {number} is {got}, of the original {other}"
            return


def untrue(played: Played) -> Iterator[str]:
    """What must not be where requests fail alone."""
    if played.by_connector:
        yield f"ends after {played.end} actions: {played.why}"
    for life in played.engine.oracle.short:
        if life.num_after:
            yield f"{life.request_id} failed, and was given {life.num_after} rows"


def figures(played: Played) -> Counter[str]:
    """What is told of an engine."""
    parts = played.delivered
    return Counter(
        {
            "engines ended": played.end is not None,
            "sessions with all turns": played.traffic.num_full,
            "turns": played.traffic.num_turns,
            "steps": played.engine.counts["steps"],
            "preemptions": played.engine.counts["preemptions"],
            "aborts": sum(n for what, n in played.engine.counts.items() if what.startswith("aborts")),
            "resets": sum(n for what, n in played.engine.counts.items() if what.endswith("resets")),
            "rows": sum(part.num_rows for part in parts),
            "wrong rows": sum(part.num_wrong for part in parts),
            "misplaced outputs": sum(part.misplaced for part in parts),
            "requests failed": len(played.engine.oracle.short),
        }
    )


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_ours_is_never_worse(asynchronous: bool, capfd: pytest.CaptureFixture[str]) -> None:
    total: dict[str, Counter[str]] = {name: Counter() for name in ("original", *OURS)}
    faults: list[str] = []
    seed = FIRST_SEED
    while total["original"]["sessions with all turns"] < NUM_SESSIONS:
        assert seed < FIRST_SEED + 20 * NUM_SESSIONS, (
            "the sessions of these engines never have all their turns"
        )
        setting, mix = draw(seed, asynchronous)
        played: dict[str, Played] = {}
        for name in total:
            with pairs.bound(pairs.PAIRS[name]):
                played[name] = play(setting, mix, seed, SESSIONS_PER_ENGINE)
            total[name] += figures(played[name])
        original = played["original"]
        if original.end is not None and not any(part in original.why for part in KNOWN_ENDS):
            faults.append(f"seed {seed}, original: {original.why}")
        for name in OURS:
            found = list(worse(played[name], original))
            if pairs.PAIRS[name].errors == "request":
                found += untrue(played[name])
            faults += [f"seed {seed}, {name}: {fault}" for fault in found]
        seed += 1
    with capfd.disabled():
        for name, counts in total.items():
            print(f"\n{released.version()}, {'async' if asynchronous else 'sync'}, {name}: {dict(counts)}")
    assert not faults, "\n".join(faults)
