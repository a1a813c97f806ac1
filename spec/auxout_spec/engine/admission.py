"""Scheduling a step: who may run, how far, and what the step starts from."""

from __future__ import annotations

from collections.abc import Callable

from ..calls import BuildConnectorMeta, Call
from ..values import BlockHash, Metadata, RequestId, Result
from . import worker_side
from .events import Launch
from .guards import permit, require
from .kv_cache import bound_hit, bound_load
from .options import (
    admissible,
    as_admitted,
    filled_blocks,
    forbidden,
    num_hit,
    step_forbidden,
    takes_drafts,
)
from .rows import hit_rows, with_fresh_blocks
from .state import (
    Activation,
    EngineConfig,
    EngineRequest,
    EngineState,
    Entry,
    Step,
    scheduled_tokens,
    view,
)
from .tampering import tampered_entries, tampered_view


def launch(
    config: EngineConfig, state: EngineState, event: Launch, call: Callable[[Call], Result]
) -> EngineState:
    """Schedule a step and build its metadata; a step without requests is not in flight."""
    _check_step(config, state, event)
    hits, external, drafts = dict(event.hits), dict(event.external), dict(event.drafts)
    filled: frozenset[BlockHash] = frozenset()
    for name, num_tokens in event.tokens:
        request = schedulable(config, state, name)
        request = _admitted(config, state, request, hits.get(name), external.get(name, 0), call, filled)
        _check_tokens(config, request, num_tokens, drafts.get(name, 0))
        state = state.with_request(request._replace(status="running"))
        num_left = request.num_uncomputed_tokens - num_tokens
        filled = filled.union(filled_blocks(config, request, num_left))
    views = tuple(tampered_view(state, view(request)) for request in state.requests)
    metadata = call(BuildConnectorMeta(event.tokens, views))
    if not isinstance(metadata, Metadata):
        return state
    state, starts = state._replace(preempted=frozenset()), dict(metadata.requests)
    entries: list[Entry] = []
    for name, num_tokens in event.tokens:
        state = _activate(config, state, name, starts[name])
        state, entry = _advance(config, state, metadata, name, num_tokens, drafts.get(name, 0))
        entries.append(entry)
    reported = tampered_entries(state, tuple(entries))
    state = worker_side.begin_step(config, state, metadata, reported, call)
    if not entries:
        return state
    return state._replace(in_flight=(*state.in_flight, Step(metadata.generation, reported)))


def _check_step(config: EngineConfig, state: EngineState, event: Launch) -> None:
    permit(step_forbidden(config, state) if event.tokens else None)
    names = [request_id for request_id, _ in event.tokens]
    require(len(set(names)) == len(names), "ENV-FORM-1", "a request is scheduled twice in one step")
    extra = {name for counts in (event.drafts, event.hits, event.external) for name, _ in counts}
    require(extra <= set(names), "ENV-FORM-1", "drafts or hits of a request that is not scheduled")


def schedulable(config: EngineConfig, state: EngineState, request_id: RequestId) -> EngineRequest:
    """A request that the scheduler may take up now."""
    request = state.request(request_id)
    require(request is not None, "ENV-FORM-1", f"there is no request {request_id}")
    assert request is not None  # for the type checker; ``require`` has raised
    permit(forbidden(config, state, request))
    return request


def _admitted(
    config: EngineConfig,
    state: EngineState,
    request: EngineRequest,
    hit: int | None,
    external: int,
    call: Callable[[Call], Result],
    filled: frozenset[BlockHash],
) -> EngineRequest:
    """The request as it enters the step; one without KV starts from its prefix hit and what is loaded behind it.

    Args:
        filled: hashes of the blocks that the requests before it in this step fill; it can hit them too.
    """
    name, removed = request.request_id, config.removed_guards
    if admissible(request):
        return with_prefix(config, state, request, hit, external, call, filled)
    require(not hit, "ENV-HIT-1", f"{name} already holds KV")
    require(not external, "ENV-LOAD-1", f"{name} already holds KV", removed)
    return request._replace(num_computed_tokens=request.num_computed_tokens + external)


