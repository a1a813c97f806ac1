"""What must hold in every state, whatever happened before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ..calls import Exchange, TakeOutput
from ..deviations import Deviation
from ..engine import EngineConfig, EngineState, Event, Launch
from ..engine.options import num_known_blocks
from ..engine.rows import text_at
from ..engine.state import longest_hit, view
from ..scheduler import is_replaced
from ..values import BlockHash, Rows


class Broken(NamedTuple):
    """A property that does not hold."""

    clause: str
    message: str


def broken_property(config: EngineConfig, engine: EngineState) -> Broken | None:
    """The first property that a state breaks."""
    if engine.problem is not None:
        return Broken(*engine.problem)
    if config.limits is None:
        return None
    found = _keys(config, engine) or _references(engine) or _capacity(config, engine) or _idle(engine)
    return found or _objects(config, engine) or _resident(config, engine)


def broken_cover(config: EngineConfig, before: EngineState, exchanges: tuple[Exchange, ...]) -> Broken | None:
    """What a landing delivers continues what was delivered before, without gap or overlap (WORK-EMIT-1).

    A request without outputs is due everything from its prompt start; one with ``n`` tokens and some outputs has
    had the rows up to ``n - 1``. A session's turns continue each other unless it was preempted, so it is left out.
    """
    for call, result in exchanges:
        if not isinstance(call, TakeOutput) or not isinstance(result, Rows):
            continue
        request = before.request(call.request.request_id)
        assert request is not None  # its output was taken
        start = request.prompt_start
        if config.profile.clamps_prompt_start:
            start = min(start, request.num_prompt_tokens)
        if request.num_output_tokens:
            start = max(start, request.num_tokens - 1)
        positions = [row.position for row in result.rows]
        due = list(range(start, call.request.num_tokens - 1))
        if not request.session and positions != due:
            return Broken("WORK-EMIT-1", f"{request.request_id} got rows {positions}, due were {due}")
    return None


def broken_hit(config: EngineConfig, before: EngineState, event: Event, after: EngineState) -> Broken | None:
    """Of KV found elsewhere, the whole blocks whose rows are known are loaded (HIT-CUT-1).

    Only of loads that are part of a step; the models of such engines have no others.
    """
    if not config.profile.gives_up_hits or not isinstance(event, Launch) or not event.external:
        return None
    loaded = {entry.request_id: entry.num_external_tokens for entry in after.in_flight[-1].entries}
    for name, external in event.external:
        request = before.request(name)
        assert request is not None  # it was scheduled
        hit = longest_hit(request, before.resident_hashes, config.block_size)
        known = num_known_blocks(before, request)
        usable = min((hit + external) // config.block_size, known) * config.block_size - hit
        if loaded[name] < usable:
            return Broken("HIT-CUT-1", f"{name} loads {loaded[name]} tokens, {usable} could be")
    return None


def _keys(config: EngineConfig, engine: EngineState) -> Broken | None:
    """The worker's keys of a live request are a prefix of its hash list (WORK-KEYS-1).

    Where a session's next turn has replaced hashes, the next step that schedules it says so (SCHED-HASH-12).
    """
    if engine.worker.generation != engine.connector.generation:
        return None
    active = dict(engine.connector.active)
    ended = {request_id for request_id, _ in engine.connector.ended}
    unsaid = Deviation.REPLACED_HASH_UNNOTICED in config.profile.deviations
    for name, kept in engine.worker.requests:
        request = engine.request(name)
        if request is None or name not in active or name in ended or kept.finished:
            continue
        due = not unsaid and is_replaced(view(request), active[name], scheduled=True)
        if due and request.num_in_flight_tokens == request.num_stale_output_tokens:
            continue  # no step of this turn has begun
        if kept.keys != request.block_hashes[: len(kept.keys)]:
            return Broken("WORK-KEYS-1", f"the worker's keys of {name} are not a prefix of its hashes")
    return None


def _references(engine: EngineState) -> Broken | None:
    """The store's references are those of the worker's live requests, and of retained blocks (STORE-REF-1).

    The worker was not told yet of what is queued: its retained hashes are not held, and its released ones still are.
    """
    generation, kept = engine.worker.generation, engine.connector.kept
    owed = Counter(key for _, request in engine.worker.requests for key in request.keys)
    owed.update(block_hash for block in kept.blocks for block_hash in block)
    owed.update(kept.released)
    owed.subtract(kept.retained)
    held = {key: count for key, count in owed.items() if count}
    if {(generation, key): count for key, count in held.items()} != dict(engine.worker.store.references):
        return Broken("STORE-REF-1", "the store's references are not those of the worker's requests")
    return None


def _capacity(config: EngineConfig, engine: EngineState) -> Broken | None:
    """The store holds no more than it may, or than it has grown to (STORE-PUT-2)."""
    limit = config.limits.capacity if config.limits is not None else 0
    limit = max(limit, engine.worker.store.grown)
    held = len(engine.worker.store.objects)
    return Broken("STORE-PUT-2", f"the store holds {held} objects of {limit}") if held > limit else None


def _resident(config: EngineConfig, engine: EngineState) -> Broken | None:
    """The rows of every block that a prefix hit can take up are stored, or will be (ROW-RESIDENT-1).

    While steps are in flight the rows of what they compute are on their way.
    """
    moves_on = engine.worker.generation != engine.connector.generation
    if config.cache is None or engine.in_flight or moves_on:
        return None
    stored = {block_hash for (_, block_hash), _ in engine.worker.store.objects}
    lost = engine.resident_hashes - stored - set(_soon_stored(engine))
    names = sorted(block.name for block in engine.resident if block.block_hash in lost)
    return Broken("ROW-RESIDENT-1", f"KV of {', '.join(names)} is cached without its rows") if lost else None


def _soon_stored(engine: EngineState) -> Iterator[BlockHash]:
    """Hashes that the next message brings to full blocks that wait for them."""
    final = dict(engine.connector.ended)
    for name, kept in engine.worker.requests:
        request = engine.request(name)
        hashes = (*kept.keys, *final.get(name, ()))
        if name not in final and request is not None:
            hashes = request.block_hashes
        yield from (hashes[block] for block, _ in kept.pending if block < len(hashes))


def _objects(config: EngineConfig, engine: EngineState) -> Broken | None:
    """An object holds rows of the tokens that its key names (ROW-EXACT-2).

    Asked where an engine outlives what ends others: there it would be read by any request with these tokens.
    """
    if not config.profile.fails_requests:
        return None
    generation, objects = engine.worker.generation, dict(engine.worker.store.objects)
    for request in engine.requests:
        for block_hash in request.block_hashes:
            for row in objects.get((generation, block_hash), ()):
                if row.text != text_at(request.tokens, row.position):
                    return Broken("ROW-EXACT-2", f"a block of {request.request_id} is stored with {row}")
    return None


def _idle(engine: EngineState) -> Broken | None:
    """When every request has ended and its event was delivered, the worker keeps nothing of any (WORK-TEAR-2)."""
    busy = engine.requests or engine.in_flight or engine.connector.ended or engine.connector.active
    if busy or engine.worker.generation != engine.connector.generation or not engine.worker.requests:
        return None
    return Broken("WORK-TEAR-2", "the worker keeps requests that have ended")
