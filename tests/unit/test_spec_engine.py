"""The spec's engine: scenarios with every call and every state written out, and one refused event per guard.

``engine_scenarios.txt`` holds the scenarios: events as in scenario files, then the connector calls that each makes
(``>``, with the right answers) and the engine's state after it (``=``). ``shown_calls`` and ``shown_state`` say how
both are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from auxout_spec import calls
from auxout_spec.calls import Exchange
from auxout_spec.engine import (
    GUARDS,
    Abort,
    Add,
    Chunk,
    End,
    EngineConfig,
    EngineRequest,
    EngineState,
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
    initial,
    landing,
    options,
    step,
)
from auxout_spec.engine import state as engine_state
from auxout_spec.engine.landing import delivers
from auxout_spec.engine.state import Entry
from auxout_spec.engine.tampering import tampered_outputs, tampered_view
from auxout_spec.profiles import LATEST, PROFILES
from auxout_spec.representation import PLAIN
from auxout_spec.scenario import event_from_json
from auxout_spec.values import Metadata, Refusal, RequestOutput, RequestView, Result, Row, Rows

FILE = Path(__file__).with_name("engine_scenarios.txt")
P31, P32 = EngineConfig(PROFILES["0.31"]), EngineConfig()


class Written(NamedTuple):
    """A scenario as it is written down."""

    name: str
    config: EngineConfig
    events: tuple[tuple[Event, str, str], ...]
    """Each with its calls and the state after it, as shown."""


def written() -> Iterator[Written]:
    for text in FILE.read_text(encoding="utf-8").split("== ")[1:]:
        title, *lines = text.splitlines()
        name, brace, given = title.partition(" {")
        fields = json.loads(brace + given) if brace else {}
        profile = PROFILES[fields.pop("profile", "0.32")]
        yield Written(name, EngineConfig(profile, **fields), tuple(_events(lines)))


def _events(lines: list[str]) -> Iterator[tuple[Event, str, str]]:
    starts = [number for number, line in enumerate(lines) if line.startswith("{")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        below = lines[start + 1 : end]
        shown = ["\n".join(line[4:] for line in below if line.startswith(f"  {sign} ")) for sign in ">="]
        yield event_from_json(json.loads(lines[start])), shown[0], shown[1]


def shown_calls(exchanges: tuple[Exchange, ...]) -> str:
    """The calls of one event with their results, for example ``take A -> 0,1,2@0``: position@computation."""
    return "\n".join(f"{_call(exchange.call)} -> {_result(exchange)}" for exchange in exchanges)


def _call(call: calls.Call) -> str:
    if isinstance(call, calls.BuildConnectorMeta):
        return "build " + _pairs(call.scheduled)
    if isinstance(call, calls.TakeOutput):
        return f"take {call.request.request_id}{'!' if call.request.finished else ''} of {call.request.num_tokens}"
    if isinstance(call, calls.RequestFinished):
        why = "preempted" if call.preempted else "finished" if call.request.finished else "?"
        return f"{why} {call.request.request_id} with {len(call.request.block_hashes)}"
    return "reset" if isinstance(call, calls.Reset) else f"unpack {call.item_size}"


def _result(exchange: Exchange) -> str:
    result, call = exchange.result, exchange.call
    if isinstance(result, Refusal):
        return result.clause
    if isinstance(result, Rows):
        return " ".join(map(_row, result.rows)) or "0 rows"
    if isinstance(result, Metadata) and isinstance(call, calls.BuildConnectorMeta):
        known = {view.request_id: view.block_hashes for view in call.requests}
        parts = [f"g{result.generation}", _pairs(result.requests, "@")]
        again = result.replaced_block_hashes
        for sign, entries in (("#", result.block_hashes), ("^", result.finished_block_hashes), ("%", again)):
            parts += [f"{name}{sign}{_numbers(known.get(name, ()), hashes)}" for name, hashes in entries]
        parts += [f"end {name}" for name in result.finished_requests]
        return " ".join(part for part in parts if part)
    return str(result)


def _row(row: Row) -> str:
    where = f"{row.computation}" if row.request else "elsewhere "
    return f"{row.position}@{where}g{row.generation}"


def _numbers(known: tuple[bytes, ...], hashes: tuple[bytes, ...]) -> str:
    return ",".join(str(known.index(block)) if block in known else "?" for block in hashes)


def _pairs(pairs: tuple[tuple[str, int], ...], sign: str = ":") -> str:
    return ",".join(f"{name}{sign}{number}" for name, number in pairs)


def shown_state(state: EngineState) -> str:
    """The engine in one line; what is zero or empty is left out."""
    parts = [_request(request) for request in state.requests]
    parts += [f"step g{flying.generation} {_entries(flying.entries)}" for flying in state.in_flight]
    if state.activations:
        parts.append(
            "worker "
            + " ".join(f"{a.request_id}{a.number}:{a.emit_cursor}/{len(a.rows)}" for a in state.activations)
        )
    if state.resident:
        parts.append("kv " + " ".join(block.name for block in state.resident))
    parts += [f"just preempted {name}" for name in sorted(state.preempted)]
    parts += ["paused"] * state.paused + [f"weights {state.num_weight_updates}"] * bool(
        state.num_weight_updates
    )
    parts += [f"{tampering.kind} {tampering.request} {tampering.amount}" for tampering in state.tampered]
    return "\n".join(parts)


def _request(request: EngineRequest) -> str:
    """``A running 4+1 #2 computed 4 placeholders 1 flying 4 stale 0``: prompt + output tokens, hashes, counts."""
    text = f"{request.request_id} {request.status} {request.num_prompt_tokens}+{request.num_output_tokens}"
    text += f" #{len(request.block_hashes)}" if request.block_hashes else ""
    counts = {
        "start": request.prompt_start,
        "computed": request.num_computed_tokens,
        "placeholders": request.num_output_placeholders,
        "flying": request.num_in_flight_tokens,
        "stale": request.num_stale_output_tokens,
        "activation": request.activation + 1,
        "queued": len(request.queue),
        "external": request.num_external_tokens,
        "rows": len(request.kv_rows),
    }
    text += "".join(f" {name} {count}" for name, count in counts.items() if count)
    return text + (" drops" if request.drop_stale_output else "")


