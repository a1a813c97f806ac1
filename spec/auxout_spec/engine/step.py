"""One engine event: what it changes, and which connector calls it makes with which right answers.

``step`` is the only way the engine changes. It returns the next state and the ``Exchange``s of the event: the
calls a real engine would make, each with the spec's answer. Driving an implementation means making these calls
and comparing; exploring means ignoring them.

When the spec refuses a call, the event did not happen and the engine stays as it was; only a landing goes on,
with no rows for the request whose output was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import calls
from ..calls import Call, Exchange
from ..values import Refusal, Result
from .admission import launch
from .arrival import add, chunk, end
from .events import (
    Abort,
    Add,
    Chunk,
    End,
    Event,
    Evict,
    Land,
    Launch,
    Load,
    Loaded,
    Pause,
    Preempt,
    Reset,
    Tamper,
    Unpack,
)
from .guards import require
from .landing import land
from .loading import load, loaded
from .reset import abort, evict, pause, preempt, reset
from .state import EngineConfig, EngineState
from .tampering import HASH_KINDS, tamper


class Recorder:
    """Makes the calls of one event against the spec and keeps them."""

    def __init__(self, config: EngineConfig, state: EngineState) -> None:
        self.profile = config.profile
        self.connector = state.connector
        self.exchanges: list[Exchange] = []

    def call(self, call: Call) -> Result:
        """The spec's answer to ``call``."""
        self.connector, result = calls.apply(self.profile, self.connector, call)
        self.exchanges.append(Exchange(call, result))
        return result


_TRANSITIONS: dict[
    type, Callable[[EngineConfig, EngineState, Any, Callable[[Call], Result]], EngineState]
] = {
    Add: add,
    Launch: launch,
    Land: land,
    Load: load,
    Loaded: loaded,
    Abort: abort,
    Preempt: preempt,
    Evict: evict,
    Pause: pause,
    Reset: reset,
    Chunk: chunk,
    End: end,
    Tamper: tamper,
}


def step(config: EngineConfig, state: EngineState, event: Event) -> tuple[EngineState, tuple[Exchange, ...]]:
    """Apply one event.

    Raises:
        Impossible: no engine can bring this event about here.
    """
    recorder = Recorder(config, state)
    if isinstance(event, Unpack):
        recorder.call(calls.Unpack(event.data, event.item_size))
        return state, tuple(recorder.exchanges)
    after = _TRANSITIONS[type(event)](config, state, event, recorder.call)
    refused = any(isinstance(exchange.result, Refusal) for exchange in recorder.exchanges)
    if refused and not isinstance(event, Land):
        after = state
    if state.tampered and not isinstance(event, Tamper):
        # Where the protocol does not look, an implementation may: only a corruption that it refuses can be judged.
        hashes = any(tampered.kind in HASH_KINDS for tampered in state.tampered)
        judged = refused or not hashes or bool(config.profile.deviations)
        shown = bool(recorder.exchanges) and judged
        require(shown, "ENV-TAMPER-1", f"{type(event).__name__} does not show the corruption")
        after = after._replace(tampered=())
    after = _with_tokens_of_the_gone(state, after._replace(connector=recorder.connector))
    return _forget_activations(after), tuple(recorder.exchanges)


def _with_tokens_of_the_gone(before: EngineState, after: EngineState) -> EngineState:
    """Keep the tokens of requests that left, for the rows of their steps in flight."""
    if len(after.requests) >= len(before.requests):
        return after
    left = {request.request_id for request in after.requests}
    gone = {r.request_id: r.tokens for r in before.requests if r.request_id not in left}
    kept = (a._replace(tokens=gone[a.request_id]) if a.request_id in gone else a for a in after.activations)
    return after._replace(activations=tuple(kept))


def _forget_activations(state: EngineState) -> EngineState:
    """Drop what the worker knew of activations that ended and have no step in flight."""
    used = {(request.request_id, request.activation) for request in state.requests}
    used |= {(entry.request_id, entry.activation) for flying in state.in_flight for entry in flying.entries}
    kept = tuple(a for a in state.activations if (a.request_id, a.number) in used)
    return state._replace(activations=kept) if len(kept) != len(state.activations) else state
