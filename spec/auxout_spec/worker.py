"""The worker connector: what it keeps of each request, and what it does before and after a forward pass.

Theory of operation. A request's rows arrive step by step. Its *capture cursor* is the next position to store:
rows fill a tail, full blocks are published under their key as soon as the scheduler connector has sent it. Its
*emit cursor* is the next position to return: when a step sampled something, the rows up to the step's end are
returned, from the step itself where it covers them, else from stored blocks and the tail. Steps are processed in
launch order while later ones are in flight, so a request that ended is torn down after its last step.

Speculative decoding schedules positions that may be rejected: a step that starts beyond the capture cursor is
legal where earlier steps had scheduled that far, and attaches at the cursor. Rows are opaque here (``Row`` values).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import kernel, store
from .profiles import LATEST, PROFILES, Profile
from .store import Block, Key, StoreState
from .values import BlockHash, Metadata, Outputs, Refusal, RequestId, RequestOutput, Row


class WorkerRequest(NamedTuple):
    """What the worker keeps of one activation."""

    emit_cursor: int
    keys: tuple[BlockHash, ...] = ()
    """Block hashes received, in order; the generation makes them keys."""
    pending: tuple[tuple[int, Block], ...] = ()
    """Full blocks that have no key yet: block number and rows."""
    tail: tuple[Row, ...] = ()
    """Rows of the incomplete block before the capture cursor."""
    capture_cursor: int = -1
    """Next position to store; -1 before the first step was processed."""
    scheduled_cursor: int = 0
    """End of the last processed step as it was scheduled, rejected drafts included."""
    num_in_flight: int = 0
    finished: bool = False
    """Ended; torn down when nothing is in flight."""
    failed: bool = False
    """Holds nothing more until it ends (``per_request``)."""
    turned: bool = False
    """Tokens at its end were replaced: where, its next step says."""
    num_stale: int = 0
    """How many of its steps in flight, from the first on, are of tokens that were replaced."""


class WorkerState(NamedTuple):
    """Everything the worker remembers between calls."""

    generation: int = 0
    requests: tuple[tuple[RequestId, WorkerRequest], ...] = ()
    """Sorted by id."""
    in_flight: tuple[tuple[RequestId, ...], ...] = ()
    """The steps that were prepared and not processed, in launch order."""
    store: StoreState = store.EMPTY
    num_void: int = 0
    """How many of the steps in flight, from the first on, are of an earlier generation (``per_request``)."""


class Part(NamedTuple):
    """One request's part of a step, as the model runner reports it."""

    request_id: RequestId
    token_start: int
    """First position as it was scheduled."""
    rows: tuple[Row, ...]
    """One row a scheduled token, rejected drafts included."""
    num_sampled: int
    num_rejected: int


class Limits(NamedTuple):
    """What the worker is built with."""

    block_size: int
    """Tokens per hash block."""
    capacity: int
    """Objects that the store may hold."""
    fails_requests: bool = False
    """Where a request is inconsistent it fails, and the call is answered, instead of being refused."""
    profile: Profile = PROFILES[LATEST]
    """How the store makes room, and where rows are read from."""


INITIAL = WorkerState()
Requests = dict[RequestId, WorkerRequest]


def begin_step(limits: Limits, state: WorkerState, metadata: Metadata) -> tuple[WorkerState, Refusal | None]:
    """Take in one step's metadata, before its forward pass (WORK-BEGIN-1 to WORK-BEGIN-5).

    A refusal leaves the state as it was.
    """
    refusal = _unacceptable(state, metadata)
    if refusal is not None:
        return state, refusal
    retain, release = held_by_scheduler(state.generation, metadata)
    requests, dropped = _namespace(state, metadata.generation)
    release += dropped
    for request_id, emit_start in metadata.requests:
        requests.setdefault(request_id, WorkerRequest(emit_start))
    retain += take_keys(metadata.generation, requests, metadata, release)
    for request_id in metadata.finished_requests:
        requests[request_id] = requests[request_id]._replace(finished=True)
    objects = publish(metadata.generation, requests, tuple(requests))
    ended = [name for name in metadata.finished_requests if not requests[name].num_in_flight]
    release += [key for name in ended for key in keys_backwards(metadata.generation, requests[name])]
    written = put(limits, state.store, objects, tuple(retain), tuple(release))
    if isinstance(written, Refusal):
        return state, written
    kept = {name: request for name, request in requests.items() if name not in ended}
    return WorkerState(metadata.generation, in_order(kept), state.in_flight, written), None


