"""A session: what it notices of a connector that no result shows, and what it makes of odd results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from auxout_conformance.objects import LATER_ROW, UNKNOWN_ROW, EngineRequest, Requests, RowCodec
from auxout_conformance.observation import Observation, Odd, Raised, from_json, to_json
from auxout_conformance.session import Session
from auxout_conformance.setups import Setup
from auxout_conformance.targets.adapter import Adapter
from auxout_reference.connector import (
    AuxOutputConnectorMetadata,
    AuxOutputSchedulerConnector,
    PackedBlockHashes,
)
from auxout_spec.calls import BuildConnectorMeta, Call, RequestFinished, Reset, TakeOutput, Unpack
from auxout_spec.representation import Representation
from auxout_spec.values import Hashes, Metadata, RequestOutput, RequestView, Row, Rows

HASHES = (b"0" * 32, b"1" * 32)
VIEW = RequestView("A", 5, 4, 1, 0, HASHES)
BUILD = BuildConnectorMeta((("A", 4),), (VIEW,))
IDLE = BuildConnectorMeta((), (VIEW,))
ROWS = tuple(Row("A", position, 0, 0) for position in range(4))
TAKE = TakeOutput(VIEW, (("A", RequestOutput(0, ROWS)),))
TAKE_NONE = TakeOutput(VIEW._replace(num_tokens=1), (("A", RequestOutput(0, ())),))
"""No row is accepted."""
FINISH = RequestFinished(VIEW._replace(finished=True))
METADATA = Metadata(0, (("A", 4),), (("A", HASHES),), ())

Reference = AuxOutputSchedulerConnector


def session(connector: Any = None, packed: Any = PackedBlockHashes) -> Session:
    """A session of one connector, the reference by default."""
    return Session(Adapter(lambda *_: connector or Reference(), packed), Setup("0.32"))


def seen(connector: Any, *calls: Call) -> Observation:
    """What the last of some calls showed."""
    running = session(connector)
    return [running.call(call) for call in calls][-1]


def noted(connector: Any, *calls: Call) -> list[str]:
    return [clause for clause, _ in seen(connector, *calls).notes]


def returning(**results: Any) -> Any:
    """The reference, with other results of some methods: a value, or a function of the right one."""

    def method(name: str, result: Any) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            right = getattr(Reference, name)(self, *args)
            return result(right) if callable(result) else result

        return call

    return type("Odd", (Reference,), {name: method(name, result) for name, result in results.items()})()


def doing(name: str, action: Callable[..., Any]) -> Any:
    """The reference, with something done (to itself and the arguments) after one method."""

    def call(self: Any, *args: Any) -> Any:
        right = getattr(Reference, name)(self, *args)
        action(self, *args)
        return right

    return type("Meddling", (Reference,), {name: call})()


def plain(found: Observation) -> Observation:
    """An observation without what the protocol leaves open."""
    return found._replace(traits=())


# Right results.


def test_every_call_of_a_right_connector() -> None:
    running = session()
    assert plain(running.call(BUILD)) == Observation(METADATA)
    assert plain(running.call(TAKE)) == Observation(Rows(ROWS))
    assert plain(running.call(TAKE_NONE)) == Observation(Rows(()))
    assert plain(running.call(FINISH)) == Observation(None)
    assert plain(running.call(IDLE)) == Observation(Metadata(0, (), (), ("A",)))
    assert running.call(Reset()) == Observation(None)
    assert plain(running.call(BUILD)) == Observation(METADATA._replace(generation=1))
    assert running.call(Unpack(b"abcd", 2)) == Observation(Hashes((b"ab", b"cd")))


def test_output_ahead_is_none() -> None:
    ahead = TakeOutput(VIEW, (("A", RequestOutput(9, ())),))
    assert seen(None, ahead) == Observation(None)


def test_a_restarted_id_s_final_hashes_are_read() -> None:
    first = BuildConnectorMeta((("A", 4),), (VIEW._replace(block_hashes=HASHES[:1]),))
    outcome = seen(None, first, FINISH, BUILD).outcome
    assert isinstance(outcome, Metadata)
    assert outcome.finished_block_hashes == (("A", HASHES[1:]),)


def test_a_connector_without_the_newer_field_is_read() -> None:
    class Old:
        def __init__(self, new: AuxOutputConnectorMetadata) -> None:
            self.generation, self.requests = new.generation, new.requests
            self.block_hashes, self.finished_requests = new.block_hashes, list(new.finished_requests)

    assert seen(returning(build_connector_meta=Old), BUILD).outcome == METADATA


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    def widened(right: AuxOutputConnectorMetadata) -> AuxOutputConnectorMetadata:
        starts = {name: np.int64(start) for name, start in right.requests.items()}
        return AuxOutputConnectorMetadata(np.uint8(right.generation), starts, right.block_hashes, ())  # type: ignore[arg-type]

    outcome = seen(returning(build_connector_meta=widened), BUILD).outcome
    assert outcome == METADATA
    assert isinstance(outcome, Metadata)
    assert [type(value) for value in (outcome.generation, outcome.requests[0][1])] == [int, int]


# What is changed that must not be (SCHED-META-5, SCHED-META-6, SCHED-TAKE-10).


@pytest.mark.parametrize(
    "action",
    [
        lambda _, output, requests: output.num_scheduled_tokens.clear(),
        lambda _, output, requests: output.num_scheduled_tokens.update(A=1),
        lambda _, output, requests: requests.pop("A"),
        lambda _, output, requests: requests.update(B=requests["A"]),
        lambda _, output, requests: requests["A"].block_hashes.pop(),
        lambda _, output, requests: setattr(requests["A"], "block_hashes", ()),
        lambda _, output, requests: setattr(requests["A"], "request_id", "B"),
        lambda _, output, requests: setattr(requests["A"], "num_prompt_tokens", 9),
        lambda _, output, requests: setattr(requests["A"].sampling_params, "routed_experts_prompt_start", 9),
    ],
)
def test_build_changes_its_arguments(action: Callable[..., Any]) -> None:
    assert noted(doing("build_connector_meta", action), BUILD) == ["SCHED-META-5"]


def test_a_refused_build_that_changed_its_arguments_is_noticed() -> None:
    def refuse(connector: Any, output: Any, requests: Any) -> None:
        requests["A"].block_hashes.pop()
        raise AssertionError("no")

    found = seen(doing("build_connector_meta", refuse), BUILD)
    assert found.outcome == Raised("AssertionError", "no", True)
    assert [clause for clause, _ in found.notes] == ["SCHED-META-5"]


def test_request_finished_changes_the_request() -> None:
    assert noted(
        doing("request_finished", lambda _, request: request.block_hashes.clear()), BUILD, FINISH
    ) == ["SCHED-META-7"]


@pytest.mark.parametrize(
    "action",
    [
        lambda _, request, outputs: outputs.pop("A"),
        lambda _, request, outputs: outputs["A"].rows.fill(0),
        lambda _, request, outputs: setattr(outputs["A"], "token_start", 1),
        lambda _, request, outputs: setattr(outputs["A"], "rows", outputs["A"].rows[1:]),
        lambda _, request, outputs: request.block_hashes.clear(),
    ],
)
def test_take_changes_its_arguments(action: Callable[..., Any]) -> None:
    assert "SCHED-TAKE-10" in noted(doing("take_output", action), TAKE)


@pytest.mark.parametrize(
    "later", [IDLE, TAKE, FINISH, Reset(), Unpack(b"", 1)], ids=lambda call: type(call).__name__
)
def test_metadata_that_changes_later_is_noticed_at_any_call(later: Call) -> None:
    """One metadata object serves every step."""
    shared = AuxOutputConnectorMetadata(0, {}, {}, ())

    class Sharing(Reference):
        def build_connector_meta(self, scheduler_output: Any, requests: Any) -> Any:
            new = super().build_connector_meta(scheduler_output, requests)
            vars(shared).update(vars(new))
            return shared

    connector = Sharing()
    running = session(connector)
    assert running.call(BUILD).notes == ()
    shared.generation += 1
    assert "SCHED-META-6" in [clause for clause, _ in running.call(later).notes]


def test_metadata_that_follows_the_request_is_noticed() -> None:
    """The hashes are read from the request's list when somebody looks, not when the metadata is built."""

    class Lazy:
        def __init__(self, request: Any) -> None:
            self.request = request

        def __iter__(self) -> Any:
            return iter(self.request.block_hashes)

        def __reduce__(self) -> Any:
            return (PackedBlockHashes, (b"".join(self), 32))

    class Following(Reference):
        def build_connector_meta(self, scheduler_output: Any, requests: Any) -> Any:
            new = super().build_connector_meta(scheduler_output, requests)
            new.block_hashes = {name: Lazy(requests[name]) for name in new.block_hashes}  # type: ignore[misc]
            return new

    grown = VIEW._replace(block_hashes=(*HASHES, b"2" * 32))
    running = session(Following())
    assert plain(running.call(BUILD)) == Observation(METADATA)
    assert "SCHED-META-6" in [clause for clause, _ in running.call(TAKE._replace(request=grown)).notes]


