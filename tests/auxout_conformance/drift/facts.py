"""What a function does, in lines that can be compared: what it reads, calls, keeps, tests and refuses."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from . import code
from .names import request_names

ENVIRONMENT = ("envs.", "os.environ", "os.getenv")
_LOGS = ("debug", "info", "warning", "error", "exception", "warning_once", "info_once")


def facts(function: code.Function) -> tuple[str, ...]:
    """What a function does, in source order, each line once."""
    found: list[str] = [f"takes {code.signature(function)}"]
    given = {each.arg for each in code.parameters(function)} - {"self", "cls"} | request_names(function)
    local = {node.id for node in code.own_nodes(function) if isinstance(node, ast.Name) and _is_given(node)}
    for node, guards in code.guarded(function):
        found += _told(node, guards, given, local - given, function)
    return tuple(dict.fromkeys(found))


def _is_given(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store) or node.id in dir(builtins)


def _told(
    node: ast.AST, guards: tuple[str, ...], given: set[str], left: set[str], function: code.Function
) -> Iterator[str]:
    if isinstance(node, ast.Raise):
        said = "again" if node.exc is None else message(node.exc)
        yield f"raises {said}{f'  [{guards[-1]}]' if guards else ''}"
    elif isinstance(node, ast.Assert):
        yield f"asserts {code.words(node.test)}{code.where(node.test, function)}"
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield f"tests {code.words(node.test)}{code.where(node.test, function)}"
    elif isinstance(node, ast.Call):
        yield from _call(node, left)
    elif isinstance(node, ast.Attribute):
        yield from _attribute(node, given)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_own_call(node.value):
        yield f"returns {code.words(node.value)}{code.where(node.value, function)}"


def _is_own_call(node: ast.expr) -> bool:
    """Whether it is a call on ``self``, which is told as such."""
    return isinstance(node, ast.Call) and code.dotted(node.func).startswith("self.")


def _call(node: ast.Call, left: set[str]) -> Iterator[str]:
    """A call; not one of Python's own functions or of something local, which ``left`` names."""
    name = code.dotted(node.func)
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    if last in _LOGS and name.startswith(("logger.", "logging.")):
        yield f"logs {last}: {message(node)}"
    elif first == "self":
        yield f"calls {code.words(node)}"
    elif name and first not in left and not last.endswith(("Error", "Exception")):
        yield f"calls {name}"


def _attribute(node: ast.Attribute, given: set[str]) -> Iterator[str]:
    chain = code.dotted(node)
    first = chain.partition(".")[0]
    if chain.startswith(ENVIRONMENT):
        yield f"reads environment {chain}"
    elif isinstance(node.ctx, ast.Store | ast.Del) and first == "self":
        yield f"keeps {chain}" if isinstance(node.ctx, ast.Store) else f"drops {chain}"
    elif first in given:
        yield f"reads {chain}"


def message(node: ast.expr) -> str:
    """What is raised or logged: its name and the words in it, without what is filled in."""
    if not isinstance(node, ast.Call):
        return code.words(node)
    said = "".join(
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
    name = code.dotted(node.func)
    named = "" if name.rpartition(".")[2] in _LOGS else f"{name}: "
    return f"{named}{' '.join(said.split())}"


def env_names(function: code.Function) -> tuple[str, ...]:
    """The environment variables that a function reads through ``envs``."""
    found = (code.dotted(node) for node in ast.walk(function) if isinstance(node, ast.Attribute))
    return tuple(dict.fromkeys(name.removeprefix("envs.") for name in found if name.startswith("envs.")))
