"""Shrinking: a failing scenario gets small, stays possible, and still fails."""

from __future__ import annotations

import pytest

from auxout_conformance import shrinking
from auxout_conformance.hosts import InProcess, TargetBroken
from auxout_conformance.judge import Failure, play
from auxout_conformance.judge.play import Player
from auxout_conformance.observation import Observation, Raised
from auxout_conformance.selfcheck import SpecHost
from auxout_conformance.setups import Setup
from auxout_conformance.shrinking import Shrinker
from auxout_conformance.targets import resolve
from auxout_spec.calls import Call, TakeOutput
from auxout_spec.engine import (
    Abort,
    Add,
    Chunk,
    Event,
    Evict,
    Land,
    Launch,
    Preempt,
    Reset,
    Tamper,
    Unpack,
)
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import Scenario

PROFILE = PROFILES["0.32"]
LONG: tuple[Event, ...] = (
    Add("C", 7, 3, 5, "T"),
    Unpack(bytes(range(12)), 4),
    Add("B", 9, 0, 5, "T", True),
    Launch((("C", 7), ("B", 9))),
    Land((), (("C", 1),)),
    Launch((("B", 1),)),
    Add("A", 5, 1, 4),
    Land(),
    Preempt("B"),
    Reset(weights=True),
    Launch((("A", 3),)),
    Chunk("B", 4, 2, 3),
    Land(),
    Launch((("B", 11), ("A", 2))),
    Land(),
    Abort("B"),
    Evict(),
    Launch((("A", 1),)),
    Land(),
    Abort("A"),
    Launch(),
)


def shrunk(
    host: Player, events: tuple[Event, ...], ignored: frozenset[str] = frozenset(), **config: int
) -> tuple[Scenario, Failure]:
    scenario = Scenario(events, **{"block_size": 4, "depth": 3, **config})  # type: ignore[arg-type]
    _, failure = play(host, scenario, PROFILE)
    assert failure is not None
    small, failure = Shrinker(host, PROFILE, ignored).shrink(scenario, failure)
    _, again = play(host, small, PROFILE)
    assert again == failure
    assert failure.event == len(small.events)
    return small, failure


def known_bad(name: str) -> InProcess:
    return InProcess(resolve(f"known-bad:{name}"))


@pytest.mark.parametrize(
    ("name", "events", "clause"),
    [
        (
            "emit-start-one-late",
            (Add("A", 1), Launch((("A", 1),)), Land(), Launch((("A", 1),))),
            "SCHED-EMIT-2",
        ),
        ("event-without-hashes", None, "SCHED-TERM-5"),
        ("generation-kept", (Reset(), Launch()), "SCHED-RESET-1"),
        ("rows-widened", (Add("A", 1, max_tokens=1), Launch((("A", 1),)), Land()), "SCHED-TAKE-9"),
    ],
)
def test_a_long_scenario_gets_small(name: str, events: tuple[Event, ...] | None, clause: str) -> None:
    small, failure = shrunk(known_bad(name), LONG)
    assert failure.clause == clause
    assert len(small.events) <= 8
    if events is not None:
        assert small == Scenario(events, 1, 1)


def test_it_is_deterministic() -> None:
    first, second = (shrunk(known_bad("event-without-hashes"), LONG) for _ in range(2))
    assert first == second


def test_what_follows_the_failure_is_left_out_and_names_are_tidy() -> None:
    small, _ = shrunk(
        known_bad("prompt-start-ignored"), (Add("Z", 3, 2, text="T"), Launch((("Z", 3),)), Land())
    )
    assert small == Scenario((Add("A", 1, 1, 1), Launch((("A", 1),))), 1, 1)


def test_names_stay_where_tidy_ones_do_not_fail() -> None:
    class OnlyZ(SpecHost):
        def call(self, call: Call) -> Observation:
            right = super().call(call)
            z = isinstance(call, TakeOutput) and call.request.request_id == "Z"
            return Observation(Raised("KeyError", "Z", False)) if z else right

    small, _ = shrunk(OnlyZ(), (Add("Z", 3), Launch((("Z", 3),)), Land()))
    assert small.events == (Add("Z", 1, max_tokens=1), Launch((("Z", 1),)), Land())


def test_two_requests_that_share_a_text_keep_sharing_it_if_that_matters() -> None:
    events = (
        Add("X", 4, text="T"),
        Launch((("X", 4),)),
        Tamper("cut_rows", "X", 9),
        Land(),
        Unpack(b"abcd", 2),
        Tamper("shrink_hashes", "X", 0),
        Abort("X"),
    )
    small, failure = shrunk(known_bad("shrunk-list-accepted-at-end"), events, block_size=2, depth=1)
    assert failure.clause == "SCHED-TERM-8"
    assert small.events == (
        Add("A", 1, max_tokens=1),
        Launch((("A", 1),)),
        Tamper("shrink_hashes", "A"),
        Abort("A"),
    )


def test_unpacked_bytes_get_few() -> None:
    small, _ = shrunk(known_bad("ragged-data"), (Launch(), Unpack(bytes(range(11)), 4)))
    assert small.events == (Unpack(b"\x00", 2),)


def test_a_known_clause_does_not_count() -> None:
    """Both faults show in the long scenario; the one already known is no reason to keep a candidate."""

    class Twice(SpecHost):
        def call(self, call: Call) -> Observation:
            right = super().call(call)
            return Observation(Raised("KeyError", "odd", False)) if isinstance(call, TakeOutput) else right

    small, failure = shrunk(
        Twice(), (Add("A", 4, 4), Launch((("A", 4),)), Land()), frozenset(("SCHED-TAKE-3",))
    )
    assert failure.clause == "SCHED-TAKE-4"
    assert small.events == (Add("A", 1, 1, max_tokens=1), Launch((("A", 1),)), Land())


def test_a_failure_that_does_not_come_again_stays_as_it_is() -> None:
    scenario = Scenario(LONG[:5], 4, 3)
    failure = Failure("SCHED-TAKE-3", 4, "", "", "")
    found = Shrinker(SpecHost(), PROFILE, frozenset()).shrink(scenario, failure)
    assert found == (scenario._replace(events=LONG[:4]), failure)


def test_the_number_of_plays_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "MAX_PLAYS", 7)
    host = known_bad("event-without-hashes")
    _, failure = play(host, Scenario(LONG, 4, 3), PROFILE)
    assert failure is not None
    plays: list[None] = []
    shrinker = Shrinker(host, PROFILE, frozenset(), lambda: plays.append(None))
    small, _ = shrinker.shrink(Scenario(LONG, 4, 3), failure)
    assert shrinker.plays == len(plays) == 7
    assert len(small.events) < len(LONG)


def test_what_was_found_stays_found_when_the_target_breaks() -> None:
    class Breaking(SpecHost):
        """Wrong at every call, and gone at the fifth session."""

        num_sessions = 0

        def new(self, setup: Setup) -> None:
            super().new(setup)
            self.num_sessions += 1
            if self.num_sessions >= 5:
                raise TargetBroken("gone")

        def call(self, call: Call) -> Observation:
            super().call(call)
            return Observation(Raised("KeyError", "odd", False))

    host = Breaking()
    _, failure = play(host, Scenario(LONG, 4, 3), PROFILE)
    assert failure is not None
    small, failure = Shrinker(host, PROFILE, frozenset()).shrink(Scenario(LONG, 4, 3), failure)
    assert host.num_sessions == 5
    assert len(small.events) == failure.event
