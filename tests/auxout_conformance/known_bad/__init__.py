"""Known-bad targets: faulty connectors and workers that the suite must catch, and the mutator that makes more.

``catalogue`` lists them, ``load`` builds one. Each is the reference connector with a small edit, made when it is
loaded, so the faults follow the reference and nothing wrong is ever on disk.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from functools import cache
from importlib import resources
from types import ModuleType

from .catalogue import KNOWN_BAD
from .edits import EditNotApplicable, edited
from .entry import KnownBad

__all__ = ["EditNotApplicable", "KnownBad", "catalogue", "load", "mutated_source", "reference_source"]

_PACKAGE = "auxout_reference"
_numbers = itertools.count(1)


def catalogue() -> tuple[KnownBad, ...]:
    """Every known-bad connector and worker."""
    return KNOWN_BAD


def load(name: str) -> ModuleType:
    """A fresh module of one known-bad connector or worker, with the names of vLLM's module, or ``WorkerCore``.

    It belongs to a package of its own, a copy of the reference with one module edited: its classes must pickle.

    Raises:
        KeyError: no such name.
        EditNotApplicable: the reference has changed and the catalogue has not.
    """
    entry = _entries()[name]
    package = ModuleType(f"auxout_known_bad_{name.replace('-', '_').replace('.', '_')}_{next(_numbers)}")
    package.__path__ = [str(resources.files(_PACKAGE))]
    stem = entry.file.removesuffix(".py")
    module = ModuleType(f"{package.__name__}.{stem}")
    module.__package__ = package.__name__
    module.__file__ = f"<known-bad:{name}>"
    code = compile(mutated_source(name), module.__file__, "exec")
    sys.modules[package.__name__], sys.modules[module.__name__] = package, module
    setattr(package, stem, module)
    exec(code, module.__dict__)
    return importlib.import_module(f"{package.__name__}.worker") if entry.is_worker else module


@cache
def mutated_source(name: str) -> str:
    """The source of the edited module of one known-bad connector or worker."""
    entry = _entries()[name]
    return edited(reference_source(entry.file), entry.edits)


@cache
def reference_source(file: str = "connector.py") -> str:
    """The source of a module of the reference."""
    return resources.files(_PACKAGE).joinpath(file).read_text(encoding="utf-8")


@cache
def _entries() -> dict[str, KnownBad]:
    return {entry.name: entry for entry in KNOWN_BAD}
