"""A wrong answer as a report tells it, with the line that shows it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from auxout_spec import scenario as scenarios
from auxout_spec.scenario import Scenario

from .judge import Failure
from .targets import Target
from .verdicts import Violation


def replay_command(target: Target, scenario: Scenario, flags: Sequence[str] = ()) -> str:
    """The one line that plays a scenario again, complete in itself."""
    inline = scenarios.dump(scenario, indent=False)
    return shlex.join(["auxout", "replay", *flags, inline, *target.words])


def violation_of(
    target: Target,
    failure: Failure,
    scenario: Scenario,
    found_by: str,
    seed: int | None,
    flags: Sequence[str] = (),
    clause: str = "",
) -> Violation:
    """A wrong answer as a report tells it; ``flags`` are those that ``auxout replay`` needs to show it again."""
    plain = scenario._replace(profile=target.profile, name="", clause="")
    return Violation(
        clause=clause or failure.clause,
        scenario=plain,
        event=failure.event,
        call=failure.call,
        expected=failure.expected,
        actual=failure.actual,
        found_by=found_by,
        seed=seed,
        replay=replay_command(target, plain, flags),
    )