def _entries(entries: tuple[Entry, ...]) -> str:
    return " ".join(
        f"{e.request_id}[{e.token_start},{e.token_start + e.num_tokens})"
        + (f" external {e.num_external_tokens}" if e.num_external_tokens else "")
        + (f" drafts {e.num_drafts}" if e.num_drafts else "")
        + (" on invalid KV" if e.on_invalid_kv else "")
        + (" samples" if e.samples else "")
        + f" @{e.computation} of {e.activation}"
        for e in entries
    )


SCENARIOS = tuple(written())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Written) -> None:
    state = initial()
    for number, (event, made, after) in enumerate(scenario.events, 1):
        state, exchanges = step(scenario.config, state, event)
        assert shown_calls(exchanges) == made, (number, event)
        assert shown_state(state) == after, (number, event)


def play(*events: Event, config: EngineConfig = P32) -> EngineState:
    state = initial()
    for event in events:
        state, _ = step(config, state, event)
    return state


def launch(name: str = "A", tokens: int = 4, drafts: int = 0, hit: int | None = None) -> Launch:
    return Launch(
        ((name, tokens),), ((name, drafts),) if drafts else (), () if hit is None else ((name, hit),)
    )


def external(tokens: int, loaded: int) -> Launch:
    return Launch((("A", tokens),), external=(("A", loaded),))


A = Add("A", 4, max_tokens=3)
RUN = (A, launch(), Land())
SESSION = Add("A", 4, max_tokens=9, session=True)
LOADING = (A, Load("A", 2))
LOST = (SESSION, launch(), Preempt("A"), Launch(), Land(stop=(("A", 1),)))

