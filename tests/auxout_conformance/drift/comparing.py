"""Compares two vLLMs part by part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from ..leftovers import Scratch
from ..targets.wheels import FOLDER
from ..verifying import signatures
from . import code, facts, inputs, reached, sites
from .names import Words, identifiers, users, words_of
from .outcome import GONE, NEW, Difference, Line, Part, told
from .trees import Tree

COMPUTES = "computes other values; what it reads, calls, keeps, tests and refuses is the same"


def compare(old: Tree, new: Tree) -> tuple[Difference, ...]:
    """Every difference of the protocol's source, in the order of the parts."""
    words = words_of(old) | words_of(new)
    paths = tuple(sorted({*users(old, words), *users(new, words)})) if old.whole and new.whole else ()
    found = [*_files(old, new, words), *_signatures(old, new), *_fields(old, new, words, paths)]
    found += _package(old, new)
    if paths:
        found += _engine(old, new, words, paths)
        found += reached.lookups(old, new, words, paths)
        found += inputs.changes(old, new, words)
        found += reached.relied_on(old, new)
    order = list(Part)
    return tuple(sorted(found, key=lambda each: order.index(each.part)))


def _files(old: Tree, new: Tree, words: Words) -> Iterator[Difference]:
    for path in sorted({*old.package, *new.package}):
        a, b = old.texts.get(path), new.texts.get(path)
        if a == b:
            continue
        lines = [Line(NEW, "the file is new")] if a is None else [Line(GONE, "the file is gone")]
        if a is not None and b is not None:
            lines = [Line(GONE, f"{len(a.splitlines())} lines"), Line(NEW, f"{len(b.splitlines())} lines")]
            if new.module(path) is None:
                lines.append(Line(NEW, "it is no Python that this interpreter reads"))
        yield Difference(Part.FILES, path, "", tuple(lines))
    before, after = (set(users(tree, words)) for tree in (old, new))
    for path in sorted(before ^ after) if old.whole and new.whole else ():
        mark = NEW if path in after else GONE
        yield Difference(Part.FILES, path, "", (Line(mark, "uses the protocol's names"),))


def _signatures(old: Tree, new: Tree) -> Iterator[Difference]:
    before, after = _public(old), _public(new)
    for place in sorted({*before, *after}):
        yield from told(Part.SIGNATURES, *place, before.get(place, ()), after.get(place, ()))
    with Scratch() as scratch:
        folders = []
        for side, tree in (("old", old), ("new", new)):
            folders.append(scratch / side)
            folders[-1].mkdir()
            for path in tree.package:
                (folders[-1] / path.rpartition("/")[2]).write_text(tree.texts[path], encoding="utf-8")
        for sentence in signatures.breaking_changes(*folders):
            where, _, what = sentence.partition(": ")
            module, _, name = where.partition(".")
            yield Difference(
                Part.SIGNATURES, f"{FOLDER}/{module}.py", name, (Line(NEW, f"breaks callers: {what}"),)
            )


