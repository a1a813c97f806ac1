"""Reference and fast implementation against the specification, through random calls, legal and not.

One machine drives the spec and both implementations side by side. A refused call must be refused by all three,
for the same clause, and change nothing: whatever the next calls return would show it.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import auxout
import auxout_reference
from auxout_spec import scheduler, wire
from auxout_spec.profiles import PROFILES
from auxout_spec.values import Metadata, Refusal, RequestOutput, RequestView, Row, Rows

IDS = ("A", "B", "C\0", "")
ROW_SHAPE = (3, 2)


class Request:
    """An engine request; counts are properties, and anything not listed here does not exist."""

    __slots__ = ("_outputs", "_prompt", "block_hashes", "finished", "request_id", "sampling_params")

    def __init__(self, request_id: str, prompt: int, start: int) -> None:
        self.request_id = request_id
        self.sampling_params = SimpleNamespace(routed_experts_prompt_start=start)
        self.block_hashes: list[bytes] = []
        self.finished = False
        self._prompt, self._outputs = prompt, 0

    @property
    def num_prompt_tokens(self) -> int:
        return self._prompt

    @property
    def num_output_tokens(self) -> int:
        return self._outputs

    @property
    def num_tokens(self) -> int:
        return self._prompt + self._outputs

    def is_finished(self) -> bool:
        return self.finished

    def sample(self, amount: int) -> None:
        self._outputs = max(0, self._outputs + amount)

    def next_turn(self, prompt: int, start: int) -> None:
        """A streaming session's next chunk: outputs become prompt, sampling parameters are new ones."""
        self._prompt, self._outputs = max(1, self.num_tokens - 1) + prompt, 0
        self.sampling_params = SimpleNamespace(routed_experts_prompt_start=start)

    def view(self) -> RequestView:
        return RequestView(
            self.request_id,
            self.num_tokens,
            self._prompt,
            self._outputs,
            self.sampling_params.routed_experts_prompt_start,
            tuple(self.block_hashes),
            self.finished,
        )


def expect(actual: object, expected: object, what: str) -> None:
    """Compare without an assert statement, so that ``python -O`` compares too."""
    if actual != expected:
        pytest.fail(f"{what}: got {actual!r}, expected {expected!r}")


def read(metadata: Any) -> Metadata:
    """What a worker reads of metadata, in the spec's values and without the order that means nothing."""

    def hashes(mapping: Any) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
        return tuple(sorted((name, tuple(packed)) for name, packed in mapping.items()))

    return Metadata(
        metadata.generation,
        tuple(metadata.requests.items()),
        hashes(metadata.block_hashes),
        metadata.finished_requests,
        hashes(metadata.finished_block_hashes),
    )


def ordered(metadata: Metadata) -> Metadata:
    return metadata._replace(
        block_hashes=tuple(sorted(metadata.block_hashes)),
        finished_block_hashes=tuple(sorted(metadata.finished_block_hashes)),
    )


def as_array(rows: tuple[Row, ...]) -> np.ndarray[Any, Any]:
    array = np.zeros((len(rows), *ROW_SHAPE), np.uint16)
    for index, row in enumerate(rows):
        array[index] = row.position + 300
    return array


