"""Whether a target shows the known findings of a release."""

from __future__ import annotations

from auxout_spec.profiles import PROFILES, Deviation, Profile

from .hosts import Child, Host
from .judge import play
from .known import Finding
from .targets import Target


def occurs(finding: Finding, target: Target, host: Host, profile: Profile) -> bool:
    """Whether a target shows a finding, judged under a profile with whatever else it is known for.

    Args:
        host: where the target runs.

    Raises:
        TargetBroken: it crashed or hung.
    """
    without = profile._replace(deviations=profile.deviations - {finding.deviation})
    _, failure = play(host, finding.scenario, without)
    if finding.deviation is not Deviation.ASSERT_ONLY:
        return failure is not None and failure.clause == finding.clause
    optimized = Child(target, optimized=True)
    try:
        _, silent = play(optimized, finding.scenario, without)
    finally:
        optimized.close()
    return silent is not None and failure is None


def remaining(findings: tuple[Finding, ...], target: Target, host: Host) -> tuple[Finding, ...]:
    """Those of the findings that a target shows, which may be a changed release."""
    profile = judged_profile(target, findings)
    return tuple(finding for finding in findings if occurs(finding, target, host, profile))


def judged_profile(target: Target, findings: tuple[Finding, ...]) -> Profile:
    """The profile a target is judged under, with the deviations of its known findings."""
    deviations = frozenset(finding.deviation for finding in findings)
    return PROFILES[target.profile]._replace(deviations=deviations)
