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
        lines = set(ran.get(name, ()))
        differ = changed_lines(old, new)
        left = [span for span in spans(new) if _in(span, differ) and not _in(span, lines)]
        found += [f"{name}:{text}" for text in _joined(left)]
    return tuple(found)


def changed_lines(old: str, new: str) -> set[int]:
    """The 1-based lines of ``new`` that are not in ``old``."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    return {
        line + 1
        for kind, _, _, first, end in matcher.get_opcodes()
        if kind in ("insert", "replace")
        for line in range(first, end)
    }


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
        if isinstance(node, ast.stmt) and not _is_silent(node):
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
    last = statement.end_lineno or statement.lineno
    return Span(first, max(first, min(last, body[0].lineno - 1)) if body else last)


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
