"""Reading Python by its syntax tree: functions and classes by name, signatures, the conditions around a statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
MAX_WORDS = 110
"""Letters of an expression that are shown."""
_TESTED = (ast.If, ast.While, ast.IfExp)


class Piece(NamedTuple):
    """A function or a class of a module."""

    name: str
    """Such as ``Scheduler.schedule``; a function inside a function is ``outer.inner``."""
    node: Function | ast.ClassDef


class Guarded(NamedTuple):
    """A node and the conditions under which it runs, outermost first."""

    node: ast.AST
    guards: tuple[str, ...]


def pieces(tree: ast.AST, prefix: str = "") -> Iterator[Piece]:
    """All functions and classes of a module, with those inside others."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            yield Piece(f"{prefix}{node.name}", node)
            yield from pieces(node, f"{prefix}{node.name}.")
        else:
            yield from pieces(node, prefix)


def functions(tree: ast.AST) -> dict[str, Function]:
    """The functions of a module by name; of several with one name (overloads) the last."""
    return {piece.name: piece.node for piece in pieces(tree) if isinstance(piece.node, Function)}


def classes(tree: ast.AST) -> dict[str, ast.ClassDef]:
    """The classes of a module by name."""
    return {piece.name: piece.node for piece in pieces(tree) if isinstance(piece.node, ast.ClassDef)}


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a node in source order, without the functions and classes inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            continue
        yield child
        yield from own_nodes(child)


def guarded(node: ast.AST, guards: tuple[str, ...] = ()) -> Iterator[Guarded]:
    """What is below a function in the order in which it is written, each node with its conditions."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, Function | ast.ClassDef):
                continue
            around = guards
            if isinstance(node, _TESTED) and name in ("body", "orelse"):
                test = words(node.test)
                around = (*guards, test if name == "body" else f"not ({test})")
            yield Guarded(child, around)
            yield from guarded(child, around)


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a chain of attributes; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and f"{before}.{node.attr}"
    return ""


def callee(node: ast.Call) -> str:
    """The last name of what is called: ``get`` of ``self.cache.get(...)``; empty if it has none."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def words(node: ast.AST) -> str:
    """An expression or statement on one line, cut where it is long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS - 4]} ..."


def where(node: ast.AST, function: Function) -> str:
    """What the local names of a statement stand for, where each is given a value once: ``  where end = start + 1``."""
    wanted = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    given: dict[str, list[ast.expr]] = {}
    for each in own_nodes(function):
        if isinstance(each, ast.Assign):
            for name in (target.id for target in each.targets if isinstance(target, ast.Name)):
                given.setdefault(name, []).append(each.value)
    once = {name: values[0] for name, values in given.items() if name in wanted and len(values) == 1}
    # What begins as a number or an empty list is counted or filled later.
    told = [f"{name} = {words(value)}" for name, value in sorted(once.items()) if list(ast.walk(value))[2:]]
    return f"  where {', '.join(told)}" if told else ""


def signature(node: Function) -> str:
    """The parameters of a function with their defaults, without ``self`` and without annotations."""
    arguments = deepcopy(node.args)
    for each in ast.walk(arguments):
        if isinstance(each, ast.arg):
            each.annotation = None
    for given in (arguments.posonlyargs, arguments.args):
        if given and given[0].arg in ("self", "cls"):
            del given[0]
    return f"({ast.unparse(arguments)})"


def parameters(node: Function) -> tuple[ast.arg, ...]:
    """The parameters of a function in order."""
    arguments = node.args
    return (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)


def needed(node: Function) -> tuple[str, ...]:
    """The names of the parameters that have no default, ``self`` included."""
    arguments = node.args
    given = [*arguments.posonlyargs, *arguments.args]
    without = given[: len(given) - len(arguments.defaults)]
    only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return (*(each.arg for each in without), *(each.arg for each, default in only if default is None))


def annotation_names(node: ast.AST | None) -> set[str]:
    """The names in an annotation, also in one that is written as a string."""
    found: set[str] = set()
    for each in ast.walk(node) if node is not None else ():
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            try:
                found |= annotation_names(ast.parse(each.value, mode="eval"))
            except SyntaxError:
                continue
    return found


def fields(node: ast.ClassDef) -> dict[str, str]:
    """The annotated fields of a class, each with its annotation and default."""
    found: dict[str, str] = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            default = "" if each.value is None else f" = {words(each.value)}"
            found[each.target.id] = f"{words(each.annotation)}{default}"
    return found


def same(old: ast.AST | None, new: ast.AST | None) -> bool:
    """Whether two nodes do the same: comments, layout and docstrings do not count."""
    if old is None or new is None:
        return old is new
    if ast.dump(old) == ast.dump(new):
        return True
    return ast.dump(_without_docstrings(old)) == ast.dump(_without_docstrings(new))


def _without_docstrings(node: ast.AST) -> ast.AST:
    copied = deepcopy(node)
    for each in ast.walk(copied):
        if isinstance(each, Function | ast.ClassDef | ast.Module) and ast.get_docstring(each) is not None:
            del each.body[0]
    return copied


def imports(tree: ast.Module, package: str) -> Iterator[tuple[str, str, bool]]:
    """What a module imports: module, name, and whether for annotations only (``if TYPE_CHECKING``).

    Args:
        package: the package that the module is in, for relative imports.
    """
    for node, guards in guarded(tree):
        only_types = any(guard.endswith("TYPE_CHECKING") for guard in guards)
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((module, alias.name, only_types) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "", only_types) for alias in node.names)
