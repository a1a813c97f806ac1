"""A drift as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from auxout_spec import scenario as scenarios
from auxout_spec.clauses import CLAUSES
from auxout_spec.scenario import Scenario

from ..render import columns, field, printable
from ..verifying import Verification
from ..verifying.outcome import Outcome
from ..verifying.render import move_words
from .outcome import GONE, NEW, Difference, Drift, Part, Played

STYLES = {GONE: "red", NEW: "green"}
_COUNTED: tuple[Outcome, ...] = ("kept", "still violated", "not judged")


def lines(drift: Drift) -> Iterator[str | Text]:
    """Everything but the last line: the differences part by part, then how many there are of each."""
    for part in Part:
        found = drift.of(part)
        if found:
            yield Text(f"{part.value}  {part.sentence}", style="bold")
            for each in found:
                yield from _difference(each)
            yield ""
    for played in drift.played:
        yield from _played(played)
    yield from columns([(f"  {part.value}", _places(len(drift.of(part)))) for part in Part if drift.of(part)])
    yield from (f"note: {printable(note)}" for note in drift.notes)
    for played in drift.played:
        if played.left:
            yield f"note: the {played.half} was not played: {printable(played.left)}"
    if drift.unordered:
        yield f"note: the order of connector calls was not recorded: {printable(drift.unordered)}"


def summary_line(drift: Drift) -> str:
    """Both sides and what became of the comparison, on one line."""
    places = f"{len(drift.differences)} places" if drift.differences else ""
    facts = [
        f"{drift.new.name} against {drift.old.name}",
        drift.result.value,
        places,
    ]
    clauses = [clause for played in drift.played for clause in played.clauses]
    facts += [
        f"{len(clauses)} clause{'' if len(clauses) == 1 else 's'}" if clauses else "",
        f"{drift.seconds:.1f} s",
    ]
    return printable("  ".join(filter(None, facts)))


def in_one_line(drift: Drift) -> str:
    """What a command says that stumbles over a version without a profile."""
    command = f"auxout drift {drift.old.name} {drift.new.name}"
    if not drift.differences:
        return printable(f"Its source has no drift from {drift.old.name}: {command}")
    counted = [(each, len(drift.of(each))) for each in Part]
    parts = ", ".join(f"{number} in {part.value}" for part, number in counted if number)
    places = _places(len(drift.differences))
    return printable(f"It differs from {drift.old.name} in {places} ({parts}): {command}")


def _difference(each: Difference) -> Iterator[str | Text]:
    yield f"  {printable(each.where)}"
    for line in each.lines:
        yield Text(f"    {line.mark} {printable(line.text)}", style=STYLES.get(line.mark, ""))


def _places(number: int) -> str:
    return f"{number} place{'' if number == 1 else 's'}"


def _played(played: Played) -> Iterator[str | Text]:
    """What one half of the newer code answers otherwise."""
    if played.verification is None and not played.unbound:
        return
    head = f"{played.half}  The suite of profile {played.profile}, played on the newer {played.half} and on the older."
    yield Text(head, style="bold")
    if played.unbound:
        yield f"  not played: {printable(played.unbound)}"
    elif played.broken:
        yield f"  {printable(played.broken)}"
    elif played.verification is not None:
        yield from _answers(played.verification)
    yield ""


def _answers(told: Verification) -> Iterator[str]:
    for each in told.having("broken"):
        if (violation := each.violation) is not None:
            yield f"  {each.clause}  {CLAUSES[each.clause].sentence}"
            answers = (("expected", violation.expected), ("newer", violation.actual))
            yield from _example(violation.call, answers, violation.scenario)
    for move in told.moves:
        yield f"  {move_words(move)}"
        yield from _example(move.call, (("older", move.base), ("newer", move.patched)), move.scenario)
    for change in told.changes:
        yield f"  left open by the protocol: {printable(change.what)}"
        yield from _example(change.call, (("older", change.base), ("newer", change.patched)), change.scenario)
    for each in told.having("fixed"):
        known = f" ({', '.join(each.findings)})" if each.findings else ""
        yield f"  no longer violated: {each.clause}{known}  {CLAUSES[each.clause].sentence}"
    kept, violated, left = (len(told.having(each)) for each in _COUNTED)
    yield f"  {kept} clauses kept, {violated} still violated, {left} not reached"


def _example(call: str, answers: Sequence[tuple[str, str]], scenario: Scenario) -> list[str]:
    """A call with two answers, and the smallest scenario found."""
    rows = (("call", call), *answers, ("scenario", scenarios.dump(scenario).rstrip("\n")))
    return [f"  {line}" for name, text in rows for line in field(name, text)]
