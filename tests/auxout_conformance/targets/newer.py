"""Loads a connector folder of a vLLM that is newer than any profile, as far as it can be.

What its modules import of the rest of vLLM may have no stand-in: then a name stands there that can be imported and not
used. What the scheduler connector is built with may be new: for the KV cache there is a stand-in, in which an older
profile has no block cached; for anything else there is none, and this is said.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from auxout_spec.representation import PLAIN, Representation

from . import loading, stubs
from .adapter import CONNECTOR, OF_ENGINE, SCHEDULER_NAMES, Adapter, TargetError, from_module
from .drivers import Driver, MakeDriver, Sizes, connector_maker, signature

ROOT = "vllm"
SCHEDULER, WORKER = "newer-scheduler", "newer-worker"
"""Kinds of which only one half is loaded."""
METADATA = "AuxOutputConnectorMetadata"


class Absent:
    """A name of vLLM that nothing stands in for: it can be imported, and stand in an annotation or as a base."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **more: Any) -> NoReturn:
        raise NotImplementedError(f"nothing stands in for {self._name}")

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __getitem__(self, item: Any) -> Absent:
        return self

    def __or__(self, other: Any) -> Absent:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


class _Finder(MetaPathFinder):
    """Finds every module of vLLM that is not there; comes last."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        inside = fullname.startswith(f"{ROOT}.") and not fullname.startswith(loading.PACKAGE)
        return ModuleSpec(fullname, _Loader(), is_package=True) if inside else None


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        fill(module)


def fill(module: ModuleType) -> None:
    """Let a module have every name."""

    def found(name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{module.__name__}.{name}")

    module.__dict__.setdefault("__getattr__", found)


def load(folder: Path, kind: str) -> Adapter:
    """The halves of a folder, or one of them.

    Raises:
        TargetError: its names are others, or it asks for something that nothing stands in for. What its import raises
            passes through.
    """
    stubs.install()
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{ROOT}."):
            fill(module)
    sys.meta_path.append(_Finder())
    names, missing = dict[str, Any](vars(loading.load_connector_module(folder))), ""
    if kind != SCHEDULER and (folder / "worker.py").is_file():
        if importlib.util.find_spec("torch") is None:
            missing = loading.NEEDS_TORCH
        else:
            names = {**vars(importlib.import_module(f"{loading.PACKAGE}.worker")), **names}
    adapter = Adapter() if kind == WORKER else _scheduler(names, str(folder))
    return adapter._replace(worker=_worker(names), writes_behind=CONNECTOR in names, missing=missing)


def _scheduler(names: dict[str, Any], where: str) -> Adapter:
    """The scheduler half, built with what stands in for what it asks for."""
    made: Callable[..., Any] | None = names.get(SCHEDULER_NAMES[0])
    asked = [each.name for each in signature(made).values() if _is_needed(each)] if made is not None else []
    left = [name for name in asked if name not in OF_ENGINE]
    if left:
        raise TargetError(
            f"its scheduler connector is built with {', '.join(left)}, for which nothing stands in"
        )
    return from_module(
        SimpleNamespace(**{name: names[name] for name in SCHEDULER_NAMES if name in names}), where
    )


def _worker(names: dict[str, Any]) -> MakeDriver | None:
    """The worker half; what it holds cannot be told, since that is read from fields which may mean something else."""
    factory = names.get(CONNECTOR)
    if factory is None:
        return None
    make = connector_maker(factory)

    def made(profile: str, sizes: Sizes, representation: Representation = PLAIN) -> Driver:
        return _Worker(make(profile, sizes, representation), names.get(METADATA))

    return made


class _Worker:
    """A worker that is given metadata of its own class, whose fields that no profile knows keep their defaults."""

    def __init__(self, driver: Driver, metadata: type | None) -> None:
        self._driver, self._metadata = driver, metadata
        self.prepare, self.process, self.changed, self.close = (
            driver.prepare,
            driver.process,
            driver.changed,
            driver.close,
        )

    def begin_step(self, metadata: Any) -> None:
        made = self._metadata
        if made is not None and is_dataclass(made) and not isinstance(metadata, made):
            known = {
                each.name: getattr(metadata, each.name)
                for each in fields(made)
                if hasattr(metadata, each.name)
            }
            metadata = made(**known)
        self._driver.begin_step(metadata)

    def usage(self) -> None:
        """Nothing is told."""


def _is_needed(parameter: inspect.Parameter) -> bool:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in several
