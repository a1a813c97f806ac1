"""Loads a target's code, inside the process that runs it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from .adapter import Adapter, TargetError, from_factory, from_module

PACKAGE = "vllm.distributed.aux_output_connector"


class LoadSpec(NamedTuple):
    """What to load, in plain text so that it can cross a process boundary.

    ``module``: a module with the connector's names. ``factory``: ``module:attribute``. ``folder``: a folder that
    is vLLM's connector package. ``known-bad``: one of the suite's own mutants.
    """

    kind: str
    where: str

    @property
    def isolated(self) -> bool:
        """Whether the code may be anybody's, so that its process gets a clean environment and limits."""
        return self.kind == "folder"


def load(spec: LoadSpec) -> Adapter:
    """Import the target.

    Raises:
        TargetError: it is not what it should be. What its import raises passes through.
    """
    if spec.kind == "module":
        return from_module(importlib.import_module(spec.where), spec.where)
    if spec.kind == "factory":
        return _load_factory(spec.where)
    if spec.kind == "known-bad":
        from .. import known_bad

        return from_module(known_bad.load(spec.where), f"known-bad:{spec.where}")
    return from_module(load_connector_module(Path(spec.where)), spec.where)


def load_connector_module(folder: Path) -> ModuleType:
    """Import ``connector.py`` of a folder under its vLLM name, with empty parents and nothing else of vLLM."""
    if not (folder / "connector.py").is_file():
        raise TargetError(
            f"{folder} has no connector.py; name the aux_output_connector folder or a tree that holds it"
        )
    parts = PACKAGE.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        parent = ModuleType(name)
        parent.__path__ = [str(folder)] if end == len(parts) else []
        sys.modules[name] = parent
    return importlib.import_module(f"{PACKAGE}.connector")


def _load_factory(where: str) -> Adapter:
    module_name, _, attribute = where.partition(":")
    # A user's own module lies where the command was typed, as with ``python -m``.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(module_name)
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise TargetError(f"module {module_name} has no {attribute}; the form is module:factory")
        found = getattr(found, name)
    return from_factory(found, module, where)
