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
from auxout_conformance.targets import stubs, wheels
from auxout_conformance.targets.adapter import Adapter, from_module
from auxout_conformance.targets.loading import load_connector_module
from auxout_spec import calls
from auxout_spec.calls import Call
from auxout_spec.profiles import SPECIFIED
from auxout_spec.retention import KvCache
from auxout_spec.scheduler import INITIAL
from auxout_spec.values import Metadata, Refusal, RequestView, Tokens

NAMES = "ABCDE"
TEXTS = {text: tuple(f"{text}{n:03}".encode() for n in range(9)) for text in "xyz"}
REFERENCE = from_module(auxout_reference.connector, "reference")


class Caller:
    """Draws calls as an engine makes them, and any state of the KV cache."""

    def __init__(self, random: Random, cache: KvCache) -> None:
        self.random, self.cache = random, cache
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
            self.views[name] = self.fresh(name)
            return calls.RequestFinished(view._replace(finished=True), False, self.resident())
        if kind == "cap":
            local, external = self.random.randint(0, 12), self.random.randint(0, 12)
            return calls.CapExternalHit(view, local, external, self.resident())
        if kind == "load":
            return calls.RequestLoading(view, self.random.randint(0, view.num_tokens))
        if kind == "reset" and self.random.random() < 0.2:
            return calls.Reset()
        return calls.MaxCacheHit(view, self.resident())

    def build(self) -> Call:
        ids = self.random.sample(NAMES, self.random.randint(0, len(NAMES)))
        scheduled = tuple((name, self.random.randint(1, 5)) for name in ids)
        call = calls.BuildConnectorMeta(scheduled, tuple(self.views.values()))
        for name, tokens in scheduled:
            view = self.views[name]
            computed = max(view.num_computed_tokens + tokens - self.random.choice((0, 0, 0, 2)), 0)
            self.views[name] = view._replace(num_computed_tokens=computed)
        return call


def compare(adapter: Adapter, seed: int, num_calls: int = 60) -> set[str]:
    """The kinds of results of one run, all of which are equal."""
    random = Random(seed)
    size = random.choice((1, 2, 3))
    cache = KvCache(size, size * random.choice((1, 1, 2)), random.choice((0, 1, 3, 8)))
    caller, state, kinds = Caller(random, cache), INITIAL, set[str]()
    session = Session(adapter, "0.33", cache=cache)
    for number in range(num_calls):
        call = caller.call()
        state, right = calls.apply_scheduler(SPECIFIED["0.33"], state, call, cache)
        seen = session.call(call)
        assert agrees(right, seen.outcome), (seed, number, call, right, seen.outcome)
        assert not seen.notes
        assert not isinstance(right, Refusal)
        kinds.add(type(right).__name__)
        if isinstance(right, Metadata):
            kinds |= {"retained"} if right.retained_block_hashes else set()
            kinds |= {"released"} if right.released_block_hashes else set()
        if isinstance(right, Tokens) and isinstance(call, calls.CapExternalHit) and right.num_tokens:
            kinds.add("loaded")
    return kinds


def test_same_results() -> None:
    kinds = set[str]().union(*(compare(REFERENCE, seed) for seed in range(100)))
    assert kinds == {"Metadata", "Tokens", "NoneType", "retained", "released", "loaded"}


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
