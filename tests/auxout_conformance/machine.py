"""The random judge: a Hypothesis state machine that draws engine events, with the spec as its model.

Each step draws an event that the engine model allows, applies it to the model and makes the resulting connector
calls on the target; the first wrong answer ends the example. A failure is the list of its events, that is, a
scenario, which ``shrinking`` makes small: Hypothesis only generates here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from hypothesis.strategies import SearchStrategy

from auxout_spec.engine import (
    Abort,
    Add,
    Chunk,
    Close,
    End,
    EngineRequest,
    Event,
    Evict,
    Impossible,
    Land,
    Launch,
    Load,
    Loaded,
    Pause,
    Preempt,
    Reset,
    Tamper,
    Unpack,
)
from auxout_spec.engine.events import TamperKind
from auxout_spec.engine.landing import delivers
from auxout_spec.engine.options import (
    admissible,
    filled_blocks,
    launchable,
    most_tokens,
    num_loaded,
    runs_on_load,
    takes_drafts,
)
from auxout_spec.engine.tampering import METADATA_KINDS, REPORT_KINDS, captured_whole
from auxout_spec.profiles import Profile
from auxout_spec.representation import PLAIN, Representation
from auxout_spec.scenario import Scenario, config_of

from .covered import Covered
from .drawing import CHUNKED, CUTS, EXTERNAL, KV_CACHES, PROMPT_STARTS, SESSION, STOPS, STORES, WEIGHTS
from .hosts import TargetBroken
from .judge import Failure, Play
from .judge.play import Player, blamed

STEPS = 40
"""Events per example; the rarest faults need about twenty."""
NAMES = ("A", "B", "C")
TEXTS = ("", "T")
OUTPUT_TAMPERS: tuple[TamperKind, ...] = ("no_output", "no_entry", "cut_rows", "shift_start")
HASH_TAMPERS: tuple[TamperKind, ...] = ("shrink_hashes", "mix_lengths")
DISRUPTIONS = (
    "abort", "preempt", "evict", "load", "reset", "pause_and_reset", "end", "close",
    "tamper_output", "tamper_hashes", "tamper_metadata", "tamper_batch", "tamper_report", "unpack",
)  # fmt: skip
"""Kinds of events that an example may do without."""


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
        self.covered = Covered()
        self.found: Found | None = None
        self.broken: tuple[TargetBroken, Scenario] | None = None


class EngineMachine(RuleBasedStateMachine):
    """One engine driving one connector; subclassed with its host by ``search``."""

    host: Player
    profile: Profile
    ignored: frozenset[str] = frozenset()
    """Clauses already found broken: a failure of theirs ends the example quietly."""
    kind: type[Play] = Play
    tally: Tally
    on_example: Callable[[], None]
    with_worker: bool = False
    """The engine drives a worker too."""
    representations: SearchStrategy[Representation] = st.just(PLAIN)
    """What an example may look like to the connectors."""

    @initialize(
        block_size=st.sampled_from((1, 2, 4)),
        depth=st.sampled_from((1, 2, 3)),
        without=st.frozensets(st.sampled_from(DISRUPTIONS)),
        store=STORES,
        data=st.data(),
    )
    def start(
        self, block_size: int, depth: int, without: frozenset[str], store: int, data: st.DataObject
    ) -> None:
        """Choose the engine, what it looks like, and which disruptions leave this example alone.

        Without those some of it runs undisturbed.
        """
        self.without = without
        engine = Scenario((), block_size, depth, self.profile.name, store=store if self.with_worker else 0)
        engine = engine._replace(representation=data.draw(self.representations, label="representation"))
        if self.profile.reads_kv_cache:
            engine = engine._replace(**data.draw(KV_CACHES, label="KV cache"))
        self.engine = engine
        self.play = self.kind.start(self.host, config_of(engine, self.profile))
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
            self.over = self.play.over
            return
        self.over = True
        if failure.clause not in self.ignored:
            self.tally.found = Found(self._scenario(), failure)
            raise Ended

    def _scenario(self, *more: Event) -> Scenario:
        return self.engine._replace(events=(*self.events, *more))

    def read_back(self) -> None:
        """Let requests hit what is resident, so that what was stored wrongly is read."""
        for event in (Pause(False), *[Land()] * len(self.play.state.in_flight)):
            self.apply(event)
        texts = {block.name.rpartition(":")[0] for block in self.play.state.resident}
        for text, name in zip(sorted(texts), self.free_names, strict=False):
            blocks = sum(block.name.startswith(f"{text}:") for block in self.play.state.resident)
            self.apply(Add(name, blocks * self.engine.block_size + 1, 0, 1, text))
            request = self.play.state.request(name)
            if request is not None and request in self.launchable:
                self.apply(Launch(((name, self._lacks(request)),)))
                self.apply(Land())

    def teardown(self) -> None:
        if hasattr(self, "play"):
            if self.with_worker:
                self.read_back()
            self.tally.scenarios += 1
            self.tally.calls += self.play.num_calls
            self.tally.advice += self.play.advice
            self.tally.covered.merge(self.play.covered.bounds)
            self.on_example()

    @property
    def requests(self) -> tuple[EngineRequest, ...]:
        """The live requests."""
        return self.play.state.requests

    @property
    def launchable(self) -> tuple[EngineRequest, ...]:
        """The requests that a step launched now may schedule."""
        return launchable(self.play.config, self.play.state)

    @property
    def captured_whole(self) -> list[EngineRequest]:
        """Those of which the worker notices when a position is skipped."""
        running = [request for request in self.launchable if request.status == "running"]
        return [request for request in running if captured_whole(self.play.state, request.request_id)]

    @property
    def sessions(self) -> list[EngineRequest]:
        """The sessions that were not closed."""
        return [request for request in self.requests if request.session and None not in request.queue]

    @property
    def preemptible(self) -> list[EngineRequest]:
        """The running requests that an engine may preempt."""
        return [request for request in self.requests if request.status == "running"]

    @property
    def may_load(self) -> bool:
        """Whether this example loads KV from elsewhere."""
        config = self.play.config
        return "load" not in self.without and (config.cache is None or config.kv_connector)

    @property
    def loadable(self) -> list[EngineRequest]:
        """The waiting requests whose KV may be loaded from elsewhere."""
        ready = [request for request in self.launchable if admissible(request)]
        return [request for request in ready if self._lacks(request) > 0]

    @property
    def loading(self) -> list[EngineRequest]:
        """The requests that wait for such a load."""
        return [request for request in self.requests if request.status == "waiting_for_kv"]

    @property
    def free_names(self) -> list[str]:
        """Ids that a new request may have."""
        used = {request.request_id for request in self.requests}
        used |= {entry.request_id for flying in self.play.state.in_flight for entry in flying.entries}
        return [name for name in NAMES if name not in used]

    @rule(data=st.data())
    def event(self, data: st.DataObject) -> None:
        """Draw one event among the possible ones.

        One rule for all, because Hypothesis switches rules off at random: without arrivals an example would hold
        nothing but resets.
        """
        if self.over:
            return
        verbs = [verb for verb, possible in POSSIBLE.items() if verb not in self.without and possible(self)]
        weighted = [verb for verb in verbs for _ in range(WEIGHTS[verb])]
        getattr(self, data.draw(st.sampled_from(weighted), label="event"))(data)
        self._forget_unseen_corruption()

    def _forget_unseen_corruption(self) -> None:
        """Take back a corruption whose event was not possible, so that it does not wait for a later one."""
        while self.play.state.tampered and not self.over:
            self.play.state = self.play.state._replace(tampered=self.play.state.tampered[:-1])
            self.play.num_events -= 1
            self.events.pop()

    def add(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.free_names), label="request")
        prompt = data.draw(st.integers(1, 9), label="prompt")
        start = data.draw(PROMPT_STARTS, label="start")
        text = data.draw(st.sampled_from(TEXTS), label="text")
        cut = data.draw(CUTS, label="cut")
        if 0 < cut < prompt:
            self.apply(Add(name, prompt, start, 1, text, cut=cut))
            return
        max_tokens = data.draw(st.integers(1, 5), label="max_tokens")
        self.apply(Add(name, prompt, start, max_tokens, text, data.draw(SESSION, label="session")))

    def launch(self, data: st.DataObject) -> None:
        scheduled = st.lists(st.sampled_from(self.launchable), unique=True, min_size=1)
        chosen = data.draw(scheduled, label="scheduled")
        tokens: list[tuple[str, int]] = []
        drafts: list[tuple[str, int]] = []
        hits: list[tuple[str, int]] = []
        external: list[tuple[str, int]] = []
        filled: frozenset[bytes] = frozenset()
        for request in chosen:
            lacks, hit = self._prefix(data, request, filled)
            if hit is not None:
                hits.append((request.request_id, hit))
            loads = self.may_load and admissible(request)
            if loads and lacks > 1 and data.draw(EXTERNAL, label="loads"):
                offered = self._offer(data, request, lacks)
                external.append((request.request_id, offered))
                lacks -= offered
            extra = data.draw(st.integers(0, 3), label="drafts") if takes_drafts(request, lacks) else 0
            count = lacks + extra
            if extra:
                drafts.append((request.request_id, extra))
            elif data.draw(CHUNKED, label="chunked"):
                count = data.draw(st.integers(1, lacks), label="tokens")
            tokens.append((request.request_id, count))
            filled = filled.union(filled_blocks(self.play.config, request, max(lacks - count, 0)))
        self.apply(Launch(tuple(tokens), tuple(drafts), tuple(hits), tuple(external)))

    def _offer(self, data: st.DataObject, request: EngineRequest, lacks: int) -> int:
        """Tokens that a KV connector has behind a hit; where few offers are taken, rather one of these."""
        config, state = self.play.config, self.play.state
        hit = request.num_uncomputed_tokens - lacks
        taken = [each for each in range(1, lacks) if num_loaded(config, state, request, hit, each)]
        if config.cache is not None and taken and data.draw(st.booleans(), label="taken"):
            return data.draw(st.sampled_from(taken), label="external")
        return data.draw(st.integers(1, lacks - 1), label="external")

    def _prefix(
        self, data: st.DataObject, request: EngineRequest, filled: frozenset[bytes]
    ) -> tuple[int, int | None]:
        """The tokens that a request then lacks, and its hit if it is not the longest that was resident before."""
        default, whole = self._lacks(request), self._lacks(request, skip_hit=True)
        least = self._lacks(request, filled=filled)
        if least != default and data.draw(st.booleans(), label="hit this step's blocks"):
            return least, whole - least
        if whole != default and data.draw(st.booleans(), label="skip hit"):
            return whole, 0
        return default, None

    def _lacks(
        self, request: EngineRequest, skip_hit: bool = False, filled: frozenset[bytes] = frozenset()
    ) -> int:
        return most_tokens(self.play.config, self.play.state, request, skip_hit, filled)

    def launch_nothing(self, data: st.DataObject) -> None:
        self.apply(Launch())

    def land(self, data: st.DataObject) -> None:
        sampled: list[tuple[str, int]] = []
        stop: list[tuple[str, int]] = []
        failed: list[tuple[str, int]] = []
        for entry in self.play.state.in_flight[0].entries:
            if runs_on_load(self.play.state, entry) and data.draw(STOPS, label="load fails"):
                start = entry.token_start - entry.num_external_tokens
                failed.append((entry.request_id, self._valid(data, start, entry.token_start)))
                continue
            if not entry.samples:
                continue
            most = entry.most_sampled
            count = data.draw(st.integers(1, most), label="sampled") if most > 1 else 1
            if count > 1:
                sampled.append((entry.request_id, count))
            if delivers(self.play.state, entry) and data.draw(STOPS, label="stops"):
                stop.append((entry.request_id, data.draw(st.integers(1, count), label="stop after")))
        recompute = bool(failed) and data.draw(st.booleans(), label="recompute")
        self.apply(Land(tuple(sampled), tuple(stop), tuple(failed), recompute))

    def _valid(self, data: st.DataObject, start: int, end: int) -> int:
        """What of a failed load is valid: whole blocks."""
        return data.draw(st.sampled_from(range(start, end, self.play.config.block_size)), label="valid")

    def load(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.loadable), label="request")
        lacks = self._lacks(request)
        if self.play.config.cache is not None and lacks > 1:
            self.apply(Load(request.request_id, self._offer(data, request, lacks)))
            return
        self.apply(Load(request.request_id, data.draw(st.integers(1, lacks), label="tokens")))

    def loaded(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.loading), label="request")
        start = request.num_computed_tokens - request.num_external_tokens
        fails = data.draw(STOPS, label="load fails")
        valid = self._valid(data, start, request.num_computed_tokens) if fails else -1
        self.apply(Loaded(request.request_id, valid))

    def abort(self, data: st.DataObject) -> None:
        self.apply(Abort(_one_of(data, self.requests)))

    def preempt(self, data: st.DataObject) -> None:
        self.apply(Preempt(_one_of(data, self.preemptible)))

    def evict(self, data: st.DataObject) -> None:
        self.apply(Evict())

    def reset(self, data: st.DataObject) -> None:
        how = data.draw(st.sampled_from(("plain", "running", "kept")), label="how")
        self.apply(Reset(how == "running", data.draw(st.booleans(), label="weights"), how == "kept"))

    def pause_and_reset(self, data: st.DataObject) -> None:
        """Profile 0.31 resets running requests only when paused and drained, which chance rarely brings about."""
        self.apply(Pause(True))
        for _ in self.play.state.in_flight:
            self.apply(Land())
        self.apply(Reset(running=True))
        self.apply(Pause(False))

    def chunk(self, data: st.DataObject) -> None:
        self.apply(
            Chunk(
                _one_of(data, self.sessions),
                data.draw(st.integers(1, 5), label="tokens"),
                data.draw(PROMPT_STARTS, label="start"),
                data.draw(st.integers(1, 3), label="max_tokens"),
            )
        )

    def end(self, data: st.DataObject) -> None:
        self.apply(End(_one_of(data, self.sessions)))

    @property
    def worker_refuses(self) -> bool:
        """Whether there is a worker that refuses a corrupted call, and takes the sound one afterwards."""
        return self.with_worker and not self.play.config.profile.fails_requests

    def tamper_output(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(OUTPUT_TAMPERS), label="kind")
        name = data.draw(st.sampled_from([e.request_id for e in self.play.state.in_flight[0].entries]))
        self.apply(Tamper(kind, name, data.draw(st.integers(1, 12), label="amount")))
        self.land(data)

    def tamper_hashes(self, data: st.DataObject) -> None:
        name = _one_of(data, [request for request in self.requests if request.block_hashes])
        request = self.play.state.request(name)
        assert request is not None  # it was just drawn
        kind = data.draw(st.sampled_from(HASH_TAMPERS), label="kind")
        amount = data.draw(st.integers(0, len(request.block_hashes) - 1), label="amount")
        self.apply(Tamper(kind, name, amount))
        how = data.draw(st.sampled_from(("launch", "abort", "preempt")), label="shown at")
        if how == "abort":
            self.apply(Abort(name))
        elif how == "preempt" and request in self.preemptible:
            self.apply(Preempt(name))
        else:
            self.launch(data) if self.launchable else self.launch_nothing(data)

    def tamper_metadata(self, data: st.DataObject) -> None:
        """Corrupt what the worker is sent, on its way."""
        kind = data.draw(st.sampled_from(METADATA_KINDS), label="kind")
        name = _one_of(data, self.launchable or self.requests)
        self.apply(Tamper(kind, name, data.draw(st.integers(1, 9), label="amount")))
        self.launch(data) if self.launchable else self.launch_nothing(data)

    def tamper_batch(self, data: st.DataObject) -> None:
        """Corrupt what the worker is told when a step is launched; that shows when it is processed."""
        request = data.draw(st.sampled_from(self.captured_whole), label="request")
        self.apply(Tamper("skip_ahead", request.request_id, data.draw(st.integers(1, 3), label="amount")))
        lacks, _ = self._prefix(data, request, frozenset())
        self.apply(Launch(((request.request_id, lacks),)))

    def tamper_report(self, data: st.DataObject) -> None:
        """Corrupt what the worker is told of a step."""
        kind = data.draw(st.sampled_from(REPORT_KINDS), label="kind")
        known = [e.request_id for e in self.play.state.in_flight[0].entries]
        here = [name for name in known if self.play.state.request(name) is not None]
        if here:
            self.apply(Tamper(kind, data.draw(st.sampled_from(here), label="request"), 1))
            self.land(data)

    def close(self, data: st.DataObject) -> None:
        self.apply(Close())

    def unpack(self, data: st.DataObject) -> None:
        size = data.draw(st.sampled_from((-4, 0, 1, 4, 32)), label="item size")
        count = data.draw(st.integers(0, 3)) * abs(size) + data.draw(st.sampled_from((0, 0, 1, 3)))
        self.apply(Unpack(bytes(range(count)), size))


def _one_of(data: st.DataObject, requests: Sequence[EngineRequest]) -> str:
    return data.draw(st.sampled_from([request.request_id for request in requests]), label="request")


POSSIBLE: dict[str, Callable[[EngineMachine], bool]] = {
    "add": lambda self: bool(self.free_names),
    "launch": lambda self: bool(self.launchable),
    "launch_nothing": lambda self: True,
    "land": lambda self: bool(self.play.state.in_flight),
    "abort": lambda self: bool(self.requests),
    "preempt": lambda self: bool(self.preemptible),
    "evict": lambda self: bool(self.play.state.resident),
    "load": lambda self: self.may_load and bool(self.loadable),
    "loaded": lambda self: bool(self.loading),
    "reset": lambda self: True,
    "pause_and_reset": lambda self: self.profile.guards_running_reset,
    "chunk": lambda self: bool(self.sessions),
    "end": lambda self: bool(self.sessions),
    "tamper_output": lambda self: bool(self.play.state.in_flight),
    "tamper_hashes": lambda self: any(request.block_hashes for request in self.requests),
    "tamper_metadata": lambda self: self.worker_refuses and bool(self.requests),
    "tamper_batch": lambda self: self.worker_refuses and bool(self.captured_whole),
    "tamper_report": lambda self: self.worker_refuses and bool(self.play.state.in_flight),
    "close": lambda self: self.with_worker,
    "unpack": lambda self: True,
}
"""When each kind of event may be drawn."""
