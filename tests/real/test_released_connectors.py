"""The connectors of released vLLM versions. pip fetches each wheel once, about 340 MB.

python -m pytest tests/real/test_released_connectors.py
"""

from __future__ import annotations

import pytest

from auxout_conformance import covering, runner
from auxout_conformance.hosts import Child
from auxout_conformance.known import Finding, all_findings, findings_of
from auxout_conformance.showing import judged_profile, occurs
from auxout_conformance.targets import resolve
from auxout_conformance.verdicts import Verdict
from auxout_spec.deviations import OPTIMIZED
from auxout_spec.explorer.models import MODELS
from auxout_spec.profiles import PROFILES

pytestmark = [pytest.mark.real, pytest.mark.slow]

RELEASES = {f"{name}.0": name for name in PROFILES}


@pytest.mark.parametrize("release", RELEASES)
def test_it_conforms_except_its_known_findings(release: str) -> None:
    report = runner.judge(f"vllm=={release}")
    assert report.violations == ()
    assert report.verdict is Verdict.CONFORM, report.reason
    assert report.profile == RELEASES[release]
    assert report.version == f"vllm {release}"
    assert report.known == tuple(finding.id for finding in findings_of(release))
    # Its assertions do not name the request, which is a SHOULD.
    others = [result.clause for result in report.clauses if result.status not in ("holds", "known")]
    assert others == ["SCHED-REFUSE-2"]


@pytest.mark.parametrize(
    ("release", "profile", "clauses"),
    [("0.31.0", "0.32", {"SCHED-EMIT-4"}), ("0.32.0", "0.31", {"SCHED-EMIT-3"})],
)
def test_under_the_other_profile_it_shows_what_differs(release: str, profile: str, clauses: set[str]) -> None:
    report = runner.judge(f"vllm=={release}", profile=profile)
    assert {violation.clause for violation in report.violations} == clauses
    for violation in report.violations:
        assert len(violation.scenario.events) <= 8
        again = runner.replay(violation.scenario, f"vllm=={release}", profile, known=True)
        assert again is not None
        assert again.clause == violation.clause


@pytest.mark.parametrize("model", ["conversation", "bounded", "resets", "cut"])
def test_every_transition_of_models_is_taken(model: str) -> None:
    target = resolve("vllm==0.32.0")
    (covered,) = covering.cover_all([MODELS[model]], target, 300, lambda shown: None)
    assert covered.violation is None
    assert covered.taken == covered.transitions > 300


@pytest.mark.parametrize("finding", all_findings(), ids=lambda finding: finding.id)
def test_a_known_finding_replays(finding: Finding) -> None:
    target, optimized = f"vllm=={finding.release}", finding.deviation in OPTIMIZED
    if finding.deviation is None:
        resolved = resolve(target)
        host = Child(resolved)
        try:
            assert occurs(finding, host, judged_profile(resolved, findings_of(finding.release)))
        finally:
            host.close()
        return
    found = runner.replay(finding.scenario, target, optimized=optimized)
    assert found is not None
    assert found.clause == finding.clause
    assert runner.replay(finding.scenario, target, known=True) is None
    assert runner.replay(finding.scenario, "reference", finding.scenario.profile, optimized=optimized) is None
