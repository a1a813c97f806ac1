"""Loads a target's code, inside the process that runs it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

from . import stubs
from .adapter import Adapter, TargetError, from_factory, from_module

PACKAGE = "vllm.distributed.aux_output_connector"
NEEDS_TORCH = "its worker needs torch, which is not installed: pip install 'auxout[torch]'"


class LoadSpec(NamedTuple):
    """What to load, in plain text so that it can cross a process boundary.

    ``module``: modules with the names of connector and worker, separated by commas. ``vllm-module``: a connector
    and a torch worker, with stand-ins for what that imports of vLLM. ``factory``: ``module:attribute``.
    ``folder``: a folder that is vLLM's connector package. ``known-bad``: one of the suite's own mutants. ``newer``,
    ``newer-scheduler``, ``newer-worker``: such a folder of a vLLM that may ask for more than any profile gives, or one
    half of it.
    """

    kind: str
    where: str

    @property
    def isolated(self) -> bool:
        """Whether the code may be anybody's, so that its process gets a clean environment and limits."""
        return self.kind == "folder" or self.kind.startswith("newer")


def load(spec: LoadSpec) -> Adapter:
    """Import the target.

    Raises:
        TargetError: it is not what it should be. What its import raises passes through.
    """
    if spec.kind == "module":
        return _load_modules(spec.where.split(","))
    if spec.kind == "vllm-module":
        connector, worker = spec.where.split(",")
        return _with_worker(importlib.import_module(connector), worker)
    if spec.kind == "factory":
        return _load_factory(spec.where)
    if spec.kind == "known-bad":
        from .. import known_bad

        module = known_bad.load(spec.where)
        # A faulty worker's scheduler connector is sound, and is left to the spec.
        return from_module(_only_worker(module) if hasattr(module, "WorkerCore") else module, spec.where)
    if spec.kind.startswith("newer"):
        from . import newer

        return newer.load(Path(spec.where), spec.kind)
    return _load_folder(Path(spec.where))


def _load_folder(folder: Path) -> Adapter:
    """The scheduler connector, and the worker beside it if there is torch to run it."""
    connector = load_connector_module(folder)
    if not (folder / "worker.py").is_file():
        return from_module(connector, str(folder))
    return _with_worker(connector, f"{PACKAGE}.worker")


def _load_modules(names: list[str]) -> Adapter:
    return from_module(_merged(*map(importlib.import_module, names)), names[0])


def _with_worker(connector: ModuleType, name: str) -> Adapter:
    """A connector module with its torch worker, among stand-ins for the rest of vLLM."""
    if importlib.util.find_spec("torch") is None:
        return from_module(connector, connector.__name__)._replace(missing=NEEDS_TORCH)
    stubs.install()
    return from_module(_merged(connector, importlib.import_module(name)), connector.__name__)


def _only_worker(module: ModuleType) -> SimpleNamespace:
    return SimpleNamespace(WorkerCore=vars(module)["WorkerCore"])


def _merged(*modules: ModuleType) -> SimpleNamespace:
    """All names of some modules; the first that has one decides."""
    names: dict[str, object] = {}
    for module in reversed(modules):
        names |= vars(module)
    return SimpleNamespace(**names)


def load_connector_module(folder: Path) -> ModuleType:
    """Import ``connector.py`` of a folder under its vLLM name, with stand-ins for the rest of vLLM."""
    if not (folder / "connector.py").is_file():
        raise TargetError(
            f"{folder} has no connector.py; name the aux_output_connector folder or a tree that holds it"
        )
    loaded = sys.modules.get(PACKAGE)
    if loaded is not None and list(loaded.__path__) != [str(folder)]:
        raise TargetError(
            f"this process runs the connector of {loaded.__path__[0]} already; another one needs a process of its own"
        )
    parts = PACKAGE.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        parent = ModuleType(name)
        parent.__path__ = [str(folder)] if end == len(parts) else []
        sys.modules[name] = parent
    stubs.install()
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
