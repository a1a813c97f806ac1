"""Traffic with nothing left out: what happens to an engine that serves sessions and other requests.

Here sessions end their turns anywhere, also early; chunks are sent before a turn has ended; prompt starts are raised;
requests share text with sessions; resets come at any time; ids are used again at once; blocks run short. A release does
not survive each of these (docs/findings.md): ``play`` says how far it came and what it delivered.

The traffic depends on the seed and on vLLM's scheduler, which never looks at what a connector returns. So pairs of
connectors are given the same traffic, for as long as their engines live.
"""

from __future__ import annotations

import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from .engine import Engine
from .model import tokens_of
from .oracle import Delivered
from .released import Setting

PATIENCE = 12
"""Steps without any token after which a client gives its request up."""


class Mix(NamedTuple):
    """What the traffic has in it."""

    num_sessions: int = 4
    """Sessions that are open at a time."""
    num_others: int = 3
    """Other requests that are kept alive."""
    num_turns: int = 25
    longest_turn: int = 6
    """Output tokens of a session's turn."""
    longest: int = 200
    """Tokens from which on a session is not continued."""
    sharing: float = 0.0
    """Chance that a new request begins with text of a session or of another request."""
    aborts: float = 0.01
    """Chance of an abort before a step."""
    resets: float = 0.01
    """Chance of a reset before a step, when nothing is in flight."""
    early_stops: float = 0.0
    """Chance that a session's turn ends before its maximum. Other requests always may."""
    queued: float = 0.0
    """Chance that a chunk is sent before its turn begins."""
    raised: float = 0.0
    """Chance that a chunk's prompt start is a random one."""
    any_reset: float = 0.0
    """Chance of a reset before a step, whatever is in flight; running requests are reset with half of them."""
    again: float = 0.0
    """Chance that a new request has the id of one that ended just before."""


class _Session:
    """A client's side of a session."""

    def __init__(self, name: str, num_turns: int) -> None:
        self.name, self.num_left = name, num_turns
        self.num_sent = 1
        """Turns asked for."""
        self.closed = False


