"""Requests that fail alone (``errors="request"``), in small examples: both scheduler connectors, and the spec.

Comparisons go through ``expect`` and ``pytest.raises``, so that the file tests the same under ``python -O``.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import auxout
import auxout_reference
from auxout._options import ERRORS_VARIABLE
from auxout_spec import per_request, scheduler
from auxout_spec.profiles import PER_REQUEST, PROFILES, is_judged, named
from auxout_spec.values import Metadata, RequestOutput, RequestView, Row, Rows

ROWS = np.arange(4 * 3 * 2, dtype=np.uint16).reshape(4, 3, 2)


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        pytest.fail(f"got {actual!r}, expected {expected!r}")


def request(name: str = "A", *, outputs: int = 0, hashes: str = "", finished: bool = False) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_tokens=4 + outputs,
        num_prompt_tokens=4,
        num_output_tokens=outputs,
        sampling_params=SimpleNamespace(routed_experts_prompt_start=0),
        block_hashes=[2 * letter.encode() for letter in hashes],
        is_finished=lambda: finished,
    )


def build(connector: Any, scheduled: str, *requests: Any) -> Any:
    step = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(scheduled, 1))
    return connector.build_connector_meta(step, {each.request_id: each for each in requests})


def letters(mapping: Any) -> dict[str, str]:
    return {name: b"".join(packed).decode()[::2] for name, packed in mapping.items()}


def no_sampling(one: Any) -> Any:
    one.sampling_params = None
    return one


@pytest.fixture(params=[auxout_reference, auxout], ids=["reference", "impl"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def lenient(module: Any) -> Any:
    return module.AuxOutputSchedulerConnector(errors="request")


def due(module: Any, outputs: int) -> dict[str, Any]:
    """The right output of a request that has so many outputs: its newest row, all of them at the first."""
    start = 0 if outputs == 1 else 2 + outputs
    return {"A": module.AuxRequestOutput(start, ROWS[: 3 + outputs - start])}


@pytest.mark.parametrize(
    ("bad", "clause"),
    [
        (request("A", outputs=1, hashes="a"), "SCHED-HASH-8"),
        (request("A", outputs=1, hashes="abcd"), "SCHED-HASH-10"),
        (None, "SCHED-META-1"),
    ],
)
def test_a_step_is_built_and_the_others_have_what_they_have_anyway(
    module: Any, lenient: Any, bad: Any, clause: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict = module.AuxOutputSchedulerConnector(errors="raise")
    for connector in (strict, lenient):
        build(connector, "AB", request("A", hashes="ab"), request("B", hashes="x"))
    if clause == "SCHED-HASH-10":
        bad.block_hashes[2] = b"odd"
    b = request("B", outputs=1, hashes="xy")
    alone = build(strict, "AB", request("A", outputs=1, hashes="ab"), b)
    with caplog.at_level(logging.ERROR):
        together = build(lenient, "AB", b, *([] if bad is None else [bad]))
    expect(letters(together.block_hashes), letters(alone.block_hashes))
    expect(dict(together.requests)["B"], 4)
    expect(list(together.requests), ["A", "B"])
    expect(dict(lenient.failures), {clause: 1})
    expect("request A" in caplog.text, True)


def test_a_start_without_sampling_parameters_fails_alone(lenient: Any) -> None:
    metadata = build(lenient, "AB", no_sampling(request("A", hashes="a")), request("B", hashes="x"))
    expect((dict(metadata.requests), letters(metadata.block_hashes)), ({"A": 0, "B": 0}, {"B": "x"}))
    expect(dict(lenient.failures), {"SCHED-EMIT-1": 1})


@pytest.mark.parametrize(
    ("output", "clause"),
    [
        (None, "SCHED-TAKE-1"),
        ({}, "SCHED-TAKE-2"),
        ({"A": (2, 1)}, "SCHED-TAKE-7"),
        ({"A": (0, 0, "capture goes back [WORK-CAPTURE-2]")}, "FAIL-TELL-1"),
    ],
)
def test_a_request_that_failed_gets_no_row_until_it_has_ended(
    module: Any, lenient: Any, output: Any, clause: str
) -> None:
    given = output and {
        name: module.AuxRequestOutput(start, ROWS[:count], *more)
        for name, (start, count, *more) in output.items()
    }
    build(lenient, "A", request("A"))
    expect(lenient.take_output(request("A", outputs=1), given), None)
    expect(dict(lenient.failures), {clause: 1})
    expect(lenient.take_output(request("A", outputs=2), due(module, 2)), None)
    lenient.request_finished(request("A", outputs=2))  # preempted
    build(lenient, "A", request("A", outputs=2))
    expect(lenient.take_output(request("A", outputs=3), due(module, 3)), None)
    lenient.reset()
    expect(lenient.take_output(request("A", outputs=4), due(module, 4)), None)
    lenient.request_finished(request("A", outputs=4, finished=True))
    expect(lenient.take_output(request("A", outputs=1), due(module, 1)).tolist(), ROWS.tolist())
    expect(dict(lenient.failures), {clause: 1})


def test_a_request_that_failed_and_was_never_scheduled_again_ends(module: Any, lenient: Any) -> None:
    build(lenient, "A", request("A"))
    lenient.take_output(request("A", outputs=1), {})
    lenient.request_finished(request("A", outputs=1))  # preempted
    lenient.request_finished(request("A", outputs=1, finished=True))  # aborted while it waits
    expect(lenient.take_output(request("A", outputs=1), due(module, 1)) is None, False)


def test_an_end_with_a_list_that_shrank_is_told_without_hashes(lenient: Any) -> None:
    build(lenient, "A", request("A", hashes="ab"))
    lenient.request_finished(request("A", hashes="a", finished=True))
    metadata = build(lenient, "")
    expect((metadata.finished_requests, letters(metadata.block_hashes)), (("A",), {}))
    expect(dict(lenient.failures), {"SCHED-TERM-8": 1})


def test_a_request_that_had_failed_is_counted_once_also_where_its_end_is_inconsistent(lenient: Any) -> None:
    build(lenient, "A", request("A", hashes="ab"))
    lenient.take_output(request("A", outputs=1, hashes="ab"), {})
    lenient.request_finished(request("A", outputs=1, hashes="a", finished=True))
    expect(dict(lenient.failures), {"SCHED-TAKE-2": 1})
    expect(build(lenient, "").finished_requests, ("A",))


def test_an_end_that_is_refused_leaves_a_request_failed(module: Any) -> None:
    strict = module.AuxOutputSchedulerConnector()
    build(strict, "A", request("A", hashes="ab"))
    told = {"A": module.AuxRequestOutput(0, ROWS[:0], "capture goes back [WORK-CAPTURE-2]")}
    expect(strict.take_output(request("A", outputs=1, hashes="ab"), told), None)
    with pytest.raises(Exception, match="SCHED-TERM-8"):
        strict.request_finished(request("A", outputs=1, hashes="a", finished=True))
    expect(strict.take_output(request("A", outputs=1, hashes="ab"), due(module, 1)), None)


@pytest.mark.parametrize("count", [2, 1200])
def test_any_number_of_requests_of_a_step_fail_and_the_others_have_what_they_have_anyway(
    lenient: Any, count: int
) -> None:
    sound = [request(f"S{number}", hashes="ab") for number in range(3)]
    build(lenient, "", *sound)
    step = SimpleNamespace(num_scheduled_tokens={f"R{number}": 1 for number in range(count)} | {"S1": 1})
    requests = {each.request_id: each for each in sound}
    shrunk = {name: request(name, hashes="ab") for name in step.num_scheduled_tokens if name != "S1"}
    lenient.build_connector_meta(step, requests | shrunk)
    bad = {name: request(name, outputs=1, hashes="a") for name in shrunk}
    grown = request("S1", outputs=1, hashes="abc")
    metadata = lenient.build_connector_meta(step, requests | bad | {"S1": grown})
    expect((letters(metadata.block_hashes), len(metadata.requests)), ({"S1": "c"}, count + 1))
    expect(dict(lenient.failures), {"SCHED-HASH-8": count})


def test_output_that_says_so_fails_a_request_also_where_calls_are_refused(module: Any) -> None:
    strict = module.AuxOutputSchedulerConnector()
    build(strict, "A", request("A"))
    expect(
        strict.take_output(request("A", outputs=1), {"A": module.AuxRequestOutput(0, ROWS[:0], "it failed")}),
        None,
    )
    expect(strict.take_output(request("A", outputs=2), due(module, 2)), None)
    strict.request_finished(request("A", outputs=2, finished=True))
    expect(strict.take_output(request("A", outputs=1), due(module, 1)) is None, False)


def test_an_unknown_way_to_fail_is_a_value_error(module: Any) -> None:
    with pytest.raises(ValueError, match="'raise' or 'request', not 'ignore'"):
        module.AuxOutputSchedulerConnector(errors="ignore")


def test_the_environment_says_how_requests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ERRORS_VARIABLE, "request")
    expect(auxout.AuxOutputSchedulerConnector().take_output(request("A"), None), None)
    with pytest.raises(AssertionError):
        auxout.AuxOutputSchedulerConnector(errors="raise").take_output(request("A"), None)
    monkeypatch.setenv(ERRORS_VARIABLE, "nonsense")
    with pytest.raises(ValueError, match="AUXOUT_ERRORS is 'raise' or 'request', not 'nonsense'"):
        auxout.AuxOutputSchedulerConnector()


# --- the specification


VARIANT = named("0.32" + PER_REQUEST)
STEP = (("A", 1), ("B", 1))


def view(name: str = "A", *hashes: bytes, outputs: int = 0, finished: bool = False) -> RequestView:
    return RequestView(name, 4 + outputs, 4, outputs, 0, hashes, finished)


def test_a_variant_is_its_profile_but_for_what_fails() -> None:
    expect(VARIANT._replace(name="0.32", fails_requests=False), PROFILES["0.32"])
    expect((is_judged("0.32+request"), is_judged("0.32"), is_judged("0.30+request")), (True, True, False))
    with pytest.raises(KeyError):
        named("0.30+request")


def test_the_spec_sends_what_it_can_and_hands_out_nothing_of_what_failed() -> None:
    state, _ = per_request.build_connector_meta(
        VARIANT, scheduler.INITIAL, STEP, (view("A", b"1", b"2"), view("B", b"3"))
    )
    state, built = per_request.build_connector_meta(
        VARIANT, state, STEP, (view("A", b"1"), view("B", b"3", b"4"))
    )
    assert isinstance(built, Metadata)
    expect((built.requests, built.block_hashes), ((("A", 0), ("B", 0)), (("B", (b"4",)),)))
    expect(state.failed, ("A",))
    rows = tuple(Row("A", position, 0, 0) for position in range(4))
    outputs = (("A", RequestOutput(0, rows)), ("B", RequestOutput(0, rows)))
    expect(per_request.take_output(state, view("A", outputs=1), outputs), (state, None))
    expect(per_request.take_output(state, view("B", outputs=1), outputs), (state, Rows(rows)))
    state, _ = per_request.request_finished(per_request.reset(state), view("A", b"1"))
    expect(state.failed, ("A",))
    state, _ = per_request.request_finished(state, view("A", b"1", finished=True))
    expect(state.failed, ())
