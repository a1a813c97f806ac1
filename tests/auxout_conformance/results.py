"""What became of each clause in a judgement."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from auxout_spec.clauses import in_profile
from auxout_spec.profiles import named

from .cases import Case
from .known import Finding
from .targets.adapter import Offer
from .verdicts import ClauseResult


def clause_results(
    profile: str,
    offer: Offer,
    cases: Iterable[Case],
    findings: Iterable[Finding],
    *,
    violated: Collection[str],
    held: Collection[str],
) -> tuple[ClauseResult, ...]:
    """The results of all clauses of a profile that can be judged.

    Args:
        offer: which halves were judged.
        cases: the curated ones.
        findings: those that the target is known for.
        violated: clauses, those included that only should hold.
        held: clauses of which a case passed; one whose every case failed was never seen to hold.
    """
    known: dict[str, tuple[str, ...]] = {}
    for finding in findings:
        known[finding.clause] = (*known.get(finding.clause, ()), finding.id)
    of_case = [case.clause for case in cases]
    results: list[ClauseResult] = []
    for clause in in_profile(profile, offer.components):
        checks, status = of_case.count(clause.id), "holds" if clause.id in held else "not judged"
        if clause.id in violated:
            status = "violated"
        elif clause.id in known:
            status = "known"
        elif named(profile).fails_requests and not checks:
            continue  # what it refuses fails a request here (FAIL-ALONE-1)
        results.append(ClauseResult(clause.id, status, checks, known.get(clause.id, ())))
    return tuple(results)