IMPOSSIBLE: tuple[tuple[str, tuple[Event, ...], Event], ...] = (
    ("ENV-FORM-1", (), Add("A", 0)),
    ("ENV-FORM-1", (), Add("A", 1, -1)),
    ("ENV-FORM-1", (), Add("A", 1, 0, 0)),
    ("ENV-FORM-1", (), Add("", 1)),
    ("ENV-FORM-1", (A,), launch("B")),
    ("ENV-FORM-1", (A,), Launch((("A", 2), ("A", 2)))),
    ("ENV-FORM-1", (A,), Launch((("A", 4),), (("B", 1),))),
    ("ENV-FORM-1", (A,), Launch((("A", 4),), (), (("B", 0),))),
    ("ENV-FORM-1", (), Abort("A")),
    ("ENV-FORM-1", (), Chunk("A", 1)),
    ("ENV-FORM-1", (SESSION,), Chunk("A", 0)),
    ("ENV-FORM-1", (SESSION,), Chunk("A", 1, -1)),
    ("ENV-FORM-1", (SESSION,), Chunk("A", 1, 0, 0)),
    ("ENV-FORM-1", (), End("A")),
    ("ENV-FORM-1", (), Tamper("no_output", "A")),
    ("ENV-FORM-1", (), Reset(running=True, kept=True)),
    ("ENV-FORM-1", (A,), A),
    ("ENV-FORM-1", (), Add("A", 3, cut=3)),
    ("ENV-FORM-1", (), Add("A", 3, cut=-1)),
    ("ENV-ADD-1", (A, launch(), Abort("A")), A),
    ("ENV-ADD-1", (A, launch(), Add("B", 1), launch("B", 1), Abort("B")), Add("B", 1)),
    ("ENV-ADD-2", (), Add("A", 3, max_tokens=2, cut=1)),
    ("ENV-ADD-2", (), Add("A", 3, max_tokens=1, session=True, cut=1)),
    ("ENV-LAUNCH-1", (A, launch(), launch(tokens=1), Add("B", 1)), launch("B", 1)),
    ("ENV-LAUNCH-2", (A,), launch(tokens=0)),
    ("ENV-LAUNCH-2", (A,), launch(tokens=5)),
    ("ENV-LAUNCH-2", (A,), launch(tokens=5, drafts=1)),
    ("ENV-LAUNCH-2", (A,), Launch((("A", 4),), (("A", -1),))),
    ("ENV-LAUNCH-2", (Add("A", 2),), launch(tokens=3, drafts=1)),
    ("ENV-LAUNCH-2", RUN, launch(tokens=2)),
    ("ENV-LAUNCH-2", RUN, launch(tokens=2, drafts=2)),
    ("ENV-LAUNCH-2", RUN, launch(tokens=4, drafts=2)),
    ("ENV-LAUNCH-2", RUN, Launch((("A", 1),), (("A", -1),))),
    ("ENV-LAUNCH-2", (*RUN, Preempt("A"), Launch()), launch(tokens=2, drafts=1, hit=0)),
    ("ENV-LAUNCH-3", (Add("A", 4, max_tokens=1), launch()), launch(tokens=1)),
    ("ENV-LAUNCH-3", (Add("A", 4), launch(), Land(), launch(tokens=1)), launch(tokens=1)),
    ("ENV-LAUNCH-3", (Add("A", 4), launch(), Land(), launch(tokens=2, drafts=1)), launch(tokens=1)),
    ("ENV-LAUNCH-4", (A, Pause()), launch()),
    ("ENV-LAUNCH-5", (SESSION, launch(), Land(stop=(("A", 1),))), launch(tokens=1)),
    ("ENV-LAUNCH-6", LOADING, launch(tokens=2)),
    ("ENV-LOAD-1", (A, launch(tokens=1)), external(tokens=1, loaded=1)),
    ("ENV-FORM-1", (A,), external(tokens=1, loaded=-1)),
    ("ENV-FORM-1", (A,), Launch((("A", 4),), external=(("B", 2),))),
    ("ENV-LAUNCH-2", (A,), external(tokens=1, loaded=4)),
    ("ENV-FORM-1", (), Load("A", 2)),
    ("ENV-FORM-1", (A,), Load("A", 0)),
    ("ENV-FORM-1", (A,), Load("A", 5)),
    ("ENV-FORM-1", RUN, Load("A", 1)),
    ("ENV-LAUNCH-4", (A, Pause()), Load("A", 2)),
    ("ENV-LAUNCH-6", LOADING, Load("A", 2)),
    ("ENV-FORM-1", (), Loaded("A")),
    ("ENV-FORM-1", (A,), Loaded("A")),
    ("ENV-FORM-1", LOADING, Loaded("A", 3)),
    ("ENV-FORM-1", (A, external(tokens=1, loaded=3)), Land(failed=(("A", 3),))),
    ("ENV-FORM-1", (A, external(tokens=1, loaded=3)), Land(failed=(("B", 0),))),
    ("ENV-FORM-1", (A, external(tokens=1, loaded=3)), Land(stop=(("A", 1),), failed=(("A", 0),))),
    ("ENV-FORM-1", (A, launch()), Land(failed=(("A", 0),))),
    ("ENV-FORM-1", (A, external(tokens=1, loaded=3), Abort("A")), Land(failed=(("A", 0),))),
    ("ENV-FORM-1", (A, external(tokens=1, loaded=3), Preempt("A")), Land(failed=(("A", 0),))),
    ("ENV-LOAD-2", (A, external(tokens=1, loaded=3)), Land(failed=(("A", 1),))),
    ("ENV-LOAD-2", (A, Load("A", 4)), Loaded("A", 3)),
    ("ENV-HIT-1", (A,), launch(tokens=2, hit=2)),
    ("ENV-HIT-1", (A, launch(), Add("B", 4, text="A")), launch("B", 1, hit=3)),
    ("ENV-HIT-1", (A, launch(), Add("B", 4, text="A")), launch("B", 6, hit=-2)),
    ("ENV-HIT-1", (A, launch(), Add("B", 4, text="A")), launch("B", 1, hit=4)),
    ("ENV-HIT-1", (A, launch(), Add("B", 4, text="A")), launch("B", 3, hit=1)),
    ("ENV-HIT-1", RUN, launch(tokens=1, hit=2)),
    ("ENV-RESUME-1", (A, launch(), Preempt("A"), Launch()), launch(tokens=2)),
    ("ENV-RESUME-1", (*RUN, launch(tokens=1), Preempt("A"), Launch()), launch(tokens=1)),
    ("ENV-RESUME-2", (*RUN, Preempt("A")), launch(tokens=1)),
    ("ENV-LAND-1", (A,), Land()),
    ("ENV-LAND-2", (A, launch()), Land((("A", 0),))),
    ("ENV-LAND-2", (A, launch()), Land((("A", 2),))),
    ("ENV-FORM-1", (A, launch()), Land((("B", 1),))),
    ("ENV-FORM-1", (A, launch()), Land(stop=(("B", 1),))),
    ("ENV-FORM-1", (A, launch()), Land(stop=(("A", 0),))),
    ("ENV-FORM-1", (A, launch()), Land(stop=(("A", 2),))),
    ("ENV-FORM-1", (A, launch(tokens=2)), Land((("A", 1),))),
    ("ENV-FORM-1", (A, launch(), Abort("A")), Land(stop=(("A", 1),))),
    ("ENV-FORM-1", (A, launch(), Reset(running=True)), Land(stop=(("A", 1),))),
    ("ENV-FORM-1", (), Preempt("A")),
    ("ENV-PREEMPT-1", (A,), Preempt("A")),
    ("ENV-LAUNCH-5", LOST, launch(tokens=1)),
    ("ENV-FORM-1", (), Evict()),
    ("ENV-EVICT-1", (A, launch(), Land()), Evict()),
    ("ENV-EVICT-1", (A, launch(), Land()), Evict("A:0")),
    ("ENV-FORM-1", (A, launch(), Land(), Abort("A")), Evict("A:2")),
    ("ENV-RESET-2", (A, launch()), Reset(kept=True)),
    ("ENV-CHUNK-1", (A,), Chunk("A", 1)),
    ("ENV-CHUNK-1", (A,), End("A")),
    ("ENV-CHUNK-1", (SESSION, End("A")), Chunk("A", 1)),
    ("ENV-CHUNK-1", (SESSION, Chunk("A", 1), End("A")), End("A")),
    ("ENV-TAMPER-1", (A,), Tamper("shrink_hashes", "A", 2)),
    ("ENV-TAMPER-1", (A,), Tamper("shrink_hashes", "A", -1)),
    ("ENV-TAMPER-1", (A,), Tamper("mix_lengths", "A", 2)),
    ("ENV-TAMPER-1", (Add("A", 2),), Tamper("mix_lengths", "A", 0)),
    ("ENV-TAMPER-1", (A, launch(), Tamper("shrink_hashes", "A", 1)), Land()),
    ("ENV-TAMPER-1", (A, launch(), Tamper("shrink_hashes", "A", 1)), Land()),
    ("ENV-TAMPER-1", (A, launch()), Tamper("mix_lengths", "A", 1)),
    ("ENV-TAMPER-1", (A, Tamper("shrink_hashes", "A", 0)), Reset()),
    ("ENV-TAMPER-1", (A, Tamper("shrink_hashes", "A", 0)), Pause()),
    ("ENV-TAMPER-1", (A, launch(tokens=2), Tamper("cut_rows", "A", 1)), Land()),
)
STILL = (
    ((A, launch(), Add("B", 4, text="A")), launch("B", 1, hit=4)),
    (RUN, launch(tokens=1, hit=2)),
    (LOADING, Load("A", 2)),
    (LOST, launch(tokens=1)),
)
"""What stays impossible without the guard: nothing is left to compute, the request has KV, or is in no queue."""
WORDS = tuple(guard.id for guard in GUARDS.values() if guard.role == "word")
"""Guards that say what the words mean, so they cannot be removed."""


