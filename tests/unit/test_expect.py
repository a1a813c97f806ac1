"""Expectation files: exactly the expected violations conform."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxout_conformance import expect
from auxout_conformance.expect import TODO, Expectation, Expectations, apply_expectations, updated
from auxout_conformance.mistakes import UserMistake
from auxout_conformance.verdicts import ClauseResult, Report, Verdict, Violation
from auxout_spec.clauses import in_profile
from auxout_spec.scenario import Scenario

IDS = [clause.id for clause in in_profile("0.32")][:6]
A, B, C = IDS[:3]
some_ids = st.sets(st.sampled_from(IDS))


def judged(*violated: str, not_judged: tuple[str, ...] = ()) -> Report:
    """A report on the first few clauses."""
    violations = tuple(Violation(each, Scenario(()), 1, "", "", "", "random", 0, "") for each in violated)

    def result(clause: str) -> ClauseResult:
        if clause in not_judged:
            return ClauseResult(clause, "not judged", 0)
        return ClauseResult(clause, "violated" if clause in violated else "holds", 1)

    verdict = Verdict.VIOLATION if violations else Verdict.CONFORM
    clauses = tuple(result(clause) for clause in IDS)
    return Report("T", "", "0.32", "default", 0, verdict, clauses, violations)


def expecting(*clauses: str) -> Expectations:
    return Expectations("0.32", tuple(Expectation(clause, f"reason of {clause}") for clause in clauses), "F")


@given(some_ids, some_ids)
def test_conforms_exactly_when_the_expected_clauses_are_violated(
    violated: set[str], expected: set[str]
) -> None:
    seen = apply_expectations(judged(*violated), expecting(*expected))
    assert (seen.verdict is Verdict.CONFORM) == (violated == expected)
    assert set(seen.expected) == violated & expected
    assert [violation.clause for violation in seen.violations] == list(violated)
    assert bool(seen.reason) == bool(expected - violated)


@given(some_ids, some_ids)
def test_what_is_written_is_what_is_expected_next_time(violated: set[str], before: set[str]) -> None:
    report = judged(*violated)
    new = updated(report, expecting(*before), "F")
    assert apply_expectations(report, new).verdict is Verdict.CONFORM
    assert expect.load(expect.dump(new), "F") == new
    for entry in new.entries:
        assert entry.reason == (f"reason of {entry.clause}" if entry.clause in before else TODO)


def test_the_report_says_what_was_expected_and_why() -> None:
    seen = apply_expectations(judged(A), expecting(A))
    assert seen.expected == (A,)
    assert seen.notes == (f"expected: {A}: reason of {A}",)


def test_a_stale_expectation_is_one_sentence() -> None:
    seen = apply_expectations(judged(A), expecting(A, B))
    assert seen.reason == f"stale expectation: {B} is no longer violated; remove this entry from F"
    several = apply_expectations(judged(), expecting(A, B, C))
    assert f"stale expectation: {A}, {B} and {C} are no longer violated" in several.reason


def test_a_clause_that_was_not_judged_is_not_stale() -> None:
    report = judged(A, not_judged=(B,))
    assert apply_expectations(report, expecting(A, B)).verdict is Verdict.CONFORM
    assert [entry.clause for entry in updated(report, expecting(B)).entries] == [A, B]


def test_an_error_of_another_kind_is_not_excused() -> None:
    report = replace(judged(A), reason="known finding F31-1 no longer occurs")
    seen = apply_expectations(report, expecting(A))
    assert (seen.verdict, seen.reason) == (Verdict.VIOLATION, report.reason)


@pytest.mark.parametrize("verdict", [Verdict.BROKEN, Verdict.INCOMPLETE])
def test_an_unfinished_judgement_stays_so(verdict: Verdict) -> None:
    report = replace(judged(A), verdict=verdict, reason="it hung")
    seen = apply_expectations(report, expecting(A, B))
    assert (seen.verdict, seen.reason, seen.expected) == (verdict, "it hung", (A,))
    with pytest.raises(UserMistake, match="T was not judged to the end; F stays as it is"):
        updated(report, None, "F")


def test_another_profile_is_refused() -> None:
    with pytest.raises(UserMistake, match=r"F is for profile 0\.32, but the run is under 0\.31"):
        apply_expectations(replace(judged(), profile="0.31"), expecting())
    with pytest.raises(UserMistake, match=r"is for profile 0\.32"):
        updated(replace(judged(), profile="0.31"), expecting())


def test_the_file_has_one_entry_a_line() -> None:
    assert expect.dump(expecting(A, B)).splitlines() == [
        '{"auxout": "expect/1", "profile": "0.32", "expected": [',
        f'  {{"clause": "{A}", "reason": "reason of {A}"}},',
        f'  {{"clause": "{B}", "reason": "reason of {B}"}}]}}',
    ]


TWICE = f'{{"clause": "{A}", "reason": "r"}}'
HEAD = '{"auxout": "expect/1", "profile": "0.32", "expected": '


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "the file must be an object with exactly auxout, profile and expected"),
        (HEAD + '[], "more": 1}', "with exactly auxout, profile and expected"),
        (HEAD.replace("expect/1", "report/1") + "[]}", 'expected "auxout": "expect/1", found \'report/1\''),
        (HEAD.replace("0.32", "0.1") + "[]}", "there is no profile '0.1'"),
        (HEAD + "{}}", '"expected" must be a list'),
        (HEAD + "[1]}", "entry 1 must be an object with exactly clause and reason"),
        (HEAD + '[{"clause": "SCHED-MET-1", "reason": "r"}]}', "entry 1: there is no clause 'SCHED-MET-1'"),
        (HEAD + '[{"clause": "SCHED-EMIT-3", "reason": "r"}]}', "is no clause of profile 0.32"),
        (HEAD + f'[{{"clause": "{A}", "reason": " "}}]}}', "needs a reason"),
        (HEAD + f'[{{"clause": "{A}", "reason": 1}}]}}', "needs a reason"),
        (HEAD + f"[{TWICE}, {TWICE}]}}", "entry 2: .* listed twice"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_right(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(UserMistake, match=said) as caught:
        expect.read(str(path))
    assert str(caught.value).startswith(f"expectation file {path}: ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert expect.read_if_there(str(tmp_path / "absent")) is None
    with pytest.raises(UserMistake, match="there is no such file"):
        expect.read(str(tmp_path / "absent"))