def held_by_scheduler(generation: int, metadata: Metadata) -> tuple[list[Key], list[Key]]:
    """The keys that the scheduler retains and releases with a message (WORK-RETAIN-1).

    Args:
        generation: the worker's before the message; the message's own hashes may be of a later one.
    """
    retain = [(generation, block_hash) for block_hash in metadata.retained_block_hashes]
    return retain, [(generation, block_hash) for block_hash in metadata.released_block_hashes]


def take_keys(generation: int, requests: Requests, metadata: Metadata, release: list[Key]) -> list[Key]:
    """Give requests the keys that metadata brings; those to retain (WORK-KEYS-1, -2).

    Where keys are taken anew, rows of tokens that no longer stand may be among those that wait for a key or are still
    in flight.

    Args:
        release: gets the keys that no longer stand.
    """
    retain: list[Key] = []
    for request_id, keys in _keys_after(requests, metadata):
        known = requests[request_id].keys
        kept = _num_common(known, keys)
        release += [(generation, block_hash) for block_hash in reversed(known[kept:])]
        retain += [(generation, block_hash) for block_hash in keys[kept:]]
        requests[request_id] = requests[request_id]._replace(keys=keys)
    for request_id, _ in metadata.replaced_block_hashes:
        num_stale = requests[request_id].num_in_flight
        requests[request_id] = requests[request_id]._replace(turned=True, num_stale=num_stale)
    return retain


def _keys_after(
    requests: Requests, metadata: Metadata
) -> tuple[tuple[RequestId, tuple[BlockHash, ...]], ...]:
    """The keys of each request whose keys change: those it had and the new ones, or all anew (WORK-KEYS-2)."""
    extended = {name: requests[name].keys + hashes for name, hashes in metadata.block_hashes}
    return tuple({**extended, **dict(metadata.replaced_block_hashes)}.items())


def _num_common(known: tuple[BlockHash, ...], keys: tuple[BlockHash, ...]) -> int:
    """How many keys two lists have in common, from the front."""
    pairs = zip(known, keys, strict=False)
    return next((n for n, (old, new) in enumerate(pairs) if old != new), min(len(known), len(keys)))


def _namespace(state: WorkerState, generation: int) -> tuple[Requests, list[Key]]:
    """The requests that live on in a generation, and the keys that the others held."""
    requests: Requests = dict(state.requests)
    if generation == state.generation:
        return requests, []
    return {}, [key for request in requests.values() for key in keys_backwards(state.generation, request)]


def prepare_output(
    state: WorkerState, request_ids: tuple[RequestId, ...]
) -> tuple[WorkerState, Refusal | None]:
    """Take the step's snapshot; it is in flight until it is processed (WORK-STEP-1)."""
    requests: Requests = dict(state.requests)
    if len(set(request_ids)) < len(request_ids):
        return state, Refusal("ENGINE-STEP-1", "a request is in the batch twice")
    for request_id in request_ids:
        request = requests.get(request_id)
        if request is None:
            return state, Refusal("WORK-STEP-2", f"{request_id} is in the batch, but no step began with it")
        requests[request_id] = request._replace(num_in_flight=request.num_in_flight + 1)
    return state._replace(requests=in_order(requests), in_flight=(*state.in_flight, request_ids)), None


def process_output(
    limits: Limits, state: WorkerState, parts: tuple[Part, ...], step: int = 0
) -> tuple[WorkerState, Outputs | Refusal]:
    """Store the oldest step's rows, then return what its requests are due (WORK-STEP-1, WORK-EMIT-1).

    The whole step is published before anything is returned, since a request may read what another has just
    written. A refusal leaves the state as it was.

    Args:
        step: the step's place among those in flight.
    """
    requests: Requests = dict(state.requests)
    names = sorted(part.request_id for part in parts)
    if step or not state.in_flight or sorted(state.in_flight[0]) != names:
        return state, Refusal("WORK-STEP-1", f"the step of {', '.join(names)} is not the oldest in flight")
    parts = without_stale(requests, parts)
    for part in parts:
        captured = capture(limits, requests[part.request_id], part)
        if isinstance(captured, Refusal):
            return state, captured
        requests[part.request_id] = captured
    objects = publish(state.generation, requests, [part.request_id for part in parts])
    held = put(limits, state.store, objects)
    if isinstance(held, Refusal):
        return state, held
    outputs: list[tuple[RequestId, RequestOutput]] = []
    for part in parts:
        request = requests[part.request_id]
        if part.num_sampled and request.emit_cursor <= request.capture_cursor:
            held, rows = emitted(limits, state.generation, held, request, part)
            if isinstance(rows, Refusal):
                return state, rows
            outputs.append((part.request_id, RequestOutput(request.emit_cursor, rows)))
            requests[part.request_id] = request._replace(emit_cursor=request.capture_cursor)
    return landed(limits, state, requests, held), tuple(outputs)


