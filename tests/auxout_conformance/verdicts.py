"""What judging a target yields: verdicts, violations, clause results, and the report that holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from auxout_spec.profiles import is_judged
from auxout_spec.scenario import Scenario

Suite = Literal["smoke", "default", "deep"]


class Verdict(str, Enum):
    """The four answers; a bound reached or a time-out is never a pass."""

    CONFORM = "conform"
    VIOLATION = "violation"
    BROKEN = "target broken"
    """It cannot be loaded, crashed or hung: nothing is said about the protocol."""
    INCOMPLETE = "incomplete"
    """The judgement did not finish."""

    @property
    def exit_code(self) -> int:
        return {"conform": 0, "violation": 1, "target broken": 3, "incomplete": 4}[self.value]


def unfinished(profile: str) -> tuple[str, ...]:
    """Why nothing conforms to a profile that is still being written; empty for one that is not."""
    return () if is_judged(profile) else (f"profile {profile} is still being written",)


EXIT_USAGE = 2
"""Exit code for a user's mistake on the command line."""


@dataclass(frozen=True)
class Violation:
    """One broken clause, with the smallest scenario found."""

    clause: str
    scenario: Scenario
    event: int
    """1-based number of the scenario's event at which the answer was wrong."""
    call: str
    """The connector call, for example ``take_output(A)``."""
    expected: str
    actual: str
    found_by: str
    """``case NAME`` or ``random``."""
    seed: int | None
    replay: str
    """The command that shows it again, complete and on one line."""
    shrunk_from: int | None = None
    """Events of the scenario in which it was found; None: it is as it was found."""


@dataclass(frozen=True)
class WrongAnswer:
    """A case of ``auxout client-check`` that a function answered wrongly."""

    clause: str
    case: str
    story: str
    """What happens in the conversation, in a sentence."""
    conversation: dict[str, Any]
    expected: str
    actual: str
    replay: str
    """The command that shows it again, complete and on one line."""


@dataclass(frozen=True)
class ClauseResult:
    """What one clause's checks came to."""

    clause: str
    status: Literal["holds", "violated", "known", "not judged"]
    checks: int
    """How often it was checked: cases plus random scenarios in which it was at stake."""
    findings: tuple[str, ...] = ()
    """Known findings behind ``known``, such as ``F31-1``."""


@dataclass(frozen=True)
class Report:
    """One target's judgement."""

    target: str
    version: str
    """What was loaded, for example ``vllm 0.31.0``; empty if it has no version."""
    profile: str
    """Empty for what a client does, of which the protocol's versions say the same."""
    suite: Suite
    seed: int | None
    """Seed of the random scenarios; None: the fixed ones."""
    verdict: Verdict
    clauses: tuple[ClauseResult, ...] = ()
    violations: tuple[Violation, ...] = ()
    known: tuple[str, ...] = ()
    """Known findings that were shown again."""
    expected: tuple[str, ...] = ()
    """Clauses whose violation an expectation file announced."""
    reason: str = ""
    """For ``target broken`` and ``incomplete``: one sentence, what happened and what to do."""
    replay: str = ""
    """For a target that crashed or hung in a scenario: the command that plays it again."""
    num_cases: int = 0
    num_scenarios: int = 0
    """Random scenarios run."""
    num_calls: int = 0
    seconds: float = 0.0
    covered: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The least and the most of each quantity that it was shown (``auxout_conformance.covered``)."""
    notes: tuple[str, ...] = field(default=())
    """SHOULD clauses that do not hold, and the like; they change no verdict."""
    wrong_answers: tuple[WrongAnswer, ...] = ()
    """What ``violations`` are where the target is a client."""

    @property
    def exit_code(self) -> int:
        return self.verdict.exit_code

    def __str__(self) -> str:
        """What ``auxout conform`` prints, for a failing assertion."""
        from .render import report_text

        return report_text(self)


class Interrupted(KeyboardInterrupt):
    """The user stopped a judgement; ``report`` holds what it had come to."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


@dataclass(frozen=True)
class Progress:
    """How far a judgement is, for whoever shows it."""

    target: str
    phase: str
    """For example ``cases``, ``random scenarios``, ``shrinking``."""
    done: int
    total: int
