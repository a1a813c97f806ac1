"""Random traffic: what happens to an engine, drawn step by step.

It stays inside what the protocol's releases survive; what is left out has a test of its own in
``test_findings_on_scheduler.py``, which says what happens then:

- a reset comes when nothing is in flight, and with running requests only when no session holds KV;
- sessions never stop early and never end a turn on a block's end, their turns do not raise the prompt start, and with
  drafts there are none (a turn must not end with a step in flight);
- a prompt start lies within the prompt, in 0.31;
- an id is used again only after its end was delivered.
"""

from __future__ import annotations

from random import Random

from auxout_spec.engine import Add, Chunk, End

from . import released
from .engine import Engine
from .released import BLOCK_SIZE

TARGET = 20
"""Requests that are kept alive."""
MAINTENANCE = 200
"""Steps between weight updates."""


class Workload:
    """Drives an engine.

    Args:
        sessions: whether some requests are streaming sessions.
    """

    def __init__(self, engine: Engine, seed: int, sessions: bool = True) -> None:
        self._engine, self._random, self._sessions = engine, Random(seed), sessions
        self._num_texts = 0
        self._shared = [self._new_text() for _ in range(6)]
        self._num_requests = 0
        self._length: dict[str, int] = {}
        """Of each open session: its tokens when the turns asked for have ended."""
        self._next_maintenance = MAINTENANCE
        self._alive: set[str] = set()
        self._ended: dict[str, int] = {}
        """Ids that can be used again once the engine has made more steps than this."""

    def run(self, num_steps: int) -> None:
        """So many steps with traffic, then steps until everything has ended."""
        while self._engine.counts["steps"] < num_steps:
            self._arrivals()
            self._interruptions()
            self._step()
        self._empty()

    def _step(self) -> None:
        """Launch until the engine is full or has nothing to schedule, then land one."""
        engine = self._engine
        depth = engine.setting.depth
        if len(engine.in_flight) < depth and engine.launch() and len(engine.in_flight) < depth:
            return
        if engine.in_flight:
            engine.land()

    def _empty(self) -> None:
        """No more traffic until everything has ended and its end is delivered."""
        for session in list(self._length):
            self._end(session)
        while self._engine.scheduler.requests or self._engine.in_flight:
            self._step()
        self._engine.launch()

    def _arrivals(self) -> None:
        random = self._random
        while len(self._engine.scheduler.requests) < TARGET and random.random() < 0.7:
            if self._sessions and random.random() < 0.1:
                self._open_session()
            else:
                self._add()
        for name in [name for name in self._length if random.random() < 0.1]:
            if random.random() < 0.25:
                self._end(name)
            else:
                self._chunk(name)

    def _add(self) -> None:
        random = self._random
        shared = random.random() < 0.6
        text = random.choice(self._shared) if shared else self._new_text()
        prompt, max_tokens = random.randint(1, 48), random.randint(1, 24)
        beyond = 4 if released.profile() != "0.31" else 0
        start = random.choice([0, 0, random.randint(0, prompt + beyond)])
        stop = random.randint(1, max_tokens) if random.random() < 0.2 else None
        event = Add(self._name(), prompt, start, max_tokens, f"T{text}")
        self._engine.add(event, text, None if stop == max_tokens else stop)

    def _open_session(self) -> None:
        text, name = self._new_text(), self._name()
        prompt = self._random.randint(1, 20)
        max_tokens = self._turn(prompt)
        self._length[name] = prompt + max_tokens - 1
        self._engine.add(Add(name, prompt, 0, max_tokens, f"T{text}", session=True), text)

    def _chunk(self, name: str) -> None:
        kept, tokens = self._length[name], self._random.randint(1, 12)
        if kept > 120:
            self._end(name)
            return
        max_tokens = self._turn(kept + tokens)
        self._length[name] = kept + tokens + max_tokens - 1
        self._engine.chunk(Chunk(name, tokens, 0, max_tokens), self._new_text())

    def _turn(self, prompt: int) -> int:
        """A number of output tokens that ends the turn inside a block."""
        return self._random.choice([n for n in range(1, 12) if (prompt + n) % BLOCK_SIZE])

    def _end(self, name: str) -> None:
        del self._length[name]
        self._engine.end(End(name))

    def _interruptions(self) -> None:
        random, engine = self._random, self._engine
        if random.random() < 0.05 and engine.scheduler.requests:
            name = random.choice(sorted(engine.scheduler.requests))
            self._length.pop(name, None)
            engine.abort(name)
            engine.counts["aborts"] += 1
        if random.random() < 0.01:
            self._drain()
            engine.counts["plain resets"] += engine.reset()
        if engine.counts["steps"] >= self._next_maintenance:
            self._maintain()

    def _maintain(self) -> None:
        """A weight update among running requests, and one when all have ended."""
        engine = self._engine
        self._next_maintenance += MAINTENANCE
        for session in list(self._length):
            self._end(session)
        while any(request.resumable for request in engine.scheduler.requests.values()):
            self._step()
        engine.pause(True)
        self._drain()
        engine.counts["running resets"] += engine.reset(running=True)
        engine.pause(False)
        self._empty()
        engine.counts["plain resets"] += engine.reset()

    def _drain(self) -> None:
        while self._engine.in_flight:
            self._engine.land()

    def _new_text(self) -> int:
        self._num_texts += 1
        return self._num_texts

    def _name(self) -> str:
        """An id, at times one that was in use before and whose end was delivered."""
        steps = self._engine.counts["steps"]
        for name in self._alive - self._engine.scheduler.requests.keys():
            self._alive.discard(name)
            self._ended[name] = steps + self._engine.setting.depth
        if self._random.random() < 0.1:
            free = sorted(name for name, step in self._ended.items() if step < steps)
            if free:
                name = self._random.choice(free)
                del self._ended[name]
                self._engine.counts["ids used again"] += 1
                self._alive.add(name)
                return name
        self._num_requests += 1
        self._alive.add(name := f"R{self._num_requests}")
        return name
