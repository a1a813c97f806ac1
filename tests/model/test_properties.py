"""States that no event leads to, and the property that each breaks."""

from __future__ import annotations

import pytest

from auxout_spec.engine import Add, EngineConfig, EngineState, Evict, Land, Launch, initial, step
from auxout_spec.engine.state import Problem
from auxout_spec.explorer.properties import broken_hit, broken_property
from auxout_spec.profiles import SPECIFIED
from auxout_spec.retention import Retention
from auxout_spec.store import StoreState
from auxout_spec.worker import Limits

CONFIG = EngineConfig(limits=Limits(2, 1))
GIVES_UP = CONFIG.profile._replace(gives_up_hits=True)


def running() -> EngineState:
    state = initial()
    for event in (Add("A", 3), Launch((("A", 3),))):
        state, _ = step(CONFIG, state, event)
    return state


def broken(state: EngineState) -> str:
    found = broken_property(CONFIG, state)
    return found.clause if found is not None else ""


def test_a_sound_state_breaks_nothing() -> None:
    assert broken(running()) == ""


def test_what_went_wrong_below_the_engine_is_told() -> None:
    assert broken(initial()._replace(problem=Problem("ROW-EXACT-1", "wrong"))) == "ROW-EXACT-1"


NEXT = EngineConfig(SPECIFIED["0.33"], limits=Limits(2, 1))


def ended() -> EngineState:
    """Profile 0.33: a request has ended, its block is retained and resident, and the worker was told."""
    state = initial()
    for event in (Add("A", 3, 0, 1), Launch((("A", 3),)), Land(), Launch()):
        state, _ = step(NEXT, state, event)
    return state


def test_rows_of_resident_kv_are_kept() -> None:
    state = ended()
    assert broken_property(NEXT, state) is None
    store = state.worker.store
    assert (len(store.objects), len(state.resident), [count for _, count in store.references]) == (1, 1, [1])
    gone = store._replace(objects=())
    found = broken_property(NEXT, state._replace(worker=state.worker._replace(store=gone)))
    assert found is not None
    assert (found.clause, found.message) == ("ROW-RESIDENT-1", "KV of A:0 is cached without its rows")


def test_the_scheduler_s_references_are_among_the_store_s() -> None:
    state = ended()
    forgotten = state.connector._replace(kept=Retention())
    found = broken_property(NEXT, state._replace(connector=forgotten))
    assert found is not None
    assert found.clause == "STORE-REF-1"


def test_a_store_that_has_grown_may_hold_more() -> None:
    state = initial()
    for event in (Add("A", 5), Launch((("A", 5),)), Land()):
        state, _ = step(NEXT, state, event)
    assert broken_property(NEXT, state) is None
    small = state.worker.store._replace(grown=0)
    found = broken_property(NEXT, state._replace(worker=state.worker._replace(store=small)))
    assert found is not None
    assert found.clause == "STORE-PUT-2"


def test_a_block_that_waits_for_its_hash_is_not_lost() -> None:
    """Rows of the second block are there when its hash comes with the next token, and KV of it is cached."""
    config, state = NEXT._replace(lookahead=1), initial()
    for event in (Add("A", 4, 0, 3), Launch((("A", 4),)), Land()):
        state, _ = step(config, state, event)
    assert (len(state.resident), len(state.worker.store.objects)) == (2, 1)
    assert broken_property(config, state) is None


def test_without_a_worker_there_is_nothing_to_check() -> None:
    state = running()
    lost = state._replace(worker=state.worker._replace(store=StoreState()))
    assert broken_property(CONFIG._replace(limits=None), lost) is None


@pytest.mark.parametrize("references", [(), (((0, b"other"), 1),)])
def test_references_are_those_of_the_requests(references: tuple[tuple[tuple[int, bytes], int], ...]) -> None:
    state = running()
    store = state.worker.store._replace(references=references)
    assert broken(state._replace(worker=state.worker._replace(store=store))) == "STORE-REF-1"


def test_keys_are_a_prefix_of_the_hashes() -> None:
    state = running()
    request = state.requests[0]._replace(block_hashes=(b"other",))
    assert broken(state._replace(requests=(request,))) == "WORK-KEYS-1"


def test_a_store_is_within_its_capacity() -> None:
    state = running()
    store = state.worker.store._replace(objects=(((0, b"1"), ()), ((0, b"2"), ())))
    assert broken(state._replace(worker=state.worker._replace(store=store))) == "STORE-PUT-2"


def test_an_idle_worker_keeps_nothing() -> None:
    state = running()
    empty = initial()
    assert broken(empty._replace(worker=state.worker)) == "WORK-TEAR-2"
    assert broken(empty._replace(worker=state.worker, connector=empty.connector._replace(generation=1))) == ""


@pytest.mark.parametrize(
    ("external", "loaded", "message"),
    [(4, 4, ""), (8, 0, "B loads 0 tokens, 6 could be"), (5, 0, "B loads 0 tokens, 4 could be"), (1, 0, "")],
)
def test_of_a_hit_elsewhere_the_blocks_with_known_rows_are_to_be_loaded(
    external: int, loaded: int, message: str
) -> None:
    """A left the rows of three blocks, and their KV is gone."""
    config = EngineConfig(GIVES_UP, limits=Limits(2, 9))
    before = initial()
    for event in (
        Add("A", 7, 0, 1, text="T"),
        Add("B", 9, 0, 1, text="T"),
        Launch((("A", 7),)),
        Land(),
        Evict("*"),
    ):
        before, _ = step(config, before, event)
    launch = Launch((("B", 9 - loaded),), external=(("B", external),))
    after, _ = step(config, before, launch)
    broken = broken_hit(config, before, launch, after)
    assert (broken.message if broken else "") == message
    assert broken_hit(config._replace(profile=CONFIG.profile), before, launch, after) is None
