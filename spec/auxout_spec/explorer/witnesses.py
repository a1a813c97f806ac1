"""``Sometimes`` properties: what a model must have seen, so that its ``always`` properties say something.

Each is a predicate on one event: what happened, the engine before and after it, and the connector calls it made.
Where requests are stepped one by one (``lanes``) the engine holds one of them, so a predicate asks for no second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..calls import Exchange
from ..engine import (
    Abort,
    Add,
    Chunk,
    EngineRequest,
    EngineState,
    Event,
    Evict,
    Land,
    Launch,
    Load,
    Loaded,
    Preempt,
    Reset,
)
from ..engine.state import Entry
from ..values import Metadata, Rows, StepOutput
from ..worker import WorkerRequest


class Happened(NamedTuple):
    """One event with its surroundings."""

    event: Any
    before: EngineState
    after: EngineState
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True)
class Witness:
    """One sometimes-property of one kind of event."""

    name: str
    event: type
    holds: Callable[[Happened], bool]


def witnessed(
    event: Event, before: EngineState, after: EngineState, exchanges: tuple[Exchange, ...], known: int = 0
) -> int:
    """The witnesses that an event meets, as bits in the order of ``WITNESSES``; ``known`` ones are not tried."""
    happened, met = Happened(event, before, after, exchanges), 0
    for bit, witness in _BY_EVENT.get(type(event), ()):
        if not known & bit and witness.holds(happened):
            met |= bit
    return met


def names_of(met: int) -> tuple[str, ...]:
    """The names of witnesses, sorted."""
    return tuple(sorted(witness.name for n, witness in enumerate(WITNESSES) if met >> n & 1))


def _launched(it: Happened) -> Iterator[tuple[EngineRequest, Entry]]:
    """The requests that a launch scheduled, as they were before, with their part of the step."""
    if it.event.tokens and len(it.after.in_flight) > len(it.before.in_flight):
        for entry in it.after.in_flight[-1].entries:
            request = it.before.request(entry.request_id)
            assert request is not None  # it was scheduled
            yield request, entry


def _messages(it: Happened) -> Iterator[Metadata]:
    """What the scheduler connector sent."""
    return (result for _, result in it.exchanges if isinstance(result, Metadata))


def _hits(it: Happened) -> Iterator[tuple[EngineRequest, Entry]]:
    """Those of them that start from a prefix hit."""
    return ((r, entry) for r, entry in _launched(it) if not r.num_computed_tokens and entry.token_start)


def _landed(it: Happened) -> Iterator[tuple[EngineRequest, Entry]]:
    """The live requests of a landing, as they were before, with their part of the step."""
    for entry in it.before.in_flight[0].entries:
        request = it.before.request(entry.request_id)
        if request is not None:
            yield request, entry


def _metadata(it: Happened) -> Metadata:
    return next((e.result for e in it.exchanges if isinstance(e.result, Metadata)), Metadata(0, (), (), ()))


def _kept(engine: EngineState) -> dict[str, WorkerRequest]:
    return dict(engine.worker.requests)


def _hit_of_another(it: Happened) -> bool:
    blocks = {block.block_hash: block for block in it.before.resident}
    return any(
        row.request not in ("", request.request_id)
        for request, entry in _hits(it)
        for block_hash in request.block_hashes
        if block_hash in blocks
        for row in blocks[block_hash].rows
        if row.position < entry.token_start
    )


def _hit_recomputes_block(it: Happened) -> bool:
    """A fully cached prompt: all its blocks are resident, and the last is computed again."""
    known = {block.block_hash for block in it.before.resident}
    return any(
        known.issuperset(request.block_hashes) and entry.token_start < len(request.block_hashes) * 2
        for request, entry in _hits(it)
    )


def _computes_resident_block(it: Happened) -> bool:
    """A whole block is computed that another request has computed, or is just computing."""
    return any(
        entry.token_start <= block.rows[0].position
        and block.rows[-1].position < entry.token_start + entry.num_tokens
        for request, entry in _launched(it)
        for block in it.before.resident
        if block.rows and block.block_hash in request.block_hashes
    )


def _external_of_known_rows(it: Happened) -> bool:
    """KV is loaded from elsewhere, and the rows that it was computed with are in the store."""
    stored = {block_hash for (_, block_hash), _ in it.before.worker.store.objects}
    return any(
        entry.num_external_tokens and stored.issuperset(request.block_hashes[: entry.token_start // 2])
        for request, entry in _launched(it)
    )


def _hash_of_dropped_token(it: Happened) -> bool:
    """A hash is sent that a token completed which the request no longer has."""
    told = {name for name, _ in _metadata(it).block_hashes}
    return any(r.request_id in told and len(r.block_hashes) * 2 > r.num_tokens for r in it.before.requests)


def _hash_only(it: Happened) -> bool:
    metadata = _metadata(it)
    told = {name for name, _ in metadata.block_hashes}
    return bool(told - {name for name, _ in metadata.requests} - set(metadata.finished_requests))


def _late_key(it: Happened) -> bool:
    """A block that waited for its key is published by a launch."""
    after = _kept(it.after)
    return any(
        kept.pending and name in after and len(after[name].pending) < len(kept.pending)
        for name, kept in it.before.worker.requests
    )


def _generation_kept_alive(it: Happened) -> bool:
    """The worker meets a new generation while a request that has output goes on."""
    new = it.after.worker.generation > it.before.worker.generation
    return new and any(request.num_output_tokens for request in it.after.requests)


def _evicted(it: Happened) -> bool:
    """The store made room."""
    return bool(dict(it.before.worker.store.objects).keys() - dict(it.after.worker.store.objects).keys())


def _refilled(it: Happened) -> bool:
    """A block whose KV was evicted is computed again while the store has the rows of before."""
    held = {key for _, key in dict(it.before.worker.store.objects)}
    before = {block.block_hash for block in it.before.resident}
    return any(block.block_hash in held - before for block in it.after.resident)


def _takes(it: Happened) -> Iterator[Any]:
    return (exchange for exchange in it.exchanges if hasattr(exchange.call, "outputs"))


def _pending(it: Happened) -> bool:
    return any(kept.pending for _, kept in it.after.worker.requests)


def _reattached(it: Happened) -> bool:
    """Drafts were rejected, so the next step's rows attach before the position it was scheduled at."""
    kept = _kept(it.before)
    return any(
        0 <= kept[entry.request_id].capture_cursor < entry.token_start
        for _, entry in _landed(it)
        if entry.request_id in kept
    )


