"""Whatever a file or a child process holds, it is read or refused, in one sentence that is not long."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from auxout_conformance import expect, observation, report, tracing
from auxout_conformance.cases import all_cases
from auxout_conformance.judge import agrees
from auxout_conformance.judge.render import describe_outcome
from auxout_conformance.mistakes import UserMistake
from auxout_conformance.reports import FORMATS
from auxout_conformance.verdicts import ClauseResult, Report, Verdict, Violation
from auxout_conformance.verifying import record
from auxout_conformance.verifying.outcome import Change, ClauseOutcome, Move, Result, Verification
from auxout_spec import reading, scenario, trace
from auxout_spec.calls import Exchange
from auxout_spec.engine import Impossible
from auxout_spec.profiles import PROFILES
from auxout_spec.reading import Malformed
from auxout_spec.scenario import Scenario

P32 = PROFILES["0.32"]
LONGEST = 1000
"""Letters of a message."""
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 10**17, 1.5, "", "x", "A" * 100_000, "\ud800", [], [1], [[]], {}, {"A": 1}, {"A": {}},
)  # fmt: skip
TEXTS = (
    "", "nonsense", "[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900, "9" * 5000, "-" + "9" * 5000, "1e999",
    "NaN", "Infinity", "null", "5", '"text"', "[]", "{}", '{"auxout": 1, "auxout": 2}', "\x00", "\ufeff{}",
)  # fmt: skip


def variants(data: Any) -> Iterator[Any]:
    """Copies of a JSON value with one part replaced, removed or added."""
    for value in HOSTILE:
        yield value
    if isinstance(data, dict):
        yield {**data, "more": 1}
        for key, value in data.items():
            yield {name: kept for name, kept in data.items() if name != key}
            yield from ({**data, key: other} for other in variants(value))
    elif isinstance(data, list):
        yield data * 2
        for at, value in enumerate(data):
            yield data[:at] + data[at + 1 :]
            yield from ([*data[:at], other, *data[at + 1 :]] for other in variants(value))


def refused_or_read(read: Callable[[], object], *refusals: type[Exception]) -> None:
    said = ""
    try:
        read()
    except Impossible:
        assert Impossible in refusals
    except refusals as error:
        said = str(error)
    assert len(said) <= LONGEST


# The reader of JSON.


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_any_text_is_parsed_or_malformed(text: str) -> None:
    refused_or_read(lambda: reading.parse(text), Malformed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "a number has 5000 digits; at most 18 are read"),
        ("-" + "9" * 19, "a number has 19 digits; at most 18 are read"),
        ("1e999", "1e999 is not a finite number"),
        ("NaN", "NaN is not a finite number"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "an object names 'c' twice"),
    ],
)
def test_what_is_wrong_with_a_text(text: str, said: str) -> None:
    with pytest.raises(Malformed) as caught:
        reading.parse(text)
    assert str(caught.value) == said


def test_the_largest_numbers() -> None:
    assert reading.parse("999999999999999999") == reading.MAX_INTEGER
    assert reading.parse("-999999999999999999") == -reading.MAX_INTEGER


# Scenarios.


def played(data: Any) -> None:
    found = scenario.from_json(data)
    if len(found.events) < 50:
        scenario.run(found, P32)


@pytest.mark.parametrize("case", all_cases()[::20], ids=lambda case: case.name)
def test_scenarios(case: Any) -> None:
    data = json.loads(scenario.dump(case.scenario))
    for variant in variants(data):
        refused_or_read(lambda variant=variant: played(variant), Malformed, Impossible)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"events": [{"add": "A", "prompt": 10**9}]}, "event 1: prompt is 1,000,000,000; at most 1,048,576"),
        ({"events": [{"launch": {"A": 10**9}}]}, "event 1: the count of A is 1,000,000,000; at most"),
        ({"depth": 10**6}, "depth is at most 1,024"),
        ({"block_size": 10**9}, "scenario: block_size is 1,000,000,000; at most"),
        ({"block_size": 1, "events": [{"add": "A", "prompt": 10**6}]}, "a request has more than 65,536 blocks of 1"),
        (
            {"events": [{"add": str(n), "prompt": 10**6} for n in range(9)], "block_size": 16},
            "the requests have 9,000,000",
        ),
        ({"events": [{"land": {}}] * 70_000}, "a scenario has at most 65,536 events"),
    ],
)  # fmt: skip
def test_scenarios_that_would_take_hours(change: dict[str, Any], said: str) -> None:
    with pytest.raises(Malformed) as caught:
        scenario.from_json({"auxout": "scenario/1", **change})
    assert str(caught.value).startswith(said)


# Traces, and what a child answers.


def lines_of(name: str) -> list[dict[str, Any]]:
    """The calls of a case as a trace has them."""
    case = next(case for case in all_cases() if case.name == name)
    return [
        trace.exchange_to_json(exchange)
        for _, exchanges in scenario.run(case.scenario, P32)
        for exchange in exchanges
    ]


TRACED = ["sched-restart-3-1", "work-capture-1-1", "row-exact-1-1"]
HEADER = {"auxout": "trace/1", "profile": "0.32", "block_size": 2, "max_objects": 8}


def traced(lines: list[Any]) -> None:
    recorded = tracing.read(map(json.dumps, lines))
    checked = tracing.check(recorded, P32)
    if checked.impossible is not None:
        assert checked.impossible.clause


@pytest.mark.parametrize("name", TRACED)
def test_traces(name: str) -> None:
    lines = lines_of(name)
    draw = random.Random(name)
    for at, line in enumerate(lines):
        every = list(variants(line))
        for variant in draw.sample(every, min(len(every), 300)):
            whole = [HEADER, *lines[:at], variant, *lines[at + 1 :]]
            refused_or_read(lambda whole=whole: traced(whole), tracing.MalformedTrace)
    for header in variants(HEADER):
        refused_or_read(lambda header=header: traced([header, *lines]), tracing.MalformedTrace)


@pytest.mark.parametrize("name", TRACED)
def test_answers_of_a_child(name: str) -> None:
    right = {"notes": [["SCHED-META-5", "why"]], "traits": ["t"], "usage": [1, 2, 3, 4, 5]}
    raised = {"type": "E", "message": "m", "refusal": True}
    for line in lines_of(name):
        for answer in ({"result": line["result"]}, {"odd": "?"}, {"raised": raised}):
            for variant in variants({**right, **answer}):
                refused_or_read(lambda variant=variant, line=line: answered(variant, line), Malformed)


def answered(data: Any, line: dict[str, Any]) -> None:
    """A read answer can be compared and shown."""
    seen = observation.from_json(data)
    exchange: Exchange = trace.exchange_from_json(line)
    agrees(exchange.result, seen.outcome)
    describe_outcome(seen.outcome, {})


# Reports and expectation files.


def report_lines() -> list[dict[str, Any]]:
    case = next(case for case in all_cases() if case.name == "sched-term-1-1")
    plain: Scenario = case.scenario._replace(profile="0.32", name="", clause="")
    found = Violation("SCHED-TERM-1", plain, 2, "call", "right", "wrong", "random", 7, "auxout replay X", 9)
    judged = Report(
        "x:make", "x 1", "0.32", "default", 7, Verdict.VIOLATION,
        (ClauseResult("SCHED-META-1", "holds", 2), ClauseResult("SCHED-META-2", "known", 2, ("F32-1",))),
        (found,), ("F32-1",), ("SCHED-TERM-1",), notes=("note",),
    )  # fmt: skip
    verification = Verification(
        "fix.diff", judged, judged, Result.BROKEN, "base", "0.32",
        (ClauseOutcome("SCHED-TERM-1", "broken", ("F32-1",), found),),
        (Move("0.32", ("SCHED-EMIT-4",), ("SCHED-EMIT-3",), plain, "call", "a", "b"),),
        (Change("reset: other", plain, 1, "reset()", "a", "b"),),
    )  # fmt: skip
    return [json.loads(line) for line in record.dump(verification, report.header([])).splitlines()]


def formatted(lines: list[Any]) -> None:
    read = report.read("\n".join(map(json.dumps, lines)))
    for make in FORMATS.values():
        make(read)


def test_reports() -> None:
    lines = report_lines()
    formatted(lines)
    draw = random.Random(1)
    for at, line in enumerate(lines):
        every = list(variants(line))
        for variant in draw.sample(every, min(len(every), 60)):
            refused_or_read(
                lambda variant=variant, at=at: formatted([*lines[:at], variant, *lines[at + 1 :]]),
                report.MalformedReport,
            )


def test_a_line_separator_in_a_text_ends_no_line() -> None:
    lines = report_lines()
    lines[0]["tool"] = "a\u2028b\x85c"
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert report.read(text).head["tool"] == "a\u2028b\x85c"


def test_expectation_files() -> None:
    right = {"auxout": "expect/1", "profile": "0.32", "expected": [{"clause": "SCHED-TERM-1", "reason": "r"}]}
    assert expect.load(json.dumps(right)).entries
    for variant in variants(right):
        refused_or_read(lambda variant=variant: expect.load(json.dumps(variant)), UserMistake)


# The same from the command line.


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
@pytest.mark.parametrize(
    "line", ["replay {} reference", "trace check {}", "report {}", "conform impl --expect {}"]
)
def test_commands(run: Any, tmp_path: Any, line: str, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    ran = run(*line.format(path).split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("auxout: ")
    assert ran.err.count("\n") == 1
    assert len(ran.err) <= LONGEST
