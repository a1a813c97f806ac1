"""What ``auxout clauses`` shows: the rules of the protocol, and what the engine model holds an engine to."""

from __future__ import annotations

from collections.abc import Iterable

from auxout_spec.clauses import CLAUSES, Clause
from auxout_spec.engine.guards import GUARDS, Guard
from auxout_spec.profiles import PROFILES

from . import client
from .cases import judged_cases
from .known import all_findings
from .mistakes import UserMistake, check_rule
from .render import columns, field

HEAD = ("clause", "level", "profiles", "sentence")
GUARD = "engine"
"""What stands for the level of an environment guard: no implementation is judged by it."""


def find(name: str | None, profile: str | None) -> list[Clause | Guard] | Clause | Guard:
    """All rules, those of a group such as ``SCHED-TERM`` or ``ENV``, or the one of that id.

    Raises:
        UserMistake: there is none, or none in the profile.
    """
    shown: list[Clause | Guard] = [c for c in CLAUSES.values() if profile is None or profile in c.profiles]
    shown += GUARDS.values()
    if name is None:
        return shown
    group = [rule for rule in shown if rule.id.startswith(name.upper().rstrip("-") + "-")]
    if group:
        return group
    rule_id = check_rule(name)
    rule = CLAUSES.get(rule_id) or GUARDS[rule_id]
    if rule not in shown:
        raise UserMistake(f"{rule.id} is no clause of profile {profile}")
    return rule


def rows(rules: Iterable[Clause | Guard]) -> list[tuple[str, ...]]:
    """A table of rules: id, level, profiles, sentence."""
    return [(rule.id, level(rule), _profiles(rule), rule.sentence) for rule in rules]


def lines(rule: Clause | Guard) -> list[str]:
    """Everything about one rule."""
    found = [f"{rule.id}  {rule.sentence}", *field("level", level(rule))]
    if isinstance(rule, Guard):
        return [*found, *field("source", rule.source), *field("about", "what an engine never does")]
    every = [*judged_cases(), *client.all_cases()]
    cases = [(case.name, case.story) for case in every if case.clause == rule.id]
    findings = [each for each in all_findings() if each.clause == rule.id]
    known = [(each.id, f"vllm {each.release}: {each.sentence}") for each in findings]
    found += field("profiles", ", ".join(rule.profiles))
    found += field("source", rule.source)
    found += field("cases", "\n".join(columns(cases)) or "none")
    return found + (field("known", "\n".join(columns(known))) if known else [])


def level(rule: Clause | Guard) -> str:
    """``MUST`` or ``SHOULD``; ``engine`` for what the engine model holds an engine to."""
    return rule.level if isinstance(rule, Clause) else GUARD


def _profiles(rule: Clause | Guard) -> str:
    if isinstance(rule, Guard) or set(rule.profiles) == set(PROFILES):
        return "all"
    return " ".join(rule.profiles)
