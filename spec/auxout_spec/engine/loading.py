"""KV that comes from elsewhere: asynchronous loads, and loads that fail.

A KV connector (an offload tier, a shared cache) may have KV that this engine lacks. A synchronous load is part of the
step that admits the request (``Launch.external``); its failure is known when that step lands. An asynchronous one
holds the request back until it is done. Either way the rows of the loaded positions stay where they were computed.
"""

from __future__ import annotations

from collections.abc import Callable

from ..calls import Call, RequestLoading
from ..values import Refusal, Result
from .admission import schedulable, with_prefix
from .events import Land, Load, Loaded
from .guards import require
from .kv_cache import finished
from .options import admissible, runs_on_load
from .rows import activation_of, new_blocks, with_activation
from .state import EngineConfig, EngineRequest, EngineState, Step, view


def load(
    config: EngineConfig, state: EngineState, event: Load, call: Callable[[Call], Result]
) -> EngineState:
    """KV behind a request's prefix hit starts to be loaded; the request waits with its blocks."""
    require(not state.paused, "ENV-LAUNCH-4", "the engine is paused", config.removed_guards)
    request = schedulable(config, state, event.request)
    require(admissible(request), "ENV-FORM-1", f"{event.request} already holds KV")
    request = with_prefix(config, state, request, None, event.tokens, call)
    fits = event.tokens >= 1 and request.num_computed_tokens <= request.num_tokens
    require(fits, "ENV-FORM-1", f"{event.tokens} tokens do not fit into {event.request}")
    if config.cache is not None:
        require(request.num_external_tokens > 0, "ENV-LOAD-3", f"rows of {event.request} are not known")
        call(RequestLoading(view(request), request.num_computed_tokens))
    return state.with_request(request._replace(status="waiting_for_kv"))


def loaded(
    config: EngineConfig, state: EngineState, event: Loaded, call: Callable[[Call], Result]
) -> EngineState:
    """The load is done: what is valid becomes resident, and the request waits to be scheduled from there.

    A whole prompt is loaded less its last token, which has to be computed.
    """
    request = state.request(event.request)
    require(request is not None, "ENV-FORM-1", f"there is no request {event.request}")
    assert request is not None  # for the type checker; ``require`` has raised
    require(request.status == "waiting_for_kv", "ENV-FORM-1", f"{event.request} loads nothing")
    if event.valid >= 0:
        _check_valid(
            config, event.request, request.num_computed_tokens, request.num_external_tokens, event.valid
        )
        request = request._replace(num_computed_tokens=event.valid)
    blocks = new_blocks(state, request, request.kv_rows, request.num_computed_tokens, config.block_size)
    computed = min(request.num_computed_tokens, request.num_tokens - 1)
    request = request._replace(
        status="waiting",
        num_computed_tokens=computed,
        num_external_tokens=0,
        kv_rows=request.kv_rows[:computed],
    )
    return state.with_request(request)._replace(resident=(*state.resident, *blocks))


def check_failures(config: EngineConfig, state: EngineState, flying: Step, event: Land) -> None:
    """Only loads of the step that lands fail, of requests that still run with them."""
    entries = {entry.request_id: entry for entry in flying.entries}
    for name, valid in event.failed:
        entry = entries.get(name)
        require(entry is not None, "ENV-FORM-1", f"{name} has no part in this step")
        assert entry is not None  # for the type checker; ``require`` has raised
        require(runs_on_load(state, entry), "ENV-FORM-1", f"nothing was loaded for {name} with this step")
        _check_valid(config, name, entry.token_start, entry.num_external_tokens, valid)


def on_invalid_kv(flying: Step, event: Land) -> frozenset[str]:
    """The requests of a landing step that were computed on KV that failed to load."""
    earlier = {entry.request_id for entry in flying.entries if entry.on_invalid_kv}
    return frozenset(earlier | {name for name, _ in event.failed})


def failed(
    config: EngineConfig, state: EngineState, event: Land, call: Callable[[Call], Result]
) -> EngineState:
    """Requests whose load failed end with an error, or go back to what is valid of their KV.

    Their blocks from there on leave the prefix cache. Output of theirs that is still in flight was computed on
    invalid KV and is dropped. Other requests that hit those blocks in the meantime are not sent back here; a real
    engine does that too.
    """
    for name, valid in event.failed:
        request = state.request(name)
        assert request is not None  # checked before
        gone = request.block_hashes[valid // config.block_size :]
        state = state._replace(
            resident=tuple(block for block in state.resident if block.block_hash not in gone),
            in_flight=tuple(_marked(step, name) for step in state.in_flight),
        )
        if event.recompute:
            state = _sent_back(state, request, valid)
        elif not isinstance(
            call(finished(config, state, request._replace(num_computed_tokens=valid))), Refusal
        ):
            state = state._replace(requests=tuple(r for r in state.requests if r.request_id != name))
    return state


def _check_valid(config: EngineConfig, name: str, end: int, external: int, valid: int) -> None:
    within = end - external <= valid < end
    require(within, "ENV-FORM-1", f"the load of {name} covers [{end - external}, {end})")
    whole = valid % config.block_size == 0
    require(whole, "ENV-LOAD-2", f"{valid} tokens of {name} are not whole blocks", config.removed_guards)


def _marked(step: Step, name: str) -> Step:
    """A later step in flight, computed on the same KV."""
    marked = (e._replace(on_invalid_kv=True) if e.request_id == name else e for e in step.entries)
    return step._replace(entries=tuple(marked))


def _sent_back(state: EngineState, request: EngineRequest, valid: int) -> EngineState:
    activation = activation_of(state, request.request_id, request.activation)
    state = with_activation(state, activation._replace(rows=activation.rows[:valid]))
    return state.with_request(
        request._replace(
            num_computed_tokens=valid,
            num_output_placeholders=0,
            num_stale_output_tokens=request.num_in_flight_tokens,
            drop_stale_output=True,
            has_drafts=False,
        )
    )