def _unacceptable(state: WorkerState, metadata: Metadata) -> Refusal | None:
    """Why metadata cannot be taken in."""
    both = {name for name, _ in metadata.requests} & set(metadata.finished_requests)
    if both:
        return Refusal("WORK-BEGIN-1", f"{', '.join(sorted(both))} runs and ends in one step")
    if metadata.generation < state.generation:
        return Refusal("WORK-BEGIN-2", f"generation {metadata.generation} follows {state.generation}")
    if metadata.generation > state.generation and state.in_flight:
        return Refusal("WORK-BEGIN-3", f"a generation starts with {len(state.in_flight)} steps in flight")
    known = dict(state.requests) if metadata.generation == state.generation else {}
    running = known.keys() | {name for name, _ in metadata.requests}
    named = (*dict(metadata.block_hashes), *dict(metadata.replaced_block_hashes), *metadata.finished_requests)
    for name in named:
        if name not in running:
            return Refusal("WORK-BEGIN-5", f"{name} gets hashes or ends, but no step began with it")
    for request_id, emit_start in metadata.requests:
        request = known.get(request_id)
        if request is not None and not request.num_in_flight and emit_start > request.emit_cursor:
            return Refusal(
                "WORK-BEGIN-4", f"{request_id}: emit start {emit_start} is beyond {request.emit_cursor}"
            )
    return None


