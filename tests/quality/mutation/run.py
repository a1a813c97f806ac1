"""Mutation score of the spec: breaks it everywhere, one place at a time, and lets its own tests notice.

Each mutant runs in a forked process with a time limit. This process imports what is heavy and never the spec, so
that a child can import the spec with one module replaced.
"""

from __future__ import annotations

import argparse
import gc
import importlib.abc
import importlib.machinery
import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import hypothesis  # noqa: F401 - heavy, and the same for all children
import numpy as np  # noqa: F401
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SPEC = ROOT / "spec" / "auxout_spec"
SURVIVORS = HERE / "survivors.json"
CLASSES = ("equivalent", "guard", "unreachable")
MINIMUM = 95.0
SECONDS = 10
"""For one mutant, of processor time: a loop without end is a wrong answer too."""
FAILED = 100
"""Exit status of a child when a test of its first file fails, and so on."""

MODELS = "model/test_small_models.py"
"""The explorer as a judge: a few models whose numbers must not change."""
_CONNECTOR = ("unit/test_spec_scheduler.py", "differential/test_spec_and_reference.py")
_STEPS = tuple(f"unit/test_spec_{of}.py" for of in ("admission", "arrival", "landing", "engine"))
_PARTS = ("unit/test_spec_worker.py", "unit/test_spec_store.py", "unit/test_spec_system.py")
_SIDE = ("unit/test_spec_tampering.py", "unit/test_spec_worker_side.py")
_ENGINE = (*_STEPS, MODELS)
_GUARDED = (*_ENGINE, "model/test_guards.py")
TESTS: dict[str, tuple[str, ...]] = {
    "kernel": (*_CONNECTOR, MODELS),
    "scheduler": (*_CONNECTOR, MODELS),
    "wire": _CONNECTOR,
    "calls": (*_CONNECTOR, *_SIDE, "unit/test_spec_arrival.py"),
    "worker": (*_PARTS, MODELS),
    "store": (*_PARTS, MODELS),
    "engine.worker_side": (*_SIDE, *_STEPS, *_PARTS, MODELS),
    "engine.rows": ("unit/test_spec_rows.py", "unit/test_spec_system.py", *_ENGINE),
    "engine.state": ("unit/test_spec_tampering.py", *_ENGINE),
    "engine.guards": _ENGINE,
    "engine.arrival": _ENGINE,
    "engine.admission": _ENGINE,
    "engine.landing": _GUARDED,
    "engine.loading": ("unit/test_spec_system.py", *_ENGINE),
    "engine.reset": _ENGINE,
    "engine.step": (*_SIDE, *_ENGINE),
    "engine.tampering": (*_STEPS, *_SIDE),
    "engine.options": _GUARDED,
}
"""Module of the spec -> what judges its mutants, in this order until one notices: what is quick comes first."""
JUDGES = ("models", "tests", "both")


class Candidate(NamedTuple):
    """A mutant with a name that stays the same while its surroundings change."""

    module: str
    function: str
    description: str
    line: int
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.module, self.function, self.description


