"""Compares two judgements clause by clause."""

from __future__ import annotations

from collections.abc import Sequence

from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.profiles import Profile
from auxout_spec.scenario import Scenario

from ..hosts import Host
from ..judge import play
from ..judgement import Judgement
from ..known import Finding, findings_under
from ..showing import answers_rightly, tells_usage
from ..verdicts import Report, Violation
from .moves import Moved
from .outcome import ClauseOutcome, Outcome


def outcomes(
    hosts: tuple[Host, Host],
    base: Report,
    judgement: Judgement,
    patched: Report,
    more: Sequence[Violation],
    moved: Moved,
) -> tuple[ClauseOutcome, ...]:
    """What became of every clause that the base was judged by, and of others that were violated.

    Args:
        hosts: where base and patched code run.
        judgement: the judgement of the patched code, ``patched`` its report.
        more: violations of the patched code, right in the base, that comparing the two found.
    """
    before, after = _violated(base), _violated(patched)
    broken = {each.clause: each for each in reversed(more)}
    for violation in reversed(patched.violations):
        if _is_worse(hosts[0], violation, judgement, before):
            broken[violation.clause] = violation
    left = {clause for move in moved.moves for clause in move.instead_of}
    judged = {each.clause for each in patched.clauses if each.status != "not judged"}
    listed = [each.clause for each in base.clauses]
    listed += [clause for clause in broken if clause not in listed]
    findings = {each.clause: each.findings for each in base.clauses}
    found: list[ClauseOutcome] = []
    for clause in listed:
        outcome: Outcome = "kept" if clause in judged else "not judged"
        if clause in broken and ALL_CLAUSES[clause].level == "MUST":
            outcome = "broken"
        elif clause in left:
            outcome = "moved"
        elif clause in before:
            if clause in after or clause in broken:
                outcome = "still violated"
            elif _is_mended(hosts, clause, base, moved, any_broken=bool(broken)):
                outcome = "fixed"
            else:
                outcome = "not judged"
        found.append(ClauseOutcome(clause, outcome, findings.get(clause, ()), broken.get(clause)))
    return tuple(found)


def notes(host: Host, base: Report, patched: Report, moved: Moved) -> tuple[str, ...]:
    """What else a reader should know; ``host`` is where the patched code runs."""
    found = [
        f"{', '.join(move.instead_of)} broken by behaving as profile {move.profile} in {', '.join(move.clauses)}"
        for move in moved.back
    ]
    before, after = _violated(base), _violated(patched)
    found += [
        f"{clause} held before and should hold: {ALL_CLAUSES[clause].sentence}"
        for clause in sorted(after - before)
        if ALL_CLAUSES[clause].level == "SHOULD"
    ]
    for result in patched.clauses:
        if result.status == "violated" and result.clause in before:
            gone = [
                each.id for each in _known(base, result.clause) if answers_rightly(each, host, moved.rules)
            ]
            if gone:
                found.append(
                    f"{', '.join(gone)} no longer shows, but {result.clause} is violated in other scenarios"
                )
    return tuple(found)


def _violated(report: Report) -> set[str]:
    return {each.clause for each in report.clauses if each.status in ("violated", "known")} | {
        each.clause for each in report.violations
    }


def _known(base: Report, clause: str) -> list[Finding]:
    """The known findings of the base behind a clause."""
    ids = _findings(base, clause)
    return [each for each in findings_under(base.profile) if each.id in ids]


def _findings(report: Report, clause: str) -> tuple[str, ...]:
    return next((each.findings for each in report.clauses if each.clause == clause), ())


def _is_mended(
    hosts: tuple[Host, Host], clause: str, base: Report, moved: Moved, *, any_broken: bool
) -> bool:
    """Whether what showed a violation in the base is now answered rightly to its end.

    It may also just hide: behind something that was broken, or because the worker no longer says what it holds.
    """
    if ALL_CLAUSES[clause].level == "SHOULD":
        return not any_broken
    base_host, host = hosts
    findings = _known(base, clause)
    if any(not answers_rightly(each, host, moved.rules) for each in findings):
        return False
    scenarios = [each.scenario for each in base.violations if each.clause == clause]
    if any(play(host, each, moved.rules)[1] is not None for each in scenarios):
        return False
    scenarios += [each.scenario for each in findings]
    return tells_usage(host, moved.rules) or not any(
        _shows_in_usage(base_host, each, moved.rules) for each in scenarios
    )


def _shows_in_usage(host: Host, scenario: Scenario, rules: Profile) -> bool:
    _, failure = play(host, scenario, rules)
    return failure is not None and failure.in_usage


def _is_worse(base_host: Host, violation: Violation, judgement: Judgement, before: set[str]) -> bool:
    """Whether the base is right where the patched code is wrong.

    The base is judged with the known findings that the patched code still has: with one that was fixed it may be
    wrong earlier in the scenario, and then it only counts whether it breaks the clause anywhere.
    """
    if "--optimized" in violation.replay.split():
        return violation.clause not in before
    _, failure = play(base_host, violation.scenario, judgement.profile)
    if failure is None:
        return True
    return failure.clause != violation.clause and violation.clause not in before
