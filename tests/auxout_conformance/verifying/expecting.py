"""Verifications under an expectation file: what a patch is meant to break, with the reason."""

from __future__ import annotations

from dataclasses import replace

from .. import expect
from ..expect import Expectations
from ..verdicts import Report, Verdict
from .outcome import JUDGED, Verification


def apply_expectations(verification: Verification, expectations: Expectations) -> Verification:
    """The verification as it reads when these clauses are meant to be broken.

    One that is judged and not broken is an error: the entry is stale.

    Raises:
        UserMistake: the expectations are for another profile.
    """
    expect.check_same_profile(expectations, verification.profile)
    broken = broken_report(verification)
    if broken is None:
        return verification
    judged = expect.apply_expectations(broken, expectations)
    clauses = tuple(
        replace(each, outcome="expected")
        if each.outcome == "broken" and each.clause in judged.expected
        else each
        for each in verification.clauses
    )
    notes = (*verification.notes, *judged.notes)
    told = replace(verification, clauses=clauses, reason=judged.reason, notes=notes)
    return told.settled(is_broken=judged.verdict is not Verdict.CONFORM)


def broken_report(verification: Verification) -> Report | None:
    """The judgement of the patched code with nothing but what the patch breaks; None if it did not come to that."""
    if verification.patched is None or verification.result not in JUDGED:
        return None
    broken = tuple(each.violation for each in verification.having("broken") if each.violation is not None)
    verdict = Verdict.VIOLATION if broken else Verdict.CONFORM
    return replace(verification.patched, violations=broken, verdict=verdict, reason="", notes=())
