"""The engine model of profile 0.33: admission as an order of calls, rows kept for resident KV, sessions, lookahead."""

from __future__ import annotations

from typing import Any

import pytest

from auxout_spec import scenario
from auxout_spec.calls import (
    BuildConnectorMeta,
    Call,
    CapExternalHit,
    Exchange,
    MaxCacheHit,
    RequestFinished,
    RequestLoading,
    TakeOutput,
)
from auxout_spec.engine import EngineState, Impossible
from auxout_spec.engine.state import block_hash
from auxout_spec.profiles import PROFILES, SPECIFIED
from auxout_spec.reading import Malformed
from auxout_spec.retention import KvCache
from auxout_spec.scenario import Scenario, config_of, event_from_json
from auxout_spec.values import Metadata, Rows, Tokens

P33 = SPECIFIED["0.33"]
P = [
    {"add": "P", "prompt": 5, "max_tokens": 1, "text": "T"},
    {"launch": {"P": 5}},
    {"land": {}},
]
"""Leaves two blocks of text T."""
GONE = [*P, {"evict": "*"}]
"""Leaves their rows, and no KV."""
A = {"add": "A", "prompt": 6, "max_tokens": 2, "text": "T"}


def events(*said: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(map(event_from_json, said))


def play(*said: dict[str, Any], profile: Any = P33, **fields: Any) -> tuple[EngineState, list[Exchange]]:
    """The state after some events, and the calls of the last of them."""
    played = scenario.run(Scenario(events(*said), **fields), profile)
    return played[-1][0], list(played[-1][1])


def made(exchanges: list[Exchange]) -> list[type[Call]]:
    return [type(call) for call, _ in exchanges]


def metadata(exchanges: list[Exchange]) -> Metadata:
    (found,) = [result for _, result in exchanges if isinstance(result, Metadata)]
    return found


def test_a_hit_is_bounded_before_the_step_is_built() -> None:
    state, exchanges = play(*P, A, {"launch": {"A": 2}})
    assert made(exchanges) == [MaxCacheHit, BuildConnectorMeta]
    call, answer = exchanges[0]
    assert isinstance(call, MaxCacheHit)
    assert call.resident == tuple(sorted(block.block_hash for block in play(*P, A)[0].resident))
    assert (call.request.num_computed_tokens, answer) == (0, Tokens(4))
    assert state.requests[0].num_computed_tokens == 6
    _, again = play(*P, A, {"launch": {"A": 2}}, {"land": {}}, {"launch": {"A": 1}})
    assert made(again) == [BuildConnectorMeta]


def test_blocks_that_the_same_step_fills_are_cached_when_the_next_request_is_admitted() -> None:
    _, exchanges = play(P[0], A, {"launch": {"P": 5, "A": 2}, "hits": {"A": 4}})
    answers = [result for call, result in exchanges if isinstance(call, MaxCacheHit)]
    assert answers == [Tokens(0), Tokens(4)]


def test_older_profiles_ask_nothing_and_tell_nothing_of_the_kv_cache() -> None:
    for profile in PROFILES.values():
        _, exchanges = play(*P, A, {"launch": {"A": 2}}, profile=profile)
        assert made(exchanges) == [BuildConnectorMeta]
        _, exchanges = play(*P[:2], {"abort": "P"}, profile=profile)
        assert isinstance(exchanges[0].call, RequestFinished)
        assert exchanges[0].call.resident == ()
        assert config_of(Scenario(()), profile).cache is None


def test_the_connector_is_built_with_the_scenario_s_kv_cache() -> None:
    config = config_of(Scenario((), 4, kv_blocks=3, kv_connector=True), P33)
    assert config.cache == KvCache(4, 4, 3, True)
    assert config_of(Scenario((), lookahead=1), PROFILES["0.32"]).lookahead == 0


def test_rows_of_an_ended_request_are_retained_while_it_holds_its_kv() -> None:
    state, exchanges = play(*P)
    assert made(exchanges) == [TakeOutput, RequestFinished]
    call = exchanges[-1].call
    assert isinstance(call, RequestFinished)
    assert (call.request.num_computed_tokens, len(call.resident), call.preempted) == (5, 2, False)
    assert [len(block) for block in state.connector.kept.blocks] == [1, 1]
    _, exchanges = play(*P, {"launch": {}})
    assert len(metadata(exchanges).retained_block_hashes) == 2


def test_a_preempted_request_leaves_what_it_had_computed() -> None:
    """Before its counts are set back."""
    _, exchanges = play(P[0], {"launch": {"P": 3}}, {"preempt": "P"})
    (call,) = [call for call, _ in exchanges]
    assert isinstance(call, RequestFinished)
    assert (call.preempted, call.request.finished, call.request.num_computed_tokens) == (True, False, 3)


def test_blocks_over_the_capacity_are_released_when_the_next_request_ends() -> None:
    other = {"add": "B", "prompt": 3, "max_tokens": 1}
    state, _ = play(*GONE, other, {"launch": {"B": 3}}, {"land": {}}, kv_blocks=2)
    assert len(state.connector.kept.blocks) == 2
    assert len(state.connector.kept.released) == 1
    state, _ = play(*P, other, {"launch": {"B": 3}}, {"land": {}}, kv_blocks=2)
    assert (len(state.connector.kept.blocks), state.connector.kept.released) == (3, ())


@pytest.mark.parametrize(("external", "loaded"), [(4, 4), (2, 2), (3, 0), (5, 0), (1, 0)])
def test_kv_of_a_connector_is_taken_whole_or_not_at_all(external: int, loaded: int) -> None:
    step = {"launch": {"A": 6 - loaded}, "external": {"A": external}}
    state, exchanges = play(*GONE, A, step, kv_connector=True)
    assert made(exchanges) == [MaxCacheHit, CapExternalHit, BuildConnectorMeta]
    assert exchanges[1].result == Tokens(loaded)
    assert state.in_flight[0].entries[0].num_external_tokens == loaded


def test_a_kv_connector_is_asked_also_where_it_has_nothing() -> None:
    _, exchanges = play(*GONE, A, {"launch": {"A": 6}}, kv_connector=True)
    assert exchanges[1].call == CapExternalHit(exchanges[0].call.request, 0, 0, ())  # type: ignore[union-attr]


def test_a_load_marks_its_blocks_until_its_request_is_scheduled() -> None:
    state, exchanges = play(*GONE, A, {"load": "A", "tokens": 4}, kv_connector=True)
    assert made(exchanges) == [MaxCacheHit, CapExternalHit, RequestLoading]
    call = exchanges[-1].call
    assert isinstance(call, RequestLoading)
    assert (call.num_tokens, call.request.num_computed_tokens) == (4, 4)
    assert [len(names) for _, names in state.connector.kept.loading] == [2]
    more = ({"load": "A", "tokens": 4}, {"loaded": "A"}, {"launch": {"A": 2}})
    assert len(play(*GONE, A, *more[:2], kv_connector=True)[0].connector.kept.loading) == 1
    assert play(*GONE, A, *more, kv_connector=True)[0].connector.kept.loading == ()


@pytest.mark.parametrize(
    ("event", "connector", "before"),
    [
        ({"launch": {"A": 2}, "external": {"A": 4}}, False, GONE),
        ({"load": "A", "tokens": 4}, False, GONE),
        ({"load": "A", "tokens": 3}, True, GONE),
        ({"load": "A", "tokens": 6}, True, GONE),
        ({"load": "A", "tokens": 4}, True, []),
    ],
)
def test_what_is_not_loaded_waits_for_no_load(
    event: dict[str, Any], connector: bool, before: list[dict[str, Any]]
) -> None:
    with pytest.raises(Impossible, match="ENV-LOAD-3"):
        play(*before, A, event, kv_connector=connector)


def test_a_request_ends_with_what_is_valid_of_a_load_that_failed() -> None:
    step = {"launch": {"A": 2}, "external": {"A": 4}}
    _, exchanges = play(*GONE, A, step, {"land": {}, "failed": {"A": 2}}, kv_connector=True)
    call = exchanges[-1].call
    assert isinstance(call, RequestFinished)
    assert (call.request.num_computed_tokens, len(call.resident)) == (2, 1)


S = {"add": "S", "prompt": 3, "max_tokens": 3, "session": True}


def test_a_turn_keeps_all_tokens_but_the_last_and_goes_on_where_it_was_preempted() -> None:
    """Its output lands while it waits: 0.32 drops the session, and earlier what is not computed."""
    turn = (S, {"launch": {"S": 3}}, {"land": {}}, {"launch": {"S": 1}}, {"launch": {"S": 1}}, {"land": {}})
    ended = (*turn, {"preempt": "S"}, {"land": {}})
    state, _ = play(*ended)
    assert (state.requests[0].status, state.requests[0].num_tokens) == ("waiting_for_chunk", 6)
    state, _ = play(*ended, {"chunk": "S", "tokens": 2})
    session = state.requests[0]
    assert (session.status, session.num_prompt_tokens, session.num_computed_tokens) == ("waiting", 7, 0)
    assert session.tokens == (("S", 5), ("S'", 7))
    assert len(session.block_hashes) == 3
    _, exchanges = play(*ended, {"chunk": "S", "tokens": 2}, {"launch": {}}, {"launch": {"S": 3}})
    assert exchanges[0].result == Tokens(4)
    assert play(*ended, profile=PROFILES["0.32"])[0].requests[0].status == "lost"


def test_tokens_behind_a_stop_do_not_count_as_computed() -> None:
    begun = ({"add": "A", "prompt": 3, "max_tokens": 9}, {"launch": {"A": 3}}, {"land": {}})
    drafts = (*begun, {"launch": {"A": 4}, "drafts": {"A": 3}}, {"land": {"A": 4}, "stop": {"A": 2}})
    for profile, computed in ((P33, 5), (PROFILES["0.32"], 7)):
        _, exchanges = play(*drafts, profile=profile)
        call = exchanges[-1].call
        assert isinstance(call, RequestFinished)
        assert call.request.num_computed_tokens == computed


def test_a_synchronous_engine_names_blocks_that_accepted_drafts_fill() -> None:
    begun = ({"add": "A", "prompt": 3, "max_tokens": 9}, {"launch": {"A": 3}}, {"land": {}})
    drafts = (*begun, {"launch": {"A": 4}, "drafts": {"A": 3}}, {"land": {"A": 4}})
    assert len(play(*drafts, depth=1)[0].resident) == 3
    assert len(play(*drafts, depth=1, profile=PROFILES["0.32"])[0].resident) == 2


def test_a_hash_that_looks_ahead_comes_with_the_last_token_that_it_covers() -> None:
    before, _ = play({"add": "A", "prompt": 4}, lookahead=1)
    assert before.requests[0].block_hashes == (block_hash((("A", 3),)),)
    launched, exchanges = play({"add": "A", "prompt": 4}, {"launch": {"A": 4}}, lookahead=1)
    assert len(metadata(exchanges).block_hashes[0][1]) == len(launched.resident) == 1
    landed, _ = play({"add": "A", "prompt": 4}, {"launch": {"A": 4}}, {"land": {}}, lookahead=1)
    assert len(landed.requests[0].block_hashes) == 2
    assert len(play({"add": "A", "prompt": 2}, lookahead=2)[0].requests[0].block_hashes) == 0


@pytest.mark.parametrize(("lookahead", "hit"), [(0, 2), (1, 0)])
def test_a_block_is_not_shared_where_what_is_behind_it_differs(lookahead: int, hit: int) -> None:
    """The hash that the session's turn leaves covers the token that the turn dropped: it is made anew."""
    session = {"add": "S", "prompt": 2, "max_tokens": 1, "text": "T", "session": True}
    turned = (*P, session, {"launch": {"S": 2}, "hits": {"S": 0}}, {"preempt": "S"}, {"land": {}})
    turned = (*turned, {"chunk": "S", "tokens": 3})
    before, _ = play(*turned, lookahead=lookahead)
    assert before.requests[0].block_hashes[0] == block_hash((("T", 2 + lookahead),))
    state, exchanges = play(*turned, {"launch": {}}, {"launch": {"S": 5 - hit}}, lookahead=lookahead)
    assert exchanges[0].result == Tokens(hit)
    mine = (("T", 2), ("T'", 3)) if lookahead else (("T", 2),)
    assert state.requests[0].block_hashes[0] == block_hash(mine)


@pytest.mark.parametrize("prompt", [3, 4, 5, 6])
def test_rows_of_a_block_that_has_no_hash_yet_are_returned(prompt: int) -> None:
    """What ends vLLM 0.33.0 with EAGLE: the first output needs a full block whose hash needs the next token."""
    first = {"add": "P", "prompt": 3, "max_tokens": 1, "text": "T"}
    second = {"add": "A", "prompt": prompt, "max_tokens": 2, "text": "T"}
    said = (first, {"launch": {"P": 3}}, {"land": {}}, second, {"launch": {"A": prompt - 2}}, {"land": {}})
    state, exchanges = play(*said, lookahead=1, depth=1, store=8)
    assert state.problem is None
    (rows,) = [result for _, result in exchanges if isinstance(result, Rows)]
    assert [row.position for row in rows.rows] == list(range(prompt))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lookahead": 1, "kv_connector": True}, "lookahead is 0 where there is a kv_connector"),
        ({"kv_blocks": -1}, "kv_blocks is at least 0"),
        ({"lookahead": -1}, "lookahead is at least 0"),
        ({"kv_connector": 1}, "kv_connector must be true or false"),
    ],
)
def test_a_kv_cache_that_is_none_is_malformed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Malformed, match=message):
        scenario.from_json({"auxout": scenario.FORMAT, "events": [], **fields})


def test_what_a_scenario_says_of_the_kv_cache_is_kept() -> None:
    said = Scenario((), kv_blocks=3, kv_connector=True)
    assert scenario.load(scenario.dump(said)) == said
    ahead = Scenario((), lookahead=2)
    assert scenario.load(scenario.dump(ahead, indent=False)) == ahead
    assert "kv_blocks" not in scenario.dump(ahead)