@pytest.mark.parametrize(("guard", "before", "event"), IMPOSSIBLE)
def test_guard(guard: str, before: tuple[Event, ...], event: Event) -> None:
    state = play(*before)
    with pytest.raises(Impossible, match=f"^{guard}: ") as raised:
        step(P32, state, event)
    assert raised.value.guard == GUARDS[guard]


@pytest.mark.parametrize(
    "before",
    [(A, launch()), (*RUN, launch(tokens=1), Pause()), RUN, (A, Add("B", 1), launch(), Pause())],
    ids=[
        "running with output in flight",
        "paused with output in flight",
        "not paused",
        "one of two in flight",
    ],
)
def test_guard_of_running_resets(before: tuple[Event, ...]) -> None:
    state = play(*before)
    with pytest.raises(Impossible, match=r"^ENV-RESET-1: "):
        step(P31, state, Reset(running=True))
    step(P32, state, Reset(running=True))
    step(P31._replace(removed_guards=frozenset({"ENV-RESET-1"})), state, Reset(running=True))


def test_every_guard_is_tested() -> None:
    assert {guard for guard, _, _ in IMPOSSIBLE} | {"ENV-RESET-1"} == set(GUARDS)


@pytest.mark.parametrize(
    ("guard", "before", "event"),
    [case for case in IMPOSSIBLE if case[0] not in WORDS and case[1:] not in STILL],
)
def test_a_guard_that_is_removed_forbids_nothing(guard: str, before: tuple[Event, ...], event: Event) -> None:
    config = EngineConfig(removed_guards=frozenset({guard}))
    step(config, play(*before), event)


