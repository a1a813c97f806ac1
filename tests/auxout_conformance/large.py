"""Large plays: as many requests, tokens, hashes and steps as a real engine has, at the sizes where things change.

Random scenarios are small, so that a failure can be read. A mask, a threshold or a buffer of a fixed size shows only
beyond it. These plays are few and of fixed shapes; their sizes are where types and usual buffers end, and around each
number in the target's own source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from auxout_spec.engine import (
    Abort,
    Add,
    EngineRequest,
    Event,
    Land,
    Launch,
    Preempt,
    Reset,
    initial,
    step,
)
from auxout_spec.engine.options import launchable, most_tokens
from auxout_spec.profiles import Profile
from auxout_spec.representation import PLAIN, Representation
from auxout_spec.scenario import Scenario, config_of

from .verdicts import Suite

WIDTHS: dict[Suite, tuple[int, ...]] = {"smoke": (129,), "default": (129, 257), "deep": (129, 257, 1025)}
"""Requests of a step."""
LENGTHS: dict[Suite, tuple[tuple[int, int], ...]] = {
    "smoke": ((300, 16),),
    "default": ((4200, 1), (1100, 16), (4200, 64), (66_000, 128)),
    "deep": ((300, 1), (4200, 1), (1100, 16), (66_000, 16), (66_000, 64), (131_072, 128)),
}
"""Tokens of a prompt, and of its blocks."""
DEPTHS: dict[Suite, tuple[int, ...]] = {"smoke": (9,), "default": (17, 65), "deep": (17, 65, 257)}
"""Steps in flight."""
TURNS: dict[Suite, int] = {"smoke": 20, "default": 150, "deep": 2000}
"""Requests that one connector sees come and go."""
MOST_NUMBERS: dict[Suite, int] = {"smoke": 4, "default": 40, "deep": 400}
"""Numbers of the target's source around which plays are made."""
MOST_REQUESTS: dict[Suite, int] = {"smoke": 130, "default": 1000, "deep": 5000}
"""Requests of a play around a number, which takes time with their square."""
MOST_PROMPTS: dict[Suite, int] = {"smoke": 130, "default": 5100, "deep": 20_000}
"""The same where no request has an output, which takes most of the time."""
MOST_TOKENS: dict[Suite, int] = {"smoke": 300, "default": 6000, "deep": 1 << 17}
"""Tokens of a request of a play around a number."""
_CROWD = Representation(ids="engine", idle=2000)
_ROWS = Representation(hash_size=16, layers=3, experts=65536)


class Script:
    """Events of an engine, each fitted to what its requests lack."""

    def __init__(self, profile: Profile, engine: Scenario) -> None:
        self._engine, self._state = engine._replace(profile=profile.name), initial()
        self._config = config_of(self._engine, profile)
        self._events: list[Event] = []

    def do(self, *events: Event) -> None:
        """Let events happen."""
        for event in events:
            self._state, _ = step(self._config, self._state, event)
            self._events.append(event)

    def launch(self, names: Sequence[str], most: int = 1 << 20) -> None:
        """Schedule requests, each for what it lacks."""
        ready = {request.request_id: request for request in launchable(self._config, self._state)}
        counts = [(name, min(self._lacks(ready[name]), most)) for name in names if name in ready]
        self.do(Launch(tuple(counts)))

    def run(self, names: Sequence[str], most: int = 1 << 20) -> None:
        """Schedule requests and consume the oldest step; one without requests is not in flight."""
        self.launch(names, most)
        if self._state.in_flight:
            self.do(Land())

    def abort_all(self) -> None:
        """End every request."""
        self.do(*(Abort(request.request_id) for request in self._state.requests))

    @property
    def scenario(self) -> Scenario:
        """What happened."""
        return self._engine._replace(events=tuple(self._events))

    def _lacks(self, request: EngineRequest) -> int:
        return most_tokens(self._config, self._state, request, skip_hit=False)


def plays(suite: Suite, profile: Profile, numbers: Sequence[int], with_worker: bool) -> Iterator[Scenario]:
    """The large plays of a suite.

    Args:
        numbers: those of the target's source.
        with_worker: there is a worker to play them with.
    """
    room = 1 << 14 if with_worker else 0
    for count in WIDTHS[suite]:
        yield wide(profile, count, room)
    for tokens, block_size in LENGTHS[suite]:
        yield long(profile, tokens, block_size, room)
    for depth in DEPTHS[suite]:
        yield ring(profile, depth, room)
    yield lived(profile, TURNS[suite], room)
    for number in _chosen(suite, numbers):
        yield around(profile, number, room and 4 * number + 16)
        if number <= MOST_REQUESTS[suite]:
            yield crowded(profile, number, room)
        elif number <= MOST_PROMPTS[suite] and not with_worker:
            yield prefilled(profile, number)
        if number <= MOST_REQUESTS[suite] and with_worker:
            yield long(profile, 2 * number + 1, number, room)


def num_plays(suite: Suite, numbers: Sequence[int], with_worker: bool) -> int:
    """How many these are."""
    most, most_prompts = MOST_REQUESTS[suite], MOST_PROMPTS[suite]
    around_them = sum(
        1 + (number <= most) * (1 + with_worker) + (most < number <= most_prompts) * (not with_worker)
        for number in _chosen(suite, numbers)
    )
    return len(WIDTHS[suite]) + len(LENGTHS[suite]) + len(DEPTHS[suite]) + 1 + around_them


