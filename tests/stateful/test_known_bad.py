"""Every known-bad connector is rejected, by a clause that it breaks, in a scenario that a person can read.

``smoke`` plays the same cases as ``default`` and fewer random scenarios, so what a case of ``smoke`` rejects,
``default`` rejects as well. Judging therefore starts with what costs least: ``smoke`` up to the first violation, then
all of ``smoke``, then ``default``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from auxout_conformance import known_bad, runner
from auxout_conformance.known_bad import KnownBad
from auxout_conformance.known_bad.size_faults import SIZE_FAULTS
from auxout_conformance.verdicts import Suite, Verdict, Violation

CATALOGUE = known_bad.catalogue()
MAX_EVENTS = {False: 8, True: 11}
"""By whether it is a worker. A block that is overwritten has to be filled twice, left and hit."""
IN_SMOKE = 0.9
"""The share that ``smoke`` must reject already."""
LARGE = frozenset(SIZE_FAULTS)
"""Wrong at large sizes only, which may take as many events."""
ATTEMPTS: tuple[tuple[Suite, bool], ...] = (("smoke", True), ("smoke", False), ("default", False))
"""Suites, and whether to stop at the first violation."""


class Rejected(NamedTuple):
    """How a known-bad connector was rejected."""

    suite: Suite
    violation: Violation


@cache
def rejected(entry: KnownBad) -> Rejected | None:
    """The cheapest judgement that names a clause of the entry."""
    for suite, stop_first in ATTEMPTS:
        report = runner.judge(f"known-bad:{entry.name}", suite=suite, stop_first=stop_first)
        if suite == "smoke" and report.verdict is Verdict.CONFORM:
            continue
        assert report.verdict is Verdict.VIOLATION, f"{suite}: {report.verdict.value}"
        assert report.profile == entry.profile
        for violation in report.violations:
            if violation.clause in entry.clauses:
                return Rejected(suite, violation)
    return None


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_it_is_rejected_by_its_own_clause_and_the_scenario_shows_it(entry: KnownBad) -> None:
    found = rejected(entry)
    assert found is not None, f"no judgement named {' or '.join(entry.clauses)}"
    suite, violation = found
    print(f"{entry.name}: {violation.clause} in {suite}, {len(violation.scenario.events)} events")
    if suite == "smoke" and violation.found_by == "random":
        check_default(entry)
    most = 600 if entry in LARGE else MAX_EVENTS[entry.is_worker]
    assert 1 <= violation.event == len(violation.scenario.events) <= most
    check_replay(entry, violation)


def check_default(entry: KnownBad) -> None:
    """``default`` draws its random scenarios anew, so it has to be asked."""
    report = runner.judge(f"known-bad:{entry.name}")
    assert {violation.clause for violation in report.violations} & set(entry.clauses)


def check_replay(entry: KnownBad, violation: Violation) -> None:
    """The printed scenario fails on the connector and passes on the reference."""
    scenario = violation.scenario
    optimized = "--optimized" in violation.replay
    assert optimized == (violation.clause in {"SCHED-REFUSE-6", "WORK-REFUSE-4"})
    again = runner.replay(scenario, f"known-bad:{entry.name}", optimized=optimized)
    assert again is not None
    assert (again.clause, again.event, again.call) == (violation.clause, violation.event, violation.call)
    assert runner.replay(scenario, "reference", optimized=optimized) is None


def test_smoke_rejects_most() -> None:
    missed = [entry.name for entry in CATALOGUE if (found := rejected(entry)) and found.suite != "smoke"]
    assert len(missed) <= (1 - IN_SMOKE) * len(CATALOGUE), missed