class Traffic:
    """Drives an engine.

    Args:
        engine: a new one.
        seed: of everything that is drawn.
        mix: what the traffic has in it.
    """

    def __init__(self, engine: Engine, seed: int, mix: Mix) -> None:
        self._engine, self._random, self._mix = engine, Random(seed), mix
        self._sessions: dict[str, _Session] = {}
        self._resting = False
        """No session is opened until all are over and a reset was tried."""
        self._num_names = self._num_texts = self._num_idle = 0
        self._recent: deque[str] = deque(maxlen=8)
        """Ids of requests, some of which ended."""
        self.num_turns = 0
        """Turns of sessions whose end was delivered."""
        self.num_full = 0
        """Sessions that had all their turns."""

    def run(self, num_sessions: int = 0, num_steps: int = 0) -> None:
        """Traffic until so many sessions were opened and steps made, then steps until everything has ended."""
        num_opened = 0
        while num_opened < num_sessions or self._engine.counts["steps"] < num_steps:
            if not self._resting and len(self._sessions) < self._mix.num_sessions:
                self._open_session()
                num_opened += 1
            self._tick()
        while self._sessions:
            self._tick()
        while self._engine.scheduler.requests or self._engine.in_flight:
            self._step()
        self._engine.launch()

    def _tick(self) -> None:
        self._arrivals()
        self._interruptions()
        self._step()
        self._close_sessions()
        if self._resting and not self._sessions:
            self._reset(drain=True)
            self._resting = False

    def _step(self) -> None:
        """Launch until the engine is full or has nothing to schedule, then land one; give up what is stuck."""
        engine, depth = self._engine, self._engine.setting.depth
        if len(engine.in_flight) < depth and engine.launch() and len(engine.in_flight) < depth:
            return
        if engine.in_flight:
            engine.land()
            self._num_idle = 0
            return
        self._num_idle += 1
        if self._num_idle > PATIENCE and engine.scheduler.requests:
            stuck = [name for name in engine.scheduler.requests if not self._is_listening(name)]
            engine.abort(self._random.choice(sorted(stuck or engine.scheduler.requests)))
            engine.counts["given up"] += 1
            self._num_idle = 0

    def _is_listening(self, name: str) -> bool:
        request = self._engine.scheduler.requests.get(name)
        return request is not None and request.status.name == "WAITING_FOR_STREAMING_REQ"

    def _arrivals(self) -> None:
        random, mix = self._random, self._mix
        alive = len(self._engine.scheduler.requests) - len(self._sessions)
        if alive < mix.num_others and random.random() < 0.5:
            self._add()
        for session in list(self._sessions.values()):
            listening = self._is_listening(session.name)
            if session.num_sent < mix.num_turns and random.random() < (0.4 if listening else mix.queued):
                self._send_chunk(session)

    def _add(self) -> None:
        random = self._random
        tokens = [*self._some_prefix(), *tokens_of(self._new_text(), 0, random.randint(1, 12))]
        start = random.choice([0, 0, random.randint(0, len(tokens))])
        max_tokens = random.randint(1, 16)
        stop = random.randint(1, max_tokens) if random.random() < 0.2 else max_tokens
        self._submit(self._name(), tokens, start, max_tokens, stop)

    def _open_session(self) -> None:
        random, mix = self._random, self._mix
        tokens = [*self._some_prefix(), *tokens_of(self._new_text(), 0, random.randint(1, 8))]
        name, max_tokens = self._name(), random.randint(1, mix.longest_turn)
        start = random.choice([0, 0, 0, random.randint(0, len(tokens))])
        self._sessions[name] = _Session(name, mix.num_turns)
        self._engine.ends.pop(name, None)
        self._submit(name, tokens, start, max_tokens, self._stop(max_tokens), session=True)

    def _send_chunk(self, session: _Session) -> None:
        random, mix = self._random, self._mix
        request = self._engine.scheduler.requests.get(session.name)
        if request is None:
            return
        if request.num_tokens > mix.longest:
            session.num_sent = mix.num_turns
            return
        tokens = tokens_of(self._new_text(), 0, random.randint(1, 6))
        if random.random() < 0.15 and request.num_output_tokens:
            # What the model said last is dropped; this client says it itself, so that a block may come back.
            tokens = [request.all_token_ids[-1], *tokens[1:]]
        max_tokens = random.randint(1, mix.longest_turn)
        if random.random() < 0.3 and mix.longest_turn > 1:
            size = self._engine.setting.block_size
            max_tokens = (-request.num_computed_tokens - len(tokens)) % size or size
        start = 0
        if random.random() < mix.raised:
            start = random.randint(0, request.num_tokens + len(tokens))
        session.num_sent += 1
        self._submit(session.name, tokens, start, max_tokens, self._stop(max_tokens), session=True)

    def _stop(self, max_tokens: int) -> int:
        """After how many outputs a session's turn ends."""
        early = self._random.random() < self._mix.early_stops
        return self._random.randint(1, max_tokens) if early else max_tokens

    def _submit(
        self, name: str, tokens: list[int], start: int, max_tokens: int, stop: int, session: bool = False
    ) -> None:
        """With the token that the model says after ``stop - 1`` others as the one that ends it."""
        stops = [tokens[-1] + stop] if stop < max_tokens else None
        self._engine.submit(name, tokens, start, max_tokens, stops, session)
        self._engine.counts["actions"] += 1

    def _close_sessions(self) -> None:
        """Clients close sessions that had their turns, at times before the last one has ended."""
        engine = self._engine
        for session in list(self._sessions.values()):
            name = session.name
            over = engine.ends.pop(name, 0)
            self.num_turns += over
            session.num_left -= over
            if name not in engine.scheduler.requests:
                self.num_full += session.num_left <= 0
                del self._sessions[name]
                self._resting |= self._random.random() < 0.2
            elif (
                session.num_sent >= self._mix.num_turns
                and not session.closed
                and (self._is_listening(name) or self._random.random() < 0.05)
            ):
                session.closed = True
                engine.submit(name, [0])
                engine.counts["actions"] += 1

    def _interruptions(self) -> None:
        random, mix, engine = self._random, self._mix, self._engine
        if random.random() < mix.aborts and engine.scheduler.requests:
            name = random.choice(sorted(engine.scheduler.requests))
            engine.counts[f"aborts, {engine.scheduler.requests[name].status.name.lower()}"] += 1
            engine.abort(name)
        if random.random() < mix.resets:
            self._reset(drain=True)
        if random.random() < mix.any_reset:
            self._reset(drain=False)

    def _reset(self, drain: bool) -> None:
        """A weight update; a failed one leaves the weights as they are."""
        engine, running = self._engine, self._random.random() < 0.7
        if drain:
            while engine.in_flight:
                engine.land()
            # It would preempt the running requests, and fail.
            running = running and not any(r.resumable for r in engine.scheduler.requests.values())
        engine.pause(True)
        with suppress(RuntimeError):
            done = engine.reset(running)
            engine.counts["running resets" if running else "plain resets"] += done
        engine.pause(False)

    def _some_prefix(self) -> list[int]:
        """Text of a request that lives, a session more often than not; or none."""
        requests, random = self._engine.scheduler.requests, self._random
        if not requests or random.random() >= self._mix.sharing:
            return []
        names = [name for name in self._sessions if name in requests] or list(requests)
        tokens = list(requests[random.choice(names)].all_token_ids)[: self._mix.longest // 2]
        return tokens[: random.randint(1, len(tokens))]

    def _new_text(self) -> int:
        self._num_texts += 1
        return self._num_texts

    def _name(self) -> str:
        alive = self._engine.scheduler.requests
        ended = sorted(name for name in self._recent if name not in alive and name not in self._sessions)
        name = f"R{self._num_names + 1}"
        if ended and self._random.random() < self._mix.again:
            name = self._random.choice(ended)
            self._engine.counts["ids used again"] += 1
        else:
            self._num_names += 1
        self._recent.append(name)
        return name


class Played(NamedTuple):
    """How an engine fared."""

    engine: Engine
    traffic: Traffic
    end: int | None
    """Actions that it completed before it ended; None: it lived to the end."""
    why: str
    """Where it ended, and with which error."""
    by_connector: bool
    """Whether a connector ended it, not vLLM's scheduler."""

    @property
    def delivered(self) -> list[Delivered]:
        """What its requests were given."""
        return self.engine.oracle.delivered


def play(setting: Setting, mix: Mix, seed: int, num_sessions: int = 0, num_steps: int = 0) -> Played:
    """An engine, with the pair that is bound, in some traffic until all has ended or it ends."""
    engine = Engine(setting, seed, record=False)
    traffic = Traffic(engine, seed, mix)
    try:
        traffic.run(num_sessions, num_steps)
    except (AssertionError, RuntimeError, LookupError) as error:
        with suppress(RuntimeError):
            engine.close()
        frames = traceback.extract_tb(error.__traceback__)
        by_connector = any("auxout" in each.filename or "aux_output" in each.filename for each in frames)
        why = f"{Path(frames[-1].filename).name}, {frames[-1].name}: {str(error) or frames[-1].line}"
        return Played(engine, traffic, engine.counts["actions"], why, by_connector)
    engine.close()
    return Played(engine, traffic, None, "", False)
