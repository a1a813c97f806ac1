"""The calls of the protocol: one value per call an engine makes, at the granularity of the spec's transitions.

A *trace* is a list of these calls with what each returned. The simulated engine produces the same calls from
a scenario, so one vocabulary serves replay, judging and trace checking. The worker's calls join here.
"""

from __future__ import annotations

from typing import NamedTuple

from . import scheduler, wire
from .profiles import Profile
from .scheduler import SchedulerState
from .values import Outputs, RequestId, RequestView, Result


class BuildConnectorMeta(NamedTuple):
    """``build_connector_meta(scheduler_output, requests)``."""

    scheduled: tuple[tuple[RequestId, int], ...]
    """``num_scheduled_tokens`` in order: request -> tokens."""
    requests: tuple[RequestView, ...]
    """Every request the engine knows, scheduled or not."""


class TakeOutput(NamedTuple):
    """``take_output(request, output)``."""

    request: RequestView
    outputs: Outputs | None


class RequestFinished(NamedTuple):
    """``request_finished(request)``; also called for an abort and for a preemption."""

    request: RequestView
    preempted: bool = False
    """Why the engine called; the connector cannot see it."""


class Reset(NamedTuple):
    """``reset()``, after a prefix-cache reset that succeeded."""


class Unpack(NamedTuple):
    """``list(PackedBlockHashes(data, item_size))``, what a worker does with a packed value."""

    data: bytes
    item_size: int


Call = BuildConnectorMeta | TakeOutput | RequestFinished | Reset | Unpack


class Exchange(NamedTuple):
    """A call and what it returned, or must return."""

    call: Call
    result: Result


def apply(profile: Profile, state: SchedulerState, call: Call) -> tuple[SchedulerState, Result]:
    """The spec's answer to one call: the next state of the scheduler connector and the result."""
    if isinstance(call, BuildConnectorMeta):
        scheduled = tuple(request_id for request_id, _ in call.scheduled)
        return scheduler.build_connector_meta(profile, state, scheduled, call.requests)
    if isinstance(call, TakeOutput):
        return state, scheduler.take_output(call.request, call.outputs)
    if isinstance(call, RequestFinished):
        return scheduler.request_finished(profile, state, call.request)
    if isinstance(call, Reset):
        return scheduler.reset(state), None
    return state, wire.unpack(profile, call.data, call.item_size)
