"""The random judge: what its machine does with events, and what a search comes to."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from auxout_conformance import machine
from auxout_conformance.hosts import InProcess, TargetBroken
from auxout_conformance.judge.play import Player
from auxout_conformance.machine import Ended, EngineMachine, Found, Tally
from auxout_conformance.observation import Observation, Raised
from auxout_conformance.searching import search
from auxout_conformance.selfcheck import SpecHost
from auxout_conformance.targets import resolve
from auxout_spec.calls import Call
from auxout_spec.engine import Abort, Add, Event, Land, Launch, Pause, Reset, Tamper
from auxout_spec.profiles import PROFILES
from auxout_spec.representation import PLAIN

VERBS = (
    "Abort", "Add", "Chunk", "End", "Evict", "Land", "Launch", "Load", "Loaded", "Pause", "Preempt", "Reset",
    "Tamper", "Unpack"
)  # fmt: skip
NO_DATA: Any = None
"""For kinds of events that draw nothing."""
PLAINLY: Any = SimpleNamespace(draw=lambda *_, **__: PLAIN)
"""Draws the plain representation."""
A4 = (Add("A", 4, max_tokens=4), Launch((("A", 4),)))


class WrongAt(SpecHost):
    """Breaks in some way at its call number ``at``, counted over all sessions; 0: at every call."""

    def __init__(self, at: int, how: BaseException | None = None) -> None:
        super().__init__()
        self.at, self.how, self.num_calls = at, how, 0

    def call(self, call: Call) -> Observation:
        right = super().call(call)
        self.num_calls += 1
        if self.at not in (0, self.num_calls):
            return right
        if self.how is not None:
            raise self.how
        return Observation(Raised("KeyError", "odd", False))


def machine_on(host: Player, profile: str = "0.32", ignored: frozenset[str] = frozenset()) -> EngineMachine:
    """A machine as ``search`` makes it, at its start, driven by hand."""
    fields: dict[str, Any] = {
        "host": host,
        "profile": PROFILES[profile],
        "ignored": ignored,
        "tally": Tally(),
    }
    made = type("Machine", (EngineMachine,), {**fields, "on_example": staticmethod(lambda: None)})()
    made.start(2, 1, frozenset(), 64, PLAINLY)
    return made


def apply_all(running: EngineMachine, *events: Event) -> EngineMachine:
    for event in events:
        running.apply(event)
    return running


def searched(host: Player, examples: int = 10, **options: Any) -> tuple[Found | None, Tally]:
    tally = Tally()
    fields = {"seed_number": 5, "ignored": frozenset[str](), **options}
    return search(host, PROFILES["0.32"], examples=examples, tally=tally, **fields), tally


# The machine.


def test_an_impossible_event_did_not_happen() -> None:
    running = apply_all(machine_on(SpecHost()), Land(), Add("A", 4), Land(), Abort("B"))
    assert running.events == [Add("A", 4)]
    assert not running.over


def test_a_wrong_answer_is_found_with_its_scenario() -> None:
    running = apply_all(machine_on(WrongAt(2)), *A4)
    with pytest.raises(Ended):
        running.apply(Land())
    found = running.tally.found
    assert found is not None
    assert found.scenario.events == (*A4, Land())
    assert (found.scenario.block_size, found.scenario.depth, found.scenario.profile) == (2, 1, "0.32")
    assert (found.failure.clause, found.failure.event) == ("SCHED-ACCEPT-1", 3)


def test_a_wrong_answer_of_a_known_clause_ends_the_example_quietly() -> None:
    running = apply_all(
        machine_on(WrongAt(2), ignored=frozenset(("SCHED-ACCEPT-1",))), *A4, Land(), Abort("A")
    )
    assert running.over
    assert running.events == [*A4, Land()]
    assert running.tally.found is None


def test_the_scenario_in_which_a_target_breaks_is_kept() -> None:
    broken = TargetBroken("gone")
    running = apply_all(machine_on(WrongAt(2, broken)), *A4)
    with pytest.raises(Ended):
        running.apply(Land())
    assert running.tally.broken == (broken, running._scenario(Land()))


def test_a_corruption_that_waits_does_not_keep_the_machine_from_ending() -> None:
    """Steps cannot land while a corrupted hash list waits for the next launch."""
    running = apply_all(machine_on(SpecHost(), "0.31"), *A4, Tamper("shrink_hashes", "A", 1))
    running.pause_and_reset(NO_DATA)
    assert running.play.state.in_flight
    assert running.events == [*A4, Tamper("shrink_hashes", "A", 1)]


def test_pause_and_reset_drains_first() -> None:
    running = apply_all(machine_on(SpecHost(), "0.31"), *A4)
    running.pause_and_reset(NO_DATA)
    assert running.events == [*A4, Pause(True), Land(), Reset(running=True), Pause(False)]
    assert running.play.state.connector.generation == 1


def test_a_machine_that_never_started_counts_nothing() -> None:
    made = type("Machine", (EngineMachine,), {"tally": Tally()})()
    made.teardown()
    assert made.tally.scenarios == 0


def test_every_kind_of_event_has_a_weight_a_condition_and_a_method() -> None:
    assert machine.WEIGHTS.keys() == machine.POSSIBLE.keys()
    assert set(machine.DISRUPTIONS) < machine.WEIGHTS.keys()
    assert all(callable(getattr(EngineMachine, verb)) for verb in machine.WEIGHTS)


def test_what_may_be_drawn_follows_the_engine() -> None:
    running = machine_on(SpecHost())
    verbs = {"add", "launch_nothing", "reset", "unpack"}
    assert {verb for verb, possible in machine.POSSIBLE.items() if possible(running)} == verbs
    apply_all(running, *A4)
    verbs |= {"land", "abort", "preempt", "evict", "tamper_output", "tamper_hashes"}
    assert {verb for verb, possible in machine.POSSIBLE.items() if possible(running)} == verbs
    apply_all(running, Land())
    verbs = verbs - {"land", "tamper_output"} | {"launch"}
    assert {verb for verb, possible in machine.POSSIBLE.items() if possible(running)} == verbs


def test_an_id_is_free_once_its_last_step_has_landed() -> None:
    running = apply_all(machine_on(SpecHost()), *A4, Abort("A"))
    assert running.free_names == ["B", "C"]
    assert apply_all(running, Land()).free_names == ["A", "B", "C"]


# A search.


FIELDS = (
    "drafts", "hits", "external", "sampled", "stop", "failed", "recompute", "session", "kept", "running", "weights",
    "text", "cut", "valid"
)  # fmt: skip
"""Fields of events that have to be other than their defaults now and then."""


def test_every_event_is_drawn_and_few_are_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: Counter[str] = Counter()
    plain = EngineMachine.apply

    def apply(self: EngineMachine, event: Event) -> None:
        before = len(self.events)
        plain(self, event)
        did = len(self.events) > before
        happened["did" if did else "impossible"] += 1
        if did:
            kinds = (type(event).__name__, *((event.kind,) if isinstance(event, Tamper) else ()))
            happened.update((*kinds, *(name for name in FIELDS if getattr(event, name, None))))

    monkeypatch.setattr(EngineMachine, "apply", apply)
    wanted = {*VERBS, *FIELDS, *machine.OUTPUT_TAMPERS, *machine.HASH_TAMPERS}
    for seed in range(20):
        for profile in PROFILES.values():
            found = search(
                SpecHost(), profile, examples=30, seed_number=seed, ignored=frozenset(), tally=Tally()
            )
            assert found is None
        if not wanted - happened.keys():
            break
    assert wanted - happened.keys() == set()
    assert happened["impossible"] < 0.1 * happened["did"]
    # What the protocol is about is most of what happens.
    assert happened["Launch"] + happened["Land"] > 0.4 * happened["did"]


def test_a_search_counts_scenarios_and_calls() -> None:
    counted: list[None] = []
    host = WrongAt(-1)
    found, tally = searched(host, on_example=lambda: counted.append(None))
    assert found is None
    assert tally.scenarios == len(counted) >= 10
    assert tally.calls == host.num_calls


def test_a_search_finds() -> None:
    found, tally = searched(InProcess(resolve("known-bad:hashes-sorted")), 60)
    assert found is not None
    assert found is tally.found
    assert found.failure.clause in {"SCHED-HASH-4", "SCHED-RESTART-2"}
    assert found.failure.event == len(found.scenario.events)


def test_a_search_passes_over_what_is_known() -> None:
    host = InProcess(resolve("known-bad:hashes-sorted"))
    found, tally = searched(host, 20, ignored=frozenset(("SCHED-HASH-4", "SCHED-RESTART-2")))
    assert found is None
    assert tally.scenarios >= 20


def test_a_search_ends_where_the_target_breaks() -> None:
    broken = TargetBroken("gone")
    found, tally = searched(WrongAt(20, broken))
    assert found is None
    assert tally.broken is not None
    assert tally.broken[0] is broken
    assert tally.broken[1].events


def test_a_wrong_answer_that_does_not_come_again_was_wrong() -> None:
    found, _ = searched(WrongAt(20))
    assert found is not None
    assert found.failure.actual == "raised KeyError: odd"
