"""The random judge on our own connectors: whatever the seed, no violation, and the same scenarios for each."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import pytest

from auxout_conformance.hosts import InProcess
from auxout_conformance.machine import Found, Tally
from auxout_conformance.searching import search
from auxout_conformance.targets import resolve
from auxout_spec.profiles import PROFILES

OURS = ("reference", "impl")


class Searched(NamedTuple):
    """What a search came to."""

    found: Found | None
    scenarios: int
    calls: int


def searched(name: str, seed: int | None, examples: int, profile: str, with_worker: bool = False) -> Searched:
    tally = Tally()
    host = InProcess(resolve(name, profile))
    found = search(
        host,
        PROFILES[profile],
        examples=examples,
        seed_number=seed,
        ignored=frozenset(),
        tally=tally,
        with_worker=with_worker,
    )
    assert tally.broken is None
    assert tally.advice == []
    return Searched(found, tally.scenarios, tally.calls)


def check(seed: int, examples: int, profile: str, with_worker: bool = False) -> None:
    """No violation; and since both give the right answers, the engine goes the same way with both."""
    print(f"profile {profile}, seed {seed}")
    reference, impl = (searched(name, seed, examples, profile, with_worker) for name in OURS)
    assert reference.found is None
    assert reference.scenarios >= examples
    assert impl == reference


@pytest.mark.parametrize("with_worker", [False, True])
@pytest.mark.parametrize("profile", PROFILES)
def test_ours_on_a_random_seed(profile: str, with_worker: bool) -> None:
    check(secrets.randbelow(1 << 32), 25, profile, with_worker)


def test_the_same_seed_gives_the_same_scenarios() -> None:
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    first, again, other = (searched("reference", s, 15, "0.32") for s in (seed, seed, seed + 1))
    assert first == again
    assert first.calls != other.calls


def test_without_a_seed_they_are_the_same_too() -> None:
    assert searched("reference", None, 15, "0.32") == searched("reference", None, 15, "0.32")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_ours_on_fifty_random_seeds(number: int) -> None:
    check(secrets.randbelow(1 << 32), 100, list(PROFILES)[number % len(PROFILES)])
