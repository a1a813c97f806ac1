"""The whole protocol in one piece: engine, scheduler connector, worker and store of the spec, scenario by scenario.

The scenarios are public reports and their neighbours, each with the clause that the released design breaks in it,
or none. The explorer finds them by itself (``tests/model``); here they are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from auxout_spec.calls import Call, Halves, apply
from auxout_spec.engine import EngineConfig, EngineState, initial, step, worker_side
from auxout_spec.explorer.properties import Broken, broken_property
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import event_from_json
from auxout_spec.scheduler import SchedulerState
from auxout_spec.values import Refusal, RequestOutput, Result, Row
from auxout_spec.worker import Limits

BOTH = ("0.31", "0.32")
LAND: dict[str, Any] = {"land": {}}


def add(name: str, prompt: int, **more: Any) -> dict[str, Any]:
    return {"add": name, "prompt": prompt, **more}


def launch(**tokens: int) -> dict[str, Any]:
    return {"launch": tokens}


def run(
    profile: str, events: list[dict[str, Any]], block_size: int = 4, capacity: int = 100
) -> tuple[str, EngineState]:
    """The clause that breaks at the last event, or none; it must not break earlier."""
    config = EngineConfig(PROFILES[profile], block_size, 2, limits=Limits(block_size, capacity))
    state, clause = initial(), ""
    for event in events:
        assert not clause, event
        state, exchanges = step(config, state, event_from_json(event))
        refused = [e.result.clause for e in exchanges if isinstance(e.result, Refusal)]
        broken = broken_property(config, state)
        clause = refused[0] if refused else broken.clause if broken else ""
    return clause, state


SOUND = {
    "a request from start to end": [add("A", 6), launch(A=6), LAND, launch(A=1), LAND, launch()],
    "preempted with output in flight, then resumed": [
        add("A", 6, max_tokens=3), launch(A=6), {"preempt": "A"}, launch(), LAND, launch(A=3), LAND,
        launch(A=1), LAND, launch(),
    ],
    "resumed on a full hit": [
        add("A", 8, max_tokens=3), launch(A=8), LAND, {"preempt": "A"}, launch(), launch(A=1), LAND, launch(A=1),
        LAND, launch(),
    ],
    "two of three drafts rejected under asynchronous scheduling": [
        add("A", 5, max_tokens=3), launch(A=5), LAND, {"launch": {"A": 4}, "drafts": {"A": 3}}, launch(A=1), LAND,
        LAND, launch(),
    ],
    "prompt start at the prompt's end": [add("A", 6, start=6), launch(A=6), LAND, launch(A=1), LAND, launch()],
    "aborted before the first step": [add("A", 6), {"abort": "A"}, launch()],
    "two resets": [add("A", 4), {"reset": False}, {"reset": False}, launch(A=4), LAND, launch(A=1), LAND, launch()],
    "teardown waits for the step in flight": [add("A", 5), launch(A=5), {"abort": "A"}, launch(), LAND],
    "two requests compute one prefix": [
        add("A", 9, max_tokens=1), add("B", 9, text="A", max_tokens=1),
        {"launch": {"A": 9, "B": 9}, "hits": {"B": 0}}, LAND, launch(),
    ],
    "evicted and computed again": [
        add("A", 9, max_tokens=1), launch(A=9), LAND, launch(), {"evict": "*"},
        add("B", 9, text="A", max_tokens=1), launch(B=9), LAND, launch(),
    ],
    "a key that comes late": [add("A", 3), launch(A=3), launch(A=1), LAND, launch(), LAND, launch()],
    "an external hit whose rows nobody asks for": [
        add("A", 8, start=4), {"launch": {"A": 4}, "external": {"A": 4}}, LAND, launch(A=1), LAND, launch(),
    ],
    "a load that fails before the first step": [
        add("A", 8), {"load": "A", "tokens": 8}, {"loaded": "A", "valid": 0}, launch(A=8), LAND, launch(A=1), LAND,
        launch(),
    ],
    "a prompt cut short": [add("A", 8, max_tokens=1, cut=1), launch(A=7), LAND, launch()],
    "reset with a request kept": [add("A", 4, max_tokens=3), launch(A=4), LAND, {"reset": False}, launch(A=1), LAND],
}  # fmt: skip


@pytest.mark.parametrize("profile", BOTH)
@pytest.mark.parametrize("name", SOUND)
def test_sound(name: str, profile: str) -> None:
    clause, state = run(profile, SOUND[name])
    assert clause == ""
    if not state.requests:
        assert state.worker.requests == ()
        assert state.worker.store.references == ()


SESSION = [add("A", 5, session=True), launch(A=5), launch(A=1), {"land": {}, "stop": {"A": 1}}]
FINDINGS: list[tuple[str, tuple[str, ...], str, list[dict[str, Any]], dict[str, int]]] = [
    ("a session turns over under asynchronous scheduling", BOTH, "WORK-CAPTURE-2",
     [*SESSION, {"chunk": "A", "tokens": 3}, LAND, launch(A=3), LAND], {}),
    ("abort, then reset with the step in flight", BOTH, "WORK-BEGIN-3",
     [add("A", 4), launch(A=4), {"abort": "A"}, {"reset": False}, add("B", 3), launch(B=3)], {}),
    ("reset of a running request with its step in flight", ("0.32",), "WORK-BEGIN-3",
     [add("A", 4), launch(A=4), {"reset": True}, launch(A=4)], {}),
    ("KV is resident, its rows are evicted", BOTH, "STORE-READ-1",
     [add("A", 9, max_tokens=1), launch(A=9), LAND, add("B", 13, max_tokens=1), launch(B=13), LAND,
      add("C", 9, text="A", max_tokens=1), launch(C=1), LAND], {"capacity": 4}),
    ("a chunk raises the prompt start", BOTH, "WORK-BEGIN-4",
     [add("A", 4, session=True), launch(A=4), LAND, launch(A=1), LAND, {"chunk": "A", "tokens": 8, "start": 8},
      launch(A=8)], {}),
    ("a prompt start beyond the prompt", ("0.31",), "SCHED-TAKE-2", [add("A", 6, start=10), launch(A=6), LAND], {}),
    ("a request preempted by a reset that fails resumes at once", BOTH, "WORK-BEGIN-1",
     [add("S", 3, session=True, max_tokens=1), launch(S=3), LAND, add("A", 4), launch(A=4), LAND, {"pause": True},
      {"reset": True}, {"pause": False}, launch(A=1)], {}),
    ("an id comes back before its end was delivered", BOTH, "WORK-BEGIN-1",
     [add("A", 3), launch(A=3), LAND, {"abort": "A"}, add("A", 3, text="T"), launch(A=3)], {}),
    ("an external hit that ends inside a block", BOTH, "WORK-CAPTURE-4",
     [add("A", 8), {"launch": {"A": 1}, "external": {"A": 7}}, LAND], {}),
    ("an external hit on whole blocks", BOTH, "STORE-READ-1",
     [add("A", 8), {"launch": {"A": 4}, "external": {"A": 4}}, LAND], {}),
    ("a load fails and its request goes back", BOTH, "WORK-CAPTURE-2",
     [add("A", 8, start=8), {"launch": {"A": 4}, "external": {"A": 4}},
      {"land": {}, "failed": {"A": 0}, "recompute": True}, launch(A=8), LAND], {}),
    ("rows of a later step on KV that failed to load", BOTH, "ROW-EXACT-1",
     [add("A", 3, text="T", max_tokens=1), launch(A=3), LAND, {"evict": "*"}, add("B", 6, text="T"),
      {"launch": {"B": 2}, "external": {"B": 2}}, launch(B=2), {"land": {}, "failed": {"B": 0}}, LAND,
      add("C", 7, text="T", start=4), {"launch": {"C": 4}, "external": {"C": 2}}, launch(C=1), LAND, LAND],
     {"block_size": 2}),
    ("another request hits a session's block of dropped tokens", ("0.31",), "ROW-EXACT-2",
     [add("A", 1, session=True, max_tokens=1), launch(A=1), LAND, {"chunk": "A", "tokens": 1}, launch(A=1), LAND,
      add("B", 3, text="A", max_tokens=1), launch(B=1), LAND], {"block_size": 2}),
]  # fmt: skip


@pytest.mark.parametrize("found", FINDINGS, ids=lambda found: found[0])
def test_finding(found: tuple[str, tuple[str, ...], str, list[dict[str, Any]], dict[str, int]]) -> None:
    _, profiles, clause, events, sizes = found
    for profile in profiles:
        assert run(profile, events, **sizes)[0] == clause


def config(capacity: int = 100) -> EngineConfig:
    return EngineConfig(PROFILES["0.32"], 4, 2, limits=Limits(4, capacity))


def launched() -> EngineState:
    """A request whose step is in flight."""
    state = initial()
    for event in (add("A", 6), launch(A=6)):
        state, _ = step(config(), state, event_from_json(event))
    return state


def spec_worker(state: EngineState) -> Callable[[Call], Result]:
    """The spec's worker, as it stands in a state."""
    return lambda call: apply(PROFILES["0.32"], Limits(4, 100), Halves(worker=state.worker), call)[1]


