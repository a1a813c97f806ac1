"""Which changed statements no play executed: what a change does there was not judged.

The process of the changed code measures the lines that ran (``coverage``); what can run, and what changed, is read from
the files here. A statement ran if one of its lines did, and changed if one of its lines did.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Span(NamedTuple):
    """The lines of a statement, or of a compound statement's head."""

    first: int
    last: int


def unplayed(
    base: Path, changed: Path, names: Sequence[str], ran: Mapping[str, Sequence[int]]
) -> tuple[str, ...]:
    """The changed statements that did not run, such as ``connector.py:120-125``, neighbours in one piece.

    Args:
        base: the connector folder before the change, ``changed`` the one after it.
        names: the files that differ, by their names in the folder.
        ran: the lines that ran, by file.
    """
    found: list[str] = []
    for name in names:
        if not (changed / name).is_file():
            continue
        new = (changed / name).read_text(encoding="utf-8", errors="replace")
        old = (base / name).read_text(encoding="utf-8", errors="replace") if (base / name).is_file() else ""
        lines, whole = set(ran.get(name, ())), sorted(spans(new))
        change = changed_lines(old, new)
        left = {span for span in whole if _in(span, change.lines) and not _in(span, lines)}
        for line, indent in change.gaps:
            beside = _beside(line, indent, whole, new.splitlines())
            left.update(beside if not any(_in(span, lines) for span in beside) else ())
        found += [f"{name}:{text}" for text in _joined(sorted(left))]
    return tuple(found)


class ChangedLines(NamedTuple):
    """Where a text differs from the one before it; lines count from 1."""

    lines: set[int]
    """Those that are new or other ones."""
    gaps: tuple[tuple[int, int], ...]
    """Where lines with code are gone: the line before, and how far the first of them was indented."""


def changed_lines(old: str, new: str) -> ChangedLines:
    """Where ``new`` differs from ``old``."""
    before, after = old.splitlines(), new.splitlines()
    lines, gaps = set[int](), list[tuple[int, int]]()
    for kind, gone, stop, first, end in difflib.SequenceMatcher(
        None, before, after, autojunk=False
    ).get_opcodes():
        if kind in ("insert", "replace"):
            lines.update(range(first + 1, end + 1))
        elif kind == "delete":
            code = [line for line in before[gone:stop] if line.strip() and not line.lstrip().startswith("#")]
            gaps += [(first, _indent(line)) for line in code[:1]]
    return ChangedLines(lines, tuple(gaps))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _beside(line: int, indent: int, whole: Sequence[Span], text: Sequence[str]) -> list[Span]:
    """The statements next to a gap: those of the block that lines are gone from, else the one before it."""
    before, after = [s for s in whole if s.first <= line], [s for s in whole if s.first > line][:1]
    # Statements of inner blocks lie between.
    outer = [span for span in before if _indent(text[span.first - 1]) <= indent][-1:]
    beside = [span for span in outer + after if _indent(text[span.first - 1]) == indent]
    return beside or before[-1:]


def spans(source: str) -> Iterator[Span]:
    """What of a file can run: its statements, compound ones by their heads, without what only types and readers see."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # then it did not load either
        return
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.ExceptHandler):
            yield Span(node.lineno, max(node.lineno, node.body[0].lineno - 1))
        elif isinstance(node, ast.match_case):
            yield Span(node.pattern.lineno, max(node.pattern.lineno, node.body[0].lineno - 1))
        elif isinstance(node, ast.stmt) and not _is_silent(node):
            yield _head(node)


def _is_silent(statement: ast.stmt) -> bool:
    """Whether a statement makes no code: a docstring, a declaration, a ``try`` by itself."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    return isinstance(statement, ast.Global | ast.Nonlocal | ast.Try | ast.Pass)


def _head(statement: ast.stmt) -> Span:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(each.lineno for each in decorators)])
    body: list[ast.stmt] = getattr(statement, "body", [])
    inside = statement.cases[0].pattern if isinstance(statement, ast.Match) else body[0] if body else None
    last = statement.end_lineno or statement.lineno
    return Span(first, last if inside is None else max(first, min(last, inside.lineno - 1)))


def _in(span: Span, lines: set[int]) -> bool:
    return any(line in lines for line in range(span.first, span.last + 1))


def _joined(found: Sequence[Span]) -> Iterator[str]:
    """The spans in words; those between which no line lies are one."""
    merged: list[Span] = []
    for span in sorted(found):
        if merged and span.first <= merged[-1].last + 1:
            merged[-1] = Span(merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return (str(first) if first == last else f"{first}-{last}" for first, last in merged)