# Pickling (WIRE-META-1).


class Unpicklable(AuxOutputConnectorMetadata):
    def __reduce__(self) -> Any:
        raise TypeError("no")


class Forgetful(AuxOutputConnectorMetadata):
    def __reduce__(self) -> Any:
        return (AuxOutputConnectorMetadata, (self.generation, self.requests, {}, self.finished_requests))


class Broken(AuxOutputConnectorMetadata):
    def __reduce__(self) -> Any:
        return (dict, ())


@pytest.mark.parametrize(
    ("kind", "reads"),
    [
        (Unpicklable, "type='TypeError', message='no'"),
        (Forgetful, "block_hashes=()"),
        (Broken, "has not the fields"),
    ],
)
def test_metadata_must_survive_pickling(kind: type[AuxOutputConnectorMetadata], reads: str) -> None:
    found = seen(returning(build_connector_meta=lambda right: kind(*vars(right).values())), BUILD)
    assert found.outcome == METADATA
    ((clause, text),) = found.notes
    assert clause == "WIRE-META-1"
    assert text.startswith("after pickling the metadata reads ")
    assert reads in text


# Rows (SCHED-TAKE-9).


@pytest.mark.parametrize("take", [TAKE, TAKE_NONE])
@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.astype(np.int32),
        lambda rows: rows.astype(np.float32),
        lambda rows: rows.reshape(len(rows), 4),
        lambda rows: rows[..., :1],
        lambda rows: rows[:, :, :, np.newaxis],
        lambda rows: rows.astype(">u2"),
    ],
)
def test_dtype_and_shape_of_rows(change: Callable[..., Any], take: TakeOutput) -> None:
    assert noted(returning(take_output=change), take) == ["SCHED-TAKE-9"]


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows + 1,
        lambda rows: rows.astype(np.uint8),
        lambda rows: np.full((len(rows), 2, 2), np.nan),
        lambda rows: np.full((len(rows), 2, 2), np.inf),
        lambda rows: rows.astype(object),
        lambda rows: rows.astype(complex),
        lambda rows: rows.astype(str),
        lambda rows: np.zeros((len(rows), 2, 2), np.int64) - 1,
        lambda rows: np.zeros(len(rows), np.int64),
    ],
)
def test_rows_that_nobody_made(change: Callable[..., Any]) -> None:
    assert seen(returning(take_output=change), TAKE).outcome == Rows((UNKNOWN_ROW,) * 4)


