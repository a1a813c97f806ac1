"""``auxout conform`` with expectation files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from auxout_conformance.verdicts import ClauseResult, Verdict


def test_expected_violations_conform(run: Any, judge: Any, tmp_path: Path) -> None:
    judge.reports["impl"] = judge.violating("impl")
    path = tmp_path / "known.json"
    assert run("conform", "impl", "--write-expect", path).code == 1
    path.write_text(path.read_text().replace("TODO: say why", "on purpose"))
    ran = run("conform", "impl", "--expect", path)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == f"note: impl: expected: {judge.clause}: on purpose"
    assert f"impl  conforms except expected violations {judge.clause}" in ran.out


def test_one_more_than_expected_is_a_violation(run: Any, judge: Any, tmp_path: Path) -> None:
    judge.reports["impl"] = judge.violating("impl")
    path = tmp_path / "known.json"
    run("conform", "impl", "--write-expect", path)
    judge.reports["impl"] = judge.violating("impl", judge.clause, "SCHED-TERM-2")
    ran = run("conform", "impl", "--expect", path)
    assert ran.code == 1
    assert "violation 1 of 1" in ran.out
    assert "1 of 2 clauses violated: SCHED-TERM-2" in ran.out


def test_a_stale_expectation_is_an_error(run: Any, judge: Any, tmp_path: Path) -> None:
    judge.reports["impl"] = judge.violating("impl")
    path = tmp_path / "known.json"
    run("conform", "impl", "--write-expect", path)
    judge.reports["impl"] = judge.conforming("impl", clauses=(ClauseResult(judge.clause, "holds", 3),))
    ran = run("conform", "impl", "--expect", path)
    assert ran.code == 1
    assert f"stale expectation: {judge.clause} is no longer violated" in ran.out.splitlines()[-1]
    updated = run("conform", "impl", "--write-expect", path)
    assert f"dropped from {path}: {judge.clause}, which holds now (TODO: say why)" in updated.err
    assert json.loads(path.read_text())["expected"] == []


def test_write_expect_touches_no_other_file(run: Any, judge: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    ran = run("conform", "impl", "--write-expect", path)
    assert ran.code == 2
    assert f"expectation file {path}: not JSON" in ran.err
    assert path.read_text() == "my notes"
    assert judge.calls == []


def test_a_judgement_that_did_not_finish_writes_no_expectations(run: Any, judge: Any, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    judge.reports["impl"] = judge.conforming("impl", verdict=Verdict.BROKEN, reason="it crashed")
    ran = run("conform", "impl", "--write-expect", path)
    assert ran.code == 3
    assert f"{path} stays as it is" in ran.err
    assert not path.exists()


def test_expectations_of_another_profile(run: Any, judge: Any, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    path.write_text('{"auxout": "expect/1", "profile": "0.31", "expected": []}')
    ran = run("conform", "impl", "--expect", path)
    assert ran.code == 2
    assert "is for profile 0.31, but the run is under 0.32: give --profile 0.31 or another file" in ran.err
    assert judge.calls == []


def test_the_first_violation_that_is_not_expected_ends_it(tmp_path: Path, run: Any, judge: Any) -> None:
    """``-x`` and ``--expect`` together; nothing is said of entries that were not judged by then."""
    file = tmp_path / "known.json"
    file.write_text(
        '{"auxout": "expect/1", "profile": "0.32", "expected": [{"clause": "SCHED-TERM-1", "reason": "r"},'
        ' {"clause": "SCHED-META-1", "reason": "r"}]}'
    )
    judge.reports["impl"] = judge.violating("impl", "SCHED-TERM-1", "SCHED-RESET-1")
    ran = run("conform", "impl", "-x", "--expect", file)
    assert ran.code == 1
    assert judge.calls[-1]["stop_first"]
    assert judge.calls[-1]["expected"] == {"SCHED-TERM-1", "SCHED-META-1"}
    assert "stale" not in ran.out
    judge.reports["impl"] = judge.conforming("impl")
    assert "stale expectation: SCHED-META-1" in run("conform", "impl", "-x", "--expect", file).out
