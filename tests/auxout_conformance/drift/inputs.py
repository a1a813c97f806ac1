"""How the engine makes and changes what the connector reads of a request, such as its block hashes.

The connector is given requests. What it reads of them is written elsewhere: in the request's own class, in the
scheduler, and by functions that make the values, such as block hashes. A change there changes the protocol although no
line of it names the connector.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from . import code, facts
from .names import Words
from .outcome import Difference, Part, told
from .trees import Tree

MUTATORS = ("append", "extend", "clear", "pop", "insert", "remove", "popleft", "appendleft", "update")
NOT_COMPARED = ("request_id", "sampling_params")
"""A request's identity and its options: told by the package's reads and by the options themselves."""
ENGINE = "vllm/v1/"
"""Where requests live; elsewhere other things have fields of these names."""


class Written(NamedTuple):
    """A statement that changes what the connector reads."""

    attribute: str
    text: str


def changes(old: Tree, new: Tree, words: Words) -> list[Difference]:
    """What changed in how inputs are written, and in the functions that make them."""
    attributes = _attributes(old, words) | _attributes(new, words)
    before, after = (_writers(tree, attributes, words) for tree in (old, new))
    found: list[Difference] = []
    for place in sorted({*before, *after}):
        lines = tuple([each.text for each in side.get(place, ())] for side in (before, after))
        found += told(Part.INPUTS, *place, *lines)
    return found + _makers(old, new, _feeders(old, before, words) | _feeders(new, after, words))


def _attributes(tree: Tree, words: Words) -> frozenset[str]:
    """What the connector reads of a request; for a property of it, the fields behind."""
    found = set(words.reads) - set(NOT_COMPARED)
    for name, function in tree.functions(_request_file(words)).items():
        owner, _, short = name.rpartition(".")
        if owner == "Request" and short in words.reads and function.decorator_list:
            found |= {
                node.attr
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute) and code.dotted(node.value) == "self"
            }
    return frozenset(found)


def _request_file(words: Words) -> str:
    return f"{words.request.replace('.', '/')}.py"


def _writers(
    tree: Tree, attributes: frozenset[str], words: Words
) -> Mapping[tuple[str, str], tuple[Written, ...]]:
    """The statements that write an input, by file and function."""
    found: dict[tuple[str, str], tuple[Written, ...]] = {}
    alternatives = "|".join(map(re.escape, sorted(attributes)))
    for path in tree.matching(re.compile(rf"\.(?:{alternatives})\b")) if attributes else ():
        module = tree.module(path) if path.startswith(ENGINE) else None
        if module is None or not _knows_requests(module, path, words):
            continue
        for name, function in tree.functions(path).items():
            own = path == _request_file(words) and name.startswith("Request.")
            written = tuple(_written(function, attributes, own=own))
            if written:
                found[path, name] = written
    return found


def _knows_requests(module: ast.Module, path: str, words: Words) -> bool:
    if path == _request_file(words):
        return True
    package = ".".join(path.split("/")[:-1])
    return any(
        name == words.request and imported == "Request" for name, imported, _ in code.imports(module, package)
    )


def _written(function: code.Function, attributes: frozenset[str], *, own: bool) -> Iterator[Written]:
    """The statements of a function that write an input.

    Args:
        own: it is a method of the request, whose own fields count.
    """
    for node, guards in code.guarded(function):
        for target in _targets(node):
            attribute = _attribute(target)
            if attribute is None or attribute.attr not in attributes:
                continue
            if code.dotted(attribute.value) == "self" and not own:
                continue
            under = f"  [{guards[-1]}]" if guards else ""
            yield Written(attribute.attr, f"{code.words(node)}{code.where(node, function)}{under}")


def _targets(node: ast.AST) -> list[ast.expr]:
    """What a statement writes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        return [node.target]
    is_change = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _mutates(node.value)
    return [node.value.func.value] if is_change else []  # type: ignore[union-attr]


def _mutates(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in MUTATORS


def _attribute(target: ast.expr) -> ast.Attribute | None:
    """The attribute that is written, also in part: ``del request.block_hashes[3:]``."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return target if isinstance(target, ast.Attribute) else None


def _feeders(tree: Tree, writers: Mapping[tuple[str, str], tuple[Written, ...]], words: Words) -> set[str]:
    """The names of what the request's own class calls to make an input, such as ``block_hasher``."""
    found: set[str] = set()
    for name, function in tree.functions(_request_file(words)).items():
        if (_request_file(words), name) not in writers:
            continue
        for node in code.own_nodes(function):
            if isinstance(node, ast.Call) and code.dotted(node.func).startswith("self._"):
                found.add(code.callee(node).strip("_"))
    return found - set(MUTATORS)


def _makers(old: Tree, new: Tree, feeders: set[str]) -> list[Difference]:
    """What changed in functions that make an input, by their name, in calls of them, and in what these are given."""
    if not feeders:
        return []
    named = "|".join(map(re.escape, sorted(feeders)))
    pattern = re.compile(named)
    before, after = (_matching(tree, pattern, pattern) for tree in (old, new))
    found, added = list[Difference](), set[str]()
    for place in sorted({*before, *after}):
        a, b = before.get(place), after.get(place)
        lines = tuple(list(_of_maker(each, pattern)) if each is not None else [] for each in (a, b))
        found += told(Part.INPUTS, *place, *lines)
        if a is not None and b is not None and pattern.search(place[1]):
            added |= {each.arg for each in code.parameters(b)} - {each.arg for each in code.parameters(a)}
    return found + _origins(old, new, added)


def _matching(
    tree: Tree, text: re.Pattern[str], name: re.Pattern[str]
) -> Mapping[tuple[str, str], code.Function]:
    """Functions whose name matches, or that call one of such a name, by file and name."""
    found: dict[tuple[str, str], code.Function] = {}
    for path in filter(_is_engine, tree.matching(text)):
        for each, function in tree.functions(path).items():
            if name.search(each.rpartition(".")[2]) or _calls(function, name):
                found[path, each] = function
    return found


def _is_engine(path: str) -> bool:
    return path.startswith(ENGINE)


def _calls(function: code.Function, name: re.Pattern[str]) -> list[ast.Call]:
    nodes = (node for node in code.own_nodes(function) if isinstance(node, ast.Call))
    return [node for node in nodes if name.search(code.callee(node))]


def _of_maker(function: code.Function, name: re.Pattern[str]) -> Iterator[str]:
    """A maker's facts; of what only calls makers, these calls."""
    if name.search(function.name):
        yield from facts.facts(function)
    else:
        yield from (f"calls {code.words(call)}" for call in _calls(function, name))


def _origins(old: Tree, new: Tree, names: set[str]) -> list[Difference]:
    """Where the values of new parameters come from: functions and properties of these names."""
    found: list[Difference] = []
    for name in sorted(names):
        pattern = re.compile(rf"def {re.escape(name)}\b")
        for path in new.matching(pattern):
            known = old.functions(path)
            for each, function in new.functions(path).items():
                if each.rpartition(".")[2] == name and not code.same(known.get(each), function):
                    lines = facts.facts(known[each]) if each in known else ()
                    found += told(Part.INPUTS, path, each, lines, facts.facts(function))
    return found
