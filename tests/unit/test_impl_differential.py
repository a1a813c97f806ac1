"""Reference and fast implementation against the specification, through random calls, legal and not.

One machine drives the spec and both implementations side by side. A refused call must be refused by all three,
for the same clause, and change nothing: whatever the next calls return would show it.
"""

from __future__ import annotations

import itertools
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import auxout
import auxout_reference
from auxout_spec import scheduler, wire
from auxout_spec.profiles import PROFILES
from auxout_spec.values import Metadata, Refusal, RequestOutput, RequestView, Row, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

IDS = ("A", "B", "C\0", "")
ROW_SHAPE = (3, 2)

names = st.sampled_from(IDS)
batches = st.permutations(IDS) | st.just(list(IDS)) | st.lists(names, unique=True)


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
        hashes(metadata.replaced_block_hashes),
    )


def ordered(metadata: Metadata) -> Metadata:
    return metadata._replace(
        block_hashes=tuple(sorted(metadata.block_hashes)),
        finished_block_hashes=tuple(sorted(metadata.finished_block_hashes)),
        replaced_block_hashes=tuple(sorted(metadata.replaced_block_hashes)),
    )


def as_array(rows: tuple[Row, ...]) -> np.ndarray[Any, Any]:
    array = np.zeros((len(rows), *ROW_SHAPE), np.uint16)
    for index, row in enumerate(rows):
        array[index] = row.position + 300
    return array


def refused(clauses: set[str], call: Any, *args: Any) -> None:
    """The call must raise a violation of one of ``clauses``."""
    with pytest.raises(AssertionError) as caught:
        call(*args)
    expect(type(caught.value).__name__, "ProtocolViolation", "refusal")
    if caught.value.clause not in clauses:
        pytest.fail(f"refused for {caught.value.clause}, expected one of {clauses}")


serial = itertools.count(1)


def new_hash() -> bytes:
    return next(serial).to_bytes(4, "big")


def lose_last(hashes: list[bytes]) -> list[bytes]:
    return hashes[:-1]


def lose_first(hashes: list[bytes]) -> list[bytes]:
    return hashes[1:]


def lose_all(hashes: list[bytes]) -> list[bytes]:
    return []


def replace_last(hashes: list[bytes]) -> list[bytes]:
    return [*hashes[:-1], new_hash()]


def replace_all_and_grow(hashes: list[bytes]) -> list[bytes]:
    return [new_hash() for _ in (*hashes, None)]


def other_objects(hashes: list[bytes]) -> list[bytes]:
    return [bytes(bytearray(each)) for each in hashes]


def shorter(hashes: list[bytes]) -> list[bytes]:
    return [*hashes, new_hash(), new_hash()[1:]]


def first_of_other_length(hashes: list[bytes]) -> list[bytes]:
    # So much longer that no number of shorter ones makes up for it.
    return [*hashes, new_hash() + bytes(1000)]


def empty_hash(hashes: list[bytes]) -> list[bytes]:
    return [*hashes, b""]


TAMPERING = (
    lose_last,
    lose_first,
    lose_all,
    replace_last,
    replace_all_and_grow,
    other_objects,
    shorter,
    first_of_other_length,
    empty_hash,
)