def with_prefix(
    config: EngineConfig,
    state: EngineState,
    request: EngineRequest,
    hit: int | None,
    external: int,
    call: Callable[[Call], Result],
    filled: frozenset[BlockHash] = frozenset(),
) -> EngineRequest:
    """A request that is given the KV of a prefix: resident blocks, and what is loaded from elsewhere behind them.

    Args:
        hit: tokens it hits; None for the longest prefix that was resident before the step.
        filled: hashes of blocks that can be hit too.
    """
    request = as_admitted(config, request)
    bound_hit(config, state, request, filled, call)
    tokens = num_hit(config, state, request) if hit is None else hit
    longest = num_hit(config, state, request, filled)
    whole = tokens % config.block_size == 0 and 0 <= tokens <= longest
    require(
        whole, "ENV-HIT-1", f"{request.request_id} can hit at most {longest} tokens", config.removed_guards
    )
    require(external >= 0, "ENV-FORM-1", "fewer than no tokens are loaded")
    can_load = config.cache is None or config.kv_connector or not external
    require(can_load, "ENV-LOAD-3", f"KV of {request.request_id} comes from nowhere")
    external = bound_load(config, state, request, tokens, external, filled, call)
    return request._replace(
        num_computed_tokens=tokens + external,
        num_external_tokens=external,
        kv_rows=hit_rows(state, request, config.block_size, tokens, external),
    )


def _check_tokens(config: EngineConfig, request: EngineRequest, num_tokens: int, drafts: int) -> None:
    lacks = request.num_uncomputed_tokens
    name, removed = request.request_id, config.removed_guards
    fits = 1 <= num_tokens <= lacks + drafts and drafts >= 0
    whole = drafts == 0 or (takes_drafts(request, lacks) and num_tokens == 1 + drafts)
    require(fits and whole, "ENV-LAUNCH-2", f"{name} lacks {lacks} tokens", removed)


def _activate(
    config: EngineConfig, state: EngineState, request_id: RequestId, emit_start: int
) -> EngineState:
    """The worker starts an activation of a scheduled request that it does not know."""
    request = state.request(request_id)
    assert request is not None  # checked on admission
    if request.activation >= 0:
        return state
    used = {a.number for a in state.activations if a.request_id == request_id}
    number = next(n for n in range(len(used) + 1) if n not in used)
    computed, external = request.num_computed_tokens, request.num_external_tokens
    rows = request.kv_rows[:computed]
    if len(rows) < computed:
        # It hits blocks that requests before it fill in this step, whose rows are known only now.
        rows = hit_rows(state, request, config.block_size, computed - external, external)
    started = Activation(request_id, number, emit_start, rows)
    state = state.with_request(request._replace(activation=number, kv_rows=()))
    return state._replace(activations=(*state.activations, started))


def _advance(
    config: EngineConfig,
    state: EngineState,
    metadata: Metadata,
    request_id: RequestId,
    num_tokens: int,
    drafts: int,
) -> tuple[EngineState, Entry]:
    """Count the scheduled tokens as computed and in flight, as the engine does before the step has run."""
    request = state.request(request_id)
    assert request is not None  # checked on admission
    computed = request.num_computed_tokens + num_tokens
    samples = computed >= request.num_tokens + request.num_output_placeholders
    start, external = request.num_computed_tokens, request.num_external_tokens
    entry = Entry(
        request_id, start, num_tokens, drafts, samples, request.activation, request.num_launches, external
    )
    entry = entry._replace(tokens=scheduled_tokens(request.tokens, computed))
    if drafts and not request.has_drafts:
        entry = entry._replace(fills_up=True)
    request = request._replace(
        num_computed_tokens=computed,
        num_in_flight_tokens=request.num_in_flight_tokens + num_tokens,
        num_output_placeholders=request.num_output_placeholders + (1 + drafts if samples else 0),
        num_external_tokens=0,
        num_launches=request.num_launches + 1,
        has_drafts=request.has_drafts or samples,
    )
    launched = ((metadata.generation, entry),)
    state = with_fresh_blocks(state, request, computed, launched, config.block_size)
    return state.with_request(request), entry
