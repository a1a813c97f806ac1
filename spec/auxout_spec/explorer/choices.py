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
    Pause,
    Preempt,
)
from ..engine.options import launchable, most_tokens, takes_drafts
from ..values import RequestId
from .model import Left, Menu, Model


class Way(NamedTuple):
    """One way to schedule a request."""

    num_tokens: int
    num_drafts: int = 0
    skips_hit: bool = False


class Landing(NamedTuple):
    """What the oldest step in flight brings for a request: tokens (0: it sampled nothing), and whether it stops."""

    sampled: int
    stops: bool = False


class Options(NamedTuple):
    """What a request id can take part in."""

    ways: tuple[Way, ...] = ()
    landings: tuple[Landing, ...] = (Landing(0),)
    in_use: bool = False
    running: bool = False
    waits_for_chunk: bool = False
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
        return Options(idle=not entries, has_news=ended, landings=_landings(model.menu, engine, name))
    return Options(
        _ways(model, engine, request),
        _landings(model.menu, engine, name),
        True,
        request.status == "running",
        request.status == "waiting_for_chunk",
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
    yield from (Choice("launch", picks, left) for picks in product(*ways) if _fits(model.menu, picks, given))
    if model.menu.empty_steps or any(each.has_news for each in given):
        yield Choice("empty", (), left)
    if num_in_flight:
        yield from (Choice("land", picks, left) for picks in _land_picks(given))
    yield from _interruptions(left, given)
    yield from _cache_events(model.menu, paused, num_in_flight, left, given)
    yield from _inputs(model, left, given)


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
        return _land(landed)
    if choice.kind in ("add", "chunk"):
        source = menu.adds if choice.kind == "add" else menu.chunks
        return source[picks[1]]._replace(request=ids[picks[0]])
    if choice.kind == "reset":
        return menu.resets[picks[0]]
    by_name = {"abort": Abort, "preempt": Preempt, "end": End}
    if choice.kind in by_name:
        return by_name[choice.kind](ids[picks[0]])
    others: dict[str, Event] = {"empty": Launch(), "evict": Evict(), "pause": Pause(), "resume": Pause(False)}
    return others[choice.kind]


def _launch(chosen: list[tuple[RequestId, Way]]) -> Launch:
    return Launch(
        tuple((name, way.num_tokens) for name, way in chosen),
        tuple((name, way.num_drafts) for name, way in chosen if way.num_drafts),
        tuple((name, 0) for name, way in chosen if way.skips_hit),
    )


def _land(landed: list[tuple[RequestId, Landing]]) -> Land:
    return Land(
        tuple((name, landing.sampled) for name, landing in landed if landing.sampled > 1),
        tuple((name, 1) for name, landing in landed if landing.stops),
    )


def _ways(model: Model, engine: EngineState, request: EngineRequest) -> tuple[Way, ...]:
    """Ways to schedule a request now."""
    menu = model.menu
    if request not in launchable(model.config, engine):
        return ()
    whole = most_tokens(model.config, engine, request, skip_hit=False)
    uncut = most_tokens(model.config, engine, request, skip_hit=True)
    ways: list[Way] = []
    for skips in (False, True) if menu.skips_hits and uncut != whole else (False,):
        count = uncut if skips else whole
        sizes = (count, *(size for size in menu.prefill_chunks if size < count))
        ways += [Way(size, 0, skips) for size in sizes]
    if menu.drafts and takes_drafts(request):
        ways.append(Way(1 + menu.drafts, menu.drafts))
    return tuple(ways)


def _landings(menu: Menu, engine: EngineState, name: RequestId) -> tuple[Landing, ...]:
    """What the oldest step may bring for a request."""
    oldest = engine.in_flight[0].entries if engine.in_flight else ()
    entry = next((entry for entry in oldest if entry.request_id == name and entry.samples), None)
    if entry is None:
        return (Landing(0),)
    counts = range(1, 2 + entry.num_drafts)
    stops = (False, True) if menu.stops and engine.request(name) is not None else (False,)
    return tuple(Landing(count, stop) for count in counts for stop in stops)


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
    if not given[lane].in_use and given[lane].idle and not undelivered:
        yield Choice("add", (lane, number), left._replace(adds=left.adds - 1))


def _land_picks(given: Sequence[Options]) -> Iterator[tuple[int, ...]]:
    """Combinations of landings; a stop rule ends one request at a time."""
    for picks in product(*(range(len(each.landings)) for each in given)):
        stopped = sum(each.landings[pick].stops for each, pick in zip(given, picks, strict=True))
        if stopped <= 1:
            yield picks


def _interruptions(left: Left, given: Sequence[Options]) -> Iterator[Choice]:
    if left.aborts:
        after = left._replace(aborts=left.aborts - 1)
        yield from (Choice("abort", (lane,), after) for lane, each in enumerate(given) if each.in_use)
    if left.preemptions:
        after = left._replace(preemptions=left.preemptions - 1)
        yield from (Choice("preempt", (lane,), after) for lane, each in enumerate(given) if each.running)


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
