"""Call sites: what a function of the engine does with the connector, in the order in which it is written.

Besides the calls on the connector these are the calls whose result one of its arguments is (``asks``), and those that
take what it returned (``passes``), so that the order among them can be compared: an upper bound that is asked for
before the prefix cache is looked up, an external hit that is cut after the KV connector offered it.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import code
from .names import Words, identifiers

NEAREST = 2
"""Conditions that are shown of those around a call."""


class Flow(NamedTuple):
    """Where values go in a function."""

    results: frozenset[str]
    """Local names that hold what the connector returned."""
    arguments: frozenset[str]
    """Local names that the connector is given, and those that they were copied from."""


def events(function: code.Function, words: Words) -> tuple[str, ...]:
    """What a function does with the connector, one line each; empty if it has nothing to do with it."""
    flow = _flow(function, words)
    found: list[str] = []
    asked: set[str] = set()
    for node, guards in code.guarded(function):
        for kind, text in _told(node, words, flow):
            if kind == "asks":
                asked.add(text.rpartition(" for ")[0])
            if kind != "passes" or text.partition(" to ")[2] not in asked:
                found.append(f"{kind} {text}{_under(guards)}")
    return tuple(found)


def _told(node: ast.AST, words: Words, flow: Flow) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        yield from _assignment(node, words, flow)
    elif isinstance(node, ast.Call):
        if is_on_connector(node, words):
            yield "calls", code.words(node)
        elif code.callee(node) in words.public:
            yield "builds", code.words(node)
        elif (given := sorted(names_in([*node.args, *node.keywords]) & flow.results)) and not is_builtin(
            node
        ):
            yield "passes", f"{', '.join(given)} to {code.words(node)}"
    elif isinstance(node, ast.keyword) and node.arg and words.is_one(node.arg):
        yield "gives", f"{node.arg}={code.words(node.value)}"
    elif isinstance(node, ast.Raise) and node.exc is not None and _mentions(node.exc, words):
        yield "raises", code.words(node.exc)


def _mentions(node: ast.expr, words: Words) -> bool:
    return any(words.is_one(word) for word in code.words(node).replace("'", " ").split())


def _assignment(
    node: ast.Assign | ast.AnnAssign | ast.AugAssign, words: Words, flow: Flow
) -> Iterator[tuple[str, str]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if isinstance(target, ast.Attribute) and words.is_one(target.attr):
            yield "sets", code.words(target)
    asked = sorted(names_in(targets) & flow.arguments)
    for call in calls_in(node.value)[:1] if asked else ():
        if not is_on_connector(call, words) and not is_builtin(call):
            yield "asks", f"{code.words(call)} for {', '.join(asked)}"


def is_on_connector(node: ast.Call, words: Words) -> bool:
    """Whether a call is of a method of something that has one of the protocol's names."""
    chain = code.dotted(node.func).split(".")
    return len(chain) > 1 and any(words.is_one(part) for part in chain[:-1])


def is_builtin(node: ast.Call) -> bool:
    """Whether a call makes a plain value or an object, of which only its fields matter."""
    return code.callee(node) in dir(builtins) or code.callee(node)[:1].isupper()


def uses(function: code.Function, words: Words) -> bool:
    """Whether a function uses the protocol's names, or is named so."""
    names = [function.name, *(name for node in code.own_nodes(function) for name in identifiers(node))]
    called = {code.callee(node) for node in code.own_nodes(function) if isinstance(node, ast.Call)}
    return any(map(words.is_one, names)) or bool(called & words.public)


def results(function: code.Function, words: Words) -> frozenset[str]:
    """The local names that hold what the connector returned."""
    return _flow(function, words).results


def result_calls(function: code.Function, words: Words) -> Iterator[ast.Call]:
    """The calls that are given what the connector returned."""
    held = results(function, words)
    for node in code.own_nodes(function):
        if isinstance(node, ast.Call) and names_in([*node.args, *node.keywords]) & held:
            yield node


def _flow(function: code.Function, words: Words) -> Flow:
    nodes = list(code.own_nodes(function))
    assigned = [each for each in map(_parts, nodes) if each is not None]
    on_connector = [node for node in nodes if isinstance(node, ast.Call) and is_on_connector(node, words)]
    held = {
        name
        for names, value in assigned
        if any(is_on_connector(call, words) for call in calls_in(value))
        for name in names
    }
    arguments = names_in([each for call in on_connector for each in [*call.args, *call.keywords]])
    # The request itself comes from the engine's queues, which are not the protocol's.
    arguments -= {"self", "request", "requests"}
    for _ in assigned:
        copied = {value.id for names, value in assigned if names & arguments and isinstance(value, ast.Name)}
        if copied <= arguments:
            break
        arguments |= copied
    return Flow(frozenset(held), frozenset(arguments))


def _parts(node: ast.AST) -> tuple[set[str], ast.AST] | None:
    """The names that a statement gives a value, and the value."""
    if isinstance(node, ast.Assign):
        return names_in(node.targets), node.value
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        return names_in([node.target]), node.value
    return None


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Local names that some expressions are, or are made of directly; attributes of theirs do not count."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Tuple | ast.List):
            found |= names_in(node.elts)
        elif isinstance(node, ast.keyword | ast.Starred):
            found |= names_in([node.value])
    return found


def calls_in(node: ast.AST | None) -> list[ast.Call]:
    """The calls in an expression, outermost first."""
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)] if node is not None else []


def _under(guards: tuple[str, ...]) -> str:
    nearest = guards[-NEAREST:]
    return f"  [{'; '.join(nearest)}]" if nearest else ""
