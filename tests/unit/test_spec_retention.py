"""Profile 0.33's scheduler connector and store against answers of vLLM 0.33.0.

``released_0_33.json`` holds what the released modules answered and held after each call of some scripts; here the
scripts are made on the spec. Hashes have two letters: ``a0`` is the first of text a.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from auxout_spec import calls, store
from auxout_spec.profiles import SPECIFIED
from auxout_spec.retention import KvCache
from auxout_spec.scheduler import INITIAL, SchedulerState
from auxout_spec.values import Metadata, Refusal, RequestView, Result, Row, Tokens

P33 = SPECIFIED["0.33"]
RELEASED: dict[str, Any] = json.loads(
    Path(__file__).with_name("released_0_33.json").read_text(encoding="utf-8")
)
Call = calls.SchedulerCall


def named(*hashes: str) -> tuple[bytes, ...]:
    return tuple(name.encode() for name in hashes)


def text(hashes: Iterable[bytes]) -> list[str]:
    return [block_hash.decode() for block_hash in hashes]


def view(name: str, hashes: str, computed: int = 0, tokens: int = 6, outputs: int = 0) -> RequestView:
    """A request with some hashes, of which so many tokens are computed."""
    listed = named(*hashes.split())
    return RequestView(name, tokens, tokens - outputs, outputs, 0, listed, num_computed_tokens=computed)


def build(views: tuple[RequestView, ...] = (), **scheduled: int) -> Call:
    return calls.BuildConnectorMeta(tuple(scheduled.items()), views)


def finish(request: RequestView, resident: str = "") -> Call:
    return calls.RequestFinished(request, False, named(*resident.split()))


def hit(request: RequestView, resident: str = "") -> Call:
    return calls.MaxCacheHit(request, named(*resident.split()))


def on(cache: KvCache, state: SchedulerState, *made: Call) -> tuple[SchedulerState, Result]:
    result: Result = None
    for call in made:
        state, result = calls.apply_scheduler(P33, state, call, cache)
        assert not isinstance(result, Refusal), result
    return state, result


def told(result: Result, state: SchedulerState) -> dict[str, Any]:
    """What a release's answer and state say, in the words of the file."""
    kept = state.kept
    found: dict[str, Any] = {
        "retained": text(kept.retained),
        "released": text(kept.released),
        "map": [text(block) for block in kept.blocks],
        "sent": {name: sent.num_hashes for name, sent in state.active},
        "loading": {name: len(names) for name, names in kept.loading},
    }
    if isinstance(result, Tokens):
        found["result"] = result.num_tokens
    if isinstance(result, Metadata):
        found["meta"] = {
            "generation": result.generation,
            "requests": dict(result.requests),
            "block_hashes": {name: text(hashes) for name, hashes in result.block_hashes},
            "finished": list(result.finished_requests),
            "retained": text(result.retained_block_hashes) or None,
            "released": text(result.released_block_hashes) or None,
        }
    return found