class Differential(RuleBasedStateMachine):
    """The engine schedules, ends and resets in any order; now and then a hash list is not what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = {name: Request(name, 3, 1) for name in IDS}
        self.state = scheduler.INITIAL
        self.delivered: list[tuple[Any, Metadata]] = []

    @initialize(name=st.sampled_from(sorted(PROFILES)))
    def choose_profile(self, name: str) -> None:
        self.profile = PROFILES[name]
        self.fast = auxout.AuxOutputSchedulerConnector(profile=name)
        self.connectors = (auxout_reference.AuxOutputSchedulerConnector(profile=name), self.fast)

    @invariant()
    def invariants_hold(self) -> None:
        if hasattr(self, "fast"):
            self.fast._check()

    @rule(name=names, amount=st.integers(-1, 3))
    def sample(self, name: str, amount: int) -> None:
        self.requests[name].sample(amount)

    @rule(name=names, prompt=st.integers(0, 3), start=st.integers(0, 8))
    def next_turn(self, name: str, prompt: int, start: int) -> None:
        self.requests[name].next_turn(prompt, start)

    @rule(name=names, prompt=st.integers(1, 6), start=st.integers(0, 8), hashes=st.integers(0, 3))
    def use_id_again(self, name: str, prompt: int, start: int, hashes: int) -> None:
        if name not in dict(self.state.active):
            self.requests[name] = Request(name, prompt, start)
            self.requests[name].block_hashes.extend(new_hash() for _ in range(hashes))

    @rule(ids=batches, grown=st.lists(names, unique=True))
    def step(self, ids: list[str], grown: list[str]) -> None:
        for name in grown:
            self.requests[name].block_hashes.append(new_hash())
        self.build(ids)

    @rule(name=names, grown=st.booleans(), finished=st.booleans())
    def end(self, name: str, grown: bool, finished: bool) -> None:
        if grown:
            self.requests[name].block_hashes.append(new_hash())
        self.requests[name].finished = finished
        self.request_finished(name)

    @rule(ids=batches, name=names, how=st.sampled_from(TAMPERING), end=st.booleans())
    def tamper(self, ids: list[str], name: str, how: Callable[[list[bytes]], list[bytes]], end: bool) -> None:
        """A call with one hash list changed, which is as it was afterwards unless the call was legal."""
        request = self.requests[name]
        kept = request.block_hashes
        request.block_hashes = how(kept)
        legal = self.request_finished(name) if end else self.build(ids)
        if not legal or (end and name not in dict(self.state.active)):
            request.block_hashes = kept

    @rule()
    def reset(self) -> None:
        self.state = scheduler.reset(self.state)
        for connector in self.connectors:
            connector.reset()

    def teardown(self) -> None:
        # Read late: nothing that happened since may show in what was delivered.
        for metadata, expected in self.delivered:
            expect(read(metadata), expected, "metadata read at the end")

    def build(self, ids: list[str]) -> bool:
        """Call all three; whether the call was legal."""
        views = tuple(request.view() for request in self.requests.values())
        active = dict(self.state.active)
        clauses = {
            found.clause
            for view in views
            if view.request_id in ids or view.request_id in active
            for sent in [active.get(view.request_id, scheduler.NOTHING_SENT)]
            for again in [scheduler.is_replaced(view, sent, view.request_id in ids)]
            if isinstance(found := scheduler.unsent_hashes(view, sent, again), Refusal)
        }
        scheduled = tuple((name, 1) for name in ids)
        self.state, expected = scheduler.build_connector_meta(self.profile, self.state, scheduled, views)
        for connector in self.connectors:
            step = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(ids, 1))
            if isinstance(expected, Refusal):
                refused(clauses, connector.build_connector_meta, step, self.requests)
                continue
            metadata = connector.build_connector_meta(step, self.requests)
            expect(
                read(pickle.loads(pickle.dumps(metadata, 5))), ordered(expected), f"{connector}, unpickled"
            )
            self.delivered.append((metadata, ordered(expected)))
        expect(tuple(request.view() for request in self.requests.values()), views, "the engine's requests")
        return not isinstance(expected, Refusal)

    def request_finished(self, name: str) -> bool:
        """Call all three; whether the call was legal."""
        request = self.requests[name]
        self.state, expected = scheduler.request_finished(self.state, request.view())
        for connector in self.connectors:
            if isinstance(expected, Refusal):
                refused({expected.clause}, connector.request_finished, request)
            else:
                connector.request_finished(request)
        return not isinstance(expected, Refusal)


TestDifferential = Differential.TestCase
TestDifferential.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@given(
    num_tokens=st.integers(1, 8),
    finished=st.booleans(),
    start=st.integers(0, 8),
    num_rows=st.integers(0, 5),
    given_names=st.none() | st.lists(names, unique=True),
)
def test_take_output(
    num_tokens: int, finished: bool, start: int, num_rows: int, given_names: list[str] | None
) -> None:
    request = Request("A", num_tokens, 0)
    request.finished = finished
    outputs = tuple(
        (
            name,
            RequestOutput(start + order, tuple(Row(name, start + order + i, 0, 0) for i in range(num_rows))),
        )
        for order, name in enumerate(given_names or ())
    )
    expected = scheduler.take_output(request.view(), None if given_names is None else outputs)
    for module in (auxout_reference, auxout):
        take = module.AuxOutputSchedulerConnector().take_output
        objects = {
            name: module.AuxRequestOutput(each.token_start, as_array(each.rows)) for name, each in outputs
        }
        output = None if given_names is None else objects
        if isinstance(expected, Refusal):
            refused({expected.clause}, take, request, output)
            continue
        taken = take(request, output)
        expect(taken is None, expected is None, "no output yet")
        if isinstance(expected, Rows):
            wanted = as_array(expected.rows)
            expect(
                (taken.dtype, taken.shape, taken.tolist()),
                (wanted.dtype, wanted.shape, wanted.tolist()),
                "rows",
            )


@given(data=st.binary(max_size=9), size=st.integers(-2, 5))
def test_unpack(data: bytes, size: int) -> None:
    expected = wire.unpack(data, size)
    for module in (auxout_reference, auxout):
        packed = module.PackedBlockHashes(data, size)
        if isinstance(expected, Refusal):
            refused({expected.clause}, list, packed)
        else:
            expect(tuple(packed), expected.hashes, "unpacked")
