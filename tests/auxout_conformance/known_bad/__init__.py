"""Known-bad targets: faulty connectors that the suite must catch, and the mutator that makes many more.

``catalogue`` lists them, ``load`` builds one. Each is the reference connector with a small edit, made when it is
loaded, so the faults follow the reference and nothing wrong is ever on disk.
"""

from __future__ import annotations

import itertools
import sys
from functools import cache
from importlib import resources
from types import ModuleType

from .catalogue import KNOWN_BAD
from .edits import EditNotApplicable, edited
from .entry import KnownBad

__all__ = ["EditNotApplicable", "KnownBad", "catalogue", "load", "mutated_source", "reference_source"]

_PACKAGE, _FILE = "auxout_reference", "connector.py"
_numbers = itertools.count(1)


def catalogue() -> tuple[KnownBad, ...]:
    """Every known-bad connector."""
    return KNOWN_BAD


def load(name: str) -> ModuleType:
    """A fresh module of one known-bad connector, with the names of vLLM's connector module.

    It is registered in ``sys.modules`` under a name of its own, since its classes must pickle.

    Raises:
        KeyError: no such name.
        EditNotApplicable: the reference has changed and the catalogue has not.
    """
    module = ModuleType(f"auxout_known_bad_{name.replace('-', '_').replace('.', '_')}_{next(_numbers)}")
    # Relative imports are the reference's own.
    module.__package__ = _PACKAGE
    module.__file__ = f"<known-bad:{name}>"
    code = compile(mutated_source(name), module.__file__, "exec")
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
    return module


@cache
def mutated_source(name: str) -> str:
    """The source of one known-bad connector."""
    entries = {entry.name: entry for entry in KNOWN_BAD}
    return edited(reference_source(), entries[name].edits)


@cache
def reference_source() -> str:
    """The source of the reference connector."""
    return resources.files(_PACKAGE).joinpath(_FILE).read_text(encoding="utf-8")