A7 = view("A", "a0 a1 a2 a3", 7, 8, 1)
BEFORE_E = (
    finish(view("P", "a0 a1 a2", 6), "a0 a1 a2"),
    calls.RequestLoading(view("L", "a0 a1"), 5),
)
SCRIPTS: dict[str, tuple[KvCache, tuple[tuple[Call, ...], ...]]] = {
    "computed-bound": (
        KvCache(2, 2, 100),
        (
            (build((view("A", "a0 a1 a2"),), A=3),),
            (build((view("A", "a0 a1 a2", 3),)),),
            (build((view("A", "a0 a1 a2", 3),), A=4),),
            (build((view("A", "a0 a1 a2 a3", 7),)),),
            (build((A7,), A=1),),
            (build((A7._replace(num_computed_tokens=5),), A=1),),
            (finish(A7, "a0 a1 a2 a3"), build()),
        ),
    ),
    "retention": (
        KvCache(2, 2, 3),
        (
            (build((view("A", "a0 a1"),), A=5),),
            (finish(view("A", "a0 a1", 5), "a0 a1"),),
            (build((view("B", "a0 b1"),), B=5),),
            (finish(view("B", "a0 b1", 5), "a0 a1 b1"),),
            (build((view("D", "d0 d1"),), D=5),),
            (finish(view("D", "d0 d1", 5), "d0 d1"),),
            (build(),),
            (hit(view("X", "a0 b1", 0, 5)),),
            (hit(view("Y", "d0 d1", 0, 4)),),
            (calls.Reset(),),
            (build(),),
        ),
    ),
    "loading": (
        KvCache(2, 2, 100),
        (
            (calls.RequestLoading(view("A", "a0 a1 a2"), 5),),
            (finish(view("A", "a0 a1", 6), "a0 a1"),),
            (build(),),
        ),
    ),
    "loading-protects": (
        KvCache(2, 2, 1),
        (
            (*BEFORE_E, finish(view("E", "e0", 2), "e0")),
            (build((view("L", "a0 a1"),), L=3),),
            (finish(view("E2", "f0", 2), "f0"),),
        ),
    ),
    "group-of-two": (
        KvCache(2, 4, 100),
        (
            (finish(view("A", "a0 a1 a2 a3 a4", 10), "a1 a3 a4"),),
            (hit(view("A", "a0 a1 a2 a3 a4", 0, 11)),),
            (hit(view("A", "a0 a1 a2 a3", 0, 8)),),
        ),
    ),
}
"""The KV cache (tokens per hash and per block, blocks), and the calls before each row of the file."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_spec_answers_as_the_release(name: str) -> None:
    cache, script = SCRIPTS[name]
    state = INITIAL
    for number, (made, row) in enumerate(zip(script, RELEASED[name], strict=True)):
        state, result = on(cache, state, *made)
        expected = {key: value for key, value in row.items() if key != "call"}
        assert {key: told(result, state)[key] for key in expected} == expected, f"{row['call']} ({number})"


def test_a_block_behind_a_hole_is_retained_and_not_hit() -> None:
    cache = KvCache(2, 2, 100)
    (row,) = RELEASED["hole"]
    request = view("A", "a0 a1 a2 a3", 8, 9)
    state, _ = on(cache, INITIAL, finish(request, "a0 a2 a3"))
    assert text(state.kept.retained) == row["retained"]
    state, result = on(cache, state, hit(request, "a0 a2 a3"))
    assert result == Tokens(row["hit"])
    assert told(result, state)["map"] == row["map"]


def test_a_hit_elsewhere_is_taken_whole_or_not_at_all() -> None:
    """Every offer up to the request's tokens; all that the file does not list are given up."""
    data = RELEASED["cap"]
    cache = KvCache(data["block"], data["block"], 100)
    known = " ".join(f"a{n}" for n in range(data["known"] // data["block"]))
    rows = {(tokens, local, external): let for tokens, local, external, let in data["rows"]}
    for tokens in {tokens for tokens, *_ in rows}:
        request = view("A", " ".join(f"a{n}" for n in range(tokens // data["block"])), 0, tokens)
        for local in (0, 4, 8):
            for external in range(tokens - local + 1):
                call = calls.CapExternalHit(request, local, external, named(*known.split()))
                let = rows.get((tokens, local, external), 0)
                assert on(cache, INITIAL, call)[1] == Tokens(let), (tokens, local, external)


STORES = {"store-growth": 2, "store-evict": 3, "store-replace": 4, "store-release": 2}
"""Objects that each store is built for."""


@pytest.mark.parametrize("name", STORES)
def test_the_store_holds_what_the_release_s_holds(name: str) -> None:
    state, capacity = store.EMPTY, STORES[name]
    for number, row in enumerate(RELEASED[name]):
        objects = tuple(((0, key.encode()), (Row(rows, 0, 0, 0),)) for key, rows in row["put"])
        keys = [tuple((0, key.encode()) for key in row[field]) for field in ("retain", "release")]
        after = store.put(state, capacity, objects, *keys, grows=True)
        if row["error"]:
            assert isinstance(after, Refusal)
            assert after.clause == "STORE-PUT-4"
            continue
        assert not isinstance(after, Refusal)
        state = after
        present = {key.decode(): rows[0].request for (_, key), rows in state.objects}
        references = {key.decode(): count for (_, key), count in state.references}
        old_to_young = [key for key in present if key not in references]
        assert present == row["present"], number
        assert references == row["refs"], number
        assert old_to_young[::-1] == row["young_to_old"], number
        assert max(capacity, state.grown) == row["slots"], number


def test_a_refused_end_retains_nothing() -> None:
    """SCHED-REFUSE-4: what 0.33.0 has done by then, the protocol has not."""
    cache = KvCache(2, 2, 100)
    state, _ = on(cache, INITIAL, build((view("A", "a0 a1"),), A=4))
    after, refusal = calls.apply_scheduler(P33, state, finish(view("A", "a0", 4), "a0"), cache)
    assert isinstance(refusal, Refusal)
    assert (after, refusal.clause) == (state, "SCHED-TERM-8")


def test_a_request_that_never_ran_leaves_its_loaded_blocks() -> None:
    """SCHED-RETAIN-3, SCHED-RETAIN-4: of three hashes two blocks were computed, and one of them is cached."""
    cache = KvCache(2, 2, 100)
    state, result = on(cache, INITIAL, finish(view("A", "a0 a1 a2", 4), "a0 a2"), build())
    assert isinstance(result, Metadata)
    assert text(result.retained_block_hashes) == ["a0"]
    assert result.finished_requests == ()
    assert told(result, state)["map"] == [["a0"]]


def test_only_the_mark_of_the_latest_load_holds() -> None:
    """SCHED-LOAD-1; a reset leaves marks and puts what is retained behind what is queued."""
    cache = KvCache(1, 1, 1)
    loading = calls.RequestLoading
    state, _ = on(cache, INITIAL, loading(view("L", "a0 a1"), 2), loading(view("L", "a0 a1"), 1))
    assert state.kept.loading == (("L", named("a0")),)
    state, _ = on(cache, state, finish(view("A", "a0 a1", 2), "a0 a1"), finish(view("B", "b0", 1), "b0"))
    assert text(state.kept.released) == ["a1"]
    state, _ = on(cache, state, calls.Reset())
    assert text(state.kept.released) == ["a1", "a0", "b0"]
    assert (state.kept.blocks, state.kept.loading) == ((), (("L", named("a0")),))


def test_a_kv_connector_doubles_what_may_be_retained() -> None:
    assert [KvCache(1, 1, 3, connector).capacity for connector in (False, True)] == [3, 6]
