"""A drift as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ..render import columns, printable
from .outcome import GONE, NEW, Difference, Drift, Part

STYLES = {GONE: "red", NEW: "green"}


def lines(drift: Drift) -> Iterator[str | Text]:
    """Everything but the last line: the differences part by part, then how many there are of each."""
    for part in Part:
        found = drift.of(part)
        if found:
            yield Text(f"{part.value}  {part.sentence}", style="bold")
            for each in found:
                yield from _difference(each)
            yield ""
    yield from columns([(f"  {part.value}", _places(len(drift.of(part)))) for part in Part if drift.of(part)])
    yield from (f"note: {printable(note)}" for note in drift.notes)


def summary_line(drift: Drift) -> str:
    """Both sides and what became of the comparison, on one line."""
    places = f"{len(drift.differences)} places" if drift.differences else ""
    facts = [
        f"{drift.new.name} against {drift.old.name}",
        drift.result.value,
        places,
        f"{drift.seconds:.1f} s",
    ]
    return printable("  ".join(filter(None, facts)))


def in_one_line(drift: Drift) -> str:
    """What a command says that stumbles over a version without a profile."""
    command = f"auxout drift {drift.old.name} {drift.new.name}"
    if not drift.differences:
        return printable(f"its source has no drift from {drift.old.name}: {command}")
    counted = [(each, len(drift.of(each))) for each in Part]
    parts = ", ".join(f"{number} in {part.value}" for part, number in counted if number)
    return printable(
        f"it differs from {drift.old.name} in {len(drift.differences)} places ({parts}): {command}"
    )


def _difference(each: Difference) -> Iterator[str | Text]:
    yield f"  {printable(each.where)}"
    for line in each.lines:
        yield Text(f"    {line.mark} {printable(line.text)}", style=STYLES.get(line.mark, ""))


def _places(number: int) -> str:
    return f"{number} place{'' if number == 1 else 's'}"
