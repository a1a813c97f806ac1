"""Consuming a step's output: tokens settle, a stop rule cuts, rows are taken, requests and turns end."""

from __future__ import annotations

from collections.abc import Callable

from ..calls import Call, TakeOutput
from ..values import Outputs, Refusal, RequestOutput, Result, Rows
from . import loading, worker_side
from .arrival import next_turn
from .events import Land
from .guards import require
from .kv_cache import finished
from .rows import activation_of, num_rejected, step_rows, with_activation, with_fresh_blocks
from .state import (
    EngineConfig,
    EngineRequest,
    EngineState,
    Entry,
    Step,
    append,
    view,
    with_new_hashes,
)
from .tampering import HASH_KINDS, tampered_outputs


def land(
    config: EngineConfig, state: EngineState, event: Land, call: Callable[[Call], Result]
) -> EngineState:
    """Consume the oldest step: request by request, in the order in which it was scheduled."""
    require(bool(state.in_flight), "ENV-LAND-1", "no step is in flight")
    hashes = any(tampered.kind in HASH_KINDS for tampered in state.tampered)
    require(not hashes, "ENV-TAMPER-1", "hash lists are corrupted at a launch, abort or preemption")
    flying = state.in_flight[0]
    loading.check_failures(config, state, flying, event)
    sampled, invalid = _sampled(config, state, flying, event), loading.on_invalid_kv(flying, event)
    state, right = _right_output(state, flying, sampled)
    right = tuple(output for output in right if output[0] not in invalid)
    state, outputs = worker_side.process_output(config, state, sampled, right, call, invalid)
    if outputs is None:
        return state
    seen = tampered_outputs(state, outputs)
    state = state._replace(in_flight=state.in_flight[1:])
    stops = dict(event.stop)
    for entry in flying.entries:
        request = state.request(entry.request_id)
        if request is None:
            continue
        request, stale = _drain(request, entry)
        state = state.with_request(request)
        dropped = entry.request_id in invalid or (stale and request.drop_stale_output)
        if entry.samples and not dropped:
            tokens = sampled[entry.request_id]
            state = _deliver(config, state, entry, stale, tokens, stops.get(entry.request_id), seen, call)
    return loading.failed(config, state, event, call)


def delivers(state: EngineState, entry: Entry) -> bool:
    """Whether the engine hands this entry's output on: its request lives and the output is not dropped."""
    request = state.request(entry.request_id)
    return request is not None and entry.samples and not request.drops_output


def _sampled(config: EngineConfig, state: EngineState, flying: Step, event: Land) -> dict[str, int]:
    """Tokens returned for each entry that samples, checked against its drafts and the stop rule."""
    given, stops = dict(event.sampled), dict(event.stop)
    entries = {entry.request_id: entry for entry in flying.entries if entry.samples}
    unknown = (given.keys() | stops.keys()) - entries.keys()
    require(not unknown, "ENV-FORM-1", f"{', '.join(sorted(unknown))} sampled nothing in this step")
    sampled = {name: given.get(name, 1) for name in entries}
    for name, count in sampled.items():
        most = entries[name].most_sampled
        require(
            1 <= count <= most, "ENV-LAND-2", f"{name} samples at most {most} tokens", config.removed_guards
        )
    for name, count in stops.items():
        require(1 <= count <= sampled[name], "ENV-FORM-1", f"{name} stops within its tokens")
        dropped = name in dict(event.failed) or not delivers(state, entries[name])
        require(not dropped, "ENV-FORM-1", f"the output of {name} is dropped")
    return sampled


def _right_output(state: EngineState, flying: Step, sampled: dict[str, int]) -> tuple[EngineState, Outputs]:
    """What a right worker returns for the step; it keeps nothing of output that the engine drops."""
    outputs: list[tuple[str, RequestOutput]] = []
    for entry in flying.entries:
        activation = activation_of(state, entry.request_id, entry.activation)
        tokens = sampled.get(entry.request_id, 0)
        # A rejected optimistic suffix leaves a gap, a session's dropped token an overlap.
        start = min(entry.token_start, len(activation.rows))
        request = state.request(entry.request_id)
        if request is None:
            continue
        rows = activation.rows[:start] + step_rows(entry, start, flying.generation)
        rows = rows[: len(rows) - num_rejected(entry, sampled)]
        if tokens and activation.emit_cursor <= len(rows):
            emitted = RequestOutput(activation.emit_cursor, rows[activation.emit_cursor :])
            outputs.append((entry.request_id, emitted))
        if not request.drops_output:
            state = with_activation(state, activation._replace(rows=rows))
    return state, tuple(outputs)


