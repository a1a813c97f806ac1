"""Profile 0.33 is still being written: it can be tried, is listed nowhere, and nothing conforms to it."""

from __future__ import annotations

from typing import Any

import pytest

from auxout_conformance import cli, runner
from auxout_conformance.cases import cases_in
from auxout_conformance.targets import TargetError, resolve
from auxout_conformance.verdicts import Verdict
from auxout_spec.clauses import SPECIFIED, holds_in
from auxout_spec.profiles import PROFILES


def test_the_reference_answers_as_it_says_and_that_is_not_all() -> None:
    report = runner.judge("reference", profile="0.33", suite="smoke")
    assert (report.verdict, report.reason) == (Verdict.INCOMPLETE, "profile 0.33 is still being written")
    assert (report.violations, report.profile) == ((), "0.33")
    held = {result.clause for result in report.clauses if result.status == "holds"}
    assert {"SCHED-RETAIN-1", "SCHED-RELEASE-4", "SCHED-HIT-3", "STORE-GROW-1", "ROW-RESIDENT-1"} <= held


def test_no_release_is_said_to_have_a_profile_of_it() -> None:
    assert "0.33" not in PROFILES
    with pytest.raises(TargetError, match=r"no profile describes vllm==0\.33\.0 .* \(0\.31 or 0\.32\)"):
        resolve("vllm==0.33.0")


@pytest.mark.parametrize(
    "words",
    [
        ("conform", "reference", "--profile", "0.34"),
        ("explore", "--profile", "0.33"),
        ("clauses", "--profile", "0.33"),
    ],
)
def test_it_is_offered_nowhere(words: tuple[str, ...], capsys: pytest.CaptureFixture[Any]) -> None:
    assert cli.main(words) == 2
    assert "the profiles are 0.31, 0.32" in capsys.readouterr().err


OPEN = {"SCHED-HASH-9", "SCHED-HASH-12", "WORK-KEYS-2", "STORE-PUT-5"}
"""No event of its engine replaces hashes that were sent, or brings a release without a reference about."""


def test_every_rule_of_it_has_a_case() -> None:
    told = {case.clause for case in cases_in("0.33")}
    judged = ("SCHED", "WIRE", "WORK", "STORE", "ROW")
    due = {
        c.id
        for c in SPECIFIED.values()
        if c.component in judged and c.level == "MUST" and holds_in(c, "0.33")
    }
    assert due - told == OPEN
