"""Functions that are not of the package and matter to it: those that are given its answers, and those it relies on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from ..targets.loading import PACKAGE
from . import code, facts, sites
from .names import Words, package_of
from .outcome import Difference, Part, told
from .trees import Tree

FAR = 3
"""Calls that are followed from one that is given an answer of the connector."""
Found = Mapping[tuple[str, str], code.Function]
"""Functions by file and name."""


def lookups(old: Tree, new: Tree, words: Words, paths: tuple[str, ...]) -> list[Difference]:
    """What changed in functions that are given an answer of the connector, and in those that they hand it on to.

    Args:
        paths: the modules of either tree that use the protocol's names.
    """
    wanted = _given(new, words, paths) | _given(old, words, paths)
    where = re.compile("|".join(rf"def {re.escape(name)}\b" for name in sorted(wanted)) or r"(?!)")
    core = {_folder(path) for path in paths if wanted}
    found: list[Difference] = []
    pairs = tuple(_defined(tree, wanted, where, core) for tree in (old, new))
    for path, name in sorted({*pairs[0], *pairs[1]}):
        before, after = (pair.get((path, name)) for pair in pairs)
        lines = tuple(
            [f"{name}{code.signature(each)}"] if each is not None else [] for each in (before, after)
        )
        found += told(Part.LOOKUPS, path, name, *lines)
    return found


def _given(tree: Tree, words: Words, paths: tuple[str, ...]) -> set[str]:
    """The names of functions that are given an answer of the connector, and of those that get it from them."""
    named, found = dict[str, list[code.Function]](), set[str]()
    calls: list[ast.Call] = []
    for path in paths:
        for name, function in tree.functions(path).items():
            named.setdefault(name.rpartition(".")[2], []).append(function)
            if sites.uses(function, words):
                calls += sites.result_calls(function, words)
    for _ in range(FAR):
        reached = {code.callee(call) for call in calls} - found
        found |= reached
        calls = [
            call for name in reached for function in named.get(name, ()) for call in _handed_on(function)
        ]
    # A class that is built with the answer is compared by its fields.
    return {name for name in found if name and not name[0].isupper() and name not in dir(list)}


def _handed_on(function: code.Function) -> Iterator[ast.Call]:
    given = {each.arg for each in code.parameters(function)} - {"self", "cls", "request"}
    for node in code.own_nodes(function):
        if isinstance(node, ast.Call) and sites.names_in([*node.args, *node.keywords]) & given:
            yield node


def _folder(path: str) -> str:
    """The part of vLLM that a file is in, such as ``vllm/v1/core``."""
    return "/".join(path.split("/")[:3])


def _defined(tree: Tree, wanted: set[str], where: re.Pattern[str], folders: set[str]) -> Found:
    found: dict[tuple[str, str], code.Function] = {}
    for path in tree.matching(where):
        near = _folder(path) in folders and path not in tree.package
        for name, function in tree.functions(path).items() if near else ():
            if name.rpartition(".")[2] in wanted:
                found[path, name] = function
    return found


def relied_on(old: Tree, new: Tree) -> list[Difference]:
    """What changed in what the package imports of vLLM: functions, and of classes the methods that it reaches."""
    pairs = tuple(_imported(tree) for tree in (old, new))
    found: list[Difference] = []
    for path, name in sorted({*pairs[0], *pairs[1]}):
        before, after = (pair.get((path, name)) for pair in pairs)
        if code.same(before, after):
            continue
        lines = [list(facts.facts(each)) if each is not None else [] for each in (before, after)]
        if before is None and after is not None and code.same(old.functions(path).get(name), after):
            # It was there, and the package did not use it.
            lines = [
                [],
                [
                    "the package uses it now",
                    *(f"reads environment {each}" for each in facts.env_names(after)),
                ],
            ]
        found += told(Part.CAPTURE, path, name, *lines)
    return found


def _imported(tree: Tree) -> Found:
    """The functions behind what the package imports, and the methods of classes whose names it uses, or they do."""
    found: dict[tuple[str, str], code.Function] = {}
    for path, names in sorted(_outside(tree).items()):
        here = tree.functions(path)
        found |= {(path, name): here[name] for name in names & here.keys()}
        used = _attributes(tree, [here[name] for name in names & here.keys()])
        for name in names & tree.classes(path).keys():
            found |= {(path, each): here[each] for each in _methods(name, here, used)}
    return found


def _outside(tree: Tree) -> dict[str, set[str]]:
    """What the package imports of vLLM's other modules, by file; not what it needs for annotations only."""
    found: dict[str, set[str]] = {}
    for path in tree.package:
        module = tree.module(path)
        for source, name, only_types in code.imports(module, package_of(path)) if module is not None else ():
            file = f"{source.replace('.', '/')}.py"
            if name and not only_types and file in tree.texts and not source.startswith(PACKAGE):
                found.setdefault(file, set()).add(name)
    return found


def _attributes(tree: Tree, functions: list[code.Function]) -> set[str]:
    """The attributes that the package and some functions use."""
    modules = [module for module in map(tree.module, tree.package) if module is not None]
    nodes = (node for each in [*modules, *functions] for node in ast.walk(each))
    return {"__init__"} | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _methods(name: str, functions: Mapping[str, code.Function], used: set[str]) -> set[str]:
    """The methods of a class that are used from outside, and those that they use."""
    own = {each for each in functions if each.rpartition(".")[0] == name}
    reached = {each for each in own if each.rpartition(".")[2] in used}
    for _ in range(FAR):
        attributes = {
            node.attr
            for each in reached
            for node in ast.walk(functions[each])
            if isinstance(node, ast.Attribute) and code.dotted(node.value) == "self"
        }
        reached |= {each for each in own if each.rpartition(".")[2] in attributes}
    return reached
