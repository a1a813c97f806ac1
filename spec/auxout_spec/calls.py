"""The calls of the protocol: one value per call an engine makes, at the granularity of the spec's transitions.

A *trace* is a list of these calls with what each returned. The simulated engine produces the same calls from
a scenario, so one vocabulary serves replay, judging and trace checking. ``apply`` is the spec's answer to a call.
"""

from __future__ import annotations

from typing import NamedTuple

from . import per_request, retention, scheduler, wire, worker
from .deviations import released
from .profiles import Profile
from .retention import KvCache, Retention
from .scheduler import SchedulerState
from .values import (
    BlockHash,
    Metadata,
    Outputs,
    Refusal,
    RequestId,
    RequestView,
    Result,
    StepOutput,
    Tokens,
)
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
    resident: tuple[BlockHash, ...] = ()
    """Names of the KV blocks that are cached, sorted; looked at from profile 0.33 on."""


class MaxCacheHit(NamedTuple):
    """``max_cache_hit(request)``, before the engine looks for the request's KV; from profile 0.33 on."""

    request: RequestView
    resident: tuple[BlockHash, ...]


class CapExternalHit(NamedTuple):
    """``cap_external_hit(request, num_local, num_external)``, of KV found elsewhere; from profile 0.33 on."""

    request: RequestView
    num_local: int
    num_external: int
    resident: tuple[BlockHash, ...]


class RequestLoading(NamedTuple):
    """``request_loading(request, num_tokens)``: the KV of its first tokens is being loaded; from profile 0.33 on."""

    request: RequestView
    num_tokens: int


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


HitCall = MaxCacheHit | CapExternalHit | RequestLoading
"""Calls about the KV that a request starts from."""
SchedulerCall = BuildConnectorMeta | TakeOutput | RequestFinished | HitCall | Reset | Unpack
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


def apply(
    profile: Profile, limits: Limits | None, state: Halves, call: Call, cache: KvCache | None = None
) -> tuple[Halves, Result]:
    """The spec's answer to one call: the next state and the result.

    Args:
        limits: the sizes of worker and store; None: there are none, and no call is theirs.
        cache: the KV cache that the scheduler connector was built with; None before profile 0.33.
    """
    if isinstance(call, Close):
        return Halves(), None
    if isinstance(call, BeginStep | PrepareOutput | ProcessOutput):
        assert limits is not None, "a call of a worker without limits"
        after, result = apply_worker(profile, limits, state.worker, call)
        return Halves(state.scheduler, after), result
    connector, result = apply_scheduler(profile, state.scheduler, call, cache)
    return Halves(connector, state.worker), result


def apply_scheduler(
    profile: Profile, state: SchedulerState, call: SchedulerCall, cache: KvCache | None = None
) -> tuple[SchedulerState, Result]:
    """The spec's answer to one call: the next state of the scheduler connector and the result."""
    if isinstance(call, Unpack):
        return state, released(profile, wire.unpack)(call.data, call.item_size)
    if isinstance(call, HitCall):
        assert cache is not None, "a call about KV without a KV cache"
        kept, result = _hit(state.kept, call, cache)
        return state._replace(kept=kept), result
    if profile.fails_requests:
        return _per_request(profile, state, call, cache)
    if isinstance(call, BuildConnectorMeta):
        build = released(profile, scheduler.build_connector_meta)
        return build(profile, state, call.scheduled, call.requests, cache)
    if isinstance(call, TakeOutput):
        return state, scheduler.take_output(call.request, call.outputs)
    if isinstance(call, RequestFinished):
        finish = released(profile, scheduler.request_finished)
        return finish(state, call.request, frozenset(call.resident), cache)
    return scheduler.reset(state), None


def _per_request(
    profile: Profile,
    state: SchedulerState,
    call: BuildConnectorMeta | TakeOutput | RequestFinished | Reset,
    cache: KvCache | None,
) -> tuple[SchedulerState, Result]:
    if isinstance(call, BuildConnectorMeta):
        return per_request.build_connector_meta(profile, state, call.scheduled, call.requests, cache)
    if isinstance(call, TakeOutput):
        return per_request.take_output(state, call.request, call.outputs)
    if isinstance(call, RequestFinished):
        return per_request.request_finished(state, call.request, frozenset(call.resident), cache)
    return per_request.reset(state), None


def _hit(kept: Retention, call: HitCall, cache: KvCache) -> tuple[Retention, Tokens | None]:
    if isinstance(call, RequestLoading):
        return retention.marked(cache, kept, call.request, call.num_tokens), None
    if isinstance(call, MaxCacheHit):
        kept, known = retention.max_cache_hit(cache, kept, call.request, frozenset(call.resident))
        return kept, Tokens(known)
    kept, loaded = retention.cap_external_hit(
        cache, kept, call.request, call.num_local, call.num_external, frozenset(call.resident)
    )
    return kept, Tokens(loaded)


def apply_worker(
    profile: Profile, limits: Limits, state: WorkerState, call: BeginStep | PrepareOutput | ProcessOutput
) -> tuple[WorkerState, Result]:
    """The spec's answer to one call: the next state of the worker connector and the result."""
    limits = limits._replace(profile=profile)
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
