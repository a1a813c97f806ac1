"""Markdown for a pull-request comment or a CI step summary: short above, folded below."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..report import ReportFile
from .document import Document, Patch, Section, Trouble, document

MAX_LETTERS = 60_000
"""A pull-request comment holds 65,536; what is longer is shortened."""
_SIGNS = {0: "✅", 1: "❌"}


def render(file: ReportFile) -> str:
    """The report as Markdown; where it would not fit, without timelines, then without clause tables."""
    made = document(file)
    for timelines, clauses in ((True, True), (False, True), (False, False)):
        text = "\n".join(_lines(made, timelines, clauses)) + "\n"
        if len(text) <= MAX_LETTERS:
            return text
    return text[:MAX_LETTERS].rpartition("\n")[0] + "\n\n…\n"


def _lines(made: Document, timelines: bool, clauses: bool) -> Iterator[str]:
    if made.patch is not None:
        yield from _patch(made.patch, timelines)
    head = ("target", "verdict", "profile", "clauses", "suite", "seed", "duration")
    yield from _table(head, [_summary(section) for section in made.sections])
    for section in made.sections:
        if section.troubles and len(made.sections) > 1:
            yield from (f"## {_escaped(section.target)}", "")
        yield from _section(section, timelines, clauses)
    yield f"<sub>{_escaped(made.tool)}, {_escaped(made.where)}, {_escaped(made.time)}</sub>"


def _summary(section: Section) -> tuple[str, ...]:
    facts = dict(section.facts)
    verdict = f"{_SIGNS.get(section.exit_code, '⚠️')} {section.verdict}"
    words = {"holds": "hold"}
    counts = ", ".join(f"{number} {words.get(status, status)}" for status, number in section.counts)
    named = (facts.get(name, "") for name in ("suite", "seed", "duration"))
    return (_code(section.target), _escaped(verdict), facts.get("profile", ""), counts, *named)


def _section(section: Section, timelines: bool, clauses: bool) -> Iterator[str]:
    if section.reason:
        yield from (f"**{_escaped(section.target)}**: {_escaped(section.reason)}", "")
    if section.replay:
        yield from _fenced(section.replay, "sh")
    for trouble in section.troubles:
        yield from _trouble(trouble, timelines)
    for note in section.notes:
        yield from (f"> {_escaped(note)}", "")
    if clauses and section.clauses:
        yield from (f"<details><summary>The clauses of {_html(section.target)}</summary>", "")
        rows = [(row.clause, row.level, row.status, _escaped(row.sentence)) for row in section.clauses]
        yield from _table(("clause", "level", "status", "sentence"), rows)
        yield from ("</details>", "")


def _patch(patch: Patch, timelines: bool) -> Iterator[str]:
    yield from (f"### {_SIGNS.get(patch.exit_code, '⚠️')} {_escaped(patch.title)}: {patch.result}", "")
    if patch.reason:
        yield from (_escaped(patch.reason), "")
    if patch.replay:
        yield from _fenced(patch.replay, "sh")
    rows = [(outcome, ", ".join(clauses)) for outcome, clauses in patch.outcomes if outcome != "kept"]
    kept = next((len(clauses) for outcome, clauses in patch.outcomes if outcome == "kept"), 0)
    rows += [("", _escaped(move)) for move in patch.moves]
    if kept:
        rows.append(("kept", f"{kept} clause{'' if kept == 1 else 's'}"))
    yield from _table(("outcome", "clauses"), rows)
    for trouble in patch.troubles:
        yield from _trouble(trouble, timelines)
    if patch.changes:
        yield from ("Changes that the protocol leaves open:", "")
        cells = [(_escaped(what), *map(_code, others)) for what, *others in patch.changes]
        yield from _table(("what", "call", "base", "patched"), cells)
    for note in patch.notes:
        yield from (f"> {_escaped(note)}", "")


def _trouble(trouble: Trouble, timelines: bool) -> Iterator[str]:
    announced = " (expected)" if trouble.announced else ""
    yield from (f"### {trouble.clause}{announced}", "", _escaped(trouble.sentence), "")
    yield from _table(
        ("", ""),
        [
            (trouble.happened, _code(trouble.call)),
            ("expected", _code("".join(part.text for part in trouble.expected))),
            ("actual", _code("".join(part.text for part in trouble.actual))),
            ("found by", _escaped(trouble.found_by)),
        ],
    )
    if timelines and trouble.timeline is not None:
        yield from ("<details open><summary>Timeline</summary>", "")
        yield from _fenced(trouble.text, "text")
        yield from ("</details>", "")
    yield from _fenced(trouble.replay, "sh")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _fenced(text: str, language: str) -> Iterator[str]:
    """A block of code, fenced by more backticks than it holds."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}{language}", text, fence, "")


def _code(text: str) -> str:
    """Text in a table cell, letter by letter."""
    return f"<code>{_html(text)}</code>" if text else ""


def _escaped(text: str) -> str:
    """Text of which Markdown takes no letter for its own."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", _html(text))


def _html(text: str) -> str:
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("\n", " ")):
        text = text.replace(letter, entity)
    return text
