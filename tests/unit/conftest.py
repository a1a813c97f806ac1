"""A command line run in this process, and a judge that answers with prepared reports."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from auxout_conformance import cli, commands, judgement, replaying
from auxout_conformance.hosts import TargetBroken
from auxout_conformance.targets import wheels
from auxout_conformance.verdicts import ClauseResult, Progress, Report, Verdict, Violation
from auxout_conformance.verifying import differential
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import CLAUSES
from auxout_spec.engine import Abort, Add, Launch
from auxout_spec.scenario import Scenario

REFERENCE = Path(__file__).parents[2] / "reference" / "auxout_reference"


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command and see its exit code and output."""

    def run(*words: object) -> Ran:
        code = cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


class FakeRunner:
    """Stands in for ``auxout_conformance.runner`` and keeps the arguments of each call."""

    TargetBroken = TargetBroken
    clause = "SCHED-TERM-1"
    scenario = Scenario((Add("A", 4), Launch((("A", 4),)), Abort("A"), Launch()), profile="0.32")
    inline = scenarios.dump(scenario, indent=False)

    def __init__(self) -> None:
        self.reports: dict[str, Report | BaseException] = {}
        self.replays: dict[str, Violation | BaseException | None] = {}
        self.said = ""
        self.calls: list[dict[str, Any]] = []

    def judge(self, target: str, **options: Any) -> Report:
        self.calls.append({"target": target, **options})
        for phase in ("cases", "cases", "random scenarios"):
            options["progress"](Progress(target, phase, 1, 20))
        found = self.reports.get(target, self.conforming(target))
        if isinstance(found, BaseException):
            raise found
        return found

    def replay(self, scenario: Scenario, target: str, profile: str, **flags: Any) -> Violation | None:
        self.calls.append({"scenario": scenario, "target": target, "profile": profile, **flags})
        on_said: Any = flags["on_said"]
        if self.said:
            on_said(self.said)
        found = self.replays.get(target)
        if isinstance(found, BaseException):
            raise found
        return found

    @staticmethod
    def conforming(target: str, **changes: Any) -> Report:
        """A report on five clauses."""
        results = tuple(ClauseResult(clause, "holds", 3) for clause in list(CLAUSES)[:5])
        report = Report(target, "", "0.32", "default", 17, Verdict.CONFORM, results)
        return replace(report, num_cases=40, num_scenarios=200, num_calls=1234, seconds=3.14, **changes)

    def violating(self, target: str, *clauses: str) -> Report:
        """A report in which these clauses are violated."""
        violations = tuple(self.violation(target, clause) for clause in clauses or (self.clause,))
        results = tuple(ClauseResult(each.clause, "violated", 3) for each in violations)
        return self.conforming(target, verdict=Verdict.VIOLATION, clauses=results, violations=violations)

    def violation(self, target: str, clause: str = clause, **changes: Any) -> Violation:
        """One violation."""
        replay = shlex.join(["auxout", "replay", self.inline, target, "--profile", "0.32"])
        call, right, wrong = "build_connector_meta({})", "finished [A]", "finished []"
        made = Violation(clause, self.scenario, 4, call, right, wrong, "random", 17, replay)
        return replace(made, **changes)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    """The fake judge, in place."""
    fake = FakeRunner()
    for module in (commands, replaying):
        monkeypatch.setattr(module, "runner", fake)
    return fake


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree whose connector is the reference."""
    root = tmp_path / "vllm-tree"
    shutil.copytree(REFERENCE, root / wheels.FOLDER, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few random scenarios, and no self-check: both have tests of their own."""
    monkeypatch.setitem(judgement.EXAMPLES, "smoke", 5)
    monkeypatch.setitem(differential.EXAMPLES, "smoke", 5)
    monkeypatch.setattr(judgement.selfcheck, "check_all", lambda *_: [])
