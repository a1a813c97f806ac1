"""The connector's behaviour in small examples: the reference first, and the fast implementation with it.

Comparisons go through ``expect`` and ``pytest.raises``, so that the file tests the same under ``python -O``.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import auxout
import auxout_reference
from auxout import _engine
from auxout_reference import engine


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        pytest.fail(f"got {actual!r}, expected {expected!r}")


def request(
    name: str = "A", *, prompt: int = 4, outputs: int = 0, start: int = 0, hashes: str = "", **more: Any
) -> Any:
    """An engine request; ``hashes`` names one two-byte hash by each letter."""
    return SimpleNamespace(
        request_id=name,
        num_tokens=prompt + outputs,
        num_prompt_tokens=prompt,
        num_output_tokens=outputs,
        sampling_params=SimpleNamespace(routed_experts_prompt_start=start),
        block_hashes=[2 * letter.encode() for letter in hashes],
        is_finished=lambda: more.get("finished", False),
    )


def build(connector: Any, scheduled: str, *requests: Any) -> Any:
    step = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(scheduled, 1))
    return connector.build_connector_meta(step, {each.request_id: each for each in requests})


def letters(mapping: Any) -> dict[str, str]:
    """Request -> hashes as letters."""
    return {name: b"".join(packed).decode()[::2] for name, packed in mapping.items()}


def refusal(call: Any, *args: Any) -> Any:
    with pytest.raises(AssertionError) as caught:
        call(*args)
    return caught.value


@pytest.fixture(params=[auxout_reference, auxout], ids=["reference", "impl"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def connector(module: Any) -> Any:
    return module.AuxOutputSchedulerConnector()


def test_a_step_names_its_requests_in_order_with_hashes_and_emit_starts(connector: Any) -> None:
    metadata = build(
        connector, "BA", request("A", outputs=2), request("B", start=3, hashes="xy"), request("C", hashes="z")
    )
    expect(metadata.generation, 0)
    expect(list(metadata.requests.items()), [("B", 3), ("A", 5)])
    expect(letters(metadata.block_hashes), {"B": "xy"})
    expect(metadata.finished_requests, ())
    expect(metadata.finished_block_hashes, {})


def test_hashes_are_sent_once_and_also_for_a_request_that_waits(connector: Any) -> None:
    a, b = request("A", hashes="ab"), request("B", hashes="x")
    build(connector, "AB", a, b)
    expect(letters(build(connector, "AB", a, b).block_hashes), {})
    a.block_hashes.append(b"cc")
    b.block_hashes.append(b"yy")
    expect(letters(build(connector, "B", a, b).block_hashes), {"A": "c", "B": "y"})
    expect(letters(build(connector, "", a, b).block_hashes), {})


def test_a_terminal_event_carries_what_was_not_sent_and_is_delivered_once(connector: Any) -> None:
    a, b = request("A", hashes="a"), request("B")
    build(connector, "AB", a, b)
    a.block_hashes.append(b"bb")
    connector.request_finished(b)
    connector.request_finished(a)
    connector.request_finished(a)
    connector.request_finished(request("never scheduled", hashes="q"))
    metadata = build(connector, "")
    expect(metadata.finished_requests, ("B", "A"))
    expect(letters(metadata.block_hashes), {"A": "b"})
    expect(build(connector, "").finished_requests, ())


def test_an_id_that_ended_and_runs_again_keeps_both_hash_lists_apart(connector: Any) -> None:
    old, other = request("A", hashes="a"), request("B")
    build(connector, "AB", old, other)
    old.block_hashes.append(b"bb")
    connector.request_finished(old)
    connector.request_finished(other)
    metadata = build(connector, "AB", request("A", hashes="xyz"), other)
    expect(list(metadata.requests), ["A", "B"])
    expect(metadata.finished_requests, ("A", "B"))
    expect(letters(metadata.block_hashes), {"A": "xyz"})
    expect(letters(metadata.finished_block_hashes), {"A": "b"})


def test_a_reset_starts_a_generation_in_which_everything_is_sent_again(connector: Any) -> None:
    a, b = request("A", hashes="ab"), request("B", hashes="x")
    build(connector, "AB", a, b)
    connector.request_finished(b)
    connector.reset()
    connector.request_finished(a)
    empty = build(connector, "", a)
    expect((empty.generation, empty.finished_requests, letters(empty.block_hashes)), (1, (), {}))
    expect(letters(build(connector, "A", a).block_hashes), {"A": "ab"})


@pytest.mark.parametrize(
    ("profile", "prompt", "outputs", "start", "expected"),
    [
        ("0.31", 4, 0, 9, 9),
        ("0.32", 4, 0, 9, 4),
        ("0.31", 4, 0, 2, 2),
        ("0.32", 4, 0, 2, 2),
        ("0.31", 4, 1, 9, 9),
        ("0.32", 4, 1, 9, 4),
        ("0.31", 4, 3, 2, 6),
        ("0.32", 4, 3, 2, 6),
    ],
)
def test_emit_starts_of_both_profiles(
    module: Any, profile: str, prompt: int, outputs: int, start: int, expected: int
) -> None:
    connector = module.AuxOutputSchedulerConnector(profile=profile)
    metadata = build(connector, "A", request(prompt=prompt, outputs=outputs, start=start))
    expect(metadata.requests["A"], expected)


def test_an_unknown_profile_is_a_value_error(module: Any) -> None:
    with pytest.raises(ValueError, match=r"'0\.30'.*0\.31, 0\.32"):
        module.AuxOutputSchedulerConnector(profile="0.30")


@pytest.mark.parametrize("scheduled", ["AB", "B"])
@pytest.mark.parametrize(
    ("hashes", "clause", "ending"),
    [
        ("a", "SCHED-HASH-8", "SCHED-TERM-8"),
        ("", "SCHED-HASH-8", "SCHED-TERM-8"),
    ],
)
def test_a_history_that_shrank_is_refused_and_nothing_changes(
    connector: Any, scheduled: str, hashes: str, clause: str, ending: str
) -> None:
    a, b = request("A", hashes="ab"), request("B", hashes="x")
    build(connector, "AB", a, b)
    b.block_hashes.append(b"yy")
    bad = request("A", hashes=hashes)
    error = refusal(build, connector, scheduled, bad, b, request("N", hashes="n"))
    expect((error.clause, error.request_id), (clause, "A"))
    if "request A" not in str(error) or clause not in str(error):
        pytest.fail(f"the message does not say where and why: {error}")
    expect(refusal(connector.request_finished, bad).clause, ending)
    # Both calls left no trace: A is active with two hashes sent, B still owes one, N never started.
    a.block_hashes.append(b"cc")
    connector.request_finished(request("N"))
    metadata = build(connector, "B", a, b)
    expect(letters(metadata.block_hashes), {"A": "c", "B": "y"})
    expect(metadata.finished_requests, ())


@pytest.mark.parametrize("scheduled", ["AB", "B"])
def test_a_replaced_history_is_sent_whole_again(connector: Any, scheduled: str) -> None:
    a, b = request("A", hashes="ab"), request("B", hashes="x")
    build(connector, "AB", a, b)
    replaced = request("A", hashes="ayz")
    metadata = build(connector, scheduled, replaced, b)
    expect(letters(metadata.block_hashes), {"A": "z"})
    expect(letters(metadata.replaced_block_hashes), {"A": "ayz"})
    replaced.block_hashes.append(b"cc")
    metadata = build(connector, scheduled, replaced, b)
    expect((letters(metadata.block_hashes), letters(metadata.replaced_block_hashes)), ({"A": "c"}, {}))


@pytest.mark.parametrize("profile", ["0.31", "0.32"])
def test_a_replaced_history_of_the_old_length_is_sent_before_the_first_output(
    module: Any, profile: str
) -> None:
    connector = module.AuxOutputSchedulerConnector(profile=profile)
    a, b = request("A", hashes="ab"), request("B")
    build(connector, "AB", a, b)
    replaced, answered = request("A", hashes="ax"), request("A", hashes="ax", outputs=1)
    expect(letters(build(connector, "B", replaced, b).replaced_block_hashes), {})
    expect(letters(build(connector, "A", answered, b).replaced_block_hashes), {})
    expect(letters(build(connector, "AB", replaced, b).replaced_block_hashes), {"A": "ax"})
    expect(letters(build(connector, "AB", replaced, b).replaced_block_hashes), {})
    connector.request_finished(replaced)
    expect(build(connector, "", b).finished_requests, ("A",))


def test_a_request_whose_history_was_replaced_ends_like_any_other(connector: Any) -> None:
    build(connector, "A", request("A", hashes="ab"))
    connector.request_finished(request("A", hashes="axz"))
    metadata = build(connector, "")
    expect((metadata.finished_requests, letters(metadata.block_hashes)), (("A",), {"A": "z"}))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([], [b"aa", b"b"]),
        ([], [b""]),
        ([b"aa"], [b"bbb"]),
        ([b"aa"], [b"bb", b""]),
        ([], [b"aa", b"bbb", b"cc"]),
    ],
)
def test_hashes_of_different_lengths_are_refused(
    connector: Any, first: list[bytes], then: list[bytes]
) -> None:
    a = request("A")
    a.block_hashes = first
    build(connector, "A", a)
    a.block_hashes = [*first, *then]
    expect(refusal(build, connector, "A", a).clause, "SCHED-HASH-10")
    expect(refusal(connector.request_finished, a).clause, "SCHED-HASH-10")
    a.block_hashes = [*first, b"zz"]
    expect(letters(build(connector, "A", a).block_hashes), {"A": "z"})


def test_a_request_that_the_engine_does_not_know_is_refused(connector: Any) -> None:
    a, b = request("A", hashes="a"), request("B")
    expect(refusal(build, connector, "AB", b).clause, "SCHED-META-1")
    expect(refusal(build, connector, "A").clause, "SCHED-META-1")
    expect(letters(build(connector, "AB", a, b).block_hashes), {"A": "a"})
    expect(refusal(build, connector, "B", b).clause, "SCHED-HASH-6")


@pytest.mark.parametrize("profile", ["0.31", "0.32"])
@pytest.mark.parametrize("outputs", [0, 2])
def test_a_request_without_sampling_parameters_is_refused(module: Any, profile: str, outputs: int) -> None:
    connector = module.AuxOutputSchedulerConnector(profile=profile)
    a, pooling = request("A", hashes="a"), request("P", outputs=outputs, hashes="p")
    pooling.sampling_params = None
    error = refusal(build, connector, "AP", a, pooling)
    expect((error.clause, error.request_id), ("SCHED-EMIT-1", "P"))
    connector.request_finished(a)
    expect(letters(build(connector, "A", a).block_hashes), {"A": "a"})


ROWS = np.arange(2 * 3 * 2, dtype=np.uint16).reshape(2, 3, 2)


@pytest.mark.parametrize(("tokens", "num_rows"), [(6, 0), (7, 1), (8, 2)])
def test_rows_are_cut_to_accepted_tokens_and_keep_their_type(
    module: Any, connector: Any, tokens: int, num_rows: int
) -> None:
    output = {"A": module.AuxRequestOutput(5, ROWS), "B": module.AuxRequestOutput(0, ROWS + 100)}
    rows = connector.take_output(request(prompt=tokens), output)
    expect((rows.dtype, rows.tolist()), (np.dtype(np.uint16), ROWS[:num_rows].tolist()))
    expect(rows.shape, (num_rows, 3, 2))


def test_output_ahead_of_the_accepted_tokens_is_none_while_the_request_runs(
    module: Any, connector: Any
) -> None:
    output = {"A": module.AuxRequestOutput(5, ROWS)}
    expect(connector.take_output(request(prompt=5), output), None)
    error = refusal(connector.take_output, request(prompt=5, finished=True), output)
    expect((error.clause, error.request_id), ("SCHED-TAKE-6", "A"))


def test_missing_output_and_missing_rows_are_refused(module: Any, connector: Any) -> None:
    a = request(prompt=9)
    expect(refusal(connector.take_output, a, None).clause, "SCHED-TAKE-1")
    expect(refusal(connector.take_output, a, {}).clause, "SCHED-TAKE-2")
    error = refusal(connector.take_output, a, {"A": module.AuxRequestOutput(5, ROWS)})
    expect(error.clause, "SCHED-TAKE-7")
    if "[5, 7)" not in str(error):
        pytest.fail(f"the message does not name the range: {error}")


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("start", [0, 9])
def test_a_request_that_failed_in_the_worker_gets_no_rows(
    connector: Any, module: Any, finished: bool, start: int
) -> None:
    output = {"A": module.AuxRequestOutput(start, ROWS[:0], "request A: capture goes back [WORK-CAPTURE-2]")}
    expect(connector.take_output(request("A", outputs=2, finished=finished), output), None)


@pytest.mark.parametrize(
    ("data", "size", "clause"),
    [(b"abcd", 0, "WIRE-HASH-2"), (b"", -1, "WIRE-HASH-2"), (b"abc", 2, "WIRE-HASH-3")],
)
def test_bytes_that_are_no_hashes_are_refused_where_they_are_read(
    module: Any, data: bytes, size: int, clause: str
) -> None:
    packed = module.PackedBlockHashes(data, size)
    for each in (packed, pickle.loads(pickle.dumps(packed))):
        error = refusal(list, each)
        expect((error.clause, error.request_id), (clause, None))
        if clause not in str(error):
            pytest.fail(f"the message does not name the clause: {error}")


def test_packed_hashes_iterate_in_order_and_again(module: Any) -> None:
    packed = module.PackedBlockHashes(b"abcdef", 2)
    expect([list(packed), list(packed)], [[b"ab", b"cd", b"ef"]] * 2)
    expect(list(module.PackedBlockHashes(b"", 32)), [])


def test_a_violation_survives_the_way_between_processes(module: Any) -> None:
    for error in (
        module.ProtocolViolation("X-1", "A", "broke"),
        module.ProtocolViolation("X-1", None, "broke"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        expect((copy.clause, copy.request_id, str(copy)), (error.clause, error.request_id, str(error)))


def test_an_equal_history_of_other_objects_is_the_same_history(connector: Any) -> None:
    build(connector, "A", request("A", hashes="ab"))
    copied = request("A", hashes="ab")
    copied.block_hashes = [bytes(bytearray(each)) for each in copied.block_hashes]
    expect(letters(build(connector, "A", copied).block_hashes), {})
    connector.request_finished(copied)
    expect(letters(build(connector, "").block_hashes), {})


def test_metadata_has_no_hashes_apart_unless_given(module: Any) -> None:
    metadata = module.AuxOutputConnectorMetadata(0, {"A": 1}, {}, ("B",))
    expect(metadata.finished_block_hashes, {})
    expect(pickle.loads(pickle.dumps(metadata)), metadata)


def test_both_read_the_same_attributes_of_the_engine() -> None:
    for name in ("Request", "SamplingParams", "SchedulerOutput"):
        ours, theirs = vars(getattr(_engine, name)), vars(getattr(engine, name))
        expect({each for each in ours if each[0] != "_"}, {each for each in theirs if each[0] != "_"})


def test_public_names_of_the_reference_are_those_of_the_implementation() -> None:
    expect(set(auxout_reference.__all__) - set(auxout.__all__), set())
