"""One engine event: what it changes, and which connector calls it makes with which right answers.

``step`` is the only way the engine changes. It returns the next state and the ``Exchange``s of the event: the
calls a real engine would make, each with the spec's answer. Driving an implementation means making these calls
and comparing; exploring means ignoring them.

When the spec's scheduler connector refuses a call, the event did not happen and the engine stays as it was; only
a landing goes on, with no rows for the request whose output was refused. When the worker refuses one, the run is
over (``Problem``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import calls
from ..calls import WORKER_CALLS, Call, Exchange, Halves
from ..values import Refusal, Result
from .admission import launch
from .arrival import add, chunk, close, end
from .events import (
    Abort,
    Add,
    Chunk,
    Close,
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
from .tampering import HASH_KINDS, METADATA_KINDS, REPORT_KINDS, tamper


class Recorder:
    """Makes the calls of one event against the spec and keeps them."""

    def __init__(self, config: EngineConfig, state: EngineState) -> None:
        self.profile, self.limits, self.cache = config.profile, config.limits, config.cache
        self.halves = Halves(state.connector, state.worker)
        self.exchanges: list[Exchange] = []
        self.refused = 0
        """Calls that the spec's scheduler connector refused."""

    def call(self, call: Call) -> Result:
        """The spec's answer to ``call``."""
        self.halves, result = calls.apply(self.profile, self.limits, self.halves, call, self.cache)
        self.refused += isinstance(result, Refusal) and not isinstance(call, WORKER_CALLS)
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
    Close: close,
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
    refused = recorder.refused > 0
    if refused and not isinstance(event, Land):
        after = state
    if state.tampered and not isinstance(event, Tamper):
        _require_shown(config, state, event, recorder)
        after = after._replace(tampered=())
    after = after._replace(connector=recorder.halves.scheduler, worker=recorder.halves.worker)
    return _forget_activations(after), tuple(recorder.exchanges)


def _require_shown(config: EngineConfig, state: EngineState, event: Event, recorder: Recorder) -> None:
    """A corruption is for the next event, which must show it to the connector that it is for."""
    kinds = [tampered.kind for tampered in state.tampered]
    # Where the protocol does not look, an implementation may: only a corruption that it refuses can be judged.
    looked = recorder.refused or recorder.halves.scheduler.failed
    judged = looked or not any(kind in HASH_KINDS for kind in kinds) or config.profile.deviations
    for_worker = any(kind in METADATA_KINDS or kind in REPORT_KINDS for kind in kinds)
    seen = [e for e in recorder.exchanges if isinstance(e.call, WORKER_CALLS) is for_worker]
    shown = bool(judged and seen) and (not for_worker or any(isinstance(e.result, Refusal) for e in seen))
    if "skip_ahead" in kinds:  # refused when the step is processed
        shown = shown and any(isinstance(e.call, calls.PrepareOutput) for e in recorder.exchanges)
    require(shown, "ENV-TAMPER-1", f"{type(event).__name__} does not show the corruption")


def _forget_activations(state: EngineState) -> EngineState:
    """Drop what the worker knew of activations that ended and have no step in flight."""
    used = {(request.request_id, request.activation) for request in state.requests}
    used |= {(entry.request_id, entry.activation) for flying in state.in_flight for entry in flying.entries}
    kept = tuple(a for a in state.activations if (a.request_id, a.number) in used)
    return state._replace(activations=kept) if len(kept) != len(state.activations) else state
