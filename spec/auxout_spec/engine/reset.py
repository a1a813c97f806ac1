"""What takes KV away: aborts, preemptions, evictions and prefix-cache resets."""

from __future__ import annotations

from collections.abc import Callable

from .. import kernel
from ..calls import Call
from ..calls import Reset as ResetCall
from ..values import BlockHash, Refusal, Result
from .events import Abort, Evict, Pause, Preempt, Reset
from .guards import require
from .kv_cache import finished
from .rows import activation_of
from .state import Block, EngineConfig, EngineRequest, EngineState


def abort(
    config: EngineConfig, state: EngineState, event: Abort, call: Callable[[Call], Result]
) -> EngineState:
    """A request ends now; its output in flight will find nobody."""
    request = state.request(event.request)
    require(request is not None, "ENV-FORM-1", f"there is no request {event.request}")
    assert request is not None  # for the type checker; ``require`` has raised
    call(finished(config, state, request, corrupted=True))
    return state._replace(
        requests=tuple(r for r in state.requests if r.request_id != event.request),
        preempted=state.preempted - {event.request},
    )


def preempt(
    config: EngineConfig, state: EngineState, event: Preempt, call: Callable[[Call], Result]
) -> EngineState:
    """A running request loses its KV; its output in flight is delivered when it lands."""
    request = state.request(event.request)
    require(request is not None, "ENV-FORM-1", f"there is no request {event.request}")
    assert request is not None  # for the type checker; ``require`` has raised
    running = request.status == "running"
    require(running, "ENV-PREEMPT-1", f"{event.request} is not running", config.removed_guards)
    state = _preempted(config, state, request, drop=False, call=call)
    return state._replace(preempted=state.preempted | {event.request})


def evict(
    config: EngineConfig, state: EngineState, event: Evict, call: Callable[[Call], Result]
) -> EngineState:
    """Unreferenced blocks leave the KV cache."""
    held = set[BlockHash]() if "ENV-EVICT-1" in config.removed_guards else _held(config, state)

    def goes(block: Block) -> bool:
        return block.block_hash not in held and event.block in ("*", block.name)

    named = any(event.block in ("*", block.name) for block in state.resident)
    require(named, "ENV-FORM-1", f"no resident block is {event.block}")
    require(any(map(goes, state.resident)), "ENV-EVICT-1", f"requests hold what {event.block} names")
    return state._replace(resident=tuple(block for block in state.resident if not goes(block)))


def _held(config: EngineConfig, state: EngineState) -> set[BlockHash]:
    """Names of the blocks that requests have filled and keep; a copy that another one left may go any time before."""
    held: set[BlockHash] = set()
    for request in state.requests:
        settled = request.num_computed_tokens - request.num_output_placeholders
        held.update(request.block_hashes[: kernel.num_full_blocks(settled, config.block_size)])
    return held


def pause(
    config: EngineConfig, state: EngineState, event: Pause, call: Callable[[Call], Result]
) -> EngineState:
    """Scheduling stops or starts again; requests stay."""
    return state._replace(paused=event.on)


def reset(
    config: EngineConfig, state: EngineState, event: Reset, call: Callable[[Call], Result]
) -> EngineState:
    """Reset the prefix cache, first preempting the running requests if asked; held KV makes it fail."""
    require(not state.tampered, "ENV-TAMPER-1", "nothing is corrupted at a reset")
    require(not (event.running and event.kept), "ENV-FORM-1", "requests are preempted or kept, not both")
    if event.running:
        drained = not any(request.num_in_flight_tokens for request in state.requests)
        allowed = (state.paused and drained) or not config.profile.guards_running_reset
        require(allowed, "ENV-RESET-1", "the engine runs or has output in flight", config.removed_guards)
        for request in reversed(state.requests):
            if request.status == "running":
                state = _preempted(config, state, request, drop=True, call=call)
    if event.kept:
        require(not state.in_flight, "ENV-RESET-2", "output is in flight", config.removed_guards)
    elif any(request.holds_kv or request.status == "running" for request in state.requests):
        return state
    call(ResetCall())
    forgotten = tuple(_forgotten(state, request) for request in state.requests)
    updates = state.num_weight_updates + event.weights
    return state._replace(requests=forgotten, resident=(), num_weight_updates=updates)


def _forgotten(state: EngineState, request: EngineRequest) -> EngineRequest:
    """A request whose activation ended with the generation; the rows behind KV it keeps stay what they are."""
    if request.activation < 0:
        return request
    rows = activation_of(state, request.request_id, request.activation).rows
    return request._replace(activation=-1, kv_rows=rows, has_drafts=False)


def _preempted(
    config: EngineConfig,
    state: EngineState,
    request: EngineRequest,
    drop: bool,
    call: Callable[[Call], Result],
) -> EngineState:
    """Take a running request's KV and end its activation; ``drop`` discards its output in flight."""
    refused = call(finished(config, state, request, ended=False, corrupted=True))
    if isinstance(refused, Refusal):
        return state
    dropped = request.drop_stale_output and request.num_stale_output_tokens > 0
    return state.with_request(
        request._replace(
            status="preempted",
            num_computed_tokens=0,
            num_output_placeholders=0,
            num_stale_output_tokens=request.num_in_flight_tokens,
            drop_stale_output=drop or dropped,
            activation=-1,
            has_drafts=False,
        )
    )