def test_rows_of_another_computation_are_a_problem() -> None:
    due = tuple(Row("B", position, 0, 0, "B") for position in range(6))
    right = (("A", RequestOutput(0, due)),)
    state, _ = worker_side.process_output(config(), launched(), {"A": 1}, right, spec_worker(launched()))
    assert state.problem is not None
    assert state.problem.clause == "ROW-EXACT-1"
    assert broken_property(config(), state) == Broken(*state.problem)


def test_output_that_the_right_worker_lacks_or_starts_elsewhere_is_not_compared() -> None:
    elsewhere = tuple(Row("A", position, 0, 0, "A") for position in range(3, 6))
    for right in ((), (("A", RequestOutput(3, elsewhere)),)):
        state, _ = worker_side.process_output(config(), launched(), {"A": 1}, right, spec_worker(launched()))
        assert state.problem is None


def test_without_limits_a_right_worker_is_assumed() -> None:
    alone = EngineConfig(PROFILES["0.32"], 4, 2)
    right = (("A", RequestOutput(0, ())),)
    nobody = spec_worker(launched())
    assert worker_side.process_output(alone, launched(), {}, right, nobody) == (launched(), right)
    assert broken_property(alone, launched()) is None


def test_broken_properties() -> None:
    sound = launched()
    (name, kept), store = sound.worker.requests[0], sound.worker.store
    other_keys = sound.worker._replace(requests=((name, kept._replace(keys=(b"?",))),))
    no_references = sound.worker._replace(store=store._replace(references=()))
    gone = sound._replace(requests=(), in_flight=(), connector=SchedulerState())
    full = store._replace(objects=(((0, b"x"), ()), ((0, b"y"), ())))
    assert broken_property(config(), sound) is None
    for state, limits, clause in (
        (sound._replace(worker=other_keys), config(), "WORK-KEYS-1"),
        (sound._replace(worker=no_references), config(), "STORE-REF-1"),
        (sound._replace(worker=sound.worker._replace(store=full)), config(1), "STORE-PUT-2"),
        (gone, config(), "WORK-TEAR-2"),
    ):
        broken = broken_property(limits, state)
        assert broken is not None
        assert broken.clause == clause
