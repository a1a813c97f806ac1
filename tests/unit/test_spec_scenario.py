"""The file formats of the spec: scenarios and traces, read and written, and what a bad file is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from auxout_spec import calls, engine, scenario, trace
from auxout_spec.calls import Exchange
from auxout_spec.engine import Impossible
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import Malformed, Scenario
from auxout_spec.values import (
    Hashes,
    Metadata,
    Refusal,
    RequestOutput,
    RequestView,
    Row,
    Rows,
)

EVENTS: tuple[tuple[engine.Event, dict[str, Any]], ...] = (
    (engine.Add("A", 4), {"add": "A", "prompt": 4}),
    (
        engine.Add("A", 4, 1, 3, "T", True),
        {"add": "A", "prompt": 4, "start": 1, "max_tokens": 3, "text": "T", "session": True},
    ),
    (engine.Launch(), {"launch": {}}),
    (
        engine.Launch((("B", 3), ("A", 1)), (("B", 2),), (("A", 0),)),
        {"launch": {"B": 3, "A": 1}, "drafts": {"B": 2}, "hits": {"A": 0}},
    ),
    (engine.Add("A", 4, max_tokens=1, cut=1), {"add": "A", "prompt": 4, "max_tokens": 1, "cut": 1}),
    (
        engine.Launch((("A", 1),), external=(("A", 3),)),
        {"launch": {"A": 1}, "external": {"A": 3}},
    ),
    (engine.Load("A", 4), {"load": "A", "tokens": 4}),
    (engine.Loaded("A"), {"loaded": "A"}),
    (engine.Loaded("A", 2), {"loaded": "A", "valid": 2}),
    (engine.Land(), {"land": {}}),
    (
        engine.Land(failed=(("A", 2),), recompute=True),
        {"land": {}, "failed": {"A": 2}, "recompute": True},
    ),
    (engine.Land((("A", 2),), (("A", 1),)), {"land": {"A": 2}, "stop": {"A": 1}}),
    (engine.Abort("A"), {"abort": "A"}),
    (engine.Preempt("A"), {"preempt": "A"}),
    (engine.Evict(), {"evict": "*"}),
    (engine.Evict("T:1"), {"evict": "T:1"}),
    (engine.Pause(), {"pause": True}),
    (engine.Pause(False), {"pause": False}),
    (engine.Reset(), {"reset": False}),
    (engine.Reset(True, True), {"reset": True, "weights": True}),
    (engine.Reset(kept=True), {"reset": False, "kept": True}),
    (engine.Close(), {"close": True}),
    (engine.Chunk("A", 3), {"chunk": "A", "tokens": 3}),
    (engine.Chunk("A", 3, 8, 1), {"chunk": "A", "tokens": 3, "start": 8, "max_tokens": 1}),
    (engine.End("A"), {"end": "A"}),
    (engine.Tamper("no_output", "A"), {"tamper": "no_output", "request": "A"}),
    (engine.Tamper("cut_rows", "A", 2), {"tamper": "cut_rows", "request": "A", "amount": 2}),
    (engine.Unpack(b"\x01\xff", 2), {"unpack": "01ff", "item_size": 2}),
)


@pytest.mark.parametrize(("event", "data"), EVENTS)
def test_event(event: engine.Event, data: dict[str, Any]) -> None:
    assert scenario.event_to_json(event) == data
    assert scenario.event_from_json(data) == event
    assert next(iter(scenario.event_to_json(event))) == next(iter(data))


def test_events_of_every_kind_are_shown() -> None:
    assert {type(event) for event, _ in EVENTS} == set(engine.Event.__args__)


WRITTEN = (
    '{"auxout": "scenario/1", "name": "n", "clause": "WIRE-HASH-1", "profile": "0.31", "block_size": 4, '
    '"depth": 3, "events": [\n'
    '    {"add": "A", "prompt": 4},\n'
    '    {"launch": {"A": 4}}]}\n'
)
READ = Scenario((engine.Add("A", 4), engine.Launch((("A", 4),))), 4, 3, "0.31", "n", "WIRE-HASH-1")


def test_whole_scenario() -> None:
    assert scenario.dump(READ) == WRITTEN
    assert scenario.load(WRITTEN) == READ
    line = scenario.dump(READ, indent=False)
    assert "\n" not in line
    assert " " not in line
    assert scenario.load(line) == READ


def test_defaults_of_a_scenario() -> None:
    assert scenario.load('{"auxout": "scenario/1"}') == Scenario((), 2, 2, "", "", "")
    assert scenario.dump(Scenario((engine.Land(),)), indent=False) == (
        '{"auxout":"scenario/1","block_size":2,"depth":2,"events":[{"land":{}}]}'
    )


def test_a_scenario_may_list_fields_in_any_order() -> None:
    text = '{"events": [{"pause": true}], "depth": 1, "auxout": "scenario/1"}'
    assert scenario.load(text) == Scenario((engine.Pause(),), 2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: "),
        ("[]", "a scenario is a JSON object with a list of events"),
        ("{}", 'expected "auxout": "scenario/1", found None'),
        ('{"auxout": "scenario/2"}', 'expected "auxout": "scenario/1", found \'scenario/2\''),
        (
            '{"auxout": "scenario/1", "event": []}',
            "scenario: unknown field 'event'; allowed are auxout, events, ",
        ),
        ('{"auxout": "scenario/1", "depth": "2"}', "scenario: depth must be a whole number, found '2'"),
        ('{"auxout": "scenario/1", "depth": true}', "scenario: depth must be a whole number, found True"),
        ('{"auxout": "scenario/1", "depth": 0}', "depth is at least 1"),
        ('{"auxout": "scenario/1", "block_size": -1}', "block_size is at least 1"),
        ('{"auxout": "scenario/1", "store": -1}', "store is at least 0"),
        ('{"auxout": "scenario/1", "events": {}}', "scenario: events must be a list, found {}"),
        ('{"auxout": "scenario/1", "name": 1}', "scenario: name must be text, found 1"),
        (
            '{"auxout": "scenario/1", "profile": "0.1"}',
            "unknown profile '0.1'; the profiles are 0.31, 0.32, 0.33",
        ),
        ('{"auxout": "scenario/1", "events": [{"land": {}}, {}]}', "event 2: an event is an object such as "),
    ],
)
def test_malformed_scenario(text: str, message: str) -> None:
    with pytest.raises(Malformed) as raised:
        scenario.load(text)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], 'e: an event is an object such as {"abort": "A"}'),
        ({}, 'e: an event is an object such as {"abort": "A"}'),
        ({"jump": "A"}, "e: unknown event 'jump'; the events are add, launch, land, "),
        ({"abort": 1}, "e: abort must be text, found 1"),
        ({"abort": "A", "prompt": 1}, "e: unknown field 'prompt'; allowed are abort"),
        ({"add": "A"}, "e: add needs prompt"),
        ({"chunk": "A"}, "e: chunk needs tokens"),
        ({"tamper": "cut_rows"}, "e: tamper needs request"),
        ({"unpack": ""}, "e: unpack needs item_size"),
        ({"add": "A", "prompt": True}, "e: prompt must be a whole number, found True"),
        ({"add": "A", "prompt": 1.0}, "e: prompt must be a whole number, found 1.0"),
        ({"add": "A", "prompt": 1, "session": 1}, "e: session must be true or false, found 1"),
        ({"launch": ["A"]}, "e: launch must be an object, found ['A']"),
        ({"launch": {"A": "1"}}, "e: the count of A must be a whole number, found '1'"),
        ({"launch": {"A": 1}, "hits": {"A": False}}, "e: the count of A must be a whole number, found False"),
        ({"land": {}, "stop": 1}, "e: stop must be an object, found 1"),
        ({"pause": "yes"}, "e: pause must be true or false, found 'yes'"),
        ({"tamper": "burn", "request": "A"}, "e: unknown corruption 'burn'; known are no_output, no_entry, "),
        ({"unpack": "xy", "item_size": 1}, "e: data must be hexadecimal"),
    ],
)
def test_malformed_event(data: Any, message: str) -> None:
    with pytest.raises(Malformed) as raised:
        scenario.event_from_json(data, "e")
    assert str(raised.value).startswith(message)


def test_run() -> None:
    played = scenario.run(READ)
    assert [len(exchanges) for _, exchanges in played] == [0, 1]
    state, (exchange,) = played[1]
    assert isinstance(exchange.result, Metadata)
    assert exchange.result.requests == (("A", 0),)
    assert state.in_flight[0].entries[0].num_tokens == 4
    late = Scenario((engine.Add("A", 1, 9), engine.Launch((("A", 1),))), profile="0.31")
    for profile, start in (("0.31", 9), ("0.32", 1)):
        _, (exchange,) = scenario.run(late, PROFILES[profile])[-1]
        assert isinstance(exchange.result, Metadata)
        assert exchange.result.requests == (("A", start),)
    _, (exchange,) = scenario.run(late)[-1]
    assert isinstance(exchange.result, Metadata)
    assert exchange.result.requests == (("A", 9),)
    with pytest.raises(Impossible):
        scenario.run(Scenario((engine.Land(),)), PROFILES["0.32"])


def test_config() -> None:
    config = scenario.config_of(READ, PROFILES["0.32"])
    assert (config.profile.name, config.block_size, config.depth) == ("0.32", 4, 3)


VIEW = RequestView("A", 5, 4, 1, 2, (b"\x01\x02", b"\xff\x00"), True, 3)
VIEW_JSON = {
    "request_id": "A", "num_tokens": 5, "num_prompt_tokens": 4, "num_output_tokens": 1, "prompt_start": 2,
    "block_hashes": ["0102", "ff00"], "finished": True, "num_computed_tokens": 3,
}  # fmt: skip
CALLS: tuple[tuple[calls.Call, dict[str, Any]], ...] = (
    (
        calls.BuildConnectorMeta((("B", 1), ("A", 4)), (VIEW,)),
        {"call": "build_connector_meta", "scheduled": {"B": 1, "A": 4}, "requests": [VIEW_JSON]},
    ),
    (calls.TakeOutput(VIEW, None), {"call": "take_output", "request": VIEW_JSON, "outputs": None}),
    (
        calls.TakeOutput(VIEW, (("A", RequestOutput(3, (Row("A", 3, 0, 7),))),)),
        {
            "call": "take_output",
            "request": VIEW_JSON,
            "outputs": {"A": {"token_start": 3, "rows": [["A", 3, 0, 7]]}},
        },
    ),
    (
        calls.RequestFinished(VIEW, True),
        {"call": "request_finished", "request": VIEW_JSON, "preempted": True},
    ),
    (calls.Reset(), {"call": "reset"}),
    (calls.Unpack(b"\x01", -1), {"call": "unpack", "data": "01", "item_size": -1}),
)
RESULTS: tuple[tuple[Any, Any], ...] = (
    (None, None),
    (
        Metadata(
            2,
            (("A", 3),),
            (("A", (b"\x01",)),),
            ("B",),
            (("B", (b"\x02", b"\x03")),),
            (("C", (b"\x04",)),),
        ),
        {
            "generation": 2,
            "requests": {"A": 3},
            "block_hashes": {"A": ["01"]},
            "finished_requests": ["B"],
            "finished_block_hashes": {"B": ["02", "03"]},
            "replaced_block_hashes": {"C": ["04"]},
        },
    ),
    (Rows((Row("A", 3, 0, 7),)), {"rows": [["A", 3, 0, 7]]}),
    (Rows(()), {"rows": []}),
    (Hashes((b"\x01",)), {"hashes": ["01"]}),
    (Refusal("WIRE-HASH-2", "why"), {"refused": "WIRE-HASH-2", "message": "why"}),
)


@pytest.mark.parametrize(("call", "data"), CALLS)
def test_call_in_a_trace(call: calls.Call, data: dict[str, Any]) -> None:
    assert trace.call_to_json(call) == data
    assert trace.call_from_json(json.loads(json.dumps(data))) == call


@pytest.mark.parametrize(("result", "data"), RESULTS)
def test_result_in_a_trace(result: Any, data: Any) -> None:
    assert trace.result_to_json(result) == data
    assert trace.result_from_json(json.loads(json.dumps(data))) == result
    exchange = Exchange(calls.Reset(), result)
    assert trace.exchange_to_json(exchange) == {"call": "reset", "result": data}
    assert trace.exchange_from_json({"call": "reset", "result": data}) == exchange


def test_order_survives_a_trace() -> None:
    call = CALLS[0][0]
    text = json.dumps(trace.call_to_json(call))
    assert trace.call_from_json(json.loads(text)) == call


@pytest.mark.parametrize("data", [{}, {"call": "jump"}, {"call": "unpack", "data": "xy", "item_size": 1}])
def test_what_is_no_call(data: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        trace.call_from_json(data)


def test_the_size_of_the_store_is_written_and_read() -> None:
    limited = Scenario((), store=3)
    assert scenario.load(scenario.dump(limited)) == limited