@pytest.mark.parametrize("guard", WORDS)
def test_a_guard_of_form_cannot_be_removed(guard: str) -> None:
    config = EngineConfig(removed_guards=frozenset(GUARDS))
    for name, before, event in IMPOSSIBLE:
        if name == guard:
            with pytest.raises(Impossible, match=f"^{guard}: "):
                step(config, play(*before), event)


def test_a_refused_call_changes_nothing_in_the_engine() -> None:
    before = play(*RUN)
    tampered, _ = step(P32, before, Tamper("shrink_hashes", "A", 1))
    for event in (launch(tokens=1), Abort("A"), Preempt("A")):
        after, exchanges = step(P32, tampered, event)
        assert isinstance(exchanges[0].result, Refusal)
        assert after == before


def test_requests_are_seen_as_they_are() -> None:
    request = play(Add("A", 4, 2, 3, "T"), launch(), Land()).requests[0]
    assert engine_state.view(request) == (
        "A", 5, 4, 1, 2, (engine_state.block_hash((("T", 2),)), engine_state.block_hash((("T", 4),))), False, 4,
    )  # fmt: skip
    assert engine_state.view(request, finished=True).finished
    assert len({engine_state.block_hash((("T", end),)) for end in range(1, 9)}) == 8
    assert len(engine_state.block_hash((("T", 2),))) == 32


def test_an_empty_step_needs_no_room() -> None:
    state = play(A, launch(), launch(tokens=1))
    assert len(step(P32, state, Launch())[0].in_flight) == 2


def test_a_hit_is_not_negative() -> None:
    config = EngineConfig(block_size=1)
    with pytest.raises(Impossible, match=r"^ENV-HIT-1: "):
        step(config, play(A, config=config), launch(tokens=5, hit=-1))


def test_rows_that_were_kept_over_a_reset_are_used_once() -> None:
    state = play(*RUN, Reset(kept=True))
    assert len(state.requests[0].kv_rows) == 4
    assert step(P32, state, launch(tokens=1))[0].requests[0].kv_rows == ()


def test_a_request_admitted_with_one_token_to_compute_takes_drafts() -> None:
    turned = play(SESSION, launch(), Land(stop=(("A", 1),)), Chunk("A", 1))
    assert turned.requests[0].num_uncomputed_tokens == 1
    assert options.takes_drafts(turned.requests[0], 1)
    resumed = play(*RUN, Preempt("A"), Launch(), launch("A", 3, drafts=2))
    assert resumed.requests[0].num_computed_tokens == 7
    assert step(P32, resumed, Land())[0].requests[0].num_computed_tokens == 5


def test_drafts_that_fill_up_a_batch_are_rejected() -> None:
    resumed = play(*RUN, Preempt("A"), Launch(), launch("A", 3, drafts=2))
    assert resumed.in_flight[0].entries[0].most_sampled == 1
    with pytest.raises(Impossible, match="ENV-LAND-2: A samples at most 1 tokens"):
        step(P32, resumed, Land((("A", 2),)))


def test_a_running_request_takes_no_drafts_before_it_sampled() -> None:
    chunked = play(A, launch(tokens=3))
    assert chunked.requests[0].num_uncomputed_tokens == 1
    assert not options.takes_drafts(chunked.requests[0], 1)


def test_a_request_hits_blocks_that_others_fill_in_the_same_step() -> None:
    first, second = Add("A", 4, text="T"), Add("B", 6, text="T")
    together = Launch((("A", 4), ("B", 2)), hits=(("B", 4),))
    state = play(first, second, together)
    assert [entry.token_start for entry in state.in_flight[0].entries] == [0, 4]
    rows = state.activations[1].rows
    assert [(row.request, row.position) for row in rows] == [("A", n) for n in range(4)]
    assert play(first, second, Launch((("A", 4), ("B", 6)))).in_flight[0].entries[1].token_start == 0
    with pytest.raises(Impossible, match="B can hit at most 2 tokens"):
        play(first, second, Launch((("A", 3), ("B", 2)), hits=(("B", 4),)))
    with pytest.raises(Impossible, match="B can hit at most 0 tokens"):
        play(first, second, Launch((("B", 2), ("A", 4)), hits=(("B", 4),)))


@pytest.mark.parametrize(("depth", "names"), [(1, ["A:0"]), (2, ["A:0", "A:1"])])
def test_only_asynchronous_scheduling_names_blocks_when_their_tokens_settle(
    depth: int, names: list[str]
) -> None:
    state, config = initial(), P32._replace(depth=depth)
    events = (Add("A", 2, max_tokens=9), launch(tokens=2), Land(), launch("A", 3, drafts=2))
    for event in (*events, Land(sampled=(("A", 3),))):
        state = step(config, state, event)[0]
    assert state.requests[0].num_tokens == 6
    assert [block.name for block in state.resident] == names


