"""The curated cases: every clause can hold and can fail, and the judge's self-check can fail as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from auxout_conformance import known_bad, runner, selfcheck
from auxout_conformance.cases import Case, all_cases, cases_in
from auxout_conformance.hosts import InProcess
from auxout_conformance.judge import play
from auxout_conformance.targets import resolve
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import ALL_CLAUSES, CLAUSES, SCHEDULER, WORKER, Clause, in_profile
from auxout_spec.profiles import PROFILES, named
from auxout_spec.values import Refusal

JUDGED = (*SCHEDULER, *WORKER)
OBLIGATIONS = [c for c in CLAUSES.values() if c.component in JUDGED and c.level == "MUST"]
PLAYED = [
    pytest.param(case, profile, id=f"{case.name}-{profile}")
    for case in all_cases()
    for profile in case.profiles
]


@cache
def refused(case: Case, profile: str) -> frozenset[str]:
    """The clauses by which the spec refuses a call of the case."""
    played = scenarios.run(case.scenario, named(profile))
    results = [exchange.result for _, exchanges in played for exchange in exchanges]
    return frozenset(result.clause for result in results if isinstance(result, Refusal))


def negatives(clause: str, profile: str) -> Iterator[str]:
    """Where something that breaks the clause is shown to be rejected by it."""
    for case in cases_in(profile):
        if case.clause == clause and (case.wrong or clause in refused(case, profile)):
            yield case.name
    for bad in known_bad.catalogue():
        if bad.clauses[0] == clause:
            yield f"known-bad:{bad.name}"


def test_there_are_enough_clauses() -> None:
    assert len(OBLIGATIONS) >= 40


@pytest.mark.parametrize("clause", OBLIGATIONS, ids=lambda clause: clause.id)
def test_every_obligation_has_a_positive_and_a_negative_case(clause: Clause) -> None:
    for profile in clause.profiles:
        assert [case for case in cases_in(profile) if case.clause == clause.id]
        assert list(negatives(clause.id, profile))


@pytest.mark.parametrize(("case", "profile"), PLAYED)
def test_a_case_is_possible_and_makes_calls(case: Case, profile: str) -> None:
    played = scenarios.run(case.scenario, named(profile))
    assert any(exchanges for _, exchanges in played)
    assert len(case.scenario.events) <= 14


@pytest.mark.parametrize("name", ["reference", "impl"])
@pytest.mark.parametrize("profile", PROFILES)
def test_our_connectors_pass_every_case(name: str, profile: str) -> None:
    host = InProcess(resolve(name, profile))
    cases = [case for case in cases_in(profile) if host.offer.has(CLAUSES[case.clause].component)]
    failures = {case.name: play(host, case.scenario, named(profile))[1] for case in cases}
    assert {name: failure for name, failure in failures.items() if failure} == {}


def test_names_and_stories() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.name == case.name.lower()
        assert case.name.startswith(f"{case.clause.lower()}-")
        assert case.story.endswith(".")
        assert case.profiles
        assert set(case.profiles) <= set(ALL_CLAUSES[case.clause].profiles)
    scenarios_seen = [(case.clause, case.scenario._replace(name="", clause="")) for case in cases]
    assert len(set(scenarios_seen)) == len(cases)


def test_cases_are_ordered_like_the_clauses() -> None:
    order = list(ALL_CLAUSES)
    places = [order.index(case.clause) for case in all_cases()]
    assert places == sorted(places)


def test_each_profile_has_cases_for_its_clauses_only() -> None:
    for profile in PROFILES:
        clauses = {clause.id for clause in in_profile(profile, JUDGED)}
        assert {case.clause for case in cases_in(profile)} == clauses


# The self-check.


def test_the_judge_rejects_every_wrong_answer() -> None:
    counted: list[None] = []
    assert selfcheck.check_all(lambda: counted.append(None)) == []
    assert len(counted) == len(all_cases())


def case_named(name: str) -> Case:
    return next(case for case in all_cases() if case.name == name)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("sched-emit-1-1", {"event": 2, "requests": {"A": 0}}),
        ("sched-term-1-1", {"event": 5, "finished_requests": ["A"]}),
        ("sched-hash-1-1", {"event": 2, "block_hashes": {}}),
        ("sched-reset-1-1", {"event": 3, "generation": 1}),
        ("sched-take-4-1", {"event": 3, "rows": []}),
        ("wire-hash-2-1", {"event": 1, "raised": "ValueError"}),
        ("sched-take-1-1", {"event": 4, "refused": True}),
    ],
)
def test_a_right_answer_among_the_wrong_ones_is_reported(name: str, right: dict[str, object]) -> None:
    case = replace(case_named(name), wrong=(right,))
    profile = case.profiles[-1]
    assert selfcheck.check(case, profile) == (
        f"{name} (profile {profile}): the judge accepted it when the answer was {right}"
    )


def test_another_clause_than_the_case_s_is_reported() -> None:
    case = replace(case_named("sched-emit-1-1"), clause="SCHED-EMIT-2")
    fault = selfcheck.check(case, "0.32")
    assert fault.startswith("sched-emit-1-1 (profile 0.32): the judge named SCHED-EMIT-1 when")


def test_every_fault_of_the_judge_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = case_named("sched-emit-2-1"), replace(case_named("sched-emit-1-1"), clause="SCHED-EMIT-2")
    monkeypatch.setattr(selfcheck, "all_cases", lambda: (good, bad))
    faults = selfcheck.check_all()
    assert len(faults) == len(PROFILES) == 2
    assert len(selfcheck.check_all(more="0.33")) == len(bad.profiles) == 3


def test_a_broken_judge_judges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "check_all", lambda *_: ["it accepted 5"])
    with pytest.raises(RuntimeError, match="the suite itself is broken: it accepted 5"):
        runner.judge("reference", suite="smoke")


def test_a_wrong_answer_to_a_call_that_has_none_is_an_error() -> None:
    case = replace(case_named("sched-accept-1-4"), wrong=({"event": 1, "rows": []},))
    with pytest.raises(ValueError, match=r"a wrong answer .* to Reset"):
        selfcheck.check(case, "0.32")
