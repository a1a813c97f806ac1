"""Known findings: each describes its release exactly, and shows in its own scenario."""

from __future__ import annotations

import json

import pytest

from auxout_conformance import known
from auxout_conformance.hosts import InProcess
from auxout_conformance.judge import play
from auxout_conformance.known import Finding, all_findings, findings_of
from auxout_conformance.targets import resolve
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import CLAUSES
from auxout_spec.profiles import PROFILES, Deviation
from auxout_spec.values import Refusal

FINDINGS = all_findings()
RELEASES = {"0.31.0": "0.31", "0.32.0": "0.32"}


def test_every_deviation_is_a_finding_of_every_release() -> None:
    for release, profile in RELEASES.items():
        findings = findings_of(release)
        assert {finding.deviation for finding in findings} == set(Deviation)
        short = profile.replace("0.", "F")
        assert [finding.id for finding in findings] == [f"{short}-{n}" for n in range(1, len(findings) + 1)]


def test_nothing_is_known_of_anything_else() -> None:
    assert findings_of("") == findings_of("0.31.1") == findings_of("0.31") == ()


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_a_finding_reads_well(finding: Finding) -> None:
    assert finding.scenario.profile == RELEASES[finding.release]
    assert finding.scenario.clause == finding.clause
    assert finding.scenario.name == finding.id
    assert finding.sentence.endswith(".")
    assert finding.scenario.profile in CLAUSES[finding.clause].profiles
    assert len(finding.scenario.events) <= 8


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_a_finding_s_scenario_tells_the_release_from_the_spec(finding: Finding) -> None:
    """With its deviation alone the spec answers differently; the profile without it refuses, or says something else."""
    right = PROFILES[finding.scenario.profile]
    released = right._replace(deviations=frozenset((finding.deviation,)))
    played = [scenarios.run(finding.scenario, profile) for profile in (right, released)]
    answers = [[exchange.result for _, exchanges in each for exchange in exchanges] for each in played]
    if finding.deviation is Deviation.ASSERT_ONLY:
        assert answers[0] == answers[1]
        assert any(isinstance(answer, Refusal) for answer in answers[0])
    else:
        assert answers[0] != answers[1]


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
@pytest.mark.parametrize("name", ["reference", "impl"])
def test_ours_do_not_have_it(finding: Finding, name: str) -> None:
    host = InProcess(resolve(name, finding.scenario.profile))
    assert play(host, finding.scenario, PROFILES[finding.scenario.profile])[1] is None


def test_a_finding_of_an_unknown_clause_is_loud() -> None:
    finding = {
        "id": "F",
        "clause": "SCHED-MET-1",
        "deviation": "assert-only",
        "sentence": ".",
        "scenario": {},
    }
    text = json.dumps({"auxout": known.FORMAT, "release": "1", "profile": "0.31", "findings": [finding]})
    with pytest.raises(KeyError):
        known._read(text)
