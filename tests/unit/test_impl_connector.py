"""What the fast connector does beyond the specification: its shortcuts, and refusals of calls no engine makes."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from auxout import AuxOutputSchedulerConnector, ProtocolViolation


class Request:
    """A decoding request with ``num_hashes`` hashes."""

    def __init__(self, name: str, num_hashes: int = 1) -> None:
        self.request_id = name
        self.num_prompt_tokens = 3
        self.num_output_tokens = 1
        self.sampling_params: Any = SimpleNamespace(routed_experts_prompt_start=0)
        self.block_hashes = [f"{name}{i:04d}".encode() for i in range(num_hashes)]

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self) -> bool:
        return False


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        pytest.fail(f"got {actual!r}, expected {expected!r}")


def build(connector: AuxOutputSchedulerConnector, scheduled: str, requests: dict[str, Any]) -> Any:
    step = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(scheduled, 1))
    metadata = connector.build_connector_meta(step, requests)
    connector._check()
    return metadata


def refused(clause: str, name: str, call: Any, *args: Any) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        call(*args)
    expect((caught.value.clause, caught.value.request_id), (clause, name))


def test_unknown_profile() -> None:
    with pytest.raises(ValueError, match=r"choose one of 0\.31, 0\.32"):
        AuxOutputSchedulerConnector(profile="0.30")


@pytest.mark.parametrize("profile", ["0.31", "0.32"])
@pytest.mark.parametrize("num_output_tokens", [0, 1])
def test_a_start_without_sampling_parameters_is_refused(profile: str, num_output_tokens: int) -> None:
    connector = AuxOutputSchedulerConnector(profile=profile)
    request = Request("A")
    request.sampling_params, request.num_output_tokens = None, num_output_tokens
    refused("SCHED-EMIT-1", "A", build, connector, "A", {"A": request})
    expect(dict(build(connector, "", {}).block_hashes), {})


def test_unknown_requests_are_refused_by_name() -> None:
    connector = AuxOutputSchedulerConnector()
    requests = {name: Request(name) for name in "ABC"}
    build(connector, "AB", requests)
    refused("SCHED-META-1", "D", build, connector, "ABD", requests)
    del requests["B"]
    refused("SCHED-HASH-6", "B", build, connector, "A", requests)


def test_batches_that_take_turns_while_requests_start_and_end() -> None:
    connector = AuxOutputSchedulerConnector()
    requests = {name: Request(name) for name in "ABCDE"}
    for scheduled in (
        "ABCD",
        "AB",
        "CD",
        "AB",
        "CD",
        "BA",
        "ABCD",
        "CDE",
        "AB",
        "CDE",
        "A",
        "B",
        "AB",
        "EDCBA",
    ):
        for name in scheduled:
            requests[name].num_output_tokens += 1
        metadata = build(connector, scheduled, requests)
        expected = [(name, requests[name].num_tokens - 1) for name in scheduled]
        expect(list(metadata.requests.items()), expected)
        expect(list(pickle.loads(pickle.dumps(metadata, 5)).requests.items()), expected)
    connector.request_finished(requests["B"])
    for scheduled in ("ACDE", "AC", "CABDE"):
        metadata = build(connector, scheduled, requests)
        expect(list(metadata.requests), list(scheduled))
        expect(list(metadata.block_hashes), ["B"] if "B" in scheduled else [])


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("num_new", [2, 64, 65, 200])
@pytest.mark.parametrize("end", [False, True])
def test_one_hash_of_another_length_among_many_is_refused(start: int, num_new: int, end: bool) -> None:
    connector = AuxOutputSchedulerConnector()
    request = Request("A", start)
    requests = {"A": request}
    build(connector, "A", requests)
    whole = Request("A", start + num_new).block_hashes
    for index in range(start, start + num_new):
        request.block_hashes = whole.copy()
        request.block_hashes[index] += b"+"
        call = (connector.request_finished, request) if end else (build, connector, "A", requests)
        refused("SCHED-HASH-10", "A", *call)
    request.block_hashes = whole
    if end:
        connector.request_finished(request)
    metadata = build(connector, "" if end else "A", requests)
    expect(list(metadata.block_hashes["A"]), whole[start:])


@pytest.mark.parametrize("num_new", [1, 2, 64, 65])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("wrong", ["xx", 7, None])
def test_hashes_that_are_no_bytes_are_refused_before_anything_changes(
    start: int, num_new: int, end: bool, wrong: Any
) -> None:
    connector = AuxOutputSchedulerConnector()
    request = Request("A")
    request.block_hashes = [b"aa"] * start
    build(connector, "A", {"A": request})
    request.block_hashes = [b"aa"] * (start + num_new - 1) + [wrong]
    call = (connector.request_finished, request) if end else (build, connector, "A", {"A": request})
    refused("SCHED-HASH-10", "A", *call)
    connector._check()
    request.block_hashes = [b"aa"] * (start + num_new)
    hashes = build(connector, "A", {"A": request}).block_hashes["A"]
    expect(list(hashes), [b"aa"] * num_new)