def _public(tree: Tree) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """The signatures of public functions and of public classes' public methods, by file and name."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for path in tree.package:
        owners = {"", *tree.classes(path)}
        for name, node in tree.functions(path).items():
            owner, _, short = name.rpartition(".")
            if short == "__init__":
                found[path, owner] = (f"{owner}{code.signature(node)}",)
            elif owner in owners and not any(part.startswith("_") for part in name.split(".")):
                found[path, name] = (f"{name}{code.signature(node)}",)
    return found


def _fields(old: Tree, new: Tree, words: Words, paths: tuple[str, ...]) -> Iterator[Difference]:
    """Fields of the package's classes, and of others those that carry the protocol's values."""
    carriers = _carriers(old, words, paths) | _carriers(new, words, paths)
    everywhere = {
        *old.package,
        *new.package,
        *paths,
        *_with_fields(new, carriers),
        *_with_fields(old, carriers),
    }
    for path in sorted(everywhere):
        classes = [tree.classes(path) for tree in (old, new)]
        whole = path in old.package or path in new.package
        for name in sorted({*classes[0], *classes[1]}):
            pair = [code.fields(side[name]) if name in side else {} for side in classes]
            lines = [
                [
                    f"{each}: {what}"
                    for each, what in fields.items()
                    if whole or words.is_one(each) or each in carriers
                ]
                for fields in pair
            ]
            yield from told(Part.FIELDS, path, name, *lines, context=whole)


def _carriers(tree: Tree, words: Words, paths: tuple[str, ...]) -> set[str]:
    """The fields in which the engine puts what the connector returned."""
    found: set[str] = set()
    for path in paths:
        for function in tree.functions(path).values():
            for call in sites.result_calls(function, words) if sites.uses(function, words) else ():
                if code.callee(call)[:1].isupper():
                    results = sites.results(function, words)
                    found |= {
                        each.arg for each in call.keywords if each.arg and sites.names_in([each]) & results
                    }
    return found


def _with_fields(tree: Tree, carriers: set[str]) -> Iterator[str]:
    """Files in which a class has one of these fields."""
    if carriers:
        pattern = re.compile(rf"^ +(?:{'|'.join(map(re.escape, sorted(carriers)))}):", re.MULTILINE)
        yield from (path for path in tree.matching(pattern) if tree.whole)


def _package(old: Tree, new: Tree) -> Iterator[Difference]:
    for path in sorted({*old.package, *new.package}):
        pair = [tree.functions(path) for tree in (old, new)]
        for name in dict.fromkeys([*pair[1], *pair[0]]):
            yield from _function(Part.PACKAGE, path, name, pair[0].get(name), pair[1].get(name))


def _function(
    part: Part, path: str, name: str, old: code.Function | None, new: code.Function | None
) -> list[Difference]:
    if code.same(old, new):
        return []
    lines = [list(facts.facts(each)) if each is not None else [] for each in (old, new)]
    found = told(part, path, name, *lines)
    return found or [Difference(part, path, name, (Line(NEW, COMPUTES),))]


def _engine(old: Tree, new: Tree, words: Words, paths: tuple[str, ...]) -> Iterator[Difference]:
    """Call sites and gates in the modules that use the protocol's names."""
    for path in paths:
        pair = [tree.functions(path) for tree in (old, new)]
        for name in dict.fromkeys([*pair[1], *pair[0]]):
            before, after = pair[0].get(name), pair[1].get(name)
            used = [each for each in (before, after) if each is not None and sites.uses(each, words)]
            if not used or code.same(before, after):
                continue
            lines = [sites.events(each, words) if each is not None else () for each in (before, after)]
            yield from told(Part.CALLS, path, name, *lines, context=True)
            gates = [_gates(name, each, words) if each is not None else () for each in (before, after)]
            yield from told(Part.GATES, path, name, *gates)


def _gates(name: str, function: code.Function, words: Words) -> tuple[str, ...]:
    """The tests that name the protocol; of a function that is named after it, everything it tests and refuses."""
    if any(words.is_one(part) for part in name.split(".")):
        kinds = ("tests ", "raises ", "asserts ", "reads environment ")
        return tuple(fact for fact in facts.facts(function) if fact.startswith(kinds))
    found: list[str] = []
    for node, guards in code.guarded(function):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            if any(words.is_one(part) for part in _names(node.test)):
                found.append(f"tests {code.words(node.test)}")
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in words.options
        ):
            found.append(f"reads {code.words(node)}")
        elif isinstance(node, ast.Raise) and any(_mentions(guard, words) for guard in guards[-1:]):
            found.append(f"raises {facts.message(node.exc) if node.exc is not None else 'again'}")
    return tuple(dict.fromkeys(found))


def _names(node: ast.AST) -> Iterator[str]:
    return (name for each in ast.walk(node) for name in identifiers(each))


def _mentions(guard: str, words: Words) -> bool:
    return any(words.is_one(part) for part in guard.replace(".", " ").replace("(", " ").split())
