"""Large plays: they are possible, go where they say, and hold numbers of the target's source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from auxout_conformance import covered, large, runner
from auxout_conformance.covered import Covered
from auxout_conformance.hosts import Child, InProcess
from auxout_conformance.judge import play
from auxout_conformance.render import covered_line
from auxout_conformance.report import dump, header, load
from auxout_conformance.shrinking import Shrinker
from auxout_conformance.targets import resolve
from auxout_conformance.targets.loading import LoadSpec
from auxout_conformance.targets.numbers import numbers_in, numbers_of
from auxout_conformance.verdicts import Suite
from auxout_spec import scenario as scenarios
from auxout_spec.profiles import PROFILES
from auxout_spec.representation import Image

P32 = PROFILES["0.32"]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("with_worker", [False, True])
def test_the_reference_plays_those_of_smoke(profile: str, with_worker: bool) -> None:
    host = InProcess(resolve("reference", profile))
    made = list(large.plays("smoke", PROFILES[profile], (5, 100, 1000), with_worker))
    assert len(made) == large.num_plays("smoke", (5, 100, 1000), with_worker)
    assert len({scenario.name for scenario in made}) == len(made)
    for scenario in made:
        done, failure = play(host, scenario, PROFILES[profile])
        assert failure is None, scenario.name
        assert done.num_events == len(scenario.events), scenario.name
        assert done.state.problem is None, scenario.name


def test_those_of_default_go_where_types_and_buffers_end() -> None:
    shown = Covered()
    host = InProcess(resolve("impl"))
    for scenario in large.plays("default", P32, (), with_worker=True):
        done, failure = play(host, scenario, P32)
        assert failure is None, scenario.name
        shown.merge(done.covered.bounds)
    most = {name: bounds[1] for name, bounds in shown.bounds.items()}
    assert most["step_requests"] > 256
    assert most["known_requests"] > 2000
    assert most["step_rows"] > 8192
    assert most["request_tokens"] > 65536
    assert most["entry_hashes"] > 2000
    assert most["steps_in_flight"] > 64
    assert most["metadata"] > 128
    assert {name for name in covered.QUANTITIES if name not in shown.bounds} == set()


@pytest.mark.parametrize("number", [5, 8, 33, 100, 129])
def test_around_a_number_everything_is_one_less_as_much_and_one_more(number: int) -> None:
    wanted = {number - 1, number, number + 1}
    scenario = large.around(P32, number, 0)
    hashes, starts, generations, ids = set[int](), set[int](), set[int](), set[int]()
    image = Image(scenario.representation)
    for state, exchanges in scenarios.run(scenario, P32):
        for _, result in exchanges:
            if hasattr(result, "block_hashes"):
                hashes |= {len(found) for _, found in result.block_hashes}
                starts |= {start for _, start in result.requests}
                generations.add(result.generation + scenario.representation.generation)
        ids |= {len(image.request_id(request.request_id)) for request in state.requests}
    assert wanted <= hashes
    assert wanted <= starts
    assert wanted == generations
    assert wanted == ids
    widths = {len(event.tokens) for event in large.crowded(P32, number, 0).events if hasattr(event, "tokens")}
    assert wanted == widths


@pytest.mark.parametrize(("suite", "most"), [("smoke", 4), ("default", 40)])
def test_of_many_numbers_some_are_played(suite: Suite, most: int) -> None:
    numbers = tuple(range(5, 2000))
    without = [scenario.name for scenario in large.plays(suite, P32, (), False)]
    made = [scenario.name for scenario in large.plays(suite, P32, numbers, False)]
    assert large.num_plays(suite, numbers, with_worker=False) == len(made)
    chosen = [name for name in made if name not in without]
    assert most <= len(chosen) <= 2 * most
    assert any(name.endswith(" 5") for name in chosen)


# Numbers of the source.


def test_numbers_in_a_source() -> None:
    source = "LIMIT = 1 << 12\nMASK = 4 * 1024 - 1\nif x == 777 and y < 2**9 or z > 3: return True, 1.5, -64, 10**40"
    assert numbers_in(source) == {12, 4096, 1024, 4095, 777, 512, 9, 64, 10, 40}
    assert numbers_in("not python") == set()


def test_numbers_of_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1234 in numbers_of(LoadSpec("known-bad", "position-of-1234"))
    assert 1234 in InProcess(resolve("known-bad:position-of-1234")).offer.numbers
    (tmp_path / "with_numbers.py").write_text(
        "from auxout_reference.connector import AuxOutputSchedulerConnector as Made, PackedBlockHashes\nN = 4321\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    child = Child(resolve("with_numbers:Made", "0.32"))
    assert child.offer.numbers == (4321,)
    child.close()
    assert "with_numbers" not in sys.modules


# What is shown of it.


def test_a_report_says_how_far_it_went() -> None:
    report = runner.judge("known-bad:empty-is-none", suite="smoke", stop_first=True)
    assert report.covered["step_requests"] == (0, 2)
    assert report.covered["block_size"] == (2, 2)
    assert covered_line(report).startswith("known-bad:empty-is-none was shown: ")
    assert "tokens a block" in covered_line(report)
    assert load(dump([report], header([])))[0].covered == report.covered


@pytest.mark.parametrize("name", ["position-of-1234", "hashes-64-at-a-time", "worker-wrong-for-large-blocks"])
def test_a_large_failure_becomes_as_small_as_it_can(name: str) -> None:
    report = runner.judge(f"known-bad:{name}", stop_first=True)
    violation = report.violations[0]
    assert len(violation.scenario.events) <= 3
    again = runner.replay(violation.scenario, f"known-bad:{name}")
    assert again is not None
    assert again.clause == violation.clause


def test_shrinking_many_requests() -> None:
    host = InProcess(resolve("known-bad:batch-up-to-100"))
    scenario = large.wide(P32, 110, 0)
    _, failure = play(host, scenario, P32)
    assert failure is not None
    small, _ = Shrinker(host, P32, frozenset()).shrink(scenario, failure)
    assert len(small.events) <= 105
    assert small.events[0].request == "A"  # type: ignore[union-attr]
