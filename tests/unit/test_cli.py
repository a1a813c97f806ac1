"""``auxout conform`` and ``smoke``: what they print, where, and with which exit code."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auxout_conformance import commands
from auxout_conformance import report as report_module
from auxout_conformance.targets.adapter import TargetError
from auxout_conformance.verdicts import ClauseResult, Interrupted, Verdict
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import CLAUSES
from auxout_spec.engine import Add
from auxout_spec.scenario import Scenario


def test_conform_ends_with_one_line_per_target(run: Any, judge: Any) -> None:
    ran = run("conform", "reference", "impl")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "reference  conform  profile 0.32  5 clauses  40 cases  200 scenarios  1234 calls  3.1 s  seed 17",
        "impl       conform  profile 0.32  5 clauses  40 cases  200 scenarios  1234 calls  3.1 s  seed 17",
    ]


def test_conform_passes_its_options_on(run: Any, judge: Any) -> None:
    options = "-x --suite deep --profile 0.31 --seed 7 --no-known"
    assert run("conform", "reference", *options.split()).code == 0
    (call,) = judge.calls
    del call["progress"]
    assert call == {
        "target": "reference", "profile": "0.31", "suite": "deep", "seed": 7, "known": False, "stop_first": True,
        "expected": frozenset(), "patch": "",
    }  # fmt: skip


def test_smoke_is_the_smoke_suite(run: Any, judge: Any) -> None:
    assert run("smoke", "impl").code == 0
    assert judge.calls[0]["suite"] == "smoke"
    assert judge.calls[0]["seed"] is None


def test_a_violation_says_everything_and_the_summary_comes_last(run: Any, judge: Any) -> None:
    judge.reports["impl"] = judge.violating("impl")
    ran = run("conform", "impl")
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0] == "violation 1 of 1"
    assert lines[1] == f"{judge.clause}  {CLAUSES[judge.clause].sentence}"
    assert "  call      build_connector_meta({}), event 4 of 4" in lines
    assert "  expected  finished [A]" in lines
    assert "  actual    finished []" in lines
    assert "  found by  random, seed 17" in lines
    assert f"1 of 1 clauses violated: {judge.clause}" in lines[-1]
    assert lines[-1].startswith("impl  violation  profile 0.32")


def test_the_replay_command_is_one_line_that_a_shell_reads(run: Any, judge: Any) -> None:
    events = tuple(Add(f"request-with-a-long-name's-{number}", 4) for number in range(50))
    long = Scenario(events, profile="0.32")
    command = shlex.join(["auxout", "replay", scenarios.dump(long, indent=False), "impl"])
    judge.reports["impl"] = judge.conforming(
        "impl",
        verdict=Verdict.VIOLATION,
        violations=(judge.violation("impl", scenario=long, replay=command),),
    )
    lines = run("conform", "impl").out.splitlines()
    (line,) = [line for line in lines if line.startswith("auxout replay")]
    assert len(line) > 2000
    words = shlex.split(line)
    assert scenarios.load(words[2]) == long


def test_the_printed_scenario_is_json(run: Any, judge: Any) -> None:
    judge.reports["impl"] = judge.violating("impl")
    out = run("conform", "impl").out
    text = out.partition("  scenario  ")[2].partition("\n\n")[0]
    assert scenarios.load(text) == judge.scenario
    assert len(text.strip().splitlines()) == 1 + len(judge.scenario.events)


def test_what_a_target_says_cannot_steer_the_terminal(run: Any, judge: Any) -> None:
    bad = judge.violation("impl", actual="raised X: \x1b[2J[red]\r\nsecond line\x07")
    judge.reports["impl"] = judge.conforming("impl", verdict=Verdict.VIOLATION, violations=(bad,))
    lines = run("conform", "impl").out.splitlines()
    assert "  actual    raised X: \\x1b[2J[red]\\r" in lines
    assert "            second line\\x07" in lines


def test_a_release_conforms_except_known_findings(run: Any, judge: Any) -> None:
    judge.reports["reference"] = judge.conforming(
        "reference", known=("F31-1", "F31-2"), version="vllm 0.31.0"
    )
    ran = run("conform", "reference")
    assert ran.code == 0
    assert "conforms except known findings F31-1, F31-2  profile 0.32  vllm 0.31.0" in ran.out


def test_clauses_that_were_not_judged_are_counted(run: Any, judge: Any) -> None:
    results = (ClauseResult("SCHED-META-1", "holds", 1), ClauseResult("SCHED-META-2", "not judged", 0))
    judge.reports["impl"] = judge.conforming("impl", clauses=results)
    assert "1 clause (1 not judged)" in run("conform", "impl").out


def test_violated_and_not_judged_clauses_are_counted_apart(run: Any, judge: Any) -> None:
    report = judge.violating("impl")
    others = (ClauseResult("SCHED-META-1", "holds", 1), ClauseResult("SCHED-META-2", "not judged", 0))
    judge.reports["impl"] = replace(report, clauses=(*report.clauses, *others))
    assert f"1 of 3 clauses violated (1 not judged): {judge.clause}" in run("conform", "impl").out


def test_fixed_scenarios_have_no_seed(run: Any, judge: Any) -> None:
    judge.reports["impl"] = replace(judge.conforming("impl"), seed=None)
    assert run("conform", "impl").out.rstrip().endswith("3.1 s  fixed scenarios")


def test_a_violation_says_that_its_scenario_was_shrunk(run: Any, judge: Any) -> None:
    shrunk = judge.violation("impl", found_by="case x", seed=None, shrunk_from=9)
    judge.reports["impl"] = judge.conforming("impl", verdict=Verdict.VIOLATION, violations=(shrunk,))
    assert "  found by  case x; shrunk from 9 events" in run("conform", "impl").out.splitlines()


def test_notes_are_shown(run: Any, judge: Any) -> None:
    judge.reports["impl"] = judge.conforming("impl", notes=("SCHED-REFUSE-2 does not hold",))
    assert run("conform", "impl").out.splitlines()[0] == "note: impl: SCHED-REFUSE-2 does not hold"


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (("conform", "conform"), 0),
        (("conform", "incomplete"), 4),
        (("incomplete", "target broken"), 3),
        (("target broken", "violation"), 1),
        (("violation", "incomplete"), 1),
    ],
)
def test_the_worst_verdict_gives_the_exit_code(
    run: Any, judge: Any, verdicts: tuple[str, str], code: int
) -> None:
    for target, verdict in zip(("reference", "impl"), verdicts, strict=True):
        judge.reports[target] = judge.conforming(target, verdict=Verdict(verdict), reason="so it is")
    ran = run("conform", "reference", "impl")
    assert ran.code == code
    assert "so it is" in ran.out


def test_progress_goes_to_standard_error_one_line_a_phase(run: Any, judge: Any) -> None:
    ran = run("conform", "reference")
    assert ran.err.splitlines() == ["reference: cases (20)", "reference: random scenarios (20)"]


def test_a_terminal_gets_a_bar_and_colours(run: Any, judge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    judge.reports["impl"] = judge.violating("impl")
    ran = run("conform", "impl")
    assert "\x1b[" in ran.err
    last = ran.out.splitlines()[-1]
    assert last.startswith("\x1b[1;31mimpl  violation")
    assert judge.clause in last  # it was not folded to 40 columns


def test_interrupted_keeps_what_was_judged(run: Any, judge: Any, tmp_path: Path) -> None:
    judge.reports["impl"] = KeyboardInterrupt()
    path = tmp_path / "report.jsonl"
    ran = run("conform", "reference", "impl", "reference", "--report", path)
    assert ran.code == 4
    assert "auxout: interrupted" in ran.err
    assert [line.split()[:2] for line in ran.out.splitlines()] == [
        ["reference", "conform"], ["impl", "incomplete"], ["reference", "incomplete"],
    ]  # fmt: skip
    verdicts = [each.verdict for each in report_module.load(path.read_text())]
    assert verdicts == [Verdict.CONFORM, Verdict.INCOMPLETE, Verdict.INCOMPLETE]


def test_interrupted_keeps_what_a_target_had_come_to(run: Any, judge: Any) -> None:
    found = judge.violating("impl", "SCHED-TERM-2")
    judge.reports["impl"] = Interrupted(found)
    ran = run("conform", "impl", "reference")
    assert ran.code == 4
    assert "SCHED-TERM-2" in ran.out
    assert "reference" in ran.out.splitlines()[-1]
    assert "incomplete" in ran.out.splitlines()[-1]


def test_interrupted_elsewhere_is_a_sentence(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "list_targets", interrupt)
    ran = run("targets")
    assert ran.code == 4
    assert ran.err == "auxout: interrupted; there is no result.\n"


def test_a_report_is_written_also_with_violations(run: Any, judge: Any, tmp_path: Path) -> None:
    judge.reports["impl"] = judge.violating("impl")
    path = tmp_path / "report.jsonl"
    ran = run("conform", "reference", "impl", "--report", path)
    assert ran.code == 1
    assert report_module.load(path.read_text()) == [judge.conforming("reference"), judge.violating("impl")]
    head = json.loads(path.read_text().splitlines()[0])
    assert head["argv"] == ["auxout", "conform", "reference", "impl", "--report", str(path)]
    assert [p.name for p in tmp_path.iterdir()] == ["report.jsonl"]


def test_a_target_that_goes_wrong_late_is_a_mistake_too(run: Any, judge: Any) -> None:
    judge.reports["impl"] = TargetError("it went away")
    ran = run("conform", "impl")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "auxout: it went away")


def test_our_own_faults_show_a_traceback(run: Any, judge: Any) -> None:
    judge.reports["impl"] = RuntimeError("ours")
    with pytest.raises(RuntimeError, match="ours"):
        run("conform", "impl")
