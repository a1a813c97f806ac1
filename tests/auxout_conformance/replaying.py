"""Plays one scenario again: reads it, finds out whether it can happen, and shows what a target makes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from auxout_spec import scenario as scenarios
from auxout_spec.deviations import OPTIMIZED
from auxout_spec.engine import Impossible
from auxout_spec.profiles import named
from auxout_spec.reading import Malformed
from auxout_spec.scenario import Scenario

from . import files, render, runner
from .cases import all_cases
from .hosts import TargetBroken
from .known import Finding, all_findings, findings_of, findings_under
from .mistakes import UserMistake
from .screen import Screen
from .showing import judged_profile
from .targets import Target
from .timeline import Timeline, of_scenario, of_violation, terminal
from .verdicts import Verdict


class Answer(NamedTuple):
    """What a target made of a scenario."""

    target: Target
    verdict: Verdict
    words: tuple[str, ...]
    """The cells of its line."""
    timeline: Timeline
    """The scenario as it should go, to the first wrong answer."""


class How(NamedTuple):
    """How a scenario is played."""

    known: bool
    """The known findings of a release are accepted."""
    optimized: bool
    """The target runs under ``python -O``."""


def how_to_show(given: str, how: How) -> How:
    """How a scenario that the command line names is to be played, so that a known finding shows what its page says.

    One in the whole design shows that each part answers as a release does, one about refusals only under ``python -O``.
    """
    finding = next((each for each in all_findings() if each.id.lower() == given.lower()), None)
    if finding is None or Path(given).exists():
        return how
    return How(how.known or finding.deviation is None, how.optimized or finding.deviation in OPTIMIZED)


def read_scenario(given: str) -> Scenario:
    """The scenario that the command line names: a file, ``-``, the JSON itself, a case or a known finding.

    Raises:
        UserMistake: it cannot be read.
    """
    if given == "-":
        name, text = "standard input", sys.stdin.read()
    elif given.lstrip().startswith("{"):
        name, text = "on the command line", given
    elif given.lower() in _shipped_scenarios() and not Path(given).exists():
        return _shipped_scenarios()[given.lower()]
    else:
        name, text = given, files.read_text(given, "scenario")
    try:
        return scenarios.load(text)
    except Malformed as error:
        raise UserMistake(f"the scenario ({name}) cannot be read: {error}") from None


def check_possible(scenario: Scenario, profile: str) -> None:
    """Find out what is wrong with a hand-written scenario before it is blamed on a target.

    Raises:
        UserMistake: an event that no engine can bring about.
    """
    for end in range(1, len(scenario.events) + 1):
        why = _why_impossible(scenario._replace(events=scenario.events[:end]), profile)
        if why:
            raise UserMistake(f"event {end} of the scenario cannot happen under profile {profile}: {why}")


def play(screen: Screen, scenario: Scenario, target: Target, how: How) -> Answer:
    """Play it on one target and show what is wrong."""
    known, optimized = how
    under = f"profile {target.profile}"
    timeline = of_scenario(scenario, target.profile)
    try:
        violation = runner.replay(
            scenario,
            target.name,
            target.profile,
            known=known,
            optimized=optimized,
            on_said=lambda text: screen.lines(render.said_lines(target.title, text)),
            patch=target.patch,
        )
    except TargetBroken as error:
        screen.lines(render.said_lines(target.title, error.said))
        words = (Verdict.BROKEN.value, under, render.printable(str(error)))
        return Answer(target, Verdict.BROKEN, words, timeline)
    if violation is None:
        right = _known_words(scenario, target, optimized) if known else "every answer is right"
        return Answer(target, Verdict.CONFORM, (Verdict.CONFORM.value, under, right), timeline)
    deviations = judged_profile(target, _known(target) if known else ()).deviations
    timeline = of_violation(violation, deviations)
    screen.lines([*render.violation_lines(violation, terminal.draw(timeline, screen.width)), ""])
    words = (Verdict.VIOLATION.value, under, violation.clause)
    return Answer(target, Verdict.VIOLATION, words, timeline)


def _shipped_scenarios() -> dict[str, Scenario]:
    """The scenarios of curated cases and known findings, by their names in lower case."""
    named = {case.name.lower(): case.scenario for case in all_cases()}
    return named | {finding.id.lower(): finding.scenario for finding in all_findings()}


def _why_impossible(scenario: Scenario, profile: str) -> str:
    """Which guard of the engine model forbids it; empty if none does."""
    try:
        scenarios.run(scenario, named(profile))
    except Impossible as error:
        return str(error)
    return ""


def _known(target: Target) -> tuple[Finding, ...]:
    return findings_of(target.release) or findings_under(target.profile)


def _known_words(scenario: Scenario, target: Target, optimized: bool) -> str:
    """What accepting known findings accepted of a scenario that shows nothing else."""
    findings = runner.known_in(scenario, target.name, target.profile, optimized=optimized, patch=target.patch)
    if not findings:
        return "every answer is right"
    return f"every answer is right but for known findings: {', '.join(each.id for each in findings)}"
