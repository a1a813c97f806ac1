"""Which words stand for the protocol in a vLLM, and which modules use them; found from the package, not from a list.

The package of the connector has public names. A module that imports one takes part. So does a module that uses a name
with the package's stem in it (``aux_output``, ``AuxOutput``), which is how vLLM names fields, configuration and
options, or the option of a request that the package reads.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..targets.loading import PACKAGE
from . import code
from .trees import Tree

STEM = PACKAGE.rpartition(".")[2].rpartition("_")[0]
"""``aux_output``: the package's name without ``connector``."""
_CAMEL = "".join(part.capitalize() for part in STEM.split("_"))
OPTIONS = "sampling_params"
"""Where a request keeps what its sender asked for."""


@dataclass(frozen=True)
class Words:
    """The words of one tree."""

    public: frozenset[str]
    """Public classes and functions of the package."""
    options: frozenset[str]
    """What the package reads of a request's options, and the options of its configuration named after its modules."""
    reads: frozenset[str]
    """What the package reads of a request."""
    request: str
    """The module that defines the request, such as ``vllm.v1.request``; empty if it cannot be told."""

    def __or__(self, other: Words) -> Words:
        return Words(
            self.public | other.public,
            self.options | other.options,
            self.reads | other.reads,
            other.request or self.request,
        )

    def is_one(self, identifier: str) -> bool:
        """Whether an identifier is one of the protocol's."""
        return STEM in identifier or _CAMEL in identifier or identifier in self.options

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the text of a module has that may use one."""
        return re.compile("|".join(map(re.escape, sorted({STEM, _CAMEL, *self.options}))))


def words_of(tree: Tree) -> Words:
    """The words of a tree."""
    public, reads, options, request = set[str](), set[str](), set[str](), ""
    for path in tree.package:
        module = tree.module(path)
        if module is None:
            continue
        public |= {each.name for each in module.body if isinstance(each, code.Function | ast.ClassDef)}
        for name, imported, _ in code.imports(module, PACKAGE):
            request = name if imported == "Request" else request
        for function in tree.functions(path).values():
            reads |= {chain[0] for chain in request_reads(function)}
            options |= {chain[1] for chain in request_reads(function) if chain[0] == OPTIONS and chain[1:]}
    public = {name for name in public if not name.startswith("_")}
    return Words(frozenset(public), frozenset(options | _config_options(tree)), frozenset(reads), request)


def request_names(function: code.Function) -> set[str]:
    """The names of a function's parameters that are requests, and of values that it takes out of them."""
    named = {
        each.arg for each in code.parameters(function) if "Request" in code.annotation_names(each.annotation)
    }
    return named | {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
        for target in node.targets
        # ``request = requests[request_id]``
        if isinstance(target, ast.Name) and code.dotted(node.value.value) in named
    }


def request_reads(function: code.Function) -> Iterator[tuple[str, ...]]:
    """What a function reads of its requests, as chains of attributes."""
    named = request_names(function)
    for node in ast.walk(function):
        first, _, rest = code.dotted(node).partition(".")
        if rest and first in named:
            yield tuple(rest.split("."))


def _config_options(tree: Tree) -> set[str]:
    """Fields of the configuration classes with the stem that are named after a module of the package."""
    modules = {path.rpartition("/")[2].removesuffix(".py") for path in tree.package}
    found: set[str] = set()
    for path in tree.matching(re.compile(rf"class \w*{_CAMEL}\w*Config\b")):
        for name, node in tree.classes(path).items():
            if _CAMEL in name:
                found |= {each for each in code.fields(node) if any(stem in each for stem in modules)}
    return found


def users(tree: Tree, words: Words) -> tuple[str, ...]:
    """The modules outside the package that use the protocol's names."""
    return tuple(
        path
        for path in tree.matching(words.pattern)
        if path not in tree.package and _uses(tree.module(path), path, words)
    )


def _uses(module: ast.Module | None, path: str, words: Words) -> bool:
    if module is None:
        return False
    if any(name.startswith(PACKAGE) for name, _, _ in code.imports(module, package_of(path))):
        return True
    return any(words.is_one(identifier) for node in ast.walk(module) for identifier in identifiers(node))


def package_of(path: str) -> str:
    """The package that a file's relative imports start from."""
    return ".".join(path.split("/")[:-1])


def identifiers(node: ast.AST) -> tuple[str, ...]:
    """The names that a node gives or asks for; a local variable's name says nothing."""
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    if isinstance(node, ast.keyword | ast.arg):
        return (node.arg or "",)
    if isinstance(node, ast.alias):
        return (node.name,)
    if isinstance(node, code.Function | ast.ClassDef):
        return (node.name,)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    if isinstance(node, ast.Call) and code.callee(node) in ("getattr", "hasattr", "setattr"):
        return tuple(
            each.value
            for each in node.args[1:2]
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        )
    return ()
