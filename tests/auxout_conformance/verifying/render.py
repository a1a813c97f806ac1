"""A verification as plain lines."""

from __future__ import annotations

from auxout_spec import scenario as scenarios

from ..render import field, printable, violation_lines
from .outcome import JUDGED, Change, ClauseOutcome, Move, Outcome, Verification

_SHOWN: tuple[Outcome, ...] = ("broken", "expected", "fixed", "still violated", "not judged")


def verification_lines(verification: Verification) -> list[str]:
    """Everything, the result last."""
    return [*detail_lines(verification), summary_line(verification)]


def detail_lines(verification: Verification) -> list[str]:
    """What was broken and what else changed, then the clauses by their outcome."""
    lines: list[str] = []
    broken = verification.having("broken")
    for number, each in enumerate(broken, 1):
        if each.violation is not None:
            lines += [f"broken {number} of {len(broken)}", *violation_lines(each.violation), ""]
    for number, change in enumerate(verification.changes, 1):
        lines += [f"change {number} of {len(verification.changes)}", *_change_lines(change), ""]
    for move in verification.moves:
        lines += [move_words(move), *_example_lines(move), ""]
    if verification.replay:
        lines += ["replay", printable(verification.replay), ""]
    lines += _table(verification)
    return lines + [f"note: {printable(note)}" for note in verification.notes]


def summary_line(verification: Verification) -> str:
    """Patch, base, profile and result on one line."""
    facts = [
        f"{verification.patch} on {verification.base_name}",
        verification.result.value,
        f"profile {verification.profile}",
    ]
    facts.append(verification.reason)
    if verification.clauses:
        num_kept = len(verification.having("kept"))
        facts.append(f"{num_kept} of {len(verification.clauses)} clauses kept")
    if verification.result in JUDGED and verification.patched is not None:
        seed = verification.patched.seed
        facts.append("fixed scenarios" if seed is None else f"seed {seed}")
    facts.append(f"{verification.seconds:.1f} s")
    return "  ".join(" ".join(printable(fact).split("\n")) for fact in facts if fact)


def move_words(move: Move) -> str:
    """Such as ``now behaves as profile 0.32 in SCHED-EMIT-4 instead of SCHED-EMIT-3``."""
    instead = f" instead of {', '.join(move.instead_of)}" if move.instead_of else ""
    return f"now behaves as profile {move.profile} in {', '.join(move.clauses)}{instead}"


def _table(verification: Verification) -> list[str]:
    lines: list[str] = []
    for move in verification.moves:
        lines += _row("moved", move_words(move))
    for outcome in _SHOWN:
        found = verification.having(outcome)
        if found:
            lines += _row(outcome, ", ".join(map(_named, found)))
    kept = verification.having("kept")
    if kept:
        lines += _row("kept", f"{len(kept)} clauses")
    if verification.num_scenarios:
        what = "; ".join(change.what for change in verification.changes) or "nothing"
        lines += _row("left open", f"changed: {what}")
    if verification.unplayed:
        lines += _row("not played", ", ".join(verification.unplayed))
    return lines


def _row(name: str, text: str) -> list[str]:
    return [f"  {name:<14}  {printable(text)}"]


def _named(each: ClauseOutcome) -> str:
    return f"{each.clause} ({', '.join(each.findings)})" if each.findings else each.clause


def _change_lines(change: Change) -> list[str]:
    return [printable(change.what), *_example_lines(change)]


def _example_lines(each: Change | Move) -> list[str]:
    """A scenario in which base and patched code differ."""
    lines = [*field("call", each.call), *field("base", each.base), *field("patched", each.patched)]
    return lines + field("scenario", scenarios.dump(each.scenario).rstrip("\n"))
