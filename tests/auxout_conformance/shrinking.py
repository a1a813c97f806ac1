"""Makes a failing scenario small: plainly represented, then fewer events, then smaller numbers, then tidy names.

Hypothesis shrinks the choices behind a scenario; people read the scenario. So candidates are made from the
events themselves: leave some out, simplify one, repair what the change made impossible, and keep a candidate
if the target still gives a wrong answer in it. Whatever clause that answer breaks, as long as it is not one
that is known already: the smallest scenario is the best explanation.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from string import ascii_uppercase

from auxout_spec.engine import (
    Add,
    Chunk,
    EngineConfig,
    EngineState,
    Event,
    Impossible,
    Land,
    Launch,
    Load,
    Loaded,
    Reset,
    Tamper,
    Unpack,
    initial,
    step,
)
from auxout_spec.engine.options import launchable, most_tokens
from auxout_spec.profiles import Profile
from auxout_spec.representation import differing
from auxout_spec.scenario import Scenario, config_of

from .hosts import TargetBroken
from .judge import Failure, Play, play
from .judge.play import Player
from .representing import plainer

MAX_PLAYS = 1500
"""Enough for a scenario of 40 events; a limit, so that a slow target cannot hold the report up for ever."""
FEW = 12
"""Numbers up to it, and lists of at most that many names, are tried one by one."""
MOST_BLOCKS = 1000
"""Of all requests; the size of a block is made smaller as long as they have no more."""
MAX_SECONDS = 10.0
"""A limit for large scenarios, of which each play takes its time."""


class Shrinker:
    """Shrinks one failing scenario on one target."""

    def __init__(
        self,
        host: Player,
        profile: Profile,
        ignored: frozenset[str],
        on_play: Callable[[], None] = lambda: None,
        kind: type[Play] = Play,
    ) -> None:
        self._host, self._profile, self._ignored = host, profile, ignored
        self._on_play, self._kind = on_play, kind
        self._seen: set[Scenario] = set()
        self._until = time.monotonic() + MAX_SECONDS
        self.plays = 0

    def shrink(self, scenario: Scenario, failure: Failure) -> tuple[Scenario, Failure]:
        """The smallest scenario found that still fails, and its failure.

        A target that crashes or hangs meanwhile ends the search: what was found stays found.
        """
        best = scenario._replace(events=scenario.events[: failure.event]), failure
        improved = True
        with contextlib.suppress(TargetBroken):
            while improved and not self._is_over:
                improved = False
                for candidate in _candidates(best[0]):
                    if self._is_over:
                        break
                    smaller = self._try(candidate, best)
                    if smaller is not None:
                        best, improved = smaller, True
                        break
            best = self._try(_renamed(best[0]), best, rename=True) or best
        return best

    @property
    def _is_over(self) -> bool:
        """Whether only the play is left in which names are made tidy."""
        return self.plays >= MAX_PLAYS - 1 or time.monotonic() > self._until

    def _try(
        self, candidate: Scenario, best: tuple[Scenario, Failure], rename: bool = False
    ) -> tuple[Scenario, Failure] | None:
        """Play a repaired candidate; None unless it is smaller (or renamed) and fails."""
        config = config_of(candidate, self._profile)
        repaired = candidate._replace(events=_repaired(config, candidate.events))
        smaller = rename or _size(repaired) < _size(best[0])
        if not smaller or repaired in self._seen or (self._is_over and not rename):
            return None
        self._seen.add(repaired)
        self.plays += 1
        self._on_play()
        _, failure = play(self._host, repaired, self._profile, self._kind)
        if failure is None or failure.clause in self._ignored:
            return None
        if failure.clause != best[1].clause and len(repaired.events) >= len(best[0].events):
            return None
        return repaired._replace(events=repaired.events[: failure.event]), failure


def _size(scenario: Scenario) -> tuple[int, int, int, int, int]:
    """Smaller is better: events, what is not plain, then the numbers in both, then the length of the text."""
    numbers = scenario.block_size + scenario.depth + scenario.store
    unusual = differing(scenario.representation)
    return (
        len(scenario.events),
        len(unusual),
        sum(map(_weight, unusual.values())),
        numbers + sum(map(_weight, scenario.events)),
        len(repr(scenario.events)),
    )


def _weight(value: object) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, tuple):
        return sum(map(_weight, value)) + len(value)
    return len(value) if isinstance(value, str) else 0


def _repaired(config: EngineConfig, events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The events that remain possible, launches fitted to what their requests lack."""
    state, kept = initial(), []
    for event in events:
        for variant in (event, *_fitted(config, state, event)):
            try:
                state, _ = step(config, state, variant)
            except Impossible:
                continue
            kept.append(variant)
            break
        if state.problem is not None:
            break
    return tuple(kept)


def _fitted(config: EngineConfig, state: EngineState, event: Event) -> Iterator[Event]:
    """Versions of an impossible event that may be possible here."""
    if isinstance(event, Launch):
        ready = {request.request_id: request for request in launchable(config, state)}
        names = [name for name, _ in event.tokens if name in ready]
        whole = tuple((name, most_tokens(config, state, ready[name], False)) for name in names)
        kept = tuple((name, min(count, dict(whole)[name])) for name, count in event.tokens if name in ready)
        yield Launch(kept)
        yield Launch(whole)
    elif isinstance(event, Land):
        yield Land()


