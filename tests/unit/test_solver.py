"""Solving beside a judgement: when it begins, and what is told where it cannot or does not end."""

from __future__ import annotations

from typing import Any

import pytest

from auxout_conformance import judgement, runner, solver, solving
from auxout_conformance.hosts import Hung
from auxout_conformance.solver import NOT_INSTALLED, Solver
from auxout_conformance.targets import resolve
from auxout_spec.engine import Abort, Add, Launch
from auxout_spec.profiles import PROFILES
from auxout_spec.reading import Malformed
from auxout_spec.scenario import Scenario

P32 = PROFILES["0.32"]
PLAY = Scenario(
    (Add("A", 4), Launch((("A", 4),)), Abort("A"), Launch()), profile="0.32", name="numbers solved for"
)


class FakeChild:
    """A process that answers what it was made for."""

    answer: Any = ()

    def __init__(self, target: Any, call_seconds: float) -> None:
        self.closed = 0

    def solve(self, profile: Any, suite: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> type[FakeChild]:
    """A process in which all is answered at once, as if what solving needs were installed."""
    monkeypatch.setattr(solver, "Child", FakeChild)
    monkeypatch.setattr(solving, "is_possible", lambda: True)
    monkeypatch.setattr(FakeChild, "answer", ())
    return FakeChild


def solved(suite: Any) -> Solver:
    made = Solver(resolve("reference"), P32, suite)
    made.start()
    return made


def test_plays_are_found_beside(child: type[FakeChild]) -> None:
    child.answer = [PLAY]
    made = solved("default")
    assert (list(made.found()), made.note) == ([PLAY], "")
    made.close()


def test_smoke_solves_nothing_and_says_nothing(child: type[FakeChild]) -> None:
    child.answer = [PLAY]
    made = solved("smoke")
    assert (made.found(), made.note) == ([], "")
    made.close()


def test_without_the_extra_the_report_says_that_values_were_only_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solving, "is_possible", lambda: False)
    made = solved("default")
    assert (made.found(), made.note) == ([], NOT_INSTALLED)
    made.close()


@pytest.mark.parametrize(
    "error", [Hung("reference hung: solving took over 300 s"), Malformed("found is no list")]
)
def test_a_process_that_fails_is_told_and_no_verdict(child: type[FakeChild], error: Exception) -> None:
    child.answer = error
    made = solved("default")
    assert made.found() == []
    assert made.note == f"numbers, ids and hashes were not solved for: {error}"
    made.close()


@pytest.mark.parametrize(
    ("target", "broken"), [("reference", []), ("known-bad:event-needs-hashes", ["SCHED-TERM-1"])]
)
def test_what_is_found_is_judged_like_any_play(
    child: type[FakeChild], monkeypatch: pytest.MonkeyPatch, target: str, broken: list[str]
) -> None:
    child.answer = [PLAY]
    for phase in ("_selfcheck", "_cases", "_optimized", "_random", "_large"):
        monkeypatch.setattr(judgement.Judgement, phase, lambda *_: None)
    report = runner.judge(target, suite="default")
    assert [violation.clause for violation in report.violations] == broken
    assert all(violation.found_by == "numbers solved for" for violation in report.violations)
