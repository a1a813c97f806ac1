"""The import directions: the judge never shares code with the judged."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Package(NamedTuple):
    """What one package may import besides the standard library and itself."""

    path: str
    anywhere: frozenset[str]
    in_functions: frozenset[str] = frozenset()
    """Optional dependencies: imported where they are used, never when the module loads."""
    own: tuple[tuple[str, str], ...] = ()
    """Modules that users import by name for such a dependency, and the dependency; no other module imports them."""


PACKAGES = (
    Package("spec/auxout_spec", frozenset()),
    Package("reference/auxout_reference", frozenset({"numpy"})),
    Package(
        "impl/auxout", frozenset({"numpy"}), frozenset({"torch", "vllm"}), (("client/torch.py", "torch"),)
    ),
    # Implementations, ours too, are reached through a target: by name, in a string.
    Package(
        "tests/auxout_conformance",
        frozenset(
            {
                "_auxout_pytest",
                "auxout_spec",
                "coverage",
                "griffe",
                "hypothesis",
                "jinja2",
                "jsonschema",
                "markupsafe",
                "numpy",
                "pytest",
                "rich",
                "shtab",
                "unidiff",
            }
        ),
        frozenset({"torch"}),
    ),
    # Pytest loads the plugin in every run of everybody who installs us, so it must not cost anything.
    Package("tests/_auxout_pytest.py", frozenset({"pytest"}), frozenset({"auxout_conformance"})),
)


def modules(package: Package) -> list[Path]:
    path = ROOT / package.path
    return [path] if path.suffix else sorted(path.rglob("*.py"))


def imported(tree: ast.AST, *, in_functions: bool) -> set[str]:
    """The top-level names that a module imports outside functions, or in them."""
    names: set[str] = set()
    for node in _nodes(tree, in_functions):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


def _nodes(tree: ast.AST, in_functions: bool, inside: bool = False) -> list[ast.AST]:
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        deeper = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _type_checking(node)
        if deeper == in_functions:
            found.append(node)
        found.extend(_nodes(node, in_functions, deeper))
    return found


def _type_checking(node: ast.AST) -> bool:
    """``if TYPE_CHECKING:``, which never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.path)
def test_imports_only_what_it_may(package: Package) -> None:
    own = frozenset({Path(package.path).stem})
    at_load = package.anywhere | own | sys.stdlib_module_names
    wrong: dict[str, set[str]] = {}
    for module in modules(package):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        may = {name for path, name in package.own if module == ROOT / package.path / path}
        found = imported(tree, in_functions=False) - at_load - may
        found |= imported(tree, in_functions=True) - at_load - package.in_functions
        if found:
            wrong[str(module.relative_to(ROOT))] = found
    assert modules(package)
    assert not wrong


def test_tells_load_time_from_use() -> None:
    tree = ast.parse(
        "import a\nif TYPE_CHECKING:\n    import b\ndef f():\n    from c.d import e\nfrom . import g"
    )
    assert imported(tree, in_functions=False) == {"a"}
    assert imported(tree, in_functions=True) == {"b", "c"}
