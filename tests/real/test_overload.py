"""Requests that fail for themselves: ours with ``errors="request"`` under overload and faults.

24 KV blocks, stores smaller than that, and everything that ``traffic`` and ``faults`` have. ``AUXOUT_REAL_OVERLOAD``
sets the steps in each scheduling; ``AUXOUT_REAL_SEED`` is the first engine's seed, for a replay.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from . import pairs, released
from .faults import Faulty
from .released import Setting
from .traffic import Mix, Played, play

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.filterwarnings("default")]

NUM_STEPS = int(os.environ.get("AUXOUT_REAL_OVERLOAD", "2000"))
FIRST_SEED = int(os.environ.get("AUXOUT_REAL_SEED", "0"))
STEPS_PER_ENGINE = 400


def draw(seed: int, asynchronous: bool) -> tuple[Setting, Mix, float]:
    """An engine with too little of everything, its traffic, and the chance of a fault."""
    random = Random(seed)
    num_drafts = random.choice([0, 0, 3])
    setting = Setting(
        asynchronous,
        num_drafts,
        num_blocks=24,
        max_num_seqs=random.choice([4, 8]),
        max_num_batched_tokens=random.choice([16, 32]),
        max_objects=random.choice([4, 12, 20, 24]),
    )
    num_sessions, sharing = random.randint(0, 3), random.choice([0.0, 0.5, 0.8])
    # In 0.31, where other requests share a session's text, a row of a token that it dropped may reach them: the engine
    # keeps its hash (docs/findings.md).
    may_share = not num_sessions or released.profile() == "0.32"
    mix = Mix(
        num_sessions=num_sessions,
        num_others=random.randint(2, 10),
        num_turns=8,
        # Beyond accepted drafts a session breaks in vLLM's scheduler.
        longest_turn=1 if num_drafts else 6,
        longest=60,
        sharing=sharing if may_share else 0.0,
        aborts=0.03,
        resets=0.01,
        early_stops=0.0 if num_drafts else 0.2,
        queued=0.1,
        raised=0.1,
        any_reset=random.choice([0.0, 0.02]),
        again=random.choice([0.0, 0.3]),
    )
    return setting, mix, random.choice([0.0, 0.005, 0.03])


def untrue(played: Played, strict: Played, log: str) -> Iterator[str]:
    """What must not be where requests fail alone.

    Args:
        strict: the same traffic and faults, with ours as it is without that option.
        log: what ours logged.
    """
    engine = played.engine
    if played.by_connector:
        yield f"ends after {played.end} actions: {played.why}"
    for part in played.delivered:
        if part.num_wrong or part.misplaced:
            yield f"wrong: {part}"
            break
    for life in engine.oracle.short:
        if life.num_after:
            yield f"{life.request_id} was given {life.num_after} rows after it failed"
        if f"request {life.request_id}:" not in log:
            yield f"{life.request_id} failed, and the log does not name it"
    failed = sum(engine.connector.failures.values()) + sum(engine.worker.failures.values())
    if failed < len(engine.oracle.short):
        yield f"{len(engine.oracle.short)} requests failed, {failed} are counted"
    if played.delivered[: len(strict.delivered)] != strict.delivered:
        yield "the rows are not those of an engine that lives without a failure"
    if played.end is None and (held := pairs.leftovers(engine.connector, engine.worker)):
        yield f"{held} are held in the end"


def overloaded(name: str, seed: int, asynchronous: bool) -> Played:
    """An engine with a pair, in what is drawn."""
    setting, mix, rate = draw(seed, asynchronous)
    with pairs.bound(pairs.PAIRS[name], lambda worker: Faulty(worker, seed, rate)):
        return play(setting, mix, seed, num_steps=STEPS_PER_ENGINE)


def figures(played: Played) -> Counter[str]:
    """What is told of engines."""
    engine, parts = played.engine, played.delivered
    counts = {name: number for name, number in engine.counts.items() if not name.startswith("aborts, ")}
    return Counter(
        {
            **counts,
            "engines": 1,
            "engines ended": played.by_connector,
            "engines ended by the scheduler itself": played.end is not None and not played.by_connector,
            "aborts": sum(n for what, n in engine.counts.items() if what.startswith("aborts")),
            "rows": sum(part.num_rows for part in parts),
            "wrong rows": sum(part.num_wrong for part in parts),
            "misplaced outputs": sum(part.misplaced for part in parts),
            "requests failed": len(engine.oracle.short),
        }
    )


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What ours logs; vLLM's logger passes nothing on."""
    logger = logging.getLogger("vllm.auxout")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_only_requests_fail(
    asynchronous: bool, capfd: pytest.CaptureFixture[str], log: pytest.LogCaptureFixture
) -> None:
    total: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    faults: list[str] = []
    seed = FIRST_SEED
    while total["steps"] < NUM_STEPS:
        strict = overloaded("impl", seed, asynchronous)
        log.clear()
        played = overloaded("impl per request", seed, asynchronous)
        total += figures(played)
        injected += played.engine.worker.counts
        faults += [f"seed {seed}: {fault}" for fault in untrue(played, strict, log.text)]
        seed += 1
    with capfd.disabled():
        name = f"{released.version()}, {'async' if asynchronous else 'sync'}"
        print(f"\n{name}: {dict(total)}\nfaults: {dict(injected)}")
    assert not faults, "\n".join(faults)