class Differential(RuleBasedStateMachine):
    """The engine side is anarchic: any order of calls, hash lists that shrink, change or mix lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, Request] = {}
        self.state = scheduler.INITIAL
        self.serial = 0
        self.delivered: list[tuple[Any, Metadata]] = []

    @initialize(name=st.sampled_from(sorted(PROFILES)))
    def choose_profile(self, name: str) -> None:
        self.profile = PROFILES[name]
        self.reference = auxout_reference.AuxOutputSchedulerConnector(profile=name)
        self.fast = auxout.AuxOutputSchedulerConnector(profile=name)
        self.connectors = (self.reference, self.fast)

    @invariant()
    def invariants_hold(self) -> None:
        if hasattr(self, "fast"):
            self.fast._check()

    # The engine's own doing.

    @rule(name=st.sampled_from(IDS), prompt=st.integers(1, 6), start=st.integers(0, 8))
    def add(self, name: str, prompt: int, start: int) -> None:
        if name not in self.requests:
            self.requests[name] = Request(name, prompt, start)

    @rule(data=st.data(), amount=st.integers(-1, 3))
    @precondition(lambda self: self.requests)
    def sample(self, data: st.DataObject, amount: int) -> None:
        self.pick(data).sample(amount)

    @rule(data=st.data(), prompt=st.integers(0, 3), start=st.integers(0, 8))
    @precondition(lambda self: self.requests)
    def next_turn(self, data: st.DataObject, prompt: int, start: int) -> None:
        self.pick(data).next_turn(prompt, start)

    @rule(data=st.data(), amount=st.integers(1, 3))
    @precondition(lambda self: self.requests)
    def complete_blocks(self, data: st.DataObject, amount: int) -> None:
        self.pick(data).block_hashes.extend(self.new_hash() for _ in range(amount))

    @rule(
        data=st.data(),
        kind=st.sampled_from(["drop", "replace last", "replace first", "copy", "clear", "odd", "empty"]),
    )
    @precondition(lambda self: self.requests)
    def tamper(self, data: st.DataObject, kind: str) -> None:
        request = self.pick(data)
        hashes = request.block_hashes
        if kind == "odd":
            hashes.extend((self.new_hash()[:3], self.new_hash() + b"+"))
        elif kind == "empty":
            hashes.append(b"")
        elif kind == "copy":
            request.block_hashes = [bytes(bytearray(block_hash)) for block_hash in hashes]
        elif kind == "clear":
            hashes.clear()
        elif hashes and kind == "drop":
            hashes.pop()
        elif hashes:
            hashes[-1 if kind == "replace last" else 0] = self.new_hash()

    @rule(data=st.data())
    @precondition(lambda self: self.requests)
    def leave(self, data: st.DataObject) -> None:
        """The engine forgets a request that is not active; the id may come back as another request."""
        name = self.pick(data).request_id
        if name not in dict(self.state.active):
            del self.requests[name]

    # The calls.

    @rule(data=st.data())
    def build(self, data: st.DataObject) -> None:
        ids = data.draw(
            st.lists(st.sampled_from(sorted(self.requests)), unique=True) if self.requests else st.just([])
        )
        views = tuple(request.view() for request in self.requests.values())
        involved = [
            view for view in views if view.request_id in ids or view.request_id in dict(self.state.active)
        ]
        clauses = {
            found.clause
            for view in involved
            for sent in [dict(self.state.active).get(view.request_id, scheduler.NOTHING_SENT)]
            if isinstance(found := scheduler.unsent_hashes(self.profile, view, sent), Refusal)
        }
        self.state, expected = scheduler.build_connector_meta(self.profile, self.state, tuple(ids), views)
        for connector in self.connectors:
            step = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(ids, 1))
            if isinstance(expected, Refusal):
                self.refused(clauses, connector.build_connector_meta, step, self.requests)
                continue
            metadata = connector.build_connector_meta(step, self.requests)
            expect(
                read(pickle.loads(pickle.dumps(metadata, 5))), ordered(expected), f"{connector}, unpickled"
            )
            self.delivered.append((metadata, ordered(expected)))
        expect(tuple(request.view() for request in self.requests.values()), views, "the engine's requests")

    @rule(data=st.data(), finished=st.booleans())
    @precondition(lambda self: self.requests)
    def request_finished(self, data: st.DataObject, finished: bool) -> None:
        request = self.pick(data)
        request.finished = finished
        self.state, expected = scheduler.request_finished(self.profile, self.state, request.view())
        for connector in self.connectors:
            if isinstance(expected, Refusal):
                self.refused({expected.clause}, connector.request_finished, request)
            else:
                connector.request_finished(request)

    @rule()
    def reset(self) -> None:
        self.state = scheduler.reset(self.state)
        for connector in self.connectors:
            connector.reset()

    @rule(data=st.data(), finished=st.booleans(), start=st.integers(0, 8), num_rows=st.integers(0, 5))
    @precondition(lambda self: self.requests)
    def take_output(self, data: st.DataObject, finished: bool, start: int, num_rows: int) -> None:
        request = self.pick(data)
        request.finished = finished
        names = data.draw(st.none() | st.lists(st.sampled_from(IDS), unique=True))
        rows = {
            name: tuple(
                Row(name, place, 0, order) for place in range(start + order, start + order + num_rows)
            )
            for order, name in enumerate(names or ())
        }
        outputs = tuple(
            (name, RequestOutput(value[0].position if value else start, value))
            for name, value in rows.items()
        )
        expected = scheduler.take_output(request.view(), None if names is None else outputs)
        for connector, module in zip(self.connectors, (auxout_reference, auxout), strict=True):
            objects = {
                name: module.AuxRequestOutput(output.token_start, as_array(output.rows))
                for name, output in outputs
            }
            given = None if names is None else objects
            if isinstance(expected, Refusal):
                self.refused({expected.clause}, connector.take_output, request, given)
                continue
            taken = connector.take_output(request, given)
            expect(taken is None, expected is None, "no output yet")
            if isinstance(expected, Rows):
                wanted = as_array(expected.rows)
                expect(
                    (taken.shape, taken.dtype, taken.tolist()),
                    (wanted.shape, wanted.dtype, wanted.tolist()),
                    "rows",
                )

    @rule(data=st.binary(max_size=9), size=st.integers(-2, 5))
    def unpack(self, data: bytes, size: int) -> None:
        expected = wire.unpack(self.profile, data, size)
        for module in (auxout_reference, auxout):
            packed = module.PackedBlockHashes(data, size)
            if isinstance(expected, Refusal):
                self.refused({expected.clause}, list, packed)
            else:
                expect(tuple(packed), expected.hashes, "unpacked")

    def teardown(self) -> None:
        # Read late: nothing that happened since may show in what was delivered.
        for metadata, expected in self.delivered:
            expect(read(metadata), expected, "metadata read at the end")

    # Helpers.

    def pick(self, data: st.DataObject) -> Request:
        return self.requests[data.draw(st.sampled_from(sorted(self.requests)))]

    def new_hash(self) -> bytes:
        self.serial += 1
        return self.serial.to_bytes(4, "big")

    def refused(self, clauses: set[str], call: Any, *args: Any) -> None:
        with pytest.raises(AssertionError) as caught:
            call(*args)
        expect(type(caught.value).__name__, "ProtocolViolation", "refusal")
        if caught.value.clause not in clauses:
            pytest.fail(f"refused for {caught.value.clause}, expected one of {clauses}")


TestDifferential = Differential.TestCase
TestDifferential.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