def test_a_request_that_sampled_nothing_has_no_output() -> None:
    state = play(A, Add("B", 4), Launch((("A", 4), ("B", 2))))
    (exchange,) = step(P32, state, Land())[1]
    assert isinstance(exchange.call, calls.TakeOutput)
    assert [name for name, _ in exchange.call.outputs or ()] == ["A"]


def test_a_session_without_output_in_flight_is_preempted() -> None:
    assert play(SESSION, launch(), Land(), Preempt("A")).requests[0].status == "preempted"


@pytest.mark.parametrize(("computed", "left"), [(1, []), (2, ["T:0"]), (3, ["T:0"])])
def test_only_computed_blocks_are_held(computed: int, left: list[str]) -> None:
    first = Add("A", 6, text="T", max_tokens=1)
    state = play(
        first, launch(tokens=6), Land(), Add("B", 6, text="T"), launch("B", computed, hit=0), Evict()
    )
    assert [block.name for block in state.resident] == left


@pytest.mark.parametrize(
    "before",
    [(*RUN, Add("B", 1)), (SESSION, launch(), Land(stop=(("A", 1),)))],
    ids=["one of two runs", "a session waits with its KV"],
)
def test_a_reset_fails_while_kv_is_held(before: tuple[Event, ...]) -> None:
    state = play(*before)
    assert step(P32, state, Reset()) == (state, ())


def test_output_after_a_drained_reset_is_delivered() -> None:
    state = play(*RUN, Reset(running=True), launch(tokens=5), Preempt("A"))
    assert not state.requests[0].drop_stale_output
    assert len(step(P32, state, Land())[1]) == 1


def test_dropped_output_stays_dropped_over_a_preemption() -> None:
    state = play(*RUN, launch(tokens=1), Reset(running=True), launch(tokens=5))
    assert state.requests[0].num_stale_output_tokens == 1
    assert step(P32, state, Preempt("A"))[0].requests[0].drop_stale_output


def test_a_single_token_is_loaded() -> None:
    assert play(A, Load("A", 1)).requests[0].num_external_tokens == 1


def test_a_load_that_fails_ends_its_request_only() -> None:
    state = play(A, Add("B", 1), external(tokens=1, loaded=3), Land(failed=(("A", 0),)))
    assert [request.request_id for request in state.requests] == ["B"]


def test_only_its_own_later_steps_ran_on_kv_that_failed_to_load() -> None:
    both = Launch((("A", 1), ("B", 1)))
    state = play(A, Add("B", 1), external(tokens=1, loaded=3), both, Land(failed=(("A", 0),)))
    assert [(e.request_id, e.on_invalid_kv) for e in state.in_flight[0].entries] == [
        ("A", True),
        ("B", False),
    ]


def test_a_request_that_goes_back_takes_no_drafts_before_it_sampled() -> None:
    state = play(A, external(tokens=1, loaded=3), Land(failed=(("A", 0),), recompute=True))
    assert not state.requests[0].has_drafts


def test_every_turn_has_a_text_of_its_own() -> None:
    stop = Land(stop=(("A", 1),))
    state = play(SESSION, launch(), stop, Chunk("A", 1), launch(tokens=1), stop, Chunk("A", 1))
    assert state.requests[0].tokens == (("A", 4), ("A'", 5), ("A''", 6))


def tampering(*events: Tamper) -> EngineState:
    return initial()._replace(tampered=events)


HASHES = (b"\x01\x02", b"\x03\x04", b"\x05\x06")


@pytest.mark.parametrize(
    ("event", "hashes"),
    [
        (Tamper("shrink_hashes", "A", 0), ()),
        (Tamper("shrink_hashes", "A", 2), (b"\x01\x02", b"\x03\x04")),
        (Tamper("mix_lengths", "A", 0), (b"\x01\x02\x01\x02", b"\x03\x04", b"\x05\x06")),
        (Tamper("mix_lengths", "A", 1), (b"\x01\x02", b"\x03\x04\x03\x04", b"\x05\x06")),
        (Tamper("shrink_hashes", "B", 0), HASHES),
        (Tamper("cut_rows", "A", 0), HASHES),
        (Tamper("no_output", "B", 1), HASHES),
    ],
)
def test_corrupted_hashes(event: Tamper, hashes: tuple[bytes, ...]) -> None:
    view = RequestView("A", 6, 6, 0, 0, HASHES)
    assert tampered_view(tampering(event), view) == view._replace(block_hashes=hashes)


def test_several_corruptions_of_one_list() -> None:
    events = (Tamper("mix_lengths", "A", 0), Tamper("shrink_hashes", "B", 0), Tamper("shrink_hashes", "A", 2))
    seen = tampered_view(tampering(*events), RequestView("A", 6, 6, 0, 0, HASHES))
    assert seen.block_hashes == (b"\x01\x02\x01\x02", b"\x03\x04")


