"""Requests and chunks arrive; sessions turn over."""

from __future__ import annotations

from collections.abc import Callable

from .. import kernel
from ..calls import Call
from ..calls import Close as CloseCall
from ..values import Result
from .events import Add, Chunk, Close, End
from .guards import require
from .kv_cache import finished
from .state import EngineConfig, EngineRequest, EngineState, append, prefix, with_new_hashes


def add(config: EngineConfig, state: EngineState, event: Add, call: Callable[[Call], Result]) -> EngineState:
    """A request arrives and waits."""
    in_range = event.prompt >= 1 and event.start >= 0 and event.max_tokens >= 1 and bool(event.request)
    require(in_range, "ENV-FORM-1", "prompt and max_tokens are at least 1, start is at least 0")
    require(0 <= event.cut < event.prompt, "ENV-FORM-1", "a token of the prompt is left")
    only = not event.cut or (event.max_tokens == 1 and not event.session)
    require(only, "ENV-ADD-2", f"{event.request} is cut short but not only prefilled", config.removed_guards)
    require(state.request(event.request) is None, "ENV-FORM-1", f"{event.request} is in use")
    flying = any(e.request_id == event.request for s in state.in_flight for e in s.entries)
    require(
        not flying, "ENV-ADD-1", f"a step of an earlier {event.request} is in flight", config.removed_guards
    )
    request = EngineRequest(
        request_id=event.request,
        tokens=((event.text or event.request, event.prompt),),
        num_prompt_tokens=event.prompt,
        num_output_tokens=0,
        prompt_start=event.start,
        max_tokens=event.max_tokens,
        session=event.session,
        block_hashes=(),
    )
    request = _cut_short(with_new_hashes(request, config), event.cut)
    return state._replace(requests=(*state.requests, request))


def _cut_short(request: EngineRequest, cut: int) -> EngineRequest:
    """Drop prompt tokens, but not the hashes that they completed; what is sampled then need not be what was dropped."""
    if not cut:
        return request
    left = request.num_prompt_tokens - cut
    text = request.tokens[-1][0] + "'"
    return request._replace(tokens=append(prefix(request.tokens, left), text, 0), num_prompt_tokens=left)


def chunk(
    config: EngineConfig, state: EngineState, event: Chunk, call: Callable[[Call], Result]
) -> EngineState:
    """A session's next input starts its next turn, or waits for the current one to stop."""
    in_range = event.tokens >= 1 and event.start >= 0 and event.max_tokens >= 1
    require(in_range, "ENV-FORM-1", "tokens and max_tokens are at least 1, start is at least 0")
    request = _open_session(state, event.request)
    if request.status == "waiting_for_chunk":
        return state.with_request(next_turn(config, request, event))
    return state.with_request(request._replace(queue=(*request.queue, event)))


def end(config: EngineConfig, state: EngineState, event: End, call: Callable[[Call], Result]) -> EngineState:
    """The client closes a session: at once when it waits, else after the turn."""
    request = _open_session(state, event.request)
    if request.status != "waiting_for_chunk":
        return state.with_request(request._replace(queue=(*request.queue, None)))
    call(finished(config, state, request))
    return state._replace(requests=tuple(r for r in state.requests if r is not request))


def close(
    config: EngineConfig, state: EngineState, event: Close, call: Callable[[Call], Result]
) -> EngineState:
    """The engine shuts down with whatever it has under way; a fresh one starts."""
    require(config.limits is not None, "ENV-FORM-1", "there is no worker to close")
    require(event.restart, "ENV-FORM-1", "what was closed starts again")
    call(CloseCall())
    return EngineState()


def next_turn(config: EngineConfig, session: EngineRequest, event: Chunk) -> EngineRequest:
    """Start a session's next turn: drop the last sampled token, keep the others as prompt, add the chunk.

    Profile 0.31 keeps a hash that the dropped token completed; from 0.32 on the list is cut there. What of the others
    is not computed, as that of a session which was preempted, is dropped too before profile 0.33.
    """
    kept = session.num_computed_tokens
    if config.profile.resumes_sessions:
        kept = session.num_tokens - 1
    text = session.tokens[-1][0] + "'"
    hashes = session.block_hashes
    if config.profile.truncates_session_hashes:
        hashes = hashes[: kernel.num_full_blocks(kept, config.block_size)]
    turned = session._replace(
        tokens=append(prefix(session.tokens, kept), text, event.tokens),
        num_prompt_tokens=kept + event.tokens,
        num_output_tokens=0,
        prompt_start=event.start,
        max_tokens=event.max_tokens,
        block_hashes=hashes,
        status="waiting",
    )
    return with_new_hashes(turned, config)


def _open_session(state: EngineState, request_id: str) -> EngineRequest:
    request = state.request(request_id)
    require(request is not None, "ENV-FORM-1", f"there is no request {request_id}")
    assert request is not None  # for the type checker; ``require`` has raised
    still_open = request.session and None not in request.queue
    require(still_open, "ENV-CHUNK-1", f"{request_id} is not an open session")
    return request
