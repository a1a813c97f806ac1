"""Curated cases: for every clause scenarios with the right answer, and wrong answers that must be rejected.

The cases are the JSON files of this folder. A case is a scenario with a clause and a story; it is played in the
profiles of its clause, or in its own, or in those ``until`` one. Played on a target,
the target must answer as the spec does: the positive side. The negative side is either in the scenario (the spec
refuses a call in it with the case's clause, and so must the target) or in ``wrong``: answers that the judge must
reject with the case's clause, which proves that the clause can fail at all (``auxout_conformance.selfcheck``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from auxout_spec import scenario as scenarios
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.engine import Impossible
from auxout_spec.profiles import PER_REQUEST, is_judged, named
from auxout_spec.scenario import Scenario
from auxout_spec.values import Refusal

FORMAT = "cases/1"


@dataclass(frozen=True)
class Case:
    """One curated scenario."""

    name: str
    clause: str
    story: str
    scenario: Scenario
    profiles: tuple[str, ...]
    """The profiles it is played in."""
    wrong: tuple[dict[str, Any], ...] = ()
    """Wrong answers; ``selfcheck`` says what the fields mean."""


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, in the order of the clauses."""
    order = {clause: place for place, clause in enumerate(ALL_CLAUSES)}
    folder = resources.files("auxout_conformance.cases")
    found = [
        _case(data)
        for file in folder.iterdir()
        if file.name.endswith(".json")
        for data in json.loads(file.read_text(encoding="utf-8"))["cases"]
    ]
    return tuple(sorted(found, key=lambda case: (order[case.clause], case.name)))


def judged_cases() -> tuple[Case, ...]:
    """The cases of profiles that implementations are judged by, so without those that only one being written has."""
    return tuple(case for case in all_cases() if any(map(is_judged, case.profiles)))


@cache
def cases_in(profile: str) -> tuple[Case, ...]:
    """The cases played in one profile.

    Its variant has its own, and those of the profile that are possible there. What the profile refuses fails a request
    instead: such a case is about FAIL-ALONE-1 then.
    """
    own = tuple(case for case in all_cases() if profile in case.profiles)
    plain = profile.removesuffix(PER_REQUEST)
    if plain == profile:
        return own
    return (*own, *(found for case in cases_in(plain) if (found := _without_refusals(case, plain, profile))))


def _without_refusals(case: Case, plain: str, variant: str) -> Case | None:
    """A case of a profile as one of its variant; None if it is impossible there."""
    try:
        scenarios.run(case.scenario, named(variant))
    except Impossible:
        return None
    played = scenarios.run(case.scenario, named(plain))
    refused = any(isinstance(exchange.result, Refusal) for _, exchanges in played for exchange in exchanges)
    clause = "FAIL-ALONE-1" if refused else case.clause
    scenario = case.scenario._replace(profile=variant, clause=clause)
    return replace(case, clause=clause, scenario=scenario, profiles=(variant,))


def _case(data: dict[str, Any]) -> Case:
    fields = dict(data)
    story, wrong, until = fields.pop("story"), fields.pop("wrong", []), fields.pop("until", "")
    scenario = scenarios.load(json.dumps({"auxout": scenarios.FORMAT, **fields}))
    clause = ALL_CLAUSES[scenario.clause]
    wanted = (scenario.profile,) if scenario.profile else clause.profiles
    wanted = wanted[: wanted.index(until) + 1] if until else wanted
    profiles = tuple(profile for profile in wanted if profile in clause.profiles)
    return Case(scenario.name, clause.id, story, scenario, profiles, tuple(wrong))