def _torn_down(it: Happened) -> bool:
    """A teardown that waited for the last step in flight."""
    kept = {name for name, request in it.before.worker.requests if request.finished}
    return bool(kept - _kept(it.after).keys())


def _from_store(it: Happened) -> bool:
    """Rows are delivered that the step itself did not compute."""
    sizes = {entry.request_id: entry.num_tokens for entry in it.before.in_flight[0].entries}
    taken = [e for e in _takes(it) if isinstance(e.result, Rows)]
    return any(len(e.result.rows) > sizes[e.call.request.request_id] for e in taken)


def _stale(it: Happened, dropped: bool) -> bool:
    return any(
        request.num_stale_output_tokens > 0 and entry.samples and request.drop_stale_output is dropped
        for request, entry in _landed(it)
    )


def _reset_done(it: Happened) -> bool:
    return it.after.connector.generation > it.before.connector.generation


def _known_before(it: Happened) -> bool:
    """The id is used again: something of its predecessor is still to be seen."""
    rows = [row for block in it.before.resident for row in block.rows]
    return any(row.request == it.event.request for row in rows)


def _flies(it: Happened, session: bool = False) -> bool:
    request = it.before.request(it.event.request)
    return request is not None and request.num_in_flight_tokens > 0 and request.session >= session


def _status(engine: EngineState, status: str) -> bool:
    return any(request.status == status for request in engine.requests)


