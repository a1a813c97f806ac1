"""A model: one engine configuration and a menu of what may happen, small enough to try everything.

The menu bounds the environment: which requests arrive, how prompts are cut, how often things go wrong. Within it
``enabled`` lists every event, and nothing else decides what is explored.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from ..engine import (
    Abort,
    Add,
    Chunk,
    End,
    EngineConfig,
    EngineRequest,
    EngineState,
    Event,
    Evict,
    Impossible,
    Land,
    Launch,
    Pause,
    Preempt,
    Reset,
    initial,
    step,
)
from ..engine.options import launchable, most_tokens, takes_drafts
from ..values import Refusal
from .properties import Broken, broken_property


class Menu(NamedTuple):
    """What the environment may do, and how often."""

    adds: tuple[Add, ...]
    """Requests, in order of arrival; each arrives at any moment."""
    prefill_chunks: tuple[int, ...] = ()
    """Sizes in which a longer prefill may be cut."""
    drafts: int = 0
    """Draft tokens of a decode: none or so many."""
    stops: bool = False
    """A stop rule may end a request after its first token."""
    aborts: int = 0
    preemptions: int = 0
    evictions: int = 0
    resets: tuple[Reset, ...] = ()
    """Each may come once."""
    pauses: int = 0
    chunks: tuple[Chunk, ...] = ()
    """Next inputs of sessions, in order."""
    skips_hits: bool = False
    """An admitted request may ignore its prefix hit."""
    empty_steps: bool = False
    """A step without requests may be built at any time; otherwise only when it has something to say."""


class Model(NamedTuple):
    """One model."""

    name: str
    config: EngineConfig
    menu: Menu


class Left(NamedTuple):
    """What of the menu is left."""

    adds: int
    aborts: int
    preemptions: int
    evictions: int
    resets: tuple[Reset, ...]
    pauses: int
    chunks: tuple[Chunk, ...]


class ModelState(NamedTuple):
    """A state of the search."""

    engine: EngineState
    left: Left


def start(model: Model) -> ModelState:
    """Where every trace begins."""
    menu = model.menu
    left = Left(
        len(menu.adds), menu.aborts, menu.preemptions, menu.evictions, menu.resets, menu.pauses, menu.chunks
    )
    return ModelState(initial(), left)


def enabled(model: Model, state: ModelState) -> Iterator[tuple[Event, Left]]:
    """Every event that may happen next, with what is left of the menu after it."""
    menu, engine, left = model.menu, state.engine, state.left
    if left.adds:
        yield menu.adds[len(menu.adds) - left.adds], left._replace(adds=left.adds - 1)
    for event in _launches(model, engine):
        yield event, left
    for event in _landings(menu, engine):
        yield event, left
    yield from _interruptions(engine, left)
    yield from _inputs(engine, left)


def successors(model: Model, state: ModelState) -> Iterator[tuple[Event, ModelState, Broken | None]]:
    """The states that follow, each with the property that its event broke."""
    for event, left in enabled(model, state):
        try:
            engine, exchanges = step(model.config, state.engine, event)
        except Impossible:
            continue
        refused = next((e.result for e in exchanges if isinstance(e.result, Refusal)), None)
        broken = Broken(refused.clause, refused.message) if refused else broken_property(model.config, engine)
        yield event, ModelState(engine, left), broken


def drained(state: ModelState) -> bool:
    """Whether everything that arrived has ended and nothing is under way."""
    engine = state.engine
    return not (engine.requests or engine.in_flight or engine.connector.ended or engine.connector.active)


def _launches(model: Model, engine: EngineState) -> Iterator[Event]:
    requests = launchable(model.config, engine)
    choices = [((), *_ways(model, engine, request)) for request in requests]
    for chosen in product(*choices):
        parts = [part for part in chosen if part]
        if not parts:
            continue
        tokens = tuple((name, count) for name, count, _, _ in parts)
        drafts = tuple((name, count) for name, _, count, _ in parts if count)
        hits = tuple((name, 0) for name, _, _, skipped in parts if skipped)
        yield Launch(tokens, drafts, hits)
    if model.menu.empty_steps or _something_to_say(engine):
        yield Launch()


def _ways(model: Model, engine: EngineState, request: EngineRequest) -> Iterator[tuple[str, int, int, bool]]:
    """Ways to schedule one request: id, tokens, drafts, whether its hit is ignored."""
    menu, name = model.menu, request.request_id
    whole = most_tokens(model.config, engine, request, skip_hit=False)
    uncut = most_tokens(model.config, engine, request, skip_hit=True)
    skips = (False, True) if menu.skips_hits and uncut != whole else (False,)
    for skipped in skips:
        count = uncut if skipped else whole
        yield name, count, 0, skipped
        yield from ((name, size, 0, skipped) for size in menu.prefill_chunks if size < count)
    if menu.drafts and takes_drafts(request):
        yield name, 1 + menu.drafts, menu.drafts, False


def _something_to_say(engine: EngineState) -> bool:
    """Whether a step without requests would carry an event or a hash."""
    sent = dict(engine.connector.active)
    return bool(engine.connector.ended) or any(
        request.request_id in sent and len(request.block_hashes) > sent[request.request_id].num_hashes
        for request in engine.requests
    )


def _landings(menu: Menu, engine: EngineState) -> Iterator[Event]:
    if not engine.in_flight:
        return
    entries = [entry for entry in engine.in_flight[0].entries if entry.samples]
    samples = [range(1, 2 + entry.num_drafts) for entry in entries]
    for counts in product(*samples):
        sampled = tuple((e.request_id, n) for e, n in zip(entries, counts, strict=True) if n > 1)
        yield Land(sampled)
        if menu.stops:
            yield from (Land(sampled, ((entry.request_id, 1),)) for entry in entries)


def _interruptions(engine: EngineState, left: Left) -> Iterator[tuple[Event, Left]]:
    if left.aborts:
        after = left._replace(aborts=left.aborts - 1)
        yield from ((Abort(request.request_id), after) for request in engine.requests)
    if left.preemptions:
        after = left._replace(preemptions=left.preemptions - 1)
        running = (request for request in engine.requests if request.status == "running")
        yield from ((Preempt(request.request_id), after) for request in running)
    if left.evictions and engine.resident:
        yield Evict(), left._replace(evictions=left.evictions - 1)
    for reset in dict.fromkeys(left.resets):
        remaining = list(left.resets)
        remaining.remove(reset)
        yield reset, left._replace(resets=tuple(remaining))
    if engine.paused:
        yield Pause(on=False), left
    elif left.pauses:
        yield Pause(), left._replace(pauses=left.pauses - 1)


def _inputs(engine: EngineState, left: Left) -> Iterator[tuple[Event, Left]]:
    for index, chunk in enumerate(left.chunks):
        if engine.request(chunk.request) is not None:
            yield chunk, left._replace(chunks=left.chunks[:index] + left.chunks[index + 1 :])
            break
    waiting = (request for request in engine.requests if request.status == "waiting_for_chunk")
    yield from ((End(request.request_id), left) for request in waiting)
