"""What an engine owes its connectors: sound engines owe nothing, and each breach is named at its call."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from auxout_conformance import tracing
from auxout_conformance.cases import Case, all_cases
from auxout_conformance.recording import Trace
from auxout_spec import scenario, trace
from auxout_spec.calls import (
    BeginStep,
    BuildConnectorMeta,
    Close,
    Exchange,
    PrepareOutput,
    ProcessOutput,
    RequestFinished,
    Reset,
    TakeOutput,
)
from auxout_spec.duties import CacheReset, Discarded, Note
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import Scenario
from auxout_spec.values import Refusal, StepOutput
from auxout_spec.worker import Limits

P32 = PROFILES["0.32"]
PLAYED = [case for case in all_cases() if case.scenario.store and "0.32" in case.profiles]
Entries = list[Exchange | Note]
CONVERSATION = """{"auxout": "scenario/1", "block_size": 2, "depth": 2, "store": 8, "events": [
    {"add": "A", "prompt": 4, "max_tokens": 3}, {"add": "B", "prompt": 2, "max_tokens": 9},
    {"launch": {"A": 4, "B": 2}}, {"land": {}}, {"launch": {"A": 1, "B": 1}}, {"launch": {"A": 1, "B": 1}},
    {"land": {}}, {"land": {}},
    {"launch": {"B": 1}}, {"land": {}}, {"abort": "B"}, {"launch": {}}, {"reset": false},
    {"add": "C", "prompt": 2}, {"launch": {"C": 2}}, {"land": {}}, {"launch": {"C": 1}}, {"land": {}}]}"""


def entries_of(played: Scenario) -> Entries:
    return [each for _, exchanges in scenario.run(played, P32) for each in exchanges]


def conversation() -> Entries:
    return entries_of(scenario.load(CONVERSATION))


def check(entries: Entries, limits: Limits | None = None) -> tracing.Impossible | None:
    lines = list(enumerate(entries, 2))
    return tracing.check(tracing.Recorded("0.32", lines, limits or Limits(2, 8)), P32).impossible


def of(kind: type, name: str = "") -> Callable[[Exchange | Note], bool]:
    """Calls of one kind, for one request if they are for one."""

    def is_one(entry: Exchange | Note) -> bool:
        if not isinstance(entry, Exchange) or not isinstance(entry.call, kind):
            return False
        request = getattr(entry.call, "request", None)
        return not name or (request is not None and request.request_id == name)

    return is_one


def places(entries: Entries, kind: type, name: str = "") -> list[int]:
    return [at for at, entry in enumerate(entries) if of(kind, name)(entry)]


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: case.name)
def test_a_sound_engine_breaks_no_duty(case: Case) -> None:
    """But for calls that a case corrupts on purpose, which are refused."""
    entries = entries_of(case.scenario)
    found = check(entries, Limits(case.scenario.block_size, case.scenario.store))
    if found is not None:
        broken = entries[found.line - 2]
        assert isinstance(broken, Exchange)
        assert isinstance(broken.result, Refusal)
        assert found.clause in ("ENGINE-CALL-1", "ENGINE-STEP-1", "WORK-STEP-1", "CHAN-META-1", "CHAN-OUT-1")


def test_the_conversation_is_sound() -> None:
    assert check(conversation()) is None


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_output_that_is_never_taken(name: str) -> None:
    for at in places(conversation(), TakeOutput, name)[:-1]:
        entries = conversation()
        del entries[at]
        found = check(entries)
        assert found is not None
        assert found.clause == "ENGINE-TAKE-1"
        later = [place for place in places(entries, ProcessOutput) if place >= at]
        assert found.line == later[0] + 2


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_output_that_is_taken_twice(name: str) -> None:
    for at in places(conversation(), TakeOutput, name):
        entries = conversation()
        entries.insert(at, entries[at])
        found = check(entries)
        assert found is not None
        assert (found.clause, found.line) == ("ENGINE-TAKE-1", at + 3)


def test_output_that_is_discarded() -> None:
    entries = conversation()
    at = places(entries, TakeOutput, "B")[0]
    entries[at] = Discarded(("B",))
    assert check(entries) is None


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_an_end_that_is_never_told(name: str) -> None:
    entries = conversation()
    del entries[places(entries, RequestFinished, name)[0]]
    found = check(entries)
    if name == "C":  # the trace ends before anything shows it
        assert found is None
    else:
        assert found is not None
        assert found.clause == "ENGINE-TABLE-1"


def test_an_end_that_only_the_table_shows() -> None:
    entries = conversation()
    at = places(entries, RequestFinished, "B")[0]
    told = entries.pop(at)
    assert isinstance(told, Exchange)
    build = places(entries[at:], BuildConnectorMeta)[0] + at
    made = entries[build]
    assert isinstance(made, Exchange)
    assert isinstance(made.call, BuildConnectorMeta)
    assert isinstance(told.call, RequestFinished)
    shown = made.call._replace(requests=(*made.call.requests, told.call.request))
    entries[build] = made._replace(call=shown)
    found = check(entries)
    assert found is not None
    assert (found.clause, found.line) == ("ENGINE-END-1", build + 2)


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_an_end_that_is_told_twice(name: str) -> None:
    at = places(conversation(), RequestFinished, name)[0]
    entries = conversation()
    entries.insert(at, entries[at])
    found = check(entries)
    assert found is not None
    assert (found.clause, found.line) == ("ENGINE-END-1", at + 3)


def test_a_table_that_lacks_a_request_or_shows_it_twice() -> None:
    for at in places(conversation(), BuildConnectorMeta):
        made = conversation()[at]
        assert isinstance(made, Exchange)
        assert isinstance(made.call, BuildConnectorMeta)
        tables = [made.call.requests[1:], (*made.call.requests, *made.call.requests[:1])]
        for table in tables if made.call.requests else ():
            entries = conversation()
            entries[at] = made._replace(call=made.call._replace(requests=table))
            found = check(entries)
            assert found is not None
            assert (found.clause, found.line) == ("ENGINE-TABLE-1", at + 2)


def test_a_table_is_judged_without_a_worker_too() -> None:
    """Two lines that once made the specification raise."""
    header = '{"auxout":"trace/1","profile":"0.32"}'
    result = '{"generation":0,"requests":{"A":0},"block_hashes":{},"finished_requests":[],"finished_block_hashes":{}}'
    build = f'{{"call":"build_connector_meta","scheduled":{{"A":1}},"requests":[],"result":{result}}}'
    found = tracing.check(tracing.read([header, build]), P32).impossible
    assert found is not None
    assert (found.line, found.clause, found.actual) == (2, "ENGINE-TABLE-1", "request A is not shown")


def test_a_step_that_runs_without_having_begun() -> None:
    entries = conversation()
    at = places(entries, PrepareOutput)[1]
    entries.insert(at, entries[at])
    found = check(entries)
    assert found is not None
    assert (found.clause, found.line) == ("ENGINE-STEP-1", at + 3)


def test_a_step_that_runs_with_others_than_it_began_with() -> None:
    entries = conversation()
    at = places(entries, PrepareOutput)[1]
    made = entries[at]
    assert isinstance(made, Exchange)
    assert isinstance(made.call, PrepareOutput)
    for batch in (made.call.batch[1:], (*made.call.batch, made.call.batch[0])):
        entries[at] = made._replace(call=PrepareOutput(batch))
        found = check(entries)
        assert found is not None
        assert (found.clause, found.line) == ("ENGINE-STEP-1", at + 2)


@pytest.mark.parametrize(
    ("notes", "clause"),
    [([CacheReset(True)], ""), ([CacheReset(False), CacheReset(True)], ""), ([CacheReset(False)], "ENGINE-RESET-1"),
     ([CacheReset(True), CacheReset(True)], "ENGINE-RESET-1"), ([], "")],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_a_reset_is_told_if_it_succeeded(notes: list[Note], clause: str, first: bool) -> None:
    """Without any note resets are not judged; whether the note or the call comes first does not matter."""
    entries = conversation()
    at = places(entries, Reset)[0]
    entries[at + (not first) : at + (not first)] = notes
    found = check(entries)
    assert (found.clause if found else "") == clause


def test_a_reset_that_is_never_told() -> None:
    entries = conversation()
    at = places(entries, Reset)[0]
    entries[at] = CacheReset(True)
    found = check(entries)
    assert found is not None
    assert found.clause == "ENGINE-RESET-1"


def test_a_call_that_must_be_refused() -> None:
    entries = conversation()
    at = places(entries, TakeOutput)[0]
    made = entries[at]
    assert isinstance(made, Exchange)
    assert isinstance(made.call, TakeOutput)
    stranger = made.call.request._replace(request_id="X")
    entries.insert(at, Exchange(TakeOutput(stranger, made.call.outputs), Refusal("", "no")))
    found = check(entries)
    assert found is not None
    assert (found.clause, found.line) == ("ENGINE-CALL-1", at + 2)


def test_after_a_shutdown_nothing_is_owed() -> None:
    entries = conversation()
    at = places(entries, ProcessOutput)[1] + 1
    assert check([*entries[:at], Exchange(Close(), None), *entries]) is None


def test_notes_are_written_and_read() -> None:
    file = io.StringIO()
    recorder = Trace(file, "0.32", block_size=2, max_objects=8)
    recorder.cache_reset(True)
    recorder.discarded(["A", "B"])
    read = tracing.read(file.getvalue().splitlines())
    assert [entry for _, entry in read.entries] == [CacheReset(True), Discarded(("A", "B"))]
    for entry in (CacheReset(False), Discarded(())):
        assert trace.entry_from_json(trace.note_to_json(entry)) == entry


def test_every_kind_of_call_is_in_the_conversation() -> None:
    kinds = {type(entry.call) for entry in conversation() if isinstance(entry, Exchange)}
    assert kinds == {
        BuildConnectorMeta,
        BeginStep,
        PrepareOutput,
        ProcessOutput,
        TakeOutput,
        RequestFinished,
        Reset,
    }
    assert any(
        isinstance(entry.result, StepOutput) for entry in conversation() if isinstance(entry, Exchange)
    )
