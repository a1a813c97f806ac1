"""The random judge: a Hypothesis state machine whose rules are the engine's events and whose model is the spec.

Each rule draws an event that the engine model allows, applies it to the model and makes the resulting connector
calls on the target; the first wrong answer ends the example. A failure is the list of its events, that is, a
scenario, which ``shrinking`` makes small: Hypothesis only generates here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, FlakyFailure
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from auxout_spec.engine import (
    Abort,
    Add,
    Chunk,
    End,
    EngineConfig,
    EngineRequest,
    Event,
    Evict,
    Impossible,
    Land,
    Launch,
    Pause,
    Preempt,
    Reset,
    Tamper,
    Unpack,
)
from auxout_spec.engine.options import (
    launchable,
    most_tokens,
    takes_drafts,
)
from auxout_spec.profiles import Profile
from auxout_spec.scenario import Scenario

from .hosts import TargetBroken
from .judge import Failure, Play
from .judge.play import Player, blamed

STEPS = 40
"""Events per example; the rarest faults need about twenty."""
NAMES = ("A", "B", "C")
TEXTS = ("", "T")
OUTPUT_TAMPERS = ("no_output", "no_entry", "cut_rows", "shift_start")
HASH_TAMPERS = ("shrink_hashes", "replace_hash", "mix_lengths")


@dataclass(frozen=True)
class Found:
    """A wrong answer, as the scenario that leads to it."""

    scenario: Scenario
    failure: Failure


class Ended(Exception):
    """Ends a search: something was found, or the target broke."""


class Tally:
    """What the random judge got through, and what it ended with."""

    def __init__(self) -> None:
        self.scenarios = self.calls = 0
        self.advice: list[tuple[str, str]] = []
        self.found: Found | None = None
        self.broken: tuple[TargetBroken, Scenario] | None = None


class EngineMachine(RuleBasedStateMachine):
    """One engine driving one connector; subclassed with its host by ``search``."""

    host: Player
    profile: Profile
    ignored: frozenset[str] = frozenset()
    """Clauses already found broken: a failure of theirs ends the example quietly."""
    tally: Tally
    on_example: Callable[[], None]

    @initialize(block_size=st.sampled_from((1, 2, 4)), depth=st.sampled_from((1, 2, 3)))
    def start(self, block_size: int, depth: int) -> None:
        self.play = Play.start(self.host, EngineConfig(self.profile, block_size, depth))
        self.events: list[Event] = []
        self.over = False

    def apply(self, event: Event) -> None:
        """Apply an event unless the engine cannot bring it about or the example is over."""
        if self.over:
            return
        try:
            failure = self.play.event(event)
            if failure is not None:
                failure = blamed(self.host, self._scenario(event), self.profile, failure)
        except Impossible:
            return
        except TargetBroken as error:
            self.tally.broken = error, self._scenario(event)
            raise Ended from None
        self.events.append(event)
        if failure is None:
            return
        self.over = True
        if failure.clause not in self.ignored:
            self.tally.found = Found(self._scenario(), failure)
            raise Ended

    def _scenario(self, *more: Event) -> Scenario:
        config = self.play.config
        return Scenario((*self.events, *more), config.block_size, config.depth, self.profile.name)

    def teardown(self) -> None:
        if hasattr(self, "play"):
            self.tally.scenarios += 1
            self.tally.calls += self.play.num_calls
            self.tally.advice += self.play.advice
            self.on_example()

    @property
    def requests(self) -> tuple[EngineRequest, ...]:
        return self.play.state.requests if hasattr(self, "play") else ()

    @precondition(lambda self: len(self.requests) < len(NAMES))
    @rule(
        index=st.integers(0, len(NAMES) - 1),
        prompt=st.integers(1, 9),
        start=st.sampled_from((0, 0, 1, 3, 6, 12)),
        max_tokens=st.integers(1, 5),
        text=st.sampled_from(TEXTS),
        session=st.sampled_from((False, False, True)),
    )
    def add(self, index: int, prompt: int, start: int, max_tokens: int, text: str, session: bool) -> None:
        self.apply(Add(NAMES[index], prompt, start, max_tokens, text, session))

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data())
    def launch(self, data: st.DataObject) -> None:
        ready = launchable(self.play.config, self.play.state)
        if not ready:
            self.apply(Launch())
            return
        chosen = data.draw(
            st.lists(st.sampled_from(ready), unique=True, max_size=len(ready)), label="scheduled"
        )
        tokens: list[tuple[str, int]] = []
        drafts: list[tuple[str, int]] = []
        hits: list[tuple[str, int]] = []
        for request in chosen:
            hit = most_tokens(self.play.config, self.play.state, request, skip_hit=False)
            whole = most_tokens(self.play.config, self.play.state, request, skip_hit=True)
            if whole != hit and data.draw(st.booleans(), label="skip hit"):
                hits.append((request.request_id, 0))
                hit = whole
            extra = data.draw(st.integers(0, 3), label="drafts") if takes_drafts(request) else 0
            count = hit + extra
            if extra:
                drafts.append((request.request_id, extra))
            elif data.draw(st.sampled_from((False, False, True)), label="chunked"):
                count = data.draw(st.integers(1, hit), label="tokens")
            tokens.append((request.request_id, count))
        self.apply(Launch(tuple(tokens), tuple(drafts), tuple(hits)))

    @precondition(lambda self: self.play.state.in_flight)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        sampled: list[tuple[str, int]] = []
        stop: list[tuple[str, int]] = []
        for entry in self.play.state.in_flight[0].entries:
            if not entry.samples:
                continue
            count = (
                data.draw(st.integers(1, 1 + entry.num_drafts), label="sampled") if entry.num_drafts else 1
            )
            if count > 1:
                sampled.append((entry.request_id, count))
            if data.draw(st.sampled_from((False, False, False, True)), label="stops"):
                stop.append((entry.request_id, data.draw(st.integers(1, count), label="stop after")))
        self.apply(Land(tuple(sampled), tuple(stop)))

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.apply(Abort(self._some(data, lambda request: True)))

    @precondition(lambda self: any(r.status == "running" for r in self.requests))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.apply(Preempt(self._some(data, lambda request: request.status == "running")))

    @precondition(lambda self: self.play.state.resident)
    @rule()
    def evict(self) -> None:
        self.apply(Evict())

    @rule(how=st.sampled_from(("plain", "running", "kept")), weights=st.booleans())
    def reset(self, how: str, weights: bool) -> None:
        self.apply(Reset(how == "running", weights, how == "kept"))

    @precondition(lambda self: self.profile.guards_running_reset)
    @rule()
    def pause_and_reset(self) -> None:
        """Profile 0.31 resets running requests only when paused and drained, which chance rarely brings about."""
        self.apply(Pause(True))
        while self.play.state.in_flight and not self.over:
            self.apply(Land())
        self.apply(Reset(running=True))
        self.apply(Pause(False))

    @precondition(lambda self: any(r.session for r in self.requests))
    @rule(
        data=st.data(),
        tokens=st.integers(1, 5),
        start=st.sampled_from((0, 0, 2, 8)),
        max_tokens=st.integers(1, 3),
    )
    def chunk(self, data: st.DataObject, tokens: int, start: int, max_tokens: int) -> None:
        name = self._some(data, lambda request: request.session)
        self.apply(Chunk(name, tokens, start, max_tokens))

    @precondition(lambda self: any(r.session for r in self.requests))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.apply(End(self._some(data, lambda request: request.session)))

    @precondition(lambda self: self.play.state.in_flight)
    @rule(data=st.data(), kind=st.sampled_from(OUTPUT_TAMPERS), amount=st.integers(1, 12))
    def tamper_output(self, data: st.DataObject, kind: str, amount: int) -> None:
        name = data.draw(st.sampled_from([e.request_id for e in self.play.state.in_flight[0].entries]))
        self.apply(Tamper(kind, name, amount))  # type: ignore[arg-type]
        self.land(data)

    @precondition(lambda self: any(r.block_hashes for r in self.requests))
    @rule(data=st.data(), kind=st.sampled_from(HASH_TAMPERS), ends=st.booleans())
    def tamper_hashes(self, data: st.DataObject, kind: str, ends: bool) -> None:
        name = self._some(data, lambda request: bool(request.block_hashes))
        request = self.play.state.request(name)
        if request is not None:
            amount = data.draw(st.integers(0, len(request.block_hashes) - 1), label="amount")
            self.apply(Tamper(kind, name, amount))  # type: ignore[arg-type]
            self.apply(Abort(name)) if ends else self.launch(data)

    @rule(
        size=st.sampled_from((-4, 0, 1, 4, 32)), count=st.integers(0, 3), more=st.sampled_from((0, 0, 1, 3))
    )
    def unpack(self, size: int, count: int, more: int) -> None:
        self.apply(Unpack(bytes(range(abs(size) * count + more)), size))

    def _some(self, data: st.DataObject, wanted: Callable[[EngineRequest], bool]) -> str:
        names = [request.request_id for request in self.requests if wanted(request)]
        return data.draw(st.sampled_from(names), label="request")


def search(
    host: Player,
    profile: Profile,
    *,
    examples: int,
    seed_number: int | None,
    ignored: frozenset[str],
    tally: Tally,
    on_example: Callable[[], None] = lambda: None,
) -> Found | None:
    """Run random scenarios until one fails; None if none does or the target broke (``tally.broken``).

    Args:
        examples: how many to run.
        seed_number: None: always the same ones.
        ignored: clauses whose failures are known already.
        tally: counts what was run.
    """
    machine = type(
        "Machine",
        (EngineMachine,),
        {
            "host": host,
            "profile": profile,
            "ignored": ignored,
            "tally": tally,
            "on_example": staticmethod(on_example),
        },
    )
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=seed_number is None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=(
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
            HealthCheck.large_base_example,
        ),
        print_blob=False,
    )
    if seed_number is not None:
        machine = seed(seed_number)(machine)
    # Hypothesis runs an example that ended once more and complains if it ends otherwise; the first end counts.
    with contextlib.suppress(Ended, FlakyFailure, Flaky, TargetBroken):
        run_state_machine_as_test(machine, settings=chosen)
    return tally.found
