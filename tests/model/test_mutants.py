"""Specifications with one rule broken: the clause that notices, and the exact length of the shortest way to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from auxout_spec import kernel, scheduler, store, worker
from auxout_spec.engine import Add, Reset
from auxout_spec.explorer.model import Menu, Model
from auxout_spec.explorer.search import explore
from auxout_spec.worker import WorkerRequest

PAIR = (Add("A", 3, 0, 2), Add("B", 3, 0, 2))
ROUGH = Menu(PAIR, preemptions=1, aborts=1, stops=True, resets=(Reset(weights=True),), drained_resets=True)
DRAFTS = Menu((Add("A", 3, 0, 4),), drafts=1)
SHARED = Menu((Add("A", 3, 0, 3, text="T"), Add("B", 5, 0, 1, text="T")), preemptions=1)
MODELS = {
    "rough": Model("rough", "", ROUGH),
    "drafts": Model("drafts", "", DRAFTS),
    "shared": Model("shared", "", SHARED),
    "bounded": Model("bounded", "", Menu((Add("A", 2, 0, 1), Add("B", 2, 0, 1)), max_running=1), capacity=1),
}


def wrapped(module: Any, name: str, change: Callable[[Any], Any]) -> tuple[Any, str, Any]:
    """A function whose result is changed."""
    original = getattr(module, name)
    return module, name, lambda *args: change(original(*args))


def captured(change: Callable[[WorkerRequest], WorkerRequest]) -> Callable[[Any], Any]:
    """Changes what a capture left, unless it was refused."""
    return lambda result: change(result) if isinstance(result, WorkerRequest) else result


def _roomy(put: Callable[..., Any], state: Any, capacity: int, *moves: Any) -> Any:
    return put(state, capacity + 1, *moves)


MUTANTS: dict[str, tuple[str, tuple[Any, str, Any]]] = {
    "the emit start is one too high": ("rough", wrapped(scheduler, "emit_start", lambda start: start + 1)),
    "one row too many is accepted": ("rough", wrapped(kernel, "num_accepted_rows", lambda count: count + 1)),
    "one row too few is accepted": (
        "rough",
        wrapped(kernel, "num_accepted_rows", lambda count: max(count - 1, 0)),
    ),
    "a reset keeps the generation": (
        "rough",
        (scheduler, "reset", lambda state: scheduler.SchedulerState(state.generation)),
    ),
    "a new generation keeps the worker's requests": (
        "rough",
        (worker, "_namespace", lambda state, generation: (dict(state.requests), [])),
    ),
    "a terminal event is lost": (
        "rough",
        wrapped(scheduler, "request_finished", lambda got: (got[0]._replace(ended=()), got[1])),
    ),
    "what was sent is not counted": ("rough", (scheduler, "advance", lambda sent, hashes: sent)),
    "keys are not released": ("rough", (worker, "keys_backwards", lambda generation, request: [])),
    "the end of the schedule is forgotten": (
        "drafts",
        wrapped(worker, "capture", captured(lambda r: r._replace(scheduled_cursor=0))),
    ),
    "the first row of a step is lost": (
        "rough",
        wrapped(worker, "capture", captured(lambda r: r._replace(tail=r.tail[1:]))),
    ),
    "a stored block has other rows": ("shared", wrapped(store, "read", lambda got: (got[0], got[1][::-1]))),
    "nothing makes room": ("bounded", (store, "put", partial(_roomy, store.put))),
}
NOTICED = {
    "the emit start is one too high": ("WORK-EMIT-1", 3),
    "one row too many is accepted": ("SCHED-TAKE-7", 3),
    "one row too few is accepted": ("WORK-EMIT-1", 3),
    "a reset keeps the generation": ("WORK-TEAR-2", 4),
    "a new generation keeps the worker's requests": ("STORE-REF-1", 6),
    "a terminal event is lost": ("WORK-TEAR-2", 3),
    "what was sent is not counted": ("WORK-KEYS-1", 3),
    "keys are not released": ("STORE-REF-1", 4),
    "the end of the schedule is forgotten": ("WORK-CAPTURE-3", 7),
    "the first row of a step is lost": ("WORK-CAPTURE-4", 5),
    "a stored block has other rows": ("ROW-EXACT-1", 6),
    "nothing makes room": ("STORE-PUT-2", 6),
}


def run(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    model, (module, function, changed) = MUTANTS[name]
    monkeypatch.setattr(module, function, changed)
    result = explore(MODELS[model])
    return (result.broken.clause, len(result.trace)) if result.broken else (result.verdict, 0)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(name, monkeypatch) == NOTICED[name]
