"""What may happen next: every event that the menu and the state allow, in a fixed order.

A request id has ``Options``; a ``Choice`` picks from them. Choices are made of small numbers, so those of one shape
of state are listed once and found again in thousands of states. ``step`` stays the judge: a choice may turn out to
be impossible, and none that is possible may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from ..engine import (
    Abort,
    End,
    EngineRequest,
    EngineState,
    Event,
    Evict,
    Land,
    Launch,
    Load,
    Loaded,
    Pause,
    Preempt,
)
from ..engine.options import (
    admissible,
    launchable,
    most_tokens,
    num_known_blocks,
    num_loaded,
    runs_on_load,
    takes_drafts,
)
from ..engine.state import Entry, longest_hit
from ..values import RequestId
from .model import Left, Menu, Model


class Way(NamedTuple):
    """One way to schedule a request."""

    num_tokens: int
    num_drafts: int = 0
    hit: int = -1
    """Tokens of its prefix hit; -1: the longest."""
    external: int = 0


class Landing(NamedTuple):
    """What the oldest step in flight brings for a request: tokens (0: it sampled nothing), and whether it stops."""

    sampled: int
    stops: bool = False
    valid: int = -1
    """Its load failed, and only so many tokens are valid."""


class Options(NamedTuple):
    """What a request id can take part in."""

    ways: tuple[Way, ...] = ()
    landings: tuple[Landing, ...] = (Landing(0),)
    loads: tuple[int, ...] = ()
    """Tokens whose KV may begin to be loaded."""
    loaded: tuple[int, ...] = ()
    """How the load that it waits for may end."""
    in_use: bool = False
    running: bool = False
    waits_for_chunk: bool = False
    turns: bool = False
    """Output of its turn is in flight."""
    idle: bool = True
    """Nothing of it is in flight."""
    resident: bool = False
    """KV blocks of its text are resident."""
    has_news: bool = False
    """A step without requests would carry an event or a hash of it, or let it resume."""
    untouched: bool = False
    """Nothing ever happened to it that could still be seen."""


class Choice(NamedTuple):
    """One thing that may happen, with what is left of the menu after it.

    ``picks`` holds, for a launch and a landing, an index per request id; else the id's index, and the menu's.
    """

    kind: str
    picks: tuple[int, ...]
    left: Left


def options_of(model: Model, engine: EngineState, name: RequestId) -> Options:
    """What one request id can take part in."""
    request = engine.request(name)
    entries = [entry for step in engine.in_flight for entry in step.entries if entry.request_id == name]
    if request is None:
        ended = any(name == request_id for request_id, _ in engine.connector.ended)
        return Options(idle=not entries, has_news=ended, landings=_landings(model, engine, name))
    return Options(
        _ways(model, engine, request),
        _landings(model, engine, name),
        _loads(model, engine, request),
        _loaded(model, request),
        True,
        request.status == "running",
        request.status == "waiting_for_chunk",
        request.session and bool(entries),
        not entries,
        False,
        _has_news(engine, request),
    )


def choices(
    model: Model, paused: bool, num_in_flight: int, left: Left, given: Sequence[Options]
) -> Iterator[Choice]:
    """Everything that may happen.

    Args:
        given: the options of every request id, in order.
    """
    yield from _arrival(model, left, given)
    ways = [range(1 + len(each.ways)) for each in given]
    for picks in product(*ways):
        after = left._replace(loads=left.loads - _num_loads(picks, given))
        if after.loads >= 0 and _fits(model.menu, picks, given):
            yield Choice("launch", picks, after)
    if model.menu.empty_steps or any(each.has_news for each in given):
        yield Choice("empty", (), left)
    if num_in_flight:
        yield from (Choice("land", picks, left) for picks in _land_picks(given))
    yield from _interruptions(model, left, given)
    yield from _loading(left, given)
    yield from _cache_events(model.menu, paused, num_in_flight, left, given)
    yield from _inputs(model, left, given)


def _num_loads(picks: tuple[int, ...], given: Sequence[Options]) -> int:
    return sum(bool(pick and each.ways[pick - 1].external) for pick, each in zip(picks, given, strict=True))


def _fits(menu: Menu, picks: tuple[int, ...], given: Sequence[Options]) -> bool:
    """Whether a step has requests, and no more of them run than may."""
    running = sum(bool(pick) or each.running for pick, each in zip(picks, given, strict=True))
    return any(picks) and (not menu.max_running or running <= menu.max_running)


def event_of(menu: Menu, ids: Sequence[RequestId], choice: Choice, given: Sequence[Options]) -> Event:
    """The engine event that a choice stands for."""
    picks = choice.picks
    if choice.kind == "launch":
        chosen = [(n, each.ways[p - 1]) for n, each, p in zip(ids, given, picks, strict=True) if p]
        return _launch(chosen)
    if choice.kind == "land":
        landed = [(n, each.landings[p]) for n, each, p in zip(ids, given, picks, strict=True)]
        return _land(menu, landed)
    if choice.kind in ("add", "chunk"):
        source = menu.adds if choice.kind == "add" else menu.chunks
        return source[picks[1]]._replace(request=ids[picks[0]])
    if choice.kind == "reset":
        return menu.resets[picks[0]]
    if choice.kind == "load":
        return Load(ids[picks[0]], given[picks[0]].loads[picks[1]])
    if choice.kind == "loaded":
        return Loaded(ids[picks[0]], given[picks[0]].loaded[picks[1]])
    by_name = {"abort": Abort, "preempt": Preempt, "end": End}
    if choice.kind in by_name:
        return by_name[choice.kind](ids[picks[0]])
    others: dict[str, Event] = {"empty": Launch(), "evict": Evict(), "pause": Pause(), "resume": Pause(False)}
    return others[choice.kind]


def _launch(chosen: list[tuple[RequestId, Way]]) -> Launch:
    return Launch(
        tuple((name, way.num_tokens) for name, way in chosen),
        tuple((name, way.num_drafts) for name, way in chosen if way.num_drafts),
        tuple((name, way.hit) for name, way in chosen if way.hit >= 0),
        tuple((name, way.external) for name, way in chosen if way.external),
    )


def _land(menu: Menu, landed: list[tuple[RequestId, Landing]]) -> Land:
    failed = tuple((name, landing.valid) for name, landing in landed if landing.valid >= 0)
    return Land(
        tuple((name, landing.sampled) for name, landing in landed if landing.sampled > 1),
        tuple((name, 1) for name, landing in landed if landing.stops),
        failed,
        bool(failed) and menu.recompute,
    )


def _ways(model: Model, engine: EngineState, request: EngineRequest) -> tuple[Way, ...]:
    """Ways to schedule a request now."""
    menu = model.menu
    if request not in launchable(model.config, engine):
        return ()
    ways: list[Way] = []
    for hit, external, count in _prefixes(model, engine, request):
        sizes = (count, *(size for size in menu.prefill_chunks if size < count))
        sizes += (count + 1,) if "ENV-LAUNCH-2" in model.removed_guards else ()
        ways += [Way(size, 0, hit, external) for size in sizes]
    whole = most_tokens(model.config, engine, request, skip_hit=False)
    if menu.drafts and takes_drafts(request, whole):
        ways.append(Way(1 + menu.drafts, menu.drafts))
    return tuple(ways)


def _prefixes(model: Model, engine: EngineState, request: EngineRequest) -> Iterator[tuple[int, int, int]]:
    """What a request may start a step from: its hit (-1: the longest), tokens loaded behind it, and tokens it lacks."""
    whole = most_tokens(model.config, engine, request, skip_hit=False)
    uncut = most_tokens(model.config, engine, request, skip_hit=True)
    yield -1, 0, whole
    if model.menu.skips_hits and uncut != whole:
        yield 0, 0, uncut
    if not model.menu.waits_for_loads and (admissible(request) or "ENV-LOAD-1" in model.removed_guards):
        for count in _external(model, engine, request):
            hit = request.num_uncomputed_tokens - whole
            loaded = num_loaded(model.config, engine, request, hit, count)
            if count < whole:
                yield -1, count, whole - loaded
    if admissible(request) and "ENV-HIT-1" in model.removed_guards:
        yield from ((hit, 0, uncut - hit) for hit in range(1, uncut))


def _external(model: Model, engine: EngineState, request: EngineRequest) -> Iterator[int]:
    """Tokens behind its prefix hit whose KV a request may find elsewhere."""
    if not model.menu.loads:
        return
    size = model.block_size
    hit = (
        longest_hit(request, engine.resident_hashes, size)
        if admissible(request)
        else request.num_computed_tokens
    )
    known = num_known_blocks(engine, request)
    for end in model.menu.external:
        if hit < end <= request.num_tokens and (end // size <= known or not model.menu.known_rows):
            yield end - hit


def _loads(model: Model, engine: EngineState, request: EngineRequest) -> tuple[int, ...]:
    """Tokens of a request whose KV may begin to be loaded."""
    waits = model.menu.waits_for_loads and admissible(request)
    if not waits or request not in launchable(model.config, engine):
        return ()
    return tuple(_external(model, engine, request))


def _loaded(model: Model, request: EngineRequest) -> tuple[int, ...]:
    """How the load that a request waits for may end: -1, or the tokens that are valid."""
    if request.status != "waiting_for_kv":
        return ()
    end = request.num_computed_tokens
    return (-1, *_valid(model, end - request.num_external_tokens, end))


def _valid(model: Model, start: int, end: int) -> Iterator[int]:
    """Tokens that may be valid after a load of ``[start, end)`` failed."""
    step = 1 if "ENV-LOAD-2" in model.removed_guards else model.block_size
    if model.menu.load_failures:
        yield from range(start, end, step)


def _landings(model: Model, engine: EngineState, name: RequestId) -> tuple[Landing, ...]:
    """What the oldest step may bring for a request."""
    oldest = engine.in_flight[0].entries if engine.in_flight else ()
    entry = next((entry for entry in oldest if entry.request_id == name), None)
    if entry is None:
        return (Landing(0),)
    return (*_samples(model, engine, entry), *_failures(model, engine, entry))


def _samples(model: Model, engine: EngineState, entry: Entry) -> Iterator[Landing]:
    if not entry.samples:
        yield Landing(0)
        return
    more = "ENV-LAND-2" in model.removed_guards
    stops = (False, True) if model.menu.stops and engine.request(entry.request_id) is not None else (False,)
    for count in range(1, 1 + entry.most_sampled + more):
        yield from (Landing(count, stop) for stop in stops)


def _failures(model: Model, engine: EngineState, entry: Entry) -> Iterator[Landing]:
    if runs_on_load(engine, entry):
        start = entry.token_start - entry.num_external_tokens
        for valid in _valid(model, start, entry.token_start):
            yield Landing(int(entry.samples), False, valid)


def _has_news(engine: EngineState, request: EngineRequest) -> bool:
    name = request.request_id
    sent = next((sent for request_id, sent in engine.connector.active if request_id == name), None)
    unsent = sent is not None and len(request.block_hashes) > sent.num_hashes
    ended = any(name == request_id for request_id, _ in engine.connector.ended)
    return unsent or ended or name in engine.preempted


def _arrival(model: Model, left: Left, given: Sequence[Options]) -> Iterator[Choice]:
    """The next request arrives, under its id or, where ids are interchangeable, under any that is untouched."""
    if not left.adds:
        return
    number = len(model.menu.adds) - left.adds
    lane = model.ids.index(model.menu.adds[number].request)
    if model.symmetric:
        lane = next(lane for lane, each in enumerate(given) if each.untouched)
    undelivered = model.menu.settled_ids and given[lane].has_news
    idle = given[lane].idle or "ENV-ADD-1" in model.removed_guards
    if not given[lane].in_use and idle and not undelivered:
        yield Choice("add", (lane, number), left._replace(adds=left.adds - 1))


def _land_picks(given: Sequence[Options]) -> Iterator[tuple[int, ...]]:
    """Combinations of landings; a stop rule ends one request at a time."""
    for picks in product(*(range(len(each.landings)) for each in given)):
        stopped = sum(each.landings[pick].stops for each, pick in zip(given, picks, strict=True))
        if stopped <= 1:
            yield picks


def _interruptions(model: Model, left: Left, given: Sequence[Options]) -> Iterator[Choice]:
    if left.aborts:
        after = left._replace(aborts=left.aborts - 1)
        yield from (Choice("abort", (lane,), after) for lane, each in enumerate(given) if each.in_use)
    if left.preemptions:
        after = left._replace(preemptions=left.preemptions - 1)
        waiting, settled = "ENV-PREEMPT-1" in model.removed_guards, model.menu.settled_turns
        for lane, each in enumerate(given):
            if (each.running or (each.in_use and waiting)) and not (each.turns and settled):
                yield Choice("preempt", (lane,), after)


def _loading(left: Left, given: Sequence[Options]) -> Iterator[Choice]:
    for lane, each in enumerate(given):
        if left.loads:
            after = left._replace(loads=left.loads - 1)
            yield from (Choice("load", (lane, number), after) for number, _ in enumerate(each.loads))
        yield from (Choice("loaded", (lane, number), left) for number, _ in enumerate(each.loaded))


def _cache_events(
    menu: Menu, paused: bool, num_in_flight: int, left: Left, given: Sequence[Options]
) -> Iterator[Choice]:
    if left.evictions and any(each.resident for each in given):
        yield Choice("evict", (), left._replace(evictions=left.evictions - 1))
    if not (menu.drained_resets and num_in_flight):
        for number in left.resets:
            after = left._replace(resets=tuple(other for other in left.resets if other != number))
            yield Choice("reset", (number,), after)
    if paused:
        yield Choice("resume", (), left)
    elif left.pauses:
        yield Choice("pause", (), left._replace(pauses=left.pauses - 1))


def _inputs(model: Model, left: Left, given: Sequence[Options]) -> Iterator[Choice]:
    """Sessions get their next input, or end when they wait for it."""
    for number in left.chunks:
        lane = model.ids.index(model.menu.chunks[number].request)
        if given[lane].in_use:
            after = left._replace(chunks=tuple(other for other in left.chunks if other != number))
            yield Choice("chunk", (lane, number), after)
            break
    yield from (Choice("end", (lane,), left) for lane, each in enumerate(given) if each.waits_for_chunk)
