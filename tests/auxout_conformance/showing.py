"""Whether a target shows the known findings of a release."""

from __future__ import annotations

from auxout_spec.clauses import CLAUSES
from auxout_spec.profiles import PROFILES, Deviation, Profile

from .hosts import Child, Host
from .judge import Failure, play
from .known import Finding
from .targets import Target

ASSERT_ONLY = (Deviation.ASSERT_ONLY, Deviation.WORKER_ASSERT_ONLY)
"""What shows under ``python -O`` alone."""


def occurs(finding: Finding, target: Target, host: Host, profile: Profile) -> bool:
    """Whether a target shows a finding, judged under a profile with whatever else it is known for.

    Args:
        host: where the target runs.

    Raises:
        TargetBroken: it crashed or hung.
    """
    if finding.deviation is None:
        played, failure = play(host, finding.scenario, profile)
        ended_by = played.state.problem.clause if played.state.problem else played.last_refused
        return failure is None and ended_by == finding.clause
    without = profile._replace(deviations=profile.deviations - {finding.deviation})
    _, failure = play(host, finding.scenario, without)
    if finding.deviation not in ASSERT_ONLY:
        return failure is not None and failure.clause == finding.clause
    return failure is None and _optimized(finding, target, without) is not None


def answers_rightly(finding: Finding, target: Target, host: Host, profile: Profile) -> bool:
    """Whether a target gives no wrong answer at all in a finding's scenario.

    Args:
        profile: what judges it, without the finding's deviation.

    Raises:
        TargetBroken: it crashed or hung.
    """
    if finding.deviation is None:
        return not occurs(finding, target, host, profile)
    if play(host, finding.scenario, profile)[1] is not None:
        return False
    return finding.deviation not in ASSERT_ONLY or _optimized(finding, target, profile) is None


def _optimized(finding: Finding, target: Target, profile: Profile) -> Failure | None:
    optimized = Child(target, optimized=True)
    try:
        return play(optimized, finding.scenario, profile)[1]
    finally:
        optimized.close()


def remaining(findings: tuple[Finding, ...], target: Target, host: Host) -> tuple[Finding, ...]:
    """Those of the findings that a target shows, which may be a changed release."""
    profile = judged_profile(target, findings)
    return tuple(
        finding for finding in findings if visible(finding, host) and occurs(finding, target, host, profile)
    )


def visible(finding: Finding, host: Host) -> bool:
    """Whether the target has the half that the finding is about."""
    return host.offer.has(CLAUSES[finding.clause].component)


def judged_profile(target: Target, findings: tuple[Finding, ...]) -> Profile:
    """The profile a target is judged under, with the deviations of its known findings."""
    deviations = frozenset(finding.deviation for finding in findings if finding.deviation is not None)
    return PROFILES[target.profile]._replace(deviations=deviations)
