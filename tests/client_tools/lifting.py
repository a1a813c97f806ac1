"""Runs single functions of a wheel without what the rest of it needs.

A framework's merge of rows sits in a method of a class that imports Ray, an engine and a trainer. Its source is taken
from the wheel as it is, and compiled among the few names that it uses; nothing of it is typed again.
"""

from __future__ import annotations
import __future__

import ast
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from auxout_conformance.targets.wheels import cache_dir


def at_hand(requirement: str) -> Path | None:
    """The wheel of ``name==version`` if it was fetched before."""
    name, _, version = requirement.partition("==")
    return next((cache_dir() / "client-wheels").glob(f"{name}-{version}-*.whl"), None)


@cache
def wheel(requirement: str) -> Path:
    """The wheel of ``name==version``, fetched by pip into the cache the first time."""
    found = at_hand(requirement)
    if found is None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "-d",
            str(cache_dir() / "client-wheels"),
            requirement,
        ]
        subprocess.run(command, check=True)
        found = at_hand(requirement)
        assert found is not None
    return found


def lift(requirement: str, path: str, name: str, names: dict[str, Any]) -> Any:
    """A function, class or method of a wheel's file.

    Args:
        name: ``function``, ``Class`` or ``Class.method``; a property is returned as its function.
        names: the global names that it uses; a class's bases among them. Decorators are left out of methods.
    """
    with zipfile.ZipFile(wheel(requirement)) as archive:
        body: list[ast.stmt] = ast.parse(archive.read(path)).body
    *owner, last = name.split(".")
    for part in owner:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = next(node for node in body if isinstance(node, kinds) and node.name == last)
    if owner:
        found.decorator_list = []
    module = ast.Module([found], type_ignores=[])
    code = compile(module, path, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    scope = dict(names)
    exec(code, scope)
    return scope[last]
