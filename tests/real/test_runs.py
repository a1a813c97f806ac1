"""vLLM's own scheduler steps each pair of connectors through random traffic; every row is compared.

``AUXOUT_REAL_STEPS`` sets the steps of a run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from auxout_conformance import cli, tracing
from auxout_spec.engine import Event, Launch
from auxout_spec.profiles import PER_REQUEST, named

from . import pairs, released
from .engine import Engine
from .mirror import Mirror
from .released import BLOCK_SIZE, Setting
from .workload import Workload

# The warnings of vLLM and torch are theirs.
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.filterwarnings("default")]

NUM_STEPS = int(os.environ.get("AUXOUT_REAL_STEPS", "2000"))
# Few enough blocks that requests are preempted, many enough for 25 rows a step.
_SETTING = Setting(num_blocks=112, max_num_batched_tokens=64)
SETTINGS = {
    "sync": _SETTING,
    "async": _SETTING._replace(asynchronous=True),
    "async with 3 drafts": _SETTING._replace(asynchronous=True, num_drafts=3),
}


def run(setting: Setting, num_steps: int, seed: int = 1) -> Engine:
    """An engine that went through so many steps of traffic and was drained."""
    engine = Engine(setting, seed)
    Workload(engine, seed, sessions=not setting.asynchronous).run(num_steps)
    return engine


def checked(engine: Engine, errors: str | None = None) -> tracing.Checked:
    """What the spec says of the calls of a run; where requests fail, the turns of sessions are told (FAIL-TURN-1)."""
    trace = tracing.read(engine.trace)
    return tracing.check(trace, named(trace.profile + (PER_REQUEST if errors == "request" else "")))


def figures(engine: Engine) -> dict[str, int]:
    """What happened in a run."""
    delivered = engine.oracle.delivered
    return {
        **engine.counts,
        "rows": sum(part.num_rows for part in delivered),
        "wrong rows": sum(part.num_wrong for part in delivered),
        "misplaced outputs": sum(part.token_start != part.due for part in delivered),
    }


@pytest.mark.parametrize("mode", SETTINGS)
@pytest.mark.parametrize("name", pairs.PAIRS)
def test_every_row_is_right(name: str, mode: str, capfd: pytest.CaptureFixture[str]) -> None:
    num_steps = NUM_STEPS if name == "impl" else NUM_STEPS // 4
    with pairs.bound(pairs.PAIRS[name]):
        engine = run(SETTINGS[mode], num_steps)
    found = figures(engine)
    with capfd.disabled():
        print(f"\n{released.version()} {mode}, {name}: {found}")
    assert found["wrong rows"] == found["misplaced outputs"] == 0
    assert found["steps"] >= num_steps
    assert found["rows"] >= 25 * num_steps
    happened = ["hit tokens", "preemptions", "aborts", "running resets", "plain resets", "ids used again"]
    if SETTINGS[mode].num_drafts:
        happened += ["accepted drafts", "rejected drafts"]
    assert not [what for what in happened if not found.get(what)]
    assert pairs.leftovers(engine.connector, engine.worker) == {}
    trace = checked(engine, pairs.PAIRS[name].errors)
    assert trace.impossible is None
    assert trace.num_calls == len(engine.trace) - 1


@pytest.mark.parametrize("mode", SETTINGS)
def test_the_model_of_the_engine_does_the_same(mode: str) -> None:
    setting = SETTINGS[mode]
    mirror = Mirror(released.profile(), BLOCK_SIZE, setting.depth)
    engine: Any = None

    def follow(event: Event, lines: list[str]) -> None:
        mirror.follow(event, lines)
        if isinstance(event, Launch) and mirror.num_events % 5 == 0:
            mirror.evict(engine.resident())

    engine = Engine(setting, 2, follow)
    Workload(engine, 2, sessions=not setting.asynchronous).run(NUM_STEPS // 2)
    assert mirror.num_events > NUM_STEPS
    assert not mirror.state.requests
    assert not mirror.state.in_flight


@pytest.mark.parametrize("kind", pairs.Spoiled.KINDS)
def test_wrong_rows_are_noticed(kind: str) -> None:
    with pairs.bound(pairs.PAIRS["original"], lambda worker: pairs.Spoiled(worker, kind)):
        engine = run(SETTINGS["async"], 300, seed=3)
    assert figures(engine)["wrong rows"] >= engine.worker.num_spoiled > 0
    assert checked(engine).impossible is not None


def test_missing_rows_are_noticed() -> None:
    with pairs.bound(pairs.PAIRS["original"], lambda worker: pairs.Spoiled(worker, "missing")):
        engine = Engine(SETTINGS["async"])
        with pytest.raises(AssertionError, match="invalid token range"):
            Workload(engine, 3, sessions=False).run(300)
    assert engine.worker.num_spoiled == 1


def test_the_command_accepts_a_trace_and_rejects_another(tmp_path: Path) -> None:
    engine = run(SETTINGS["sync"], 50)
    file = tmp_path / "trace.ndjson"
    file.write_text("\n".join(engine.trace) + "\n")
    command = ["trace", "check", str(file), "--profile", released.profile()]
    assert cli.main(command) == 0
    (number, line), *_ = [(n, line) for n, line in enumerate(engine.trace) if '"result": {"rows": [[' in line]
    start = line.index('"result"')
    file.write_text("\n".join([*engine.trace[:number], line[:start] + '"result": {"rows": []}}']) + "\n")
    assert cli.main(command) == 1