def _drain(request: EngineRequest, entry: Entry) -> tuple[EngineRequest, bool]:
    """Take the entry's tokens out of flight; whether its output is from before a preemption or a turn's end."""
    stale = request.num_stale_output_tokens > 0
    drained = request._replace(
        num_in_flight_tokens=request.num_in_flight_tokens - entry.num_tokens,
        num_stale_output_tokens=request.num_stale_output_tokens - (entry.num_tokens if stale else 0),
    )
    return drained, stale


def _deliver(
    config: EngineConfig,
    state: EngineState,
    entry: Entry,
    stale: bool,
    tokens: int,
    stop: int | None,
    outputs: Outputs | None,
    call: Callable[[Call], Result],
) -> EngineState:
    """Settle an entry's tokens, take its rows, and end the request or its turn if it stops."""
    request = state.request(entry.request_id)
    assert request is not None  # the caller has it
    request, stopped = _settle(config, request, entry, stale, tokens, stop)
    if entry.activation == request.activation:
        state = _with_named_blocks(config, state, request, entry)
    taken = call(TakeOutput(view(request, finished=stopped), outputs))
    state = _emitted(state.with_request(request), entry, taken)
    if not stopped:
        return state
    if request.session:
        # A turn that ends while its request is preempted: the engine removes it from the queue it was just put into.
        lost = request.status != "running" and not config.profile.resumes_sessions
        request = _end_turn(config, request)
        if request is not None:
            return state.with_request(request._replace(status="lost") if lost else request)
        request = state.request(entry.request_id)
        assert request is not None  # the record before its turn ended
    if isinstance(call(finished(config, state, request)), Refusal):
        return state
    return state._replace(
        requests=tuple(r for r in state.requests if r.request_id != entry.request_id),
        preempted=state.preempted - {entry.request_id},
    )


def _settle(
    config: EngineConfig,
    request: EngineRequest,
    entry: Entry,
    stale: bool,
    tokens: int,
    stop: int | None,
) -> tuple[EngineRequest, bool]:
    """Append the accepted tokens, cut by the stop rule or the maximum; roll rejected drafts back."""
    room = request.max_tokens - request.num_output_tokens
    kept = min(tokens, room, stop or tokens)
    stopped = kept == room or stop is not None
    rejected = entry.num_drafts - (tokens - 1)
    request = request._replace(
        tokens=append(request.tokens, request.tokens[-1][0], kept),
        num_output_tokens=request.num_output_tokens + kept,
    )
    if not stale:
        cut = tokens - kept if config.profile.resumes_sessions else 0
        request = request._replace(
            num_computed_tokens=request.num_computed_tokens - rejected - cut,
            num_output_placeholders=request.num_output_placeholders - rejected - kept - cut,
        )
    return with_new_hashes(request, config), stopped


def _with_named_blocks(
    config: EngineConfig, state: EngineState, request: EngineRequest, entry: Entry
) -> EngineState:
    """Asynchronous scheduling names a block as soon as its tokens settle, synchronous with the next step.

    From profile 0.33 on both do so where the step had drafts, and for the tokens of no step in flight.
    """
    later = config.profile.resumes_sessions
    if config.depth == 1 and not (later and entry.num_drafts):
        return state
    unsettled = request.num_in_flight_tokens if later else request.num_output_placeholders
    computed = request.num_computed_tokens - unsettled
    return with_fresh_blocks(state, request, computed, (), config.block_size)


def _emitted(state: EngineState, entry: Entry, taken: Result) -> EngineState:
    """Move the activation's emit cursor past the rows that were taken."""
    if not isinstance(taken, Rows):
        return state
    activation = activation_of(state, entry.request_id, entry.activation)
    cursor = activation.emit_cursor + len(taken.rows)
    return with_activation(state, activation._replace(emit_cursor=cursor))


def _end_turn(config: EngineConfig, session: EngineRequest) -> EngineRequest | None:
    """End a session's turn: drop its work in flight, resume from what is materialised. None: it was closed."""
    session = session._replace(
        num_computed_tokens=session.num_computed_tokens - session.num_output_placeholders,
        drop_stale_output=True,
        num_stale_output_tokens=session.num_in_flight_tokens,
        num_output_placeholders=0,
        has_drafts=False,
    )
    if not session.queue:
        return session._replace(status="waiting_for_chunk")
    update, *queue = session.queue
    session = session._replace(queue=tuple(queue))
    return None if update is None else next_turn(config, session, update)
