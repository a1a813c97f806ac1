"""What verifying a patch yields: a result, an outcome for each clause, and what changed besides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple

from auxout_spec.scenario import Scenario

from ..verdicts import Report, Violation


class Result(str, Enum):
    """What became of a patch, in one word or two."""

    CLEAN = "nothing broken"
    BROKEN = "broken"
    SIGNATURE = "public signature changed"
    """Callers of the original would have to change; nothing was judged."""
    DOES_NOT_LOAD = "does not import"
    HANGS = "hangs"
    KILLS = "kills its process"
    INCOMPLETE = "incomplete"
    """Nothing is broken as far as it was judged, but something that changed was not."""
    BASE_BROKEN = "base broken"
    """What the patch changes cannot be judged itself."""

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES.get(self, 3)


_EXIT_CODES = {Result.CLEAN: 0, Result.BROKEN: 1, Result.SIGNATURE: 1, Result.INCOMPLETE: 4}
JUDGED = (Result.CLEAN, Result.BROKEN, Result.INCOMPLETE)
"""Results that the clauses tell."""

Outcome = Literal["kept", "broken", "fixed", "still violated", "moved", "expected", "not judged"]


@dataclass(frozen=True)
class ClauseOutcome:
    """What a patch does to one clause."""

    clause: str
    outcome: Outcome
    """``moved``: it now behaves as another profile; ``expected``: broken, and an expectation file says so; ``not
    judged``: whatever would show it fails earlier, on another clause."""
    findings: tuple[str, ...] = ()
    """Known findings of the base behind ``fixed`` and ``still violated``."""
    violation: Violation | None = None
    """``broken`` and ``expected``: the smallest scenario in which the base is right and the patched code wrong."""


class Move(NamedTuple):
    """The patched code follows another profile in one respect."""

    profile: str
    """The profile that it follows now."""
    clauses: tuple[str, ...]
    """That profile's clauses in which it does."""
    instead_of: tuple[str, ...]
    """The clauses of the base's profile in their place."""
    scenario: Scenario
    """One in which base and patched code differ, each being right by its own profile."""
    call: str
    base: str
    patched: str


@dataclass(frozen=True)
class Change:
    """A change of behaviour that the protocol leaves open, with the smallest scenario found."""

    what: str
    """Such as ``request_finished: refused with ValueError instead of AssertionError``."""
    scenario: Scenario
    event: int
    """1-based number of the event at which the answers differ."""
    call: str
    base: str
    patched: str


@dataclass(frozen=True)
class Verification:
    """A patch, verified."""

    patch: str
    base: Report | None
    """None: the base does not load, or nothing had to be judged."""
    patched: Report | None
    result: Result
    base_name: str
    profile: str
    clauses: tuple[ClauseOutcome, ...] = ()
    moves: tuple[Move, ...] = ()
    changes: tuple[Change, ...] = ()
    reason: str = ""
    """One sentence, where the result is not told by the clauses."""
    replay: str = ""
    """For a patch that hangs or kills its process: the command that plays the scenario again."""
    notes: tuple[str, ...] = ()
    unplayed: tuple[str, ...] = ()
    """Changed statements that no play executed, such as ``connector.py:120-125``."""
    unjudged: str = ""
    """Why something that changed was not judged, unless that was allowed; empty if everything was."""
    num_scenarios: int = 0
    """Random scenarios in which base and patched code were compared with each other."""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        return self.result.exit_code

    def settled(self, is_broken: bool) -> Verification:
        """With the result that the clauses tell: something is broken, or nothing is and everything was judged."""
        if is_broken:
            return replace(self, result=Result.BROKEN)
        if self.unjudged:
            reason = "; ".join(filter(None, (self.reason, self.unjudged)))
            return replace(self, result=Result.INCOMPLETE, reason=reason)
        return replace(self, result=Result.CLEAN)

    def having(self, outcome: Outcome) -> tuple[ClauseOutcome, ...]:
        """The clauses with one outcome."""
        return tuple(each for each in self.clauses if each.outcome == outcome)

    def __str__(self) -> str:
        """What ``auxout verify`` prints, for a failing assertion."""
        from .render import verification_lines

        return "\n".join(verification_lines(self))
