"""Edits of Python source that are found by structure, not by line: old code in a named place, and new code for it.

Both are written as plain source text and compared as syntax trees, so layout and comments of the edited module
may change freely. An edit that no longer finds its place fails loudly; it never yields unchanged code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from textwrap import dedent
from typing import Any, NamedTuple


class EditNotApplicable(Exception):
    """An edit does not find the code it changes, or finds it more often than it says."""


class Replace(NamedTuple):
    """Replace ``old`` by ``new``, both either one expression or some statements; empty ``new`` deletes statements."""

    where: str
    """The function or class it stands in, ``Class.method``; empty for the whole module."""
    old: str
    new: str
    times: int = 1
    """How often ``old`` stands there; all are replaced."""


class Append(NamedTuple):
    """Add statements at the end of a function's or a class's body."""

    where: str
    new: str


class Rewrite(NamedTuple):
    """Let a function change the whole module; it returns how many places it changed, which may not be 0."""

    change: Callable[[ast.Module], int]


Edit = Replace | Append | Rewrite


def edited(source: str, edits: Sequence[Edit]) -> str:
    """The source with all edits made, in order.

    Raises:
        EditNotApplicable: one of them does not fit the source any more.
    """
    module = ast.parse(source)
    for edit in edits:
        if isinstance(edit, Append):
            _find(module, edit.where).body.extend(_statements(edit.new))
        elif isinstance(edit, Rewrite):
            if edit.change(module) == 0:
                raise EditNotApplicable(f"{edit.change.__name__} changed nothing")
        else:
            _replace(module, edit)
    return ast.unparse(ast.fix_missing_locations(module)) + "\n"


def _find(module: ast.Module, where: str) -> Any:
    """The node of a dotted name; the module for the empty name."""
    node: Any = module
    for name in where.split(".") if where else ():
        found = [child for child in node.body if getattr(child, "name", None) == name]
        if len(found) != 1:
            raise EditNotApplicable(f"there is no {where}")
        node = found[0]
    return node


def _replace(module: ast.Module, edit: Replace) -> None:
    place = _find(module, edit.where)
    old, new = _expression(edit.old), _expression(edit.new)
    if old is not None and new is not None:
        swap = _SwapExpression(ast.dump(old), new)
        swap.visit(place)
        count = swap.count
    else:
        count = _swap_statements(place, _statements(edit.old), edit.new)
    if count != edit.times:
        raise EditNotApplicable(f"{edit.where} has {edit.old!r} {count} times, not {edit.times}")


class _SwapExpression(ast.NodeTransformer):
    """Replaces every expression equal to a given one."""

    def __init__(self, old: str, new: ast.expr) -> None:
        self.old, self.new, self.count = old, new, 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and ast.dump(node) == self.old:
            self.count += 1
            return self.new
        return self.generic_visit(node)


def _swap_statements(place: ast.AST, old: list[ast.stmt], new: str) -> int:
    wanted = [ast.dump(statement) for statement in old]
    count = 0
    for node in ast.walk(place):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for start in range(len(block) - len(wanted), -1, -1):
                if [ast.dump(statement) for statement in block[start : start + len(wanted)]] == wanted:
                    block[start : start + len(wanted)] = _statements(new)
                    count += 1
            if not block and field == "body":
                block.append(ast.Pass())
    return count


def _statements(source: str) -> list[ast.stmt]:
    return ast.parse(dedent(source).strip()).body


def _expression(source: str) -> ast.expr | None:
    try:
        return ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        return None
