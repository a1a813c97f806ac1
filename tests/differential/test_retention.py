"""The spec and the reference of profile 0.33 on the same random calls, result by result.

Hashes are drawn from a few texts, so that requests share blocks, and the KV cache holds any of them at any time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random

import pytest

import auxout_reference.connector
from auxout_conformance.judge.play import agrees
from auxout_conformance.session import Session
from auxout_conformance.setups import Setup
from auxout_conformance.targets import stubs, wheels
from auxout_conformance.targets.adapter import Adapter, from_module
from auxout_conformance.targets.loading import load_connector_module
from auxout_spec import calls
from auxout_spec.calls import Call
from auxout_spec.profiles import PER_REQUEST, named
from auxout_spec.retention import KvCache
from auxout_spec.scheduler import INITIAL
from auxout_spec.values import Metadata, Refusal, RequestView, Tokens

NAMES = "ABCDE"
TEXTS = {text: tuple(f"{text}{n:03}".encode() for n in range(9)) for text in "xyz"}
REFERENCE = from_module(auxout_reference.connector, "reference")


class Caller:
    """Draws calls as an engine makes them, and any state of the KV cache."""

    def __init__(self, random: Random, cache: KvCache, shrinks: bool = False) -> None:
        self.random, self.cache, self.shrinks = random, cache, shrinks
        self.views = {name: self.fresh(name) for name in NAMES}

    def fresh(self, name: str) -> RequestView:
        hashes = TEXTS[self.random.choice("xyz")][: self.random.randint(0, 6)]
        tokens = len(hashes) * self.cache.hash_block_size + self.random.randint(1, 3)
        return RequestView(name, tokens, tokens, 0, self.random.choice((0, 2, 9)), hashes)

    def resident(self) -> tuple[bytes, ...]:
        return tuple(sorted(h for hashes in TEXTS.values() for h in hashes if self.random.random() < 0.4))

    def call(self) -> Call:
        name = self.random.choice(NAMES)
        kind = self.random.choice(("build", "build", "finish", "hit", "cap", "load", "grow", "reset"))
        if kind == "build":
            return self.build()
        view = self.views[name]
        if kind == "finish":
            view = self.shrunk(view)
            preempted = self.shrinks and self.random.random() < 0.3
            self.views[name] = view if preempted else self.fresh(name)
            return calls.RequestFinished(view._replace(finished=not preempted), preempted, self.resident())
        if kind == "cap":
            local, external = self.random.randint(0, 12), self.random.randint(0, 12)
            return calls.CapExternalHit(view, local, external, self.resident())
        if kind == "load":
            return calls.RequestLoading(view, self.random.randint(0, view.num_tokens))
        if kind == "reset" and self.random.random() < 0.2:
            return calls.Reset()
        return calls.MaxCacheHit(view, self.resident())

    def shrunk(self, view: RequestView) -> RequestView:
        """The request, sometimes with fewer hashes than it had."""
        if not self.shrinks or self.random.random() < 0.8:
            return view
        return view._replace(block_hashes=view.block_hashes[: self.random.randint(0, len(view.block_hashes))])

    def build(self) -> Call:
        ids = self.random.sample(NAMES, self.random.randint(0, len(NAMES)))
        scheduled = tuple((name, self.random.randint(1, 5)) for name in ids)
        call = calls.BuildConnectorMeta(scheduled, tuple(map(self.shrunk, self.views.values())))
        for name, tokens in scheduled:
            view = self.views[name]
            computed = max(view.num_computed_tokens + tokens - self.random.choice((0, 0, 0, 2)), 0)
            self.views[name] = view._replace(num_computed_tokens=computed)
        return call


def compare(adapter: Adapter, seed: int, num_calls: int = 60, profile: str = "0.33") -> set[str]:
    """The kinds of results of one run, all of which are equal; where requests fail alone some of them do."""
    random = Random(seed)
    size = random.choice((1, 2, 3))
    cache = KvCache(size, size * random.choice((1, 1, 2)), random.choice((0, 1, 3, 8)))
    rules = named(profile)
    caller, state, kinds = Caller(random, cache, rules.fails_requests), INITIAL, set[str]()
    session = Session(adapter, Setup(profile, cache=cache))
    for number in range(num_calls):
        call = caller.call()
        state, right = calls.apply_scheduler(rules, state, call, cache)
        seen = session.call(call)
        assert agrees(right, seen.outcome), (seed, number, call, right, seen.outcome)
        assert not seen.notes
        assert not isinstance(right, Refusal)
        kinds |= {type(right).__name__, *(["failed"] if state.failed else [])}
        if isinstance(right, Metadata):
            kinds |= {"retained"} if right.retained_block_hashes else set()
            kinds |= {"released"} if right.released_block_hashes else set()
        if isinstance(right, Tokens) and isinstance(call, calls.CapExternalHit) and right.num_tokens:
            kinds.add("loaded")
    return kinds


def test_same_results() -> None:
    kinds = set[str]().union(*(compare(REFERENCE, seed) for seed in range(100)))
    assert kinds == {"Metadata", "Tokens", "NoneType", "retained", "released", "loaded"}


def test_same_results_where_requests_fail_alone() -> None:
    """A request that fails leaves its blocks as every other does."""
    kinds = set[str]().union(*(compare(REFERENCE, seed, profile="0.33" + PER_REQUEST) for seed in range(100)))
    assert kinds >= {"Metadata", "Tokens", "retained", "released", "failed"}


@pytest.fixture
def released() -> Iterator[Adapter]:
    """The connector of vLLM 0.33.0, if it was fetched (``auxout conform vllm==0.33.0`` does)."""
    if "0.33.0" not in wheels.cached_versions():
        pytest.skip("vllm==0.33.0 has not been fetched")
    before = set(sys.modules)
    stubs.install()
    yield from_module(load_connector_module(wheels.fetch("0.33.0")), "vllm==0.33.0")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_release_answers_the_same(released: Adapter) -> None:
    for seed in range(100):
        compare(released, seed, 120)


def test_a_connector_of_0_33_is_built_with_the_kv_cache() -> None:
    with pytest.raises(ValueError, match=r"0\.33 is built with the KV cache manager"):
        auxout_reference.connector.AuxOutputSchedulerConnector(profile="0.33")
    older = auxout_reference.connector.AuxOutputSchedulerConnector()
    with pytest.raises(RuntimeError, match="does not bound hits"):
        older.max_cache_hit(None)  # type: ignore[arg-type]
