"""The models come to what the manifest says, and lose no witness."""

from __future__ import annotations

import json
from typing import Any

import pytest

from auxout_conformance.exploring import as_scenario
from auxout_spec import scenario
from auxout_spec.engine import initial
from auxout_spec.explorer import manifest
from auxout_spec.explorer.manifest import Expected, bounds_of, differences, dump, found, load
from auxout_spec.explorer.models import MODELS
from auxout_spec.explorer.search import explore
from auxout_spec.explorer.system import take
from auxout_spec.explorer.witnesses import WITNESSES

EXPECTED = load()
SMALL = [
    name
    for name, entry in EXPECTED.items()
    if 0 < entry.states <= (5_000 if MODELS[name].separable else 2_500)
]
"""Seconds in all; the others are for `auxout explore --all`."""
FOUND = {
    "found-abort-and-reset": ("WORK-BEGIN-3", 6),
    "found-abort-and-reset-0.31": ("WORK-BEGIN-3", 6),
    "found-external-inside-block": ("WORK-CAPTURE-4", 3),
    "found-external-inside-block-0.31": ("WORK-CAPTURE-4", 3),
    "found-external-rows": ("STORE-READ-1", 3),
    "found-external-rows-0.31": ("STORE-READ-1", 3),
    "found-hash-kept-0.31": ("ROW-EXACT-2", 9),
    "found-hashes-truncated": ("WORK-KEYS-1", 5),
    "found-hit-given-up": ("HIT-CUT-1", 6),
    "found-id-again-0.31": ("WORK-BEGIN-1", 5),
    "found-id-again": ("WORK-BEGIN-1", 5),
    "found-kept-reset": ("WORK-CAPTURE-4", 6),
    "found-load-failed-back": ("WORK-CAPTURE-2", 5),
    "found-load-failed-back-0.31": ("WORK-CAPTURE-2", 5),
    "found-load-failed-rows": ("ROW-EXACT-1", 10),
    "found-load-failed-rows-0.31": ("ROW-EXACT-1", 10),
    "found-prompt-cut-0.31": ("SCHED-TAKE-2", 3),
    "found-reset-fails": ("WORK-BEGIN-1", 6),
    "found-reset-fails-0.31": ("WORK-BEGIN-1", 8),
    "found-reset-fails-loading": ("WORK-BEGIN-1", 7),
    "found-reset-fails-loading-0.31": ("WORK-BEGIN-1", 9),
    "found-rows-evicted": ("STORE-READ-1", 9),
    "found-rows-evicted-0.31": ("STORE-READ-1", 9),
    "found-rows-without-key": ("WORK-EMIT-3", 6),
    "found-running-reset": ("WORK-BEGIN-3", 4),
    "found-session-in-flight": ("WORK-CAPTURE-2", 8),
    "found-session-in-flight-0.31": ("WORK-CAPTURE-2", 8),
    "found-session-lost": ("DEADLOCK", 6),
    "found-session-lost-0.31": ("DEADLOCK", 6),
    "found-start-beyond-0.31": ("SCHED-TAKE-2", 3),
    "found-start-raised": ("WORK-BEGIN-4", 5),
    "found-start-raised-0.31": ("WORK-BEGIN-4", 5),
    "found-whole-prompt-loaded": ("WORK-CAPTURE-4", 5),
    "found-whole-prompt-loaded-0.31": ("WORK-CAPTURE-4", 5),
}
"""Clause (or verdict) and length of the shortest counterexample, once more, by hand."""


@pytest.mark.parametrize("name", SMALL)
def test_small_models_come_to_what_is_on_record(name: str) -> None:
    model = MODELS[name]
    assert differences(model, explore(model), EXPECTED[name]) == []


def test_every_model_is_on_record() -> None:
    assert set(EXPECTED) == set(MODELS)
    assert {name: entry.bounds for name, entry in EXPECTED.items()} == {
        name: bounds_of(model) for name, model in MODELS.items()
    }
    assert [name for name, model in MODELS.items() if not model.nightly and not EXPECTED[name].states] == []
    everyday = [EXPECTED[name].states for name, model in MODELS.items() if not model.nightly]
    assert sum(everyday) >= 2_500_000


def test_findings_are_the_models_named_so() -> None:
    broken = {name: (e.clause or e.verdict, e.length) for name, e in EXPECTED.items() if e.verdict != "OK"}
    assert broken == FOUND
    assert all(name.startswith("found-") for name in FOUND)


@pytest.mark.parametrize("name", [name for name, (clause, _) in FOUND.items() if clause != "DEADLOCK"])
def test_a_counterexample_is_a_scenario_that_breaks_the_clause(name: str) -> None:
    model = MODELS[name]
    written = scenario.load(scenario.dump(as_scenario(model, explore(model))))
    assert (written.clause, written.profile, written.name) == (FOUND[name][0], model.profile, name)
    engine, broken = initial(), None
    for event in written.events:
        assert broken is None
        taken = take(model, engine, event)
        assert taken is not None
        engine, broken, _ = taken
    assert broken is not None
    assert broken.clause == written.clause


def test_every_witness_is_met_somewhere() -> None:
    met = {name for entry in EXPECTED.values() for name in entry.witnesses}
    assert {witness.name for witness in WITNESSES} - met == set()


def test_tells_what_is_different() -> None:
    model = MODELS["found-start-beyond-0.31"]
    result = explore(model)
    expected = EXPECTED[model.name]
    assert differences(model, result, None) == ["not in the manifest"]
    changed = expected._replace(verdict="OK", states=5, events=("add", "pause"), witnesses=("late key",))
    assert differences(model, result, changed) == [
        "verdict: VIOLATION, expected OK",
        "states: 4, expected 5",
        "never happened: pause",
        "never happened: late key",
    ]
    assert differences(model, result, changed._replace(states=0)) == [
        "verdict: VIOLATION, expected OK",
        "never happened: pause",
        "never happened: late key",
    ]


def test_the_manifest_is_what_would_be_written() -> None:
    text = manifest.FILE.read_text(encoding="utf-8")
    assert dump(EXPECTED) == text
    assert list(json.loads(text)) == sorted(EXPECTED)


def test_what_is_found_can_be_put_on_record() -> None:
    model = MODELS["found-start-beyond-0.31"]
    entry: Any = found(model, explore(model))
    assert entry == EXPECTED[model.name]
    assert isinstance(entry, Expected)
