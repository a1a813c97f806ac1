"""The catalogue of known-bad connectors: every edit applies, yields something else, and is about a real clause."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from auxout_conformance import known_bad
from auxout_conformance.known_bad import KnownBad
from auxout_conformance.known_bad.edits import Append, EditNotApplicable, Replace, Rewrite, edited
from auxout_conformance.known_bad.mutator import mutants
from auxout_spec.clauses import CLAUSES, SCHEDULER, WORKER
from auxout_spec.profiles import PROFILES

CATALOGUE = known_bad.catalogue()
API = ("AuxOutputSchedulerConnector", "PackedBlockHashes", "AuxRequestOutput", "AuxOutputConnectorMetadata")


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_entry_is_another_connector(entry: KnownBad) -> None:
    source = known_bad.mutated_source(entry.name)
    assert source != ast.unparse(ast.parse(known_bad.reference_source(entry.file))) + "\n"
    module = known_bad.load(entry.name)
    if entry.is_worker:
        module.WorkerCore(block_size=2, shape_per_token=(2, 2), dtype="uint8", max_objects=1)
        return
    assert all(inspect.isclass(getattr(module, name)) for name in API)
    module.AuxOutputSchedulerConnector(profile=entry.profile)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_entry_is_about_clauses_of_its_profile(entry: KnownBad) -> None:
    assert entry.clauses
    assert entry.profile in PROFILES
    assert all(entry.profile in CLAUSES[clause].profiles for clause in entry.clauses)
    assert entry.story.endswith(".")


def test_names_and_sources_are_unique() -> None:
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE) >= 32
    assert len({known_bad.mutated_source(entry.name) for entry in CATALOGUE}) == len(CATALOGUE)
    assert sum(entry.is_worker for entry in CATALOGUE) >= 25


def test_every_obligation_has_a_known_bad_connector_of_its_own() -> None:
    judged = (clause for clause in CLAUSES.values() if clause.component in (*SCHEDULER, *WORKER))
    must = {clause.id for clause in judged if clause.level == "MUST"}
    assert must <= {entry.clauses[0] for entry in CATALOGUE}


def test_every_load_is_fresh() -> None:
    first, second = known_bad.load("empty-is-none"), known_bad.load("empty-is-none")
    assert first is not second
    assert first.AuxOutputSchedulerConnector is not second.AuxOutputSchedulerConnector
    with pytest.raises(KeyError):
        known_bad.load("no-such-thing")


def test_a_known_bad_connector_is_wrong() -> None:
    request = SimpleNamespace(request_id="A", num_tokens=4, is_finished=lambda: False)
    taken = {}
    for name in ("empty-is-none", "rows-not-cut"):
        module = known_bad.load(name)
        output = {"A": module.AuxRequestOutput(3, np.zeros((2, 1, 1), np.uint8))}
        taken[name] = module.AuxOutputSchedulerConnector().take_output(request, output)
    assert taken["empty-is-none"] is None
    assert len(taken["rows-not-cut"]) == 2


@pytest.mark.parametrize(("flags", "refuses"), [([], True), (["-O"], False)])
def test_assert_only_refuses_only_without_optimization(flags: list[str], refuses: bool) -> None:
    script = (
        "from auxout_conformance import known_bad\n"
        "try: list(known_bad.load('assert-only').PackedBlockHashes(b'abc', 2))\n"
        "except AssertionError: print('refused')\n"
    )
    path = ":".join(sys.path)
    done = subprocess.run(
        [sys.executable, *flags, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": path},
    )
    assert (done.stdout == "refused\n") is refuses


SOURCE = "def f(x):\n    y = x + 1\n    if x:\n        return y\n    return x + 1\n"


def test_edits() -> None:
    assert edited(SOURCE, [Replace("f", "x + 1", "x", times=2)]).count("x + 1") == 0
    assert "if" not in edited(SOURCE, [Replace("f", "if x: return y", "")])
    assert edited("def f():\n    g()\n", [Replace("f", "g()\n", "h()")]) == "def f():\n    h()\n"
    assert edited("def f():\n    x = 1\n", [Replace("f", "x = 1", "")]) == "def f():\n    pass\n"
    assert edited("class A:\n    b = 1\n", [Append("A", "c = 2")]) == "class A:\n    b = 1\n    c = 2\n"
    assert edited("a = 1\n", [Replace("", "1", "2")]) == "a = 2\n"


@pytest.mark.parametrize(
    "edit",
    [
        Replace("f", "x + 2", "x"),
        Replace("f", "x + 1", "x"),
        Replace("f", "return z", ""),
        Replace("f", "x", ""),
        Replace("g", "x", "y"),
        Append("f.g", "pass"),
        Rewrite(lambda module: 0),
    ],
)
def test_an_edit_that_does_not_fit_is_loud(edit: known_bad.edits.Edit) -> None:
    with pytest.raises(EditNotApplicable):
        edited(SOURCE, [edit])


def test_mutants_are_deterministic_distinct_and_valid() -> None:
    source = known_bad.reference_source()
    found = list(mutants(source))
    assert list(mutants(SOURCE)) == list(mutants(SOURCE))
    assert len({mutant.source for mutant in found}) == len(found) > 100
    for mutant in found:
        compile(mutant.source, "mutant", "exec")
        assert mutant.function
        assert 1 <= mutant.line <= len(source.splitlines())


def test_mutants_of_each_kind() -> None:
    source = (
        "def f(a, b):\n"
        '    """Text."""\n'
        "    x = a[1:b]\n"
        "    x[0] = max(a, b) + 2\n"
        "    if a < b and a in x:\n"
        "        return (*x, a)\n"
        "    while not a:\n"
        "        g(a, key=True)\n"
        "    return [y for y in x if y] if a is None else f'{a}'\n"
    )
    descriptions = {mutant.description.split("  in  ")[0] for mutant in mutants(source)}
    assert descriptions >= {
        "1:b  ->  1:", "1:b  ->  :b", "1:b  ->  1 + 1:b", "1:b  ->  1:b - 1", "0  ->  1", "0  ->  -1",
        "drop: x[0] = max(a, b) + 2", "max  ->  min", "max(a, b) + 2  ->  max(a, b) - 2", "a < b  ->  a <= b",
        "a < b  ->  a >= b", "a in x  ->  a not in x", "a < b and a in x  ->  a < b or a in x",
        "if a < b and a in x: pass  ->  if True: pass", "if a < b and a in x: pass  ->  if False: pass",
        "if a < b and a in x: pass  ->  if not (a < b and a in x): pass", "return (*x, a)  ->  return None",
        "(*x, a)  ->  (a,)", "while not a: pass  ->  while False: pass", "g(a, key=True)  ->  g(a)",
        "True  ->  False", "a is None  ->  a is not None", "drop: g(a, key=True)", "drop: return (*x, a)",
    }  # fmt: skip
    assert not any(text.startswith(("'Text", "drop: x =", "drop: 'Text")) for text in descriptions)
