"""The calls of the protocol: one value per call an engine makes, at the granularity of the spec's transitions.

A *trace* is a list of these calls with what each returned. The simulated engine produces the same calls from
a scenario, so one vocabulary serves replay, judging and trace checking. ``apply`` is the spec's answer to a call.
"""

from __future__ import annotations

from typing import NamedTuple

from . import per_request, scheduler, wire, worker
from .deviations import released
from .profiles import Profile
from .scheduler import SchedulerState
from .values import Metadata, Outputs, Refusal, RequestId, RequestView, Result, StepOutput
from .worker import Limits, Part, WorkerState


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


class BeginStep(NamedTuple):
    """``begin_step(metadata)`` of the worker, before the forward pass."""

    metadata: Metadata


Batch = tuple[tuple[RequestId, int, int], ...]
"""Request, first position as it was scheduled, number of tokens, rejected drafts included."""


class PrepareOutput(NamedTuple):
    """``prepare_output(batch)`` of the worker, after the forward pass; its rows come with ``ProcessOutput``."""

    batch: Batch


class ProcessOutput(NamedTuple):
    """``process_output(step)`` of the worker, for the oldest step in flight."""

    parts: tuple[Part, ...]
    """In the order of the batch. The rows are those that the forward pass had computed at ``PrepareOutput``."""
    step: int = 0
    """Its place among the steps in flight; only the oldest, 0, may be processed."""


class Close(NamedTuple):
    """``close()`` of the worker, at any moment; a fresh scheduler and worker connector take over."""


SchedulerCall = BuildConnectorMeta | TakeOutput | RequestFinished | Reset | Unpack
WorkerCall = BeginStep | PrepareOutput | ProcessOutput | Close
Call = SchedulerCall | WorkerCall
WORKER_CALLS = (BeginStep, PrepareOutput, ProcessOutput, Close)


class Exchange(NamedTuple):
    """A call and what it returned, or must return."""

    call: Call
    result: Result


class Halves(NamedTuple):
    """The state of both connectors."""

    scheduler: SchedulerState = scheduler.INITIAL
    worker: WorkerState = worker.INITIAL


def apply(profile: Profile, limits: Limits | None, state: Halves, call: Call) -> tuple[Halves, Result]:
    """The spec's answer to one call: the next state and the result.

    Args:
        limits: the sizes of worker and store; None: there are none, and no call is theirs.
    """
    if isinstance(call, Close):
        return Halves(), None
    if isinstance(call, BeginStep | PrepareOutput | ProcessOutput):
        assert limits is not None, "a call of a worker without limits"
        after, result = apply_worker(profile, limits, state.worker, call)
        return Halves(state.scheduler, after), result
    connector, result = apply_scheduler(profile, state.scheduler, call)
    return Halves(connector, state.worker), result


def apply_scheduler(
    profile: Profile, state: SchedulerState, call: SchedulerCall
) -> tuple[SchedulerState, Result]:
    """The spec's answer to one call: the next state of the scheduler connector and the result."""
    if isinstance(call, Unpack):
        return state, released(profile, wire.unpack)(call.data, call.item_size)
    if profile.fails_requests:
        return _per_request(profile, state, call)
    if isinstance(call, BuildConnectorMeta):
        build = released(profile, scheduler.build_connector_meta)
        return build(profile, state, _ids(call), call.requests)
    if isinstance(call, TakeOutput):
        return state, scheduler.take_output(call.request, call.outputs)
    if isinstance(call, RequestFinished):
        return released(profile, scheduler.request_finished)(state, call.request)
    return scheduler.reset(state), None


def _per_request(
    profile: Profile, state: SchedulerState, call: BuildConnectorMeta | TakeOutput | RequestFinished | Reset
) -> tuple[SchedulerState, Result]:
    if isinstance(call, BuildConnectorMeta):
        return per_request.build_connector_meta(profile, state, _ids(call), call.requests)
    if isinstance(call, TakeOutput):
        return per_request.take_output(state, call.request, call.outputs)
    if isinstance(call, RequestFinished):
        return per_request.request_finished(state, call.request)
    return per_request.reset(state), None


def _ids(call: BuildConnectorMeta) -> tuple[RequestId, ...]:
    return tuple(request_id for request_id, _ in call.scheduled)


def apply_worker(
    profile: Profile, limits: Limits, state: WorkerState, call: BeginStep | PrepareOutput | ProcessOutput
) -> tuple[WorkerState, Result]:
    """The spec's answer to one call: the next state of the worker connector and the result."""
    if isinstance(call, BeginStep):
        if limits.fails_requests:
            return per_request.begin_step(limits, state, call.metadata), None
        return worker.begin_step(limits, state, call.metadata)
    if isinstance(call, PrepareOutput):
        ids = tuple(request_id for request_id, _, _ in call.batch)
        if limits.fails_requests:
            return per_request.prepare_output(state, ids), None
        return worker.prepare_output(state, ids)
    process = per_request.process_output if limits.fails_requests else worker.process_output
    state, outputs = released(profile, process)(limits, state, call.parts, call.step)
    return state, outputs if isinstance(outputs, Refusal) else StepOutput(outputs)