class Fate(NamedTuple):
    """What became of a mutant: who noticed it (``models``, ``tests``), ``crashed`` (it cannot even be imported),
    ``hung`` or ``survived``.
    """

    candidate: Candidate
    what: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants and compare the survivors with the list; 0 if all is as it should be."""
    parser = argparse.ArgumentParser(description="Mutation score of the spec.")
    parser.add_argument("--only", nargs="*", choices=[*TESTS], default=[*TESTS], help="modules to mutate")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--judge", choices=JUDGES, default="both", help="what mutants are shown to")
    parser.add_argument("--show", action="store_true", help="print every mutant with its fate")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT / root) for root in ("spec", "reference", "impl", "tests")]
    for module in TESTS:
        TESTS[module] = tuple(name for name in TESTS[module] if options.judge in ("both", _judge(name)))
    modules = [module for module in options.only if TESTS[module]]
    _compile_ours()
    gc.freeze()  # children share what is here until they touch it, and collecting would
    if not _sound(modules):
        return 2
    fates: list[Fate] = []
    for fate in run(candidates(modules), options.jobs):
        fates.append(fate)
        if options.show:
            print(f"{fate.what:9}{':'.join(fate.candidate.key)} (line {fate.candidate.line})", flush=True)
    # Once more: a file that somebody edited meanwhile would make every later mutant look killed.
    if not _sound(modules):
        return 2
    if options.judge == "both":
        return report(fates, listed(), modules)
    summary(fates, {}, modules)
    return 0


def _judge(name: str) -> str:
    return "models" if name.startswith("model/") else "tests"


def _sound(modules: Sequence[str]) -> bool:
    """Whether the tests pass without a mutant."""
    for module in {TESTS[module]: module for module in modules}.values():
        if _what(os.waitpid(_start(module, ""), 0)[1], module) != "survived":
            print(f"these tests fail without a mutant: {' '.join(TESTS[module])}")
            return False
    return True


def candidates(modules: Sequence[str]) -> Iterator[Candidate]:
    """All mutants of some modules of the spec."""
    from auxout_conformance.known_bad.mutator import mutants

    _forget_ours()
    for module in modules:
        seen: Counter[tuple[str, str]] = Counter()
        for mutant in mutants(_SOURCES[str(_file(module))]):
            seen[mutant.function, mutant.description] += 1
            number = seen[mutant.function, mutant.description]
            description = mutant.description + (f" #{number}" if number > 1 else "")
            yield Candidate(module, mutant.function, description, mutant.line, mutant.source)


def _file(module: str) -> Path:
    return SPEC.joinpath(*module.split(".")).with_suffix(".py")


def run(todo: Iterator[Candidate], jobs: int) -> Iterator[Fate]:
    """Run the tests on each mutant, ``jobs`` at a time."""
    running: dict[int, Candidate] = {}
    more = True
    while more or running:
        while more and len(running) < jobs:
            candidate = next(todo, None)
            more = candidate is not None
            if candidate is not None:
                running[_start(candidate.module, candidate.source)] = candidate
        if running:
            child, status = os.waitpid(-1, 0)
            candidate = running.pop(child)
            yield Fate(candidate, _what(status, candidate.module))


def summary(fates: list[Fate], known: dict[tuple[str, str, str], str], modules: Sequence[str]) -> float:
    """Print who noticed what; the share of mutants noticed, in percent, of those that are not equivalent."""
    equivalent = sum(
        fate.what == "survived" and known.get(fate.candidate.key) == "equivalent" for fate in fates
    )
    for module in modules:
        of_module = Counter(fate.what for fate in fates if fate.candidate.module == module)
        print(f"{module:20}{sum(of_module.values()):5} mutants: {dict(of_module)}")
    noticed, counted = sum(fate.what != "survived" for fate in fates), len(fates) - equivalent
    score = 100.0 * noticed / counted if counted else 0.0
    print(f"score {score:.1f} %: {noticed} of {counted} noticed, {equivalent} more are equivalent")
    return score


def report(fates: list[Fate], known: dict[tuple[str, str, str], str], modules: Sequence[str]) -> int:
    """Print the score and what is wrong; 0 if nothing is."""
    score = summary(fates, known, modules)
    survivors = {fate.candidate.key: fate.candidate.line for fate in fates if fate.what == "survived"}
    unlisted = [key for key in survivors if key not in known]
    stale = [key for key in known if key[0] in modules and key not in survivors]
    for key in unlisted:
        print(f"not classified: {':'.join(key)} (line {survivors[key]})")
    for key in stale:
        print(f"listed, but no survivor: {':'.join(key)}")
    if score < MINIMUM:
        print(f"the score is below {MINIMUM} %")
    return 1 if unlisted or stale or score < MINIMUM else 0


def listed() -> dict[tuple[str, str, str], str]:
    """The classified survivors: key -> class."""
    entries = json.loads(SURVIVORS.read_text(encoding="utf-8"))
    for entry in entries:
        if entry["class"] not in CLASSES or not entry["reason"]:
            raise ValueError(f"an entry needs one of the classes {', '.join(CLASSES)} and a reason: {entry}")
    return {(entry["module"], entry["function"], entry["description"]): entry["class"] for entry in entries}


def _start(module: str, source: str) -> int:
    """Fork a child that runs a module's tests, with its source replaced unless ``source`` is empty."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os._exit(_run_tests(module, source))
        finally:
            os._exit(70)
    return child


def _run_tests(module: str, source: str) -> int:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, 2 * SECONDS))
    if source:
        _COMPILED[str(_file(module))] = compile(source, f"<mutant of {module}>", "exec")
    gc.disable()
    options = ["-x", "-q", "--noconftest", "--assert=plain", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    for number, name in enumerate(TESTS[module]):
        status = int(pytest.main([*options, str(ROOT / "tests" / name)]))
        if status:
            return FAILED + number if status == 1 else status
    return 0


_SOURCES: dict[str, str] = {}
_COMPILED: dict[str, Any] = {}
"""File -> code. Filled once, inherited by every child: compiling takes longer than the tests."""


class _Compiled(importlib.machinery.SourceFileLoader):
    """Loads a module's code from ``_COMPILED``."""

    def get_code(self, fullname: str) -> Any:
        return _COMPILED[self.path]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds our packages where they are, and has them loaded by ``_Compiled``."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is not None and found.origin in _COMPILED:
            found.loader = _Compiled(fullname, found.origin)
        return found


def _compile_ours() -> None:
    for root in ("spec", "reference", "tests/auxout_conformance"):
        for file in (ROOT / root).rglob("*.py"):
            _SOURCES[str(file)] = file.read_text(encoding="utf-8")
            _COMPILED[str(file)] = compile(_SOURCES[str(file)], str(file), "exec")
    sys.meta_path.insert(0, _Finder())


def _what(status: int, module: str) -> str:
    """The fate behind a child's exit status."""
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU:
        return "hung"
    if code >= FAILED:
        return _judge(TESTS[module][code - FAILED])
    return "survived" if code == 0 else "crashed"


def _forget_ours() -> None:
    """Leave it to the children to import our packages."""
    for name in [name for name in sys.modules if name.startswith("auxout")]:
        del sys.modules[name]


if __name__ == "__main__":
    sys.exit(main())