def test_an_array_without_rows_at_all() -> None:
    found = seen(returning(take_output=lambda rows: np.uint16(7) * np.ones((), np.uint16)), TAKE)
    assert isinstance(found.outcome, Odd)
    found = seen(returning(take_output=lambda rows: np.array(7)), TAKE)
    assert found.outcome == Rows(())
    assert [clause for clause, _ in found.notes] == ["SCHED-TAKE-9"]


# Odd results.


def with_fields(**fields: Any) -> Callable[[AuxOutputConnectorMetadata], AuxOutputConnectorMetadata]:
    def change(right: AuxOutputConnectorMetadata) -> AuxOutputConnectorMetadata:
        return AuxOutputConnectorMetadata(**{**vars(right), **fields})

    return change


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (None, "the metadata has not the fields of AuxOutputConnectorMetadata"),
        ({}, "the metadata has not the fields of AuxOutputConnectorMetadata"),
        (with_fields(requests=[("A", 4)]), "the metadata has not the fields"),
        (with_fields(requests=None), "the metadata has not the fields"),
        (with_fields(block_hashes=[]), "the metadata has not the fields"),
        (with_fields(finished_requests=None), "the metadata has not the fields"),
        (with_fields(finished_block_hashes=None), "the metadata has not the fields"),
        (with_fields(generation=True), "generation and emit starts must be whole numbers"),
        (with_fields(generation=0.0), "generation and emit starts must be whole numbers"),
        (with_fields(generation=None), "generation and emit starts must be whole numbers"),
        (with_fields(requests={"A": "4"}), "generation and emit starts must be whole numbers"),
        (with_fields(requests={"A": np.bool_(False)}), "generation and emit starts must be whole numbers"),
        (with_fields(requests={7: 4}), "requests are named by something that is not text"),
        (with_fields(finished_requests=(["A"],)), "requests are named by something that is not text"),
        (with_fields(block_hashes={"A": ["00"]}), "block hashes iterate to something that is not bytes"),
        (
            with_fields(finished_block_hashes={"A": [1]}),
            "block hashes iterate to something that is not bytes",
        ),
    ],
)
def test_odd_metadata(build: Any, text: str) -> None:
    found = seen(returning(build_connector_meta=build), BUILD)
    assert isinstance(found.outcome, Odd)
    assert found.outcome.text.startswith(text)
    assert from_json(to_json(found)) == found


