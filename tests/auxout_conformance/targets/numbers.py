"""Numbers in the source of a target: where one stands, something may change, so plays are drawn around them."""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .loading import PACKAGE, LoadSpec

LEAST, MOST = 5, 1 << 17
"""Smaller ones are covered by any play, larger ones by none."""
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}


def numbers_of(spec: LoadSpec) -> tuple[int, ...]:
    """The numbers in the code of a target that this process has loaded, in order."""
    found: set[int] = set()
    for source in _sources(spec):
        found |= numbers_in(source)
    return tuple(sorted(found))


def numbers_in(source: str) -> set[int]:
    """The whole numbers in a module's source, sums and powers of them worked out; none if it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    values = (_value(node) for node in ast.walk(tree) if isinstance(node, ast.expr))
    return {value for value in values if value is not None and LEAST <= value <= MOST}


def _value(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _value(node.left), _value(node.right)
    if left is None or right is None or max(abs(left), abs(right)) > MOST:
        return None
    grows = isinstance(node.op, ast.LShift | ast.Pow)
    return None if grows and not 0 <= right <= 17 else _OPERATORS[type(node.op)](left, right)


def _sources(spec: LoadSpec) -> Iterator[str]:
    if spec.kind == "known-bad":
        from .. import known_bad

        yield known_bad.mutated_source(spec.where)
        return
    names = [f"{PACKAGE}.connector"] if spec.isolated else spec.where.partition(":")[0].split(",")
    files = {getattr(sys.modules.get(name), "__file__", None) for name in names}
    for file in {found for each in files if each for found in _beside(Path(each), spec)}:
        try:
            yield file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue


def _beside(file: Path, spec: LoadSpec) -> Iterator[Path]:
    """A module of a package with those beside it, a module of its own alone."""
    alone = spec.kind == "factory" and not (file.parent / "__init__.py").is_file()
    return iter([file]) if alone else file.parent.glob("*.py")