# One row per line: these are read as a table.
# fmt: off
WITNESSES: tuple[Witness, ...] = (
    Witness("id used again", Add, _known_before),
    Witness("id used again before its event was delivered", Add, lambda it: it.event.request in dict(it.before.connector.ended)),
    Witness("prompt cut short", Add, lambda it: it.event.cut > 0),
    Witness("prompt cut short of its start", Add, lambda it: it.event.cut > 0 and it.event.prompt - it.event.cut < it.event.start),
    Witness("prefix hit", Launch, lambda it: any(True for _ in _hits(it))),
    Witness("hit in mid-conversation", Launch, lambda it: any(r.num_output_tokens for r, _ in _hits(it))),
    Witness("hit of another request's rows", Launch, _hit_of_another),
    Witness("hit that recomputes a resident block", Launch, _hit_recomputes_block),
    Witness("hit ignored", Launch, lambda it: bool(it.event.hits)),
    Witness("external hit", Launch, lambda it: bool(it.event.external)),
    Witness("external hit of known rows", Launch, _external_of_known_rows),
    Witness("external hit behind a local one", Launch, lambda it: any(e.token_start > e.num_external_tokens > 0 for _, e in _launched(it))),
    Witness("external hit after a preemption", Launch, lambda it: any(e.num_external_tokens and r.status == "preempted" for r, e in _launched(it))),
    Witness("scheduled after a load", Launch, lambda it: any(r.kv_rows for r, _ in _launched(it))),
    Witness("hash of a dropped token sent", Launch, _hash_of_dropped_token),
    Witness("resident block computed again", Launch, _computes_resident_block),
    Witness("chunk of a prefill", Launch, lambda it: any(not e.samples for _, e in _launched(it))),
    Witness("decode on a token in flight", Launch, lambda it: any(r.num_output_placeholders for r, _ in _launched(it))),
    Witness("drafts launched", Launch, lambda it: bool(it.event.drafts)),
    Witness("resumed after a preemption", Launch, lambda it: any(r.status == "preempted" for r, _ in _launched(it))),
    Witness("hash-only update", Launch, _hash_only),
    Witness("request failed alone", Land, lambda it: any(output.failed for e in it.exchanges if isinstance(e.result, StepOutput) for _, output in e.result.outputs)),
    Witness("replaced hashes sent again", Launch, lambda it: bool(_metadata(it).replaced_block_hashes)),
    Witness("late key", Launch, _late_key),
    Witness("terminal event in an empty step", Launch, lambda it: not it.event.tokens and bool(_metadata(it).finished_requests)),
    Witness("deferred teardown", Launch, lambda it: any(kept.finished for _, kept in it.after.worker.requests)),
    Witness("generation change with a request kept alive", Launch, _generation_kept_alive),
    Witness("object evicted at a launch", Launch, _evicted),
    Witness("evicted KV computed again", Launch, _refilled),
    Witness("object evicted at a landing", Land, _evicted),
    Witness("load failed, the request ends", Land, lambda it: bool(it.event.failed) and not it.event.recompute),
    Witness("load failed, the request goes back", Land, lambda it: bool(it.event.failed) and it.event.recompute),
    Witness("stale output delivered", Land, lambda it: _stale(it, dropped=False)),
    Witness("stale output dropped", Land, lambda it: _stale(it, dropped=True)),
    Witness("output of an aborted request", Land, lambda it: any(it.before.request(e.request_id) is None for e in it.before.in_flight[0].entries)),
    Witness("drafts accepted", Land, lambda it: any(n > 1 for _, n in it.event.sampled)),
    Witness("rejected suffix reattached", Land, _reattached),
    Witness("stopped before the maximum", Land, lambda it: bool(it.event.stop)),
    Witness("accepted drafts cut by a stop", Land, lambda it: bool(dict(it.event.stop).keys() & dict(it.event.sampled).keys())),
    Witness("pending block", Land, _pending),
    Witness("teardown at the last step", Land, _torn_down),
    Witness("rows from the store", Land, _from_store),
    Witness("no rows", Land, lambda it: any(e.result == Rows(()) for e in _takes(it))),
    Witness("turn ended with output in flight", Land, lambda it: any(r.drop_stale_output and r.num_stale_output_tokens for r in it.after.requests)),
    Witness("turn ended while preempted", Land, lambda it: _status(it.after, "lost")),
    Witness("load begun after a preemption", Load, lambda it: any(r.request_id == it.event.request and r.status == "preempted" for r in it.before.requests)),
    Witness("whole prompt loaded", Loaded, lambda it: any(r.request_id == it.event.request and r.num_computed_tokens == r.num_tokens for r in it.before.requests)),
    Witness("load failed, part of it is valid", Loaded, lambda it: it.event.valid > 0),
    Witness("load failed, nothing of it is valid", Loaded, lambda it: it.event.valid == 0),
    Witness("aborted while its KV is loaded", Abort, lambda it: any(r.request_id == it.event.request and r.status == "waiting_for_kv" for r in it.before.requests)),
    Witness("aborted before its first step", Abort, lambda it: it.event.request not in dict(it.before.connector.active)),
    Witness("aborted in flight", Abort, _flies),
    Witness("preempted in flight", Preempt, _flies),
    Witness("session preempted in flight", Preempt, lambda it: _flies(it, session=True)),
    Witness("KV evicted", Evict, lambda it: True),
    Witness("reset done", Reset, _reset_done),
    Witness("reset failed", Reset, lambda it: not _reset_done(it)),
    Witness("reset failed after it preempted", Reset, lambda it: not _reset_done(it) and _status(it.before, "running") and _status(it.after, "preempted")),
    Witness("reset failed while KV is loaded", Reset, lambda it: not _reset_done(it) and _status(it.before, "waiting_for_kv")),
    Witness("reset with a request kept alive", Reset, lambda it: _reset_done(it) and any(r.num_output_tokens for r in it.after.requests)),
    Witness("reset drops a terminal event", Reset, lambda it: _reset_done(it) and bool(it.before.connector.ended)),
    Witness("weights updated", Reset, lambda it: _reset_done(it) and it.event.weights),
    Witness("chunk queued", Chunk, lambda it: any(r.queue for r in it.after.requests)),
    Witness("turn resumed", Chunk, lambda it: not any(r.queue for r in it.after.requests)),
    Witness("block retained", Launch, lambda it: any(m.retained_block_hashes for m in _messages(it))),
    Witness("block released", Launch, lambda it: any(m.released_block_hashes for m in _messages(it))),
    Witness("store grown", Land, lambda it: it.after.worker.store.grown > it.before.worker.store.grown),
)
# fmt: on

_BY_EVENT: dict[type, list[tuple[int, Witness]]] = {}
for _number, _witness in enumerate(WITNESSES):
    _BY_EVENT.setdefault(_witness.event, []).append((1 << _number, _witness))