@pytest.mark.parametrize(
    ("connector", "call", "text"),
    [
        (
            returning(take_output=lambda rows: rows.tolist()),
            TAKE,
            "take_output returned list, not a numpy array",
        ),
        (returning(take_output=0), TAKE, "take_output returned int, not a numpy array"),
        (returning(request_finished=()), FINISH, "request_finished returned tuple, not None"),
        (returning(reset=1), Reset(), "reset returned int, not None"),
    ],
)
def test_odd_results(connector: Any, call: Call, text: str) -> None:
    found = seen(connector, call)
    assert isinstance(found.outcome, Odd)
    assert found.outcome.text.startswith(text)


def test_a_packed_value_of_something_else() -> None:
    running = session(packed=lambda data, item_size: "ab")
    assert running.call(Unpack(b"", 1)).outcome == Odd(
        "a packed value iterates to something that is not bytes"
    )


# What a connector raises.


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (AssertionError("no"), True),
        (ValueError("no"), True),
        (UnicodeError("no"), True),
        (KeyError("no"), False),
        (RuntimeError("no"), False),
    ],
)
@pytest.mark.parametrize("call", [BUILD, TAKE, FINISH, Reset()], ids=lambda call: type(call).__name__)
def test_what_is_a_refusal(error: Exception, refusal: bool, call: Call) -> None:
    names = {
        BuildConnectorMeta: "build_connector_meta",
        TakeOutput: "take_output",
        RequestFinished: "request_finished",
    }

    def fail(*args: Any) -> None:
        raise error

    connector = type("Failing", (Reference,), {names.get(type(call), "reset"): fail})()
    assert seen(connector, call).outcome == Raised(type(error).__name__, str(error), refusal)


def test_an_exit_is_not_an_answer() -> None:
    def leave(*args: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        seen(doing("reset", leave), Reset())


# The engine's objects.


def test_a_request_is_one_object_until_it_ends() -> None:
    requests = Requests()
    first = requests.get(VIEW)
    hashes, parameters = first.block_hashes, first.sampling_params
    again = requests.get(
        VIEW._replace(num_tokens=6, num_output_tokens=2, block_hashes=HASHES[:1], finished=True)
    )
    assert again is first
    assert again.block_hashes is hashes
    assert again.sampling_params is parameters
    assert (again.num_tokens, again.num_output_tokens, hashes) == (6, 2, [HASHES[0]])
    assert again.is_finished()
    turn = requests.get(VIEW._replace(prompt_start=3))
    assert turn.sampling_params is not parameters
    requests.forget(again)
    assert requests.get(VIEW) is not first


def test_an_engine_request_has_no_attributes_but_those_of_the_page() -> None:
    request = EngineRequest(VIEW)
    names = {name for name in dir(request) if not name.startswith("_")} - {"update", "unchanged"}
    assert names == {
        "request_id", "block_hashes", "sampling_params", "num_prompt_tokens", "num_tokens", "num_output_tokens",
        "is_finished", "num_computed_tokens",
    }  # fmt: skip


FORMATS = [
    Representation(),
    Representation(layers=94, top_k=8, experts=128),
    Representation(layers=61, top_k=8, experts=256),
    Representation(layers=1, top_k=4, experts=256),
    Representation(layers=5, top_k=1, experts=65536),
]


@pytest.mark.parametrize("made", FORMATS, ids=str)
def test_rows_have_values_of_their_own(made: Representation) -> None:
    codec = RowCodec(made)
    rows = tuple(Row("A", number, 0, 0) for number in range(600))
    array = codec.encode(rows)
    assert array.dtype == codec.dtype == (np.uint8 if made.experts <= 256 else np.uint16)
    assert array.shape == (600, made.layers, made.top_k)
    assert len(np.unique(array.reshape(600, -1), axis=0)) == 600
    assert codec.decode(array) == rows
    assert (array.min(), array.max()) == (0, made.experts - 1)
    assert all(len(set(layer)) == made.top_k for row in array.tolist() for layer in row)


def test_what_was_never_made_is_unknown() -> None:
    codec = RowCodec()
    array = codec.encode((ROWS[0],)).astype(np.int64)
    for wrong in (array + (1 << 16), array + 0.5, array[:, :1], array.astype("datetime64[s]")):
        assert codec.decode(wrong) == (UNKNOWN_ROW,)
    assert codec.decode(array) == ROWS[:1]
    assert codec.decode(codec.later(2)) == (LATER_ROW,) * 2


def test_rows_of_a_forward_pass_may_be_told_anew() -> None:
    """A step that is shown too early, and refused, has not lost its drafts yet."""
    codec = RowCodec()
    first, array = codec.reserve(3)
    codec.bind(first, ROWS[1:])
    codec.bind(first, ROWS[:3])
    assert codec.decode(array) == ROWS[:3]
    assert codec.decode(codec.encode(ROWS)) == ROWS