def rows_of(name: str, start: int, end: int) -> tuple[Row, ...]:
    return tuple(Row(name, position, 0, 0) for position in range(start, end))


@pytest.mark.parametrize(
    ("event", "outputs"),
    [
        (Tamper("no_output", "A"), None),
        (Tamper("no_output", "C"), None),
        (Tamper("no_entry", "A"), (("B", RequestOutput(0, rows_of("B", 0, 2))),)),
        (Tamper("cut_rows", "A", 1), (("A", RequestOutput(3, rows_of("A", 3, 5))), "B")),
        (Tamper("cut_rows", "A", 3), (("A", RequestOutput(3, ())), "B")),
        (Tamper("cut_rows", "A", 4), (("A", RequestOutput(3, ())), "B")),
        (Tamper("shift_start", "A", 2), (("A", RequestOutput(5, rows_of("A", 3, 6))), "B")),
        (Tamper("shrink_hashes", "A", 2), ("A", "B")),
        (Tamper("no_entry", "C"), ("A", "B")),
        (Tamper("cut_rows", "C", 1), ("A", "B")),
        (Tamper("shift_start", "C", 1), ("A", "B")),
    ],
)
def test_corrupted_output(event: Tamper, outputs: tuple[object, ...] | None) -> None:
    """A name in ``outputs`` stands for that request's right entry."""
    right = {
        name: RequestOutput(start, rows_of(name, start, end))
        for name, start, end in (("A", 3, 6), ("B", 0, 2))
    }
    seen = tampered_outputs(tampering(event), tuple(right.items()))
    wanted = outputs and tuple((item, right[item]) if isinstance(item, str) else item for item in outputs)
    assert seen == wanted


def test_which_lengths_can_be_mixed() -> None:
    """A hash to be sent, unless it is the first ever and alone."""
    tamper = Tamper("mix_lengths", "A", 0)
    assert play(Add("A", 4), tamper).tampered == (tamper,)
    later = Tamper("mix_lengths", "A", 1)
    assert play(Add("A", 3, max_tokens=9), launch(tokens=3), Land(), later).tampered == (later,)
    shrink = Tamper("shrink_hashes", "A", 0)
    assert play(Add("A", 2), shrink).tampered == (shrink,)


def test_a_step_has_the_tokens_that_it_was_launched_with() -> None:
    first, second = Add("A", 4, text="T"), Add("B", 3)
    state = play(first, second, Launch((("A", 4), ("B", 3))), Abort("A"))
    assert [entry.tokens for entry in state.in_flight[0].entries] == [(("T", 4),), (("B", 3),)]


def test_tokens_that_are_not_settled_continue_the_last_run() -> None:
    tokens = (("T", 3), ("U", 5))
    found = [engine_state.scheduled_tokens(tokens, end) for end in (2, 4, 5, 7)]
    assert found == [(("T", 2),), (("T", 3), ("U", 4)), tokens, (("T", 3), ("U", 7))]


def test_a_single_computed_token_is_kv() -> None:
    assert not play(A).requests[0].holds_kv
    assert play(A, launch(tokens=1), Land()).requests[0].holds_kv


def test_chunks_wait_in_order() -> None:
    state = play(SESSION, Chunk("A", 1), Chunk("A", 2), End("A"))
    assert state.requests[0].queue == (Chunk("A", 1), Chunk("A", 2), None)


def test_token_sequences() -> None:
    tokens = engine_state.append((("T", 3),), "U", 2)
    assert tokens == (("T", 3), ("U", 5))
    assert engine_state.append(tokens, "U", 1) == (("T", 3), ("U", 6))
    prefixes = [engine_state.prefix(tokens, end) for end in (1, 3, 4, 5)]
    assert prefixes == [(("T", 1),), (("T", 3),), (("T", 3), ("U", 4)), (("T", 3), ("U", 5))]
    assert engine_state.prefix(tokens, 9) == tokens
    assert [engine_state.block_name(tokens, block, 2) for block in (0, 1)] == ["T:0", "U:1"]


def test_hash_of_a_session_s_dropped_token() -> None:
    """0.31 keeps the hash that the dropped token completed; from 0.32 on the list is cut there."""
    session = Add("A", 5, max_tokens=9, session=True)
    events = (session, launch(tokens=5), Land(stop=(("A", 1),)), Chunk("A", 3))
    dropped, replaced = (("A", 6),), (("A", 5), ("A'", 6))
    kept = [play(*events, config=config).requests[0].block_hashes for config in (P31, P32)]
    assert [hashes[2] for hashes in kept] == [
        engine_state.block_hash(dropped),
        engine_state.block_hash(replaced),
    ]
    last = engine_state.block_hash((("A", 5), ("A'", 8)))
    assert [hashes[3:] for hashes in kept] == [(last,), (last,)]