def without_stale(requests: Requests, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts of a step but those whose tokens have been replaced since it was launched (WORK-KEYS-2)."""
    stale = {part.request_id for part in parts if requests[part.request_id].num_stale}
    for name in stale:
        requests[name] = requests[name]._replace(num_stale=requests[name].num_stale - 1)
    return tuple(part for part in parts if part.request_id not in stale)


def _turned_to(limits: Limits, request: WorkerRequest, start: int) -> WorkerRequest:
    """A request whose tokens from ``start`` on are others than before: without rows of these (WORK-KEYS-2).

    A block that was complete is not made incomplete again: there capture goes back (WORK-CAPTURE-2). Rows of dropped
    tokens that were returned did not count, so from ``start`` on rows are due again.
    """
    first = request.capture_cursor - len(request.tail)
    kept = tuple(entry for entry in request.pending if (entry[0] + 1) * limits.block_size <= start)
    request = request._replace(turned=False, pending=kept, emit_cursor=min(request.emit_cursor, start))
    if first <= start < request.capture_cursor:
        return request._replace(tail=request.tail[: start - first], capture_cursor=start)
    return request


def capture(limits: Limits, request: WorkerRequest, part: Part) -> WorkerRequest | Refusal:
    """Append a part's accepted rows at the capture cursor (WORK-CAPTURE-1 to WORK-CAPTURE-5)."""
    start = part.token_start
    request = _turned_to(limits, request, start) if request.turned else request
    cursor = request.capture_cursor if request.capture_cursor >= 0 else start
    refusal = _unattachable(limits, request, part, cursor)
    if refusal is not None:
        return refusal
    accepted = part.rows[: len(part.rows) - part.num_rejected]
    rows = request.tail + accepted
    first = cursor - len(request.tail)
    full = kernel.num_full_blocks(len(rows), limits.block_size)
    blocks = tuple(
        (
            (first // limits.block_size) + block,
            rows[block * limits.block_size : (block + 1) * limits.block_size],
        )
        for block in range(full)
    )
    return request._replace(
        pending=request.pending + blocks,
        tail=rows[full * limits.block_size :],
        capture_cursor=cursor + len(accepted),
        scheduled_cursor=start + len(part.rows),
    )


def _unattachable(limits: Limits, request: WorkerRequest, part: Part, cursor: int) -> Refusal | None:
    """Why a part's rows cannot be appended at the capture cursor."""
    name, start = part.request_id, part.token_start
    if not 0 <= part.num_rejected <= len(part.rows) or not part.rows:
        return Refusal("WORK-CAPTURE-5", f"{name}: {part.num_rejected} of {len(part.rows)} rows are rejected")
    if start < cursor:
        return Refusal("WORK-CAPTURE-2", f"{name}: capture goes back from {cursor} to {start}")
    if start > cursor >= request.scheduled_cursor:
        return Refusal("WORK-CAPTURE-3", f"{name}: capture skips [{cursor}, {start})")
    if not request.tail and cursor % limits.block_size:
        return Refusal("WORK-CAPTURE-4", f"{name}: capture starts at {cursor}, inside a block")
    return None


def put(
    limits: Limits,
    held: StoreState,
    objects: tuple[tuple[Key, Block], ...],
    retain: tuple[Key, ...] = (),
    release: tuple[Key, ...] = (),
) -> StoreState | Refusal:
    """One operation of the worker's store (WORK-RETAIN-2).

    A store that grows takes the last of several objects under one key; the worker gives it the first.
    """
    if limits.profile.store_grows:
        first: dict[Key, Block] = {}
        for key, rows in objects:
            first.setdefault(key, rows)
        objects = tuple(first.items())
    return store.put(held, limits.capacity, objects, retain, release, limits.profile.store_grows)


def publish(generation: int, requests: Requests, order: Iterable[RequestId]) -> tuple[tuple[Key, Block], ...]:
    """Take full blocks whose key has arrived out of the requests, as objects to write (WORK-PUBLISH-1).

    Args:
        order: whose come first: of two requests that computed a block in one step, the first one's rows stay.
    """
    objects: list[tuple[Key, Block]] = []
    for request_id in order:
        request = requests[request_id]
        ready = [(block, rows) for block, rows in request.pending if block < len(request.keys)]
        if ready and not request.turned:
            objects += [((generation, request.keys[block]), rows) for block, rows in ready]
            waiting = tuple(entry for entry in request.pending if entry not in ready)
            requests[request_id] = request._replace(pending=waiting)
    return tuple(objects)


def emitted(
    limits: Limits, generation: int, held: StoreState, request: WorkerRequest, part: Part
) -> tuple[StoreState, tuple[Row, ...] | Refusal]:
    """The rows from the emit to the capture cursor (WORK-EMIT-2, WORK-EMIT-3).

    They come from the step, or from stored blocks, full blocks that wait for their key (from profile 0.33 on), and the
    tail, in this order of positions.
    """
    start, end = request.emit_cursor, request.capture_cursor
    accepted = part.rows[: len(part.rows) - part.num_rejected]
    if start >= end - len(accepted):
        return held, accepted[start - (end - len(accepted)) :]
    size = limits.block_size
    stored_end = min(end // size, len(request.keys)) * size
    keys = tuple((generation, key) for key in request.keys[start // size : stored_end // size])
    held, stored = store.read(held, keys)
    if isinstance(stored, Refusal):
        return held, stored
    rest, first = request.tail, end - len(request.tail)
    if limits.profile.reads_unkeyed:
        rest = tuple(row for _, rows in request.pending for row in rows) + rest
        first = end - len(rest)
    begin = max(start, stored_end)
    if begin < first:
        return held, Refusal("WORK-EMIT-3", f"{part.request_id}: rows [{begin}, {first}) have no key yet")
    return held, stored[start % size :] + rest[begin - first :]


def landed(
    limits: Limits, state: WorkerState, requests: Requests, held: StoreState, release: tuple[Key, ...] = ()
) -> WorkerState:
    """Take the oldest step out of flight; tear down what ended and has nothing left in flight (WORK-TEAR-1).

    Args:
        release: keys that are released before those of requests that are torn down.
    """
    for request_id in state.in_flight[0]:
        request = requests[request_id]
        requests[request_id] = request = request._replace(num_in_flight=request.num_in_flight - 1)
        if request.finished and not request.num_in_flight:
            release += tuple(keys_backwards(state.generation, request))
            del requests[request_id]
    released = put(limits, held, (), (), release)
    assert isinstance(released, StoreState)  # releasing own references needs no room
    return WorkerState(state.generation, in_order(requests), state.in_flight[1:], released)


def keys_backwards(generation: int, request: WorkerRequest) -> list[Key]:
    """A request's keys, last first, so that the blocks of a prefix outlive those behind it."""
    return [(generation, block_hash) for block_hash in reversed(request.keys)]


def in_order(requests: Requests) -> tuple[tuple[RequestId, WorkerRequest], ...]:
    """Requests as a state has them, sorted by id."""
    return tuple(sorted(requests.items()))
