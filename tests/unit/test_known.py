"""Known findings: each describes its release exactly, and shows in its own scenario."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from auxout_conformance import known, showing
from auxout_conformance.hosts import Host, InProcess
from auxout_conformance.judge import play
from auxout_conformance.known import Finding, all_findings, findings_of
from auxout_conformance.observation import Observation, Odd
from auxout_conformance.setups import Setup
from auxout_conformance.targets import resolve
from auxout_conformance.targets.adapter import Offer
from auxout_spec import scenario as scenarios
from auxout_spec.calls import Call
from auxout_spec.clauses import CLAUSES
from auxout_spec.deviations import Deviation
from auxout_spec.engine import Impossible, initial, step
from auxout_spec.profiles import PROFILES, Profile
from auxout_spec.values import Refusal

FINDINGS = all_findings()
RELEASES = {f"{name}.0": name for name in PROFILES}


RETIRED = {"F31-2"}
"""Ids are not used again. 0.31.0 never replaces a hash, so that it would not say so is no finding."""


def test_every_deviation_is_a_finding_of_every_release_that_shows_it() -> None:
    later = {Deviation.RETAINED_AT_REFUSAL, Deviation.UNKEYED_ROWS_UNREAD}
    assert {finding.deviation for finding in findings_of("0.32.0")} == {*Deviation, None} - later
    unseen = {Deviation.REPLACED_HASH_UNNOTICED, *later}
    assert {finding.deviation for finding in findings_of("0.31.0")} == {*Deviation, None} - unseen
    gone = {Deviation.REPLACED_HASH_UNNOTICED, Deviation.FINISH_NOT_ATOMIC}
    assert {finding.deviation for finding in findings_of("0.33.0")} == {*Deviation, None} - gone


@pytest.mark.parametrize("release", RELEASES)
def test_findings_are_numbered(release: str) -> None:
    ids, short = [finding.id for finding in findings_of(release)], RELEASES[release].replace("0.", "F")
    numbered = [
        f"{short}-{n}" for n in range(1, len(ids) + 1 + len(RETIRED)) if f"{short}-{n}" not in RETIRED
    ]
    assert ids == numbered[: len(ids)]


def test_nothing_is_known_of_anything_else() -> None:
    assert findings_of("") == findings_of("0.31.1") == findings_of("0.31") == ()


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_a_finding_reads_well(finding: Finding) -> None:
    assert finding.scenario.profile == RELEASES[finding.release]
    assert finding.scenario.clause == finding.clause
    assert finding.scenario.name == finding.id
    assert finding.sentence.endswith(".")
    assert finding.scenario.profile in CLAUSES[finding.clause].profiles
    assert len(finding.scenario.events) <= (8 if finding.deviation else 10)


def answered(finding: Finding, profile: Profile) -> list[object]:
    """The spec's answers in a finding's scenario, as far as it is possible under a profile."""
    config, state, answers = scenarios.config_of(finding.scenario, profile), initial(), list[object]()
    for event in finding.scenario.events:
        try:
            state, exchanges = step(config, state, event)
        except Impossible:
            break
        answers += [*(exchange.result for exchange in exchanges), state.problem]
    return answers


def ends_the_engine(finding: Finding, profile: Profile) -> bool:
    """Whether the connectors do what they must, and nothing can follow."""
    state, exchanges = scenarios.run(finding.scenario, profile)[-1]
    refused = [exchange.result.clause for exchange in exchanges if isinstance(exchange.result, Refusal)]
    return finding.clause in (*refused, state.problem.clause if state.problem else "")


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_a_finding_s_scenario_tells_the_release_from_the_spec(finding: Finding) -> None:
    """With its deviation alone the spec answers differently; the profile without it refuses, or says something else."""
    right = PROFILES[finding.scenario.profile]
    if finding.deviation is None:
        assert ends_the_engine(finding, right)
        return
    released = right._replace(deviations=frozenset((finding.deviation,)))
    answers = [answered(finding, profile) for profile in (right, released)]
    if finding.deviation is Deviation.BATCH_KEPT:
        looks = [
            scenarios.config_of(finding.scenario, profile).representation for profile in (right, released)
        ]
        assert answers[0] == answers[1]
        assert [made.buffers for made in looks] == ["reused", "fresh"]
    elif finding.deviation in (Deviation.ASSERT_ONLY, Deviation.WORKER_ASSERT_ONLY):
        assert answers[0] == answers[1]
        assert any(isinstance(answer, Refusal) for answer in answers[0])
    else:
        assert answers[0] != answers[1]


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
@pytest.mark.parametrize("name", ["reference", "impl"])
def test_ours_do_not_have_it(finding: Finding, name: str) -> None:
    host = InProcess(resolve(name, finding.scenario.profile))
    assert play(host, finding.scenario, PROFILES[finding.scenario.profile])[1] is None


class Wrong:
    """A target whose every answer is wrong."""

    offer = Offer(scheduler=True, worker=True)

    def new(self, setup: Setup) -> None:
        pass

    def call(self, call: Call) -> Observation:
        return Observation(Odd("nothing"))

    def said(self) -> str:
        return ""

    def optimized(self) -> Host:
        raise AssertionError("not asked: it is wrong already")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_a_wrong_answer_hides_a_finding_and_does_not_fix_it(finding: Finding) -> None:
    assert not showing.answers_rightly(finding, Wrong(), PROFILES[finding.scenario.profile])


@pytest.mark.parametrize("name", ["reference", "impl"])
def test_ours_tell_what_they_hold(name: str) -> None:
    assert showing.tells_usage(InProcess(resolve(name)), PROFILES["0.32"])


def test_whoever_has_no_worker_or_no_usage_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "silent.py").write_text(
        "from auxout_reference.worker import WorkerCore\n"
        "class Worker(WorkerCore):\n    usage = None\n"
        "from auxout_reference.connector import AuxOutputSchedulerConnector as Connector, PackedBlockHashes\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for attribute in ("Worker", "Connector"):
        host = InProcess(resolve(f"silent:{attribute}"))
        assert not showing.tells_usage(host, PROFILES["0.32"])


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
        known._read(json.loads(text))
