"""Recording and checking traces: right ones are accepted, each corrupted one is rejected at its line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auxout_conformance import recording, tracing
from auxout_conformance.cases import Case, all_cases
from auxout_conformance.objects import Requests, RowCodec
from auxout_conformance.targets.loading import LoadSpec, load
from auxout_spec import calls, trace
from auxout_spec.calls import Exchange
from auxout_spec.profiles import PROFILES
from auxout_spec.representation import PLAIN, Image
from auxout_spec.scenario import run
from auxout_spec.values import Metadata, Refusal, Rows

HEADER = json.dumps({"auxout": "trace/1", "profile": "0.32"})
CASES = [case for case in all_cases() if case.clause.startswith("SCHED") and "0.32" in case.profiles]
P32 = PROFILES["0.32"]
IMAGE = Image(PLAIN)


def exchanges_of(case: Case) -> list[Exchange]:
    return [exchange for _, made in run(case.scenario, P32) for exchange in made]


def recorded(exchanges: list[Exchange]) -> tracing.Recorded:
    return tracing.Recorded("0.32", list(enumerate(exchanges, 2)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_spec_s_own_traces_are_accepted(case: Case) -> None:
    exchanges = exchanges_of(case)
    lines = [HEADER, *(json.dumps(trace.exchange_to_json(exchange)) for exchange in exchanges)]
    checked = tracing.check(tracing.read(lines), P32)
    assert checked == tracing.Checked(len(exchanges), None)


def corrupted(result: Any) -> Iterator[Any]:
    """A right answer with one field changed, in every way that matters."""
    if isinstance(result, Metadata):
        yield result._replace(generation=result.generation + 1)
        yield result._replace(requests=(*result.requests, ("nobody", 0)))
        yield result._replace(finished_requests=(*result.finished_requests, "nobody"))
        for index, (name, start) in enumerate(result.requests):
            rest = result.requests[:index] + result.requests[index + 1 :]
            yield result._replace(requests=rest)
            yield result._replace(
                requests=(*result.requests[:index], (name, start + 1), *result.requests[index + 1 :])
            )
        for index, (name, hashes) in enumerate(result.block_hashes):
            rest = result.block_hashes[:index] + result.block_hashes[index + 1 :]
            yield result._replace(block_hashes=rest)
            yield result._replace(block_hashes=(*rest, (name, hashes[:-1])))
            yield result._replace(block_hashes=(*rest, (name, (*hashes, b"x" * 32))))
            yield result._replace(block_hashes=(*rest, (name, (*hashes[:-1], b"x" * 32))))
        if result.finished_requests:
            yield result._replace(finished_requests=result.finished_requests[1:])
        if result.finished_block_hashes:
            yield result._replace(finished_block_hashes=())
    elif isinstance(result, Rows):
        yield None
        yield Rows((*result.rows, *result.rows[-1:], *result.rows[-1:])) if result.rows else Refusal("", "no")
        if result.rows:
            yield Rows(result.rows[:-1])
            yield Rows((result.rows[0]._replace(position=99), *result.rows[1:]))
    elif isinstance(result, Refusal):
        yield None
    else:
        yield Refusal("", "no")
        yield Rows(())


def test_every_corrupted_answer_is_rejected_at_its_line() -> None:
    count = 0
    for case in CASES:
        exchanges = exchanges_of(case)
        for place, (call, result) in enumerate(exchanges):
            for wrong in corrupted(result):
                bad = [*exchanges[:place], Exchange(call, wrong), *exchanges[place + 1 :]]
                found = tracing.check(recorded(bad), P32).impossible
                assert found is not None, (case.name, call, wrong)
                assert found.line == place + 2
                count += 1
    assert count > 1000


@pytest.mark.parametrize("module", ["auxout_reference.connector", "auxout.connector"])
def test_what_a_recorder_writes_is_accepted(module: str) -> None:
    for case in CASES:
        file = io.StringIO()
        recorder = recording.Recorder(scheduler_of(module), recording.Trace(file, "0.32"))
        requests, rows = Requests(), RowCodec()
        for call, right in exchanges_of(case):
            with pytest.raises(AssertionError) if isinstance(right, Refusal) else io.StringIO():
                _make(recorder, call, requests, rows)
        checked = tracing.check(tracing.read(file.getvalue().splitlines()), P32)
        assert checked.impossible is None, case.name
        assert checked.num_calls == len(exchanges_of(case))


def scheduler_of(module: str) -> Any:
    """A scheduler connector of ours."""
    make = load(LoadSpec("module", module)).scheduler
    assert make is not None
    return make("0.32")


def _make(recorder: recording.Recorder, call: calls.Call, requests: Requests, rows: RowCodec) -> None:
    if isinstance(call, calls.BuildConnectorMeta):
        recorder.build_connector_meta(*requests.step(call))
    elif isinstance(call, calls.TakeOutput):
        recorder.take_output(requests.get(call.request), rows.outputs(call.outputs, IMAGE))
    elif isinstance(call, calls.RequestFinished):
        recorder.request_finished(requests.get(call.request))
        if call.request.finished:
            requests.forget(requests.get(call.request))
    else:
        recorder.reset()


def test_a_recorder_passes_everything_else_on() -> None:
    connector = SimpleNamespace(special=7)
    assert recording.Recorder(connector, recording.Trace(io.StringIO())).special == 7


def test_rows_are_told_apart_by_value_and_dtype() -> None:
    small, wide = np.ones((1, 2, 2), np.uint8), np.ones((1, 2, 2), np.uint16)
    assert recording.rows_of(small) == recording.rows_of(small.copy())
    assert len({recording.rows_of(small), recording.rows_of(wide), recording.rows_of(2 * small)}) == 3


def test_a_worker_may_count_in_numpy_integers() -> None:
    file, rows = io.StringIO(), np.zeros((2, 2, 2), np.uint8)
    connector = SimpleNamespace(take_output=lambda request, output: output["A"].rows[:1])
    request = SimpleNamespace(
        request_id="A",
        num_tokens=np.int64(5),
        num_prompt_tokens=3,
        num_output_tokens=2,
        sampling_params=None,
        block_hashes=[],
        is_finished=lambda: False,
    )
    output = {"A": SimpleNamespace(token_start=np.int32(3), rows=rows)}
    recording.Recorder(connector, recording.Trace(file)).take_output(request, output)
    ((_, (call, result)),) = tracing.read(file.getvalue().splitlines()).entries
    assert len(result.rows) == 1
    assert (call.request.num_tokens, call.outputs[0][1].token_start) == (5, 3)


def test_metadata_of_another_shape_is_recorded_as_a_refusal() -> None:
    file = io.StringIO()
    connector = SimpleNamespace(build_connector_meta=lambda output, requests: SimpleNamespace())
    recorder = recording.Recorder(connector, recording.Trace(file))
    recorder.build_connector_meta(SimpleNamespace(num_scheduled_tokens={}), {})
    assert tracing.check(tracing.read(file.getvalue().splitlines()), P32).impossible is not None


def test_a_request_without_sampling_parameters_starts_at_zero() -> None:
    request = SimpleNamespace(
        request_id="A", num_tokens=1, num_prompt_tokens=1, num_output_tokens=0, sampling_params=None,
        block_hashes=[], is_finished=lambda: False,
    )  # fmt: skip
    assert recording.view_of(request).prompt_start == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "the trace is empty"),
        (["nonsense"], "line 1: not JSON"),
        (["[]"], "line 1: a line of a trace must be an object"),
        (["{}"], 'line 1: expected "auxout": "trace/1"'),
        ([HEADER, '{"call": "fly", "result": null}'], "line 2: unknown call 'fly'"),
        ([HEADER, '{"call": "reset"}'], "line 2: a call lacks its result"),
    ],
)
def test_malformed(lines: list[str], message: str) -> None:
    with pytest.raises(tracing.MalformedTrace, match=message):
        tracing.read(lines)


def test_the_command(run: Any, tmp_path: Path) -> None:
    exchanges = exchanges_of(CASES[0])
    lines = [HEADER, *(json.dumps(trace.exchange_to_json(exchange)) for exchange in exchanges)]
    path = tmp_path / "run.ndjson"
    path.write_text("\n".join(lines))
    ran = run("trace", "check", path)
    assert (ran.code, ran.out.split()) == (0, [str(path), "conform", "profile", "0.32", "1", "call"])
    path.write_text("\n".join(lines).replace('"generation": 0', '"generation": 3'))
    ran = run("trace", "check", path, "--profile", "0.31")
    assert ran.code == 1
    assert ran.out.startswith("line 2: SCHED-META-4  ")
    assert "profile 0.31" in ran.out.splitlines()[-1]
    path.write_text(HEADER.replace("0.32", "0.30"))
    assert run("trace", "check", path).code == 2
    path.write_text("nothing")
    ran = run("trace", "check", path)
    assert (ran.code, ran.err) == (
        2,
        f"auxout: {path}: line 1: not JSON: Expecting value: line 1 column 1 (char 0)\n",
    )
