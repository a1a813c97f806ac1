"""The shape of the code (sizes, types, docstrings), and clause ids that are known and used everywhere."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.metadata import requires
from pathlib import Path

import pytest

from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.engine.guards import GUARDS

ROOT = Path(__file__).parents[2]
SHIPPED = ("spec/auxout_spec", "reference/auxout_reference", "impl/auxout", "tests/auxout_conformance")
PLAIN = SHIPPED[:2]
"""The code that is read as documentation."""

MAX_MODULE_LINES = 500
MAX_BODY_LINES = 25

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tracked() -> tuple[Path, ...]:
    """The files of the repository, those not committed yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return tuple(path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file())


def modules(*roots: str) -> list[Path]:
    return [path for root in roots for path in sorted((ROOT / root).rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", modules(*SHIPPED), ids=name_of)
def test_module_is_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("path", modules(*PLAIN), ids=name_of)
def test_functions_are_short_typed_and_documented(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    faults = [] if ast.get_docstring(tree) or not tree.body else ["the module has no docstring"]
    for node in definitions(tree):
        if isinstance(node, Function):
            faults.extend(f"{node.lineno}: {node.name} {fault}" for fault in function_faults(node, source))
        elif not ast.get_docstring(node):
            faults.append(f"{node.lineno}: class {node.name} has no docstring")
    assert not faults


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    """Classes, functions and methods; not the functions inside functions, which count as their bodies."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from definitions(node)


def function_faults(node: Function, source: str) -> Iterator[str]:
    """What is wrong with one function."""
    if (size := body_lines(node, source)) > MAX_BODY_LINES:
        yield f"has {size} body lines"
    if not node.name.startswith("_") and not ast.get_docstring(node):
        yield "has no docstring"
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    untyped = [a.arg for a in arguments if a.annotation is None and a.arg not in {"self", "cls"}]
    if untyped or node.returns is None:
        yield f"is not typed: {', '.join([*untyped, *(['return'] if node.returns is None else [])])}"


def body_lines(node: Function, source: str) -> int:
    """Lines of code in a function's body: no docstring, no blank line, no comment."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    if not body:
        return 0
    lines = source.splitlines()[body[0].lineno - 1 : node.end_lineno]
    return sum(1 for line in lines if line.strip() and not line.lstrip().startswith("#"))


def test_counts_body_lines() -> None:
    source = (
        'def f(a):\n    """Doc.\n\n    More."""\n    # why\n    if a:\n\n        return 1\n    return 2\n'
    )
    function = ast.parse(source).body[0]
    assert isinstance(function, Function)
    assert body_lines(function, source) == 3
    assert list(function_faults(function, source)) == ["is not typed: a, return"]


def test_no_path_of_one_machine() -> None:
    pattern = re.compile(r"(?<![\w.~}-])/(?:work|root|home|Users|private)/\w")
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in tracked()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found


def cited(components: set[str]) -> dict[str, set[str]]:
    """Ids of these components and the files that cite them."""
    pattern = re.compile(rf"\b(?:{'|'.join(sorted(components))})-[A-Z]+-\d+\b")
    citations: dict[str, set[str]] = {}
    for path in tracked():
        for identifier in pattern.findall(path.read_text(encoding="utf-8", errors="ignore")):
            citations.setdefault(identifier, set()).add(name_of(path))
    return citations


TYPOS = {"SCHED-MET-1", "CLIENT-NEW-7"}
"""Ids that tests make up on purpose."""


@pytest.mark.parametrize(
    ("registry", "home"),
    [(ALL_CLAUSES, "spec/auxout_spec/clauses.py"), (GUARDS, "spec/auxout_spec/engine/guards.py")],
    ids=["clauses", "guards"],
)
def test_ids_are_known_and_cited(registry: dict[str, object], home: str) -> None:
    citations = cited({identifier.split("-")[0] for identifier in registry})
    unknown = {i: files for i, files in citations.items() if i not in registry and i not in TYPOS}
    assert not unknown, "cited but unknown"
    unused = [identifier for identifier in registry if citations.get(identifier, set()) <= {home}]
    assert not unused, f"cited nowhere but in {home}"


def test_the_first_command_installs_all_that_judging_takes() -> None:
    """Without torch the worker of a release is not judged, and without CrossHair no value is solved for."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^conform: \$\(call needs,(\w+)\)", makefile, re.MULTILINE)
    assert found is not None
    wanted, installed = [found[1]], set[str]()
    while wanted:
        extra = wanted.pop()
        for each in requires("auxout") or ():
            requirement, _, marker = each.partition(";")
            if f"'{extra}'" in marker or f'"{extra}"' in marker:
                name, *inner = re.findall(r"[\w-]+", requirement)
                installed.add(name.lower())
                wanted += inner if name == "auxout" else []
    assert {"torch", "hypothesis-crosshair", "coverage", "jsonschema"} <= installed


def test_the_venv_of_released_versions_has_what_the_command_needs() -> None:
    extra = [each for each in requires("auxout") or () if "conformance" in each.partition(";")[2]]
    needed = {re.split(r"[^\w-]", each)[0].lower() for each in extra}
    text = (ROOT / "tests/real/requirements.txt").read_text(encoding="utf-8")
    assert needed <= {name.lower() for name in re.findall(r"^([\w-]+)==", text, re.MULTILINE)}
    assert needed