def _candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Simpler scenarios, boldest first."""
    events = scenario.events
    for looks in plainer(scenario.representation):
        yield scenario._replace(representation=looks)
    size = len(events) // 2
    while size >= 1:
        for start in range(0, len(events) - size + 1, size if size > 2 else 1):
            yield scenario._replace(events=events[:start] + events[start + size :])
        size //= 2
    for depth in _smaller(scenario.depth, 1):
        yield scenario._replace(depth=depth)
    for store in (1, 2, 4, 8, 16, 64, 256, 1024):
        if 0 < store < scenario.store:
            yield scenario._replace(store=store)
    tokens = sum(event.prompt for event in events if isinstance(event, Add))
    for block_size in _smaller(scenario.block_size, 1):
        # Smaller blocks are simpler, thousands of them are not.
        if tokens // block_size <= max(MOST_BLOCKS, tokens // scenario.block_size):
            yield scenario._replace(block_size=block_size)
    for index, event in enumerate(events):
        for simpler in _simpler(event):
            yield scenario._replace(events=(*events[:index], simpler, *events[index + 1 :]))
            # A smaller request needs smaller launches: fit them all.
            yield scenario._replace(events=(*events[:index], simpler, *map(_unfitted, events[index + 1 :])))


def _unfitted(event: Event) -> Event:
    """A launch with counts that never fit, so that ``_repaired`` schedules all that its requests lack."""
    if isinstance(event, Launch) and not event.drafts:
        return Launch(tuple((name, 1 << 20) for name, _ in event.tokens))
    return event


def _simpler(event: Event) -> Iterator[Event]:
    if isinstance(event, Add):
        yield from (event._replace(prompt=n) for n in _smaller(event.prompt, 1))
        yield from (event._replace(max_tokens=n) for n in _smaller(event.max_tokens, 1))
        yield from (event._replace(start=n) for n in _smaller(event.start))
        yield event._replace(cut=0)
        yield event._replace(text="", session=False)
        yield event._replace(text="")
    elif isinstance(event, Launch):
        for gone in _some(tuple(name for name, _ in event.tokens)):
            yield Launch(*(tuple(pair for pair in counts if pair[0] not in gone) for counts in event))
        yield Launch(event.tokens)
    elif isinstance(event, Land):
        yield Land()
        yield event._replace(stop=())
        yield event._replace(sampled=())
        yield event._replace(failed=(), recompute=False)
    elif isinstance(event, Load):
        yield from (event._replace(tokens=n) for n in _smaller(event.tokens, 1))
    elif isinstance(event, Loaded):
        yield Loaded(event.request)
    elif isinstance(event, Chunk):
        yield from (event._replace(tokens=n) for n in _smaller(event.tokens, 1))
        yield event._replace(start=0, max_tokens=1)
    elif isinstance(event, Reset):
        yield Reset()
        yield event._replace(running=False)
        yield event._replace(weights=False)
    elif isinstance(event, Tamper):
        yield from (event._replace(amount=n) for n in _smaller(event.amount))
    elif isinstance(event, Unpack):
        yield from (Unpack(event.data[:n], event.item_size) for n in range(len(event.data)))
        yield from (Unpack(event.data, n) for n in (-1, 0, 1, 2))


def _smaller(number: int, least: int = 0) -> Iterator[int]:
    """Smaller numbers: all, or of a large one some, the least first and the nearest last."""
    if number - least <= FEW:
        yield from range(least, number)
        return
    yield from (least, least + 1)
    distance = number - least
    while distance > 1:
        distance //= 2
        yield number - distance


def _some(names: tuple[str, ...]) -> Iterator[frozenset[str]]:
    """Which of some names to leave out: large parts of many, each of a few."""
    size = len(names) // 2 if len(names) > FEW else 1
    while size >= 1 and names:
        yield from (frozenset(names[start : start + size]) for start in range(0, len(names), size))
        size //= 2


def _renamed(scenario: Scenario) -> Scenario:
    """Requests named A, B, C in order of arrival."""
    names: dict[str, str] = {}
    for event in scenario.events:
        if isinstance(event, Add):
            letter, again = divmod(len(names), len(ascii_uppercase))[::-1]
            names.setdefault(event.request, ascii_uppercase[letter] + (str(again) if again else ""))
    return scenario._replace(events=tuple(_rename(event, names) for event in scenario.events))


def _rename(event: Event, names: dict[str, str]) -> Event:
    def renamed(value: object) -> object:
        if isinstance(value, tuple):
            return tuple((names.get(name, name), count) for name, count in value)
        return value

    if isinstance(event, Launch | Land):
        return type(event)(*(renamed(value) for value in event))  # type: ignore[arg-type]
    request = getattr(event, "request", None)
    return event._replace(request=names.get(request, request)) if request is not None else event  # type: ignore[union-attr,call-arg]
