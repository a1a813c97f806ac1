"""Whether a target shows the known findings of a release."""

from __future__ import annotations

from auxout_spec.calls import BeginStep
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.deviations import OPTIMIZED
from auxout_spec.profiles import Profile, named
from auxout_spec.values import Metadata

from .hosts import Host
from .judge import Failure, Play, play
from .known import Finding
from .observation import Usage
from .setups import Setup
from .targets import Target
from .targets.drivers import Sizes


def occurs(finding: Finding, host: Host, profile: Profile) -> bool:
    """Whether a target shows a finding, judged under a profile with whatever else it is known for.

    Args:
        host: where the target runs.

    Raises:
        TargetBroken: it crashed or hung.
    """
    if finding.deviation is None:
        played, failure = play(host, finding.scenario, profile)
        return failure is None and _ended_by(played) == finding.clause
    without = profile._replace(deviations=profile.deviations - {finding.deviation})
    _, failure = play(host, finding.scenario, without)
    if finding.deviation not in OPTIMIZED:
        return failure is not None and failure.clause == finding.clause
    return failure is None and _optimized(finding, host, without) is not None


def answers_rightly(finding: Finding, host: Host, profile: Profile) -> bool:
    """Whether a target gives no wrong answer at all in a finding's scenario.

    Args:
        profile: what judges it, without the finding's deviation.

    Raises:
        TargetBroken: it crashed or hung.
    """
    played, failure = play(host, finding.scenario, profile)
    if failure is not None:
        return False
    if finding.deviation is None:
        return _ended_by(played) != finding.clause
    return finding.deviation not in OPTIMIZED or _optimized(finding, host, profile) is None


def tells_usage(host: Host, profile: Profile) -> bool:
    """Whether a target has a worker that says what it holds."""
    if not host.offer.worker:
        return False
    host.new(Setup(profile.name, Sizes(1, 1, 1)))
    return isinstance(host.call(BeginStep(Metadata(0, (), (), ()))).usage, Usage)


def _ended_by(played: Play) -> str:
    """The clause on which the engine ended, or the last call was refused; empty if there was no refusal."""
    return played.state.problem.clause if played.state.problem else played.last_refused


def _optimized(finding: Finding, host: Host, profile: Profile) -> Failure | None:
    return play(host.optimized(), finding.scenario, profile)[1]


def remaining(findings: tuple[Finding, ...], target: Target, host: Host) -> tuple[Finding, ...]:
    """Those of the findings that a target shows, which may be a changed release."""
    profile = judged_profile(target, findings)
    return tuple(finding for finding in findings if visible(finding, host) and occurs(finding, host, profile))


def visible(finding: Finding, host: Host) -> bool:
    """Whether the target has the half that the finding is about."""
    return host.offer.has(ALL_CLAUSES[finding.clause].component)


def judged_profile(target: Target, findings: tuple[Finding, ...]) -> Profile:
    """The profile a target is judged under, with the deviations of its known findings."""
    deviations = frozenset(finding.deviation for finding in findings if finding.deviation is not None)
    return named(target.profile)._replace(deviations=deviations)