def test_options() -> None:
    def names(state: EngineState) -> list[str]:
        return [request.request_id for request in options.launchable(P32, state)]

    assert names(play(A, Add("B", 2))) == ["A", "B"]
    assert names(play(A, Pause())) == []
    assert names(play(A, launch(), launch(tokens=1), Add("B", 1))) == []
    assert names(play(Add("A", 4, max_tokens=1), launch())) == []
    assert names(play(A, launch(), launch(tokens=1), Land(), Land())) == ["A"]
    assert names(play(SESSION, launch(), Land(stop=(("A", 1),)))) == []
    assert names(play(*RUN, Preempt("A"))) == []
    assert names(play(*RUN, Preempt("A"), Launch())) == ["A"]
    assert names(play(A, launch(), Preempt("A"), Launch())) == []
    assert names(play(*RUN, launch(tokens=1), Preempt("A"), Launch())) == []
    assert names(play(A, launch(), Reset(running=True))) == ["A"]
    assert names(play(A, launch())) == ["A"]
    assert names(play(Add("A", 4, max_tokens=9), launch(tokens=2))) == ["A"]
    hit = play(A, launch(), Add("B", 6, text="A"))
    request = hit.requests[1]
    assert options.most_tokens(P32, hit, request, skip_hit=False) == 2
    assert options.most_tokens(P32, hit, request, skip_hit=True) == 6
    assert options.most_tokens(P32, hit, hit.requests[0], skip_hit=False) == 1
    turned = play(SESSION, launch(), Land(stop=(("A", 1),)), Chunk("A", 2))
    assert options.most_tokens(P32, turned, turned.requests[0], skip_hit=False) == 2
    filled = frozenset(options.filled_blocks(P32, hit.requests[1], num_left=0))
    assert len(filled) == 3
    assert options.filled_blocks(P32, hit.requests[1], num_left=3) == hit.requests[1].block_hashes[:1]
    state = step(P32, hit, Add("C", 6, text="A"))[0]
    assert options.most_tokens(P32, state, state.requests[2], skip_hit=False, filled=filled) == 2
    assert [options.takes_drafts(r, 1) for r in hit.requests] == [True, True]
    assert not options.takes_drafts(hit.requests[0], 2)
    assert not options.takes_drafts(play(A, launch(tokens=2)).requests[0], 1)
    assert not options.takes_drafts(play(*RUN, Reset(kept=True)).requests[0], 1)
    assert [options.reaches_maximum(r) for r in play(Add("A", 4, max_tokens=2), launch()).requests] == [False]
    last = play(Add("A", 4), launch(), Land(), launch(tokens=1))
    assert [options.reaches_maximum(r) for r in last.requests] == [True]
    assert not options.reaches_maximum(play(Add("A", 4, max_tokens=1)).requests[0])


def test_delivers() -> None:
    state = play(A, launch(), Add("B", 4, text="B"), launch("B", 2))
    entries = [flying.entries[0] for flying in state.in_flight]
    assert [delivers(state, entry) for entry in entries] == [True, False]
    aborted, _ = step(P32, state, Abort("A"))
    assert not delivers(aborted, entries[0])
    assert not delivers(step(P32, state, Reset(running=True))[0], entries[0])
    assert delivers(step(P32, state, Preempt("A"))[0], entries[0])


def test_wire_values_leave_the_engine_alone() -> None:
    state = play(A, Tamper("shrink_hashes", "A", 0))
    assert step(P32, state, Unpack(b"ab", 1))[0] is state


def test_defaults() -> None:
    assert EngineConfig() == (PROFILES[LATEST], 2, 2, frozenset(), None, PLAIN, (8, 256))
    assert Add("A", 1) == ("A", 1, 0, 2, "", False, 0)
    assert Loaded("A") == ("A", -1)
    assert Chunk("A", 1) == ("A", 1, 0, 2)
    assert (Launch(), Land(), Evict(), Pause(), Reset()) == (
        ((), (), (), ()),
        ((), (), (), False),
        ("*",),
        (True,),
        (False,) * 3,
    )
    assert Tamper("no_output", "A").amount == 0


@pytest.mark.parametrize("failed", [False, True])
def test_a_request_whose_end_is_refused_stays(failed: bool) -> None:
    """Whoever goes on after a refusal finds what was there before."""
    if failed:
        state, event = play(A, external(tokens=1, loaded=3)), Land(failed=(("A", 0),))
    else:
        state, event = play(A, launch()), Land(stop=(("A", 1),))
    finished = [False]

    def call(made: calls.Call) -> Result:
        if isinstance(made, calls.RequestFinished):
            finished[0] = True
            return Refusal("SCHED-TERM-8", "")
        return calls.apply(P32.profile, None, calls.Halves(state.connector, state.worker), made)[1]

    after = landing.land(P32, state, event, call)
    assert finished[0]
    assert [request.request_id for request in after.requests] == ["A"]
