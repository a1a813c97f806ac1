"""A small mutator: every way to get one spot of a Python module slightly wrong.

It changes one syntax node at a time and is deterministic: the same source yields the same mutants in the same
order. What to do with a mutant (run tests, judge it) is the caller's business.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_NOT_BEHAVIOUR = ("annotation", "returns", "decorator_list", "args")
"""Fields of definitions that say what is meant, not what is done."""
_NOT_DROPPED = (ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.Pass)
_NAMES = {"max": "min", "min": "max", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """A module with one mistake."""

    function: str
    """The function or class the mistake is in, dotted; empty at module level."""
    description: str
    """The code before and after, and the statement it stands in; with ``function`` it names the mutant for good."""
    line: int
    """1-based, in the original."""
    source: str
    """The whole mutated module."""


class _Change(NamedTuple):
    """Put ``new`` in place of a field's value, or of one element of it."""

    field: str
    at: int | None
    new: Any
    description: str = ""


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module, in source order; those with the same text as an earlier one are left out."""
    tree = ast.parse(source)
    seen = {ast.unparse(tree)}
    for node, function, statement in _mutable_nodes(tree, "", tree):
        for change in _changes(node):
            with _Applied(node, change):
                text = ast.unparse(ast.fix_missing_locations(tree))
            if text not in seen:
                seen.add(text)
                within = "" if node is statement else f"  in  {_first_line(statement)}"
                description = (change.description or _before_and_after(node, change)) + within
                yield Mutant(function, description, _line(node, change), text + "\n")


class _Applied:
    """Applies a change to a node, and takes it back."""

    def __init__(self, node: ast.AST, change: _Change) -> None:
        self.node, self.change, self.old = node, change, getattr(node, change.field)

    def __enter__(self) -> None:
        new = self.change.new
        if self.change.at is not None:
            block, at = list(self.old), self.change.at
            block[at : at + 1] = new if isinstance(new, list) else [new]
            new = block
        setattr(self.node, self.change.field, new)

    def __exit__(self, *_: object) -> None:
        setattr(self.node, self.change.field, self.old)


def _mutable_nodes(
    node: ast.AST, function: str, statement: ast.AST
) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    """Nodes of executable code with the function and the statement they are in; annotations and text are skipped."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}" if function else node.name
    if isinstance(node, ast.stmt):
        statement = node
    if function:
        yield node, function, statement
    for field, value in ast.iter_fields(node):
        if field in _NOT_BEHAVIOUR and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield from _mutable_nodes(child, function, statement)


def _changes(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        yield from _comparison(node)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield _Change("op", None, _OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _Change("op", None, ast.And() if isinstance(node.op, ast.Or) else ast.Or())
        for index in range(len(node.values)):
            rest = [value for at, value in enumerate(node.values) if at != index]
            yield _Change("values", None, rest if len(rest) > 1 else [rest[0], rest[0]])
    elif isinstance(node, ast.Name) and node.id in _NAMES and isinstance(node.ctx, ast.Load):
        yield _Change("id", None, _NAMES[node.id])
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _Change("value", None, not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield _Change("value", None, node.value + 1)
        yield _Change("value", None, node.value - 1)
    elif isinstance(node, ast.Slice):
        yield from _slice(node)
    yield from _conditions(node)
    yield from _operands(node)
    yield from _statements(node)


def _comparison(node: ast.Compare) -> Iterator[_Change]:
    for index, operator in enumerate(node.ops):
        for other in _COMPARISONS[type(operator)]:
            ops: list[ast.AST] = [*node.ops]
            ops[index] = other()
            yield _Change("ops", None, ops)


def _slice(node: ast.Slice) -> Iterator[_Change]:
    for field in ("lower", "upper"):
        bound = getattr(node, field)
        if bound is not None:
            yield _Change(field, None, None)
            yield _Change(field, None, ast.BinOp(bound, ast.Add(), ast.Constant(1)))
            yield _Change(field, None, ast.BinOp(bound, ast.Sub(), ast.Constant(1)))


def _conditions(node: ast.AST) -> Iterator[_Change]:
    """Force and negate what is tested."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        tests = [("test", None, node.test)]
    elif isinstance(node, ast.comprehension):
        tests = [("ifs", index, test) for index, test in enumerate(node.ifs)]
    else:
        return
    for field, index, test in tests:
        if not isinstance(test, ast.Compare):  # those have mutants of their own
            yield _Change(field, index, ast.UnaryOp(ast.Not(), test))
        yield _Change(field, index, ast.Constant(False))
        if not isinstance(node, ast.While):
            yield _Change(field, index, ast.Constant(True))


def _operands(node: ast.AST) -> Iterator[_Change]:
    """Off by one where arithmetic is returned or passed on; a negation dropped; an element left out."""
    if isinstance(node, ast.Return) and isinstance(node.value, ast.BinOp | ast.Call | ast.Name | ast.Tuple):
        yield _Change("value", None, ast.Constant(None))
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Compare | ast.BoolOp):
        yield _Change("value", None, ast.UnaryOp(ast.Not(), node.value))
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        for index, element in enumerate(node.elts):
            if isinstance(element, ast.Starred):
                yield _Change("elts", index, [])
    if isinstance(node, ast.Call):
        for index, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                yield _Change("keywords", index, [])


def _statements(node: ast.AST) -> Iterator[_Change]:
    """Drop a statement, unless it gives a name its value: using that name would only crash."""
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if isinstance(node, ast.ClassDef) or not isinstance(block, list):
            continue
        for index, statement in enumerate(block):
            if not (_is_text(statement) or _names_a_value(statement) or isinstance(statement, _NOT_DROPPED)):
                yield _Change(field, index, ast.Pass(), f"drop: {_first_line(statement)}")


def _names_a_value(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name | ast.Tuple)


def _before_and_after(node: ast.AST, change: _Change) -> str:
    before = _first_line(node)
    with _Applied(node, change):
        return f"{before}  ->  {_first_line(node)}"


def _first_line(node: ast.AST) -> str:
    """A node as one short line of source."""
    shown: ast.AST = node
    if isinstance(node, ast.If | ast.While | ast.For | ast.FunctionDef | ast.With):
        shown = copy.copy(node)
        shown.body = [ast.Pass()]
        for field in ("orelse",):
            if hasattr(shown, field):
                setattr(shown, field, [])
    text = ast.unparse(ast.fix_missing_locations(copy.copy(shown)))
    return " ".join(text.split())


def _line(node: ast.AST, change: _Change) -> int:
    """Where a change stands; some nodes have no line of their own, but their parts do."""
    changed = getattr(node, change.field)
    if change.at is not None:
        changed = changed[change.at]
    for place in (changed, node):
        parts = ast.walk(place) if isinstance(place, ast.AST) else ()
        lines = [part.lineno for part in parts if isinstance(part, ast.expr | ast.stmt)]
        if lines:
            return min(lines)
    return 0


def _is_text(node: ast.AST) -> bool:
    """A docstring or another string that stands alone, and text in general: its wording is not behaviour."""
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
