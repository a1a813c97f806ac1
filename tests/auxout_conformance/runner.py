"""Judges a target by name, plays one scenario on it again, and says which known findings that shows."""

from __future__ import annotations

from collections.abc import Callable

from auxout_spec.scenario import Scenario

from .hosts import Child, Host, open_host
from .judge import play
from .judgement import Judgement, OnProgress, optimized_clause
from .known import Finding, findings_of, findings_under
from .showing import judged_profile, remaining
from .targets import Target, patched, resolve
from .verdicts import Report, Suite, Violation
from .violations import violation_of


def judge(
    target: str,
    *,
    profile: str | None = None,
    suite: Suite = "default",
    seed: int | None = None,
    known: bool = True,
    stop_first: bool = False,
    expected: frozenset[str] = frozenset(),
    patch: str = "",
    progress: OnProgress | None = None,
) -> Report:
    """Judge one target.

    Args:
        target: a name as ``auxout targets`` lists them.
        profile: judge under this profile instead of the target's own.
        seed: random scenarios from this seed; by default fixed ones, in ``deep`` a fresh seed.
        known: judge a release against the spec with its known findings.
        stop_first: stop at the first violation that is not expected.
        expected: clauses whose violation is expected.
        patch: a file with a diff, applied to a copy of the target first; then of a release's known findings only
            those count that are still there.
        progress: told how far the judgement is.

    Raises:
        TargetError: there is no such target.
    """
    resolved = _resolved(target, profile, patch)
    findings = findings_of(resolved.release) if known else ()
    tolerated = expected if stop_first else None
    judgement = Judgement(
        resolved, suite, seed, findings, settled=not patch, tolerated=tolerated, progress=progress
    )
    return judgement.run()


def replay(
    scenario: Scenario,
    target: str,
    profile: str | None = None,
    *,
    known: bool = False,
    optimized: bool = False,
    on_said: Callable[[str], None] | None = None,
    patch: str = "",
) -> Violation | None:
    """Play one scenario on a target; the violation it shows, if any.

    Args:
        known: accept what the release's known findings describe.
        optimized: run the target under ``python -O``.
        on_said: told what a target in a process of its own wrote to standard error, if it wrote anything.
        patch: a file with a diff, applied to a copy of the target first.

    Raises:
        TargetError: there is no such target.
        TargetBroken: it does not load, crashed or hung.
        Impossible: the scenario has an event that no engine can bring about.
    """
    resolved = _resolved(target, profile or scenario.profile or None, patch)
    host = Child(resolved, optimized=True) if optimized else open_host(resolved)
    try:
        findings = _accepted(resolved, host) if known else ()
        _, failure = play(host, scenario, judged_profile(resolved, findings))
    finally:
        said = host.said()
        host.close()
    if on_said is not None and said:
        on_said(said)
    if failure is None:
        return None
    flags = (["--known"] if known else []) + (["--optimized"] if optimized else [])
    clause = optimized_clause(scenario) if optimized else ""
    return violation_of(resolved, failure, scenario, "replay", None, flags, clause)


def known_in(
    scenario: Scenario, target: str, profile: str | None = None, *, optimized: bool = False, patch: str = ""
) -> tuple[Finding, ...]:
    """The known findings without which a target's answers in a scenario are wrong, and no more than those.

    Args and raises: as for ``replay``.
    """
    resolved = _resolved(target, profile or scenario.profile or None, patch)
    host = Child(resolved, optimized=True) if optimized else open_host(resolved)
    try:
        needed = _accepted(resolved, host)
        for finding in needed:
            fewer = tuple(other for other in needed if other != finding)
            if play(host, scenario, judged_profile(resolved, fewer))[1] is None:
                needed = fewer
        return needed
    finally:
        host.close()


def _resolved(target: str, profile: str | None, patch: str) -> Target:
    resolved = resolve(target, profile)
    return patched(resolved, patch) if patch else resolved


def _accepted(target: Target, host: Host) -> tuple[Finding, ...]:
    """What ``--known`` accepts: a release's known findings, of anything else those of its profile that it shows."""
    findings = findings_of(target.release)
    if findings and not target.patch:
        return findings
    return remaining(findings or findings_under(target.profile), target, host)