def wide(profile: Profile, count: int, store: int) -> Scenario:
    """A step of many requests, some of which end, are preempted or aborted; later ones read what they left."""
    script = Script(profile, Scenario((), 2, 2, store=store, representation=_CROWD))
    names = [f"R{number}" for number in range(count)]
    for number, name in enumerate(names):
        script.do(Add(name, 2 + number % 4, number % 3, 1 + number % 3, f"T{number % 50}"))
    script.run(names)
    script.launch(names[::-1])
    script.do(Preempt(names[1]), Abort(names[2]), Land())
    script.run(names)
    script.run(names)
    script.abort_all()
    for number in range(4):
        script.do(Add(f"L{number}", 6, 0, 2, f"T{number}"))
    script.run([f"L{number}" for number in range(4)])
    return script.scenario._replace(name=f"wide {count}")


def long(profile: Profile, tokens: int, block_size: int, store: int) -> Scenario:
    """A long prompt in chunks, wanted from near its end; others read it back whole, and it is preempted."""
    script = Script(profile, Scenario((), block_size, 2, store=store, representation=_ROWS))
    script.do(Add("A", tokens, max(tokens - 300, 0), 4, "T"))
    script.launch(["A"], tokens // 2 + 1)
    script.launch(["A"])
    script.do(Land(), Land())
    script.run(["A"])
    script.do(Add("B", tokens, max(tokens - 3 * block_size, 0), 2, "T"), Add("C", tokens - 1, 0, 1, "T"))
    script.run(["A", "B", "C"])
    script.do(Preempt("A"))
    script.launch([])
    script.run(["A", "B"])
    script.run(["A", "B"])
    return script.scenario._replace(name=f"long {tokens} in blocks of {block_size}")


def ring(profile: Profile, depth: int, store: int) -> Scenario:
    """Many steps in flight, of two requests."""
    script = Script(profile, Scenario((), 4, depth, store=store))
    script.do(Add("A", 5, 0, depth + 9), Add("B", 7, 3, depth + 9))
    for _ in range(2):
        for _ in range(depth):
            script.launch(["A", "B"])
        script.do(*[Land()] * depth)
    return script.scenario._replace(name=f"ring of {depth}")


def lived(profile: Profile, turns: int, store: int) -> Scenario:
    """One connector sees requests come and go, ids used again, with a reset now and then; the store fills up."""
    script = Script(profile, Scenario((), 2, 2, store=store and 24))
    for turn in range(turns):
        name = "ABC"[turn % 3]
        script.do(Add(name, 3 + turn % 5, turn % 2, 1 + turn % 2, f"T{turn % 7}"))
        script.run([name])
        if turn % 2:
            script.run([name])
        if turn % 10 == 9:
            script.do(Reset())
    return script.scenario._replace(name=f"life of {turns}")


def around(profile: Profile, number: int, store: int) -> Scenario:
    """Prompts, starts, hashes, lengths of ids and generations of one less than a number, of it, and of one more."""
    looks = Representation(id_length=number - 1, generation=min(number - 1, 1 << 16), hashes="alike")
    script = Script(profile, Scenario((), 1, 2, store=store, representation=looks))
    names = ("A", "B", "C")
    for more, name in enumerate(names, -1):
        script.do(Add(name, number + more, number + more, 3))
    script.run(names)
    script.run(names)
    script.do(Preempt("A"))
    script.launch([])
    script.run(names)
    script.abort_all()
    script.do(Reset())
    script.launch([])
    script.do(Reset())
    script.launch([])
    return script.scenario._replace(name=f"around {number}")


def crowded(profile: Profile, number: int, store: int) -> Scenario:
    """Steps of one request less than a number, of as many, and of one more."""
    script = Script(profile, Scenario((), 1, 2, store=store, representation=PLAIN))
    names = [f"R{each}" for each in range(number + 1)]
    script.do(*(Add(name, 1, 0, 3) for name in names))
    for count in (number - 1, number, number + 1):
        script.run(names[:count])
    return script.scenario._replace(name=f"crowd of {number}")


def prefilled(profile: Profile, number: int) -> Scenario:
    """Steps as those of ``crowded``, each of a part of the prompts, all of them in flight."""
    script = Script(profile, Scenario((), 16, 3))
    names = [f"R{each}" for each in range(number + 1)]
    script.do(*(Add(name, 4, 0, 1) for name in names))
    for count in (number - 1, number, number + 1):
        script.launch(names[:count], 1)
    return script.scenario._replace(name=f"prompts of {number}")


def _chosen(suite: Suite, numbers: Sequence[int]) -> Sequence[int]:
    """Numbers around which a suite has plays."""
    return _spread([number for number in numbers if number <= MOST_TOKENS[suite]], MOST_NUMBERS[suite])


def _spread(numbers: Sequence[int], most: int) -> Sequence[int]:
    """Some of the numbers, from the least to the greatest."""
    if len(numbers) <= most:
        return numbers
    return [numbers[at * (len(numbers) - 1) // (most - 1)] for at in range(most)]
