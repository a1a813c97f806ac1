"""Tensors of rows: what the functions for arrays give, in memory that is shared where it is documented."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from auxout import client
from auxout.client import Rows, RowsError, Schema, Trajectory
from auxout.client import torch as tensors
from auxout.client.conversation import play
from auxout_conformance.client import all_cases, check
from auxout_conformance.verdicts import Verdict
from client_tools import fuzz
from client_tools import tensors as played_by_torch

INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
HOWS = st.sampled_from(("contiguous", "zigzag"))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    num_layers = draw(st.integers(1, 5))
    moe_layers = draw(st.sets(st.integers(0, num_layers - 1), min_size=1))
    num_experts = draw(st.sampled_from((4, 256, 257, 40000)))
    return Schema(num_layers, draw(st.integers(1, 3)), num_experts, tuple(sorted(moe_layers)))


@st.composite
def trajectories(draw: st.DrawFn, schema: Schema) -> Trajectory:
    """One of up to three calls, whose first rows may be missing and whose last are."""
    made, tokens = Trajectory(schema, request="r"), 0
    for _ in range(draw(st.integers(0, 3))):
        start = made.known[1] if made.segments else draw(st.integers(0, 3))
        end = draw(st.integers(max(start, tokens), max(start, tokens) + 4)) + 1
        seed = draw(st.integers(0, 1000))
        made.add_call(range(end), [], some_rows(schema, start, end - 1, seed))
        tokens = end
    return made


def some_rows(schema: Schema, start: int, end: int, seed: int = 0) -> Rows:
    shape = (end - start, *schema.row_shape)
    values = np.random.default_rng(seed).integers(0, schema.num_experts, shape, schema.dtype)
    return Rows(values, start, schema)


def unaligned(values: np.ndarray) -> np.ndarray:
    """The same with one byte between rows."""
    fields = np.zeros(len(values), np.dtype([("gap", "u1"), ("row", values.dtype, values.shape[1:])]))
    fields["row"] = values
    return fields["row"]


def outcome(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What it returns, as plain data with dtypes, or what it refuses with."""
    try:
        returned = function(*args, **options)
    except RowsError as error:
        return type(error), str(error), error.clause, error.request, error.positions
    parts = returned if isinstance(returned, tuple) else (returned,)
    return [(str(part.dtype).removeprefix("torch."), tuple(part.shape), part.tolist()) for part in parts]


@given(st.data(), st.none() | st.integers(0, 14), st.sampled_from(("mask", "refuse", "arange", -1)))
@settings(max_examples=200, deadline=None)
def test_one_conversation(data: st.DataObject, length: int | None, missing: Any) -> None:
    trajectory = data.draw(schemas().flatmap(trajectories))
    wanted = outcome(client.to_array, trajectory, length, missing=missing)
    assert outcome(tensors.to_tensor, trajectory, length, missing=missing) == wanted
    assert outcome(tensors.to_tensor, trajectory, length, missing=missing, pin=True) == wanted


@given(st.data(), st.none() | st.integers(0, 14), st.sampled_from(("left", "right")))
@settings(max_examples=200, deadline=None)
def test_a_padded_batch(data: st.DataObject, length: int | None, side: Any) -> None:
    batch = data.draw(schemas().flatmap(lambda schema: st.lists(trajectories(schema), max_size=3)))
    assert outcome(tensors.pad, batch, length, side) == outcome(client.pad, batch, length, side)


@given(st.data(), st.sampled_from((None, *INTEGERS)), st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_a_packed_batch(data: st.DataObject, dtype: str | None, align: int) -> None:
    batch = data.draw(schemas().flatmap(lambda schema: st.lists(trajectories(schema), max_size=3)))
    as_torch = dtype and getattr(torch, dtype)
    wanted = outcome(client.pack, batch, dtype=dtype, align=align)
    assert outcome(tensors.pack, batch, dtype=as_torch, align=align) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.complex64])
def test_a_batch_is_of_integers(dtype: torch.dtype) -> None:
    with pytest.raises(client.DtypeError, match="CLIENT-PACK-3"):
        tensors.pack([Trajectory(Schema(2, 2, 8))], dtype=dtype)


@given(st.integers(0, 24), st.integers(-1, 5), st.integers(1, 4), HOWS, st.integers(0, 1))
@settings(max_examples=300, deadline=None)
def test_the_part_of_a_rank(length: int, rank: int, size: int, how: Any, axis: int) -> None:
    for dtype in (np.uint8, np.uint16, np.bool_):
        array = np.arange(length * 3, dtype=np.int64).astype(dtype).reshape((length, 3))
        array = array if axis == 0 else np.ascontiguousarray(array.T)
        wanted = outcome(client.shard, array, rank, size, how, axis=axis)
        assert outcome(tensors.shard, torch.from_numpy(array), rank, size, how, dim=axis) == wanted


@given(st.integers(0, 6), st.integers(1, 4), HOWS, st.data())
def test_the_parts_of_all_ranks_are_the_whole(factor: int, size: int, how: Any, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    whole = tensors.as_tensor(some_rows(schema, 0, factor * size * 2))
    together = torch.cat([tensors.shard(whole, rank, size, how) for rank in range(size)])
    where = np.concatenate([client.places(len(whole), rank, size, how) for rank in range(size)])
    again = together[torch.from_numpy(where).argsort()]
    assert torch.equal(again, whole)


@given(schemas(), st.lists(st.integers(-1, 5), max_size=5), st.integers(0, 1), st.booleans())
@settings(max_examples=300, deadline=None)
def test_layers(schema: Schema, layers: list[int], surplus: int, ordered: bool) -> None:
    array = np.arange(60 * (schema.num_layers + surplus) * schema.top_k, dtype=schema.dtype)
    array = array.reshape(5, 12, -1, schema.top_k)
    layers = sorted(set(layers)) if ordered else layers
    tensor = torch.from_numpy(array)
    assert outcome(tensors.moe_rows, tensor, schema) == outcome(client.moe_rows, array, schema)
    wanted = outcome(client.for_stage, array, schema, layers)
    assert outcome(tensors.for_stage, tensor, schema, layers) == wanted


def test_what_is_a_view() -> None:
    schema = Schema(6, 2, 300, moe_layers=(1, 3, 5))
    whole = tensors.as_tensor(some_rows(schema, 0, 8))
    pointer = whole.untyped_storage().data_ptr()
    views = [
        tensors.shard(whole, 1, 2),
        tensors.moe_rows(whole, schema),
        tensors.for_stage(whole, schema, [3, 4, 5]),
        tensors.for_stage(whole, schema, [0, 1]),
        tensors.to_device(whole, "cpu"),
    ]
    assert [each.untyped_storage().data_ptr() for each in views] == [pointer] * 5
    copies = [tensors.shard(whole, 1, 2, "zigzag"), tensors.router_targets(whole, torch.ones(8).bool())]
    assert pointer not in [each.untyped_storage().data_ptr() for each in copies]


@given(schemas(), st.integers(0, 5))
def test_rows_as_a_tensor_share_their_memory(schema: Schema, count: int) -> None:
    # Bytes of a payload may not be written to; torch would warn of it, and warnings are errors here.
    data = some_rows(schema, 0, count).values.tobytes()
    rows = client.Rows(np.frombuffer(data, schema.dtype).reshape(count, *schema.row_shape), 3, schema)
    tensor = tensors.as_tensor(rows)
    assert outcome(lambda: tensor) == outcome(lambda: rows.values)
    assert not count or np.shares_memory(tensor.numpy(), rows.values)
    assert not rows.values.flags.writeable


def test_the_memory_of_a_tensor_outlives_its_rows() -> None:
    tensor = tensors.as_tensor(some_rows(Schema(2, 2, 300), 0, 100_000, seed=7))
    assert torch.equal(tensor, tensors.as_tensor(some_rows(Schema(2, 2, 300), 0, 100_000, seed=7)))


@pytest.mark.parametrize(
    "view",
    [
        lambda values: values[::-1],
        lambda values: values[::2],
        lambda values: values[:, ::-1],
        np.asfortranarray,
        lambda values: np.broadcast_to(values[:1], values.shape),
        unaligned,
    ],
)
def test_rows_of_any_strides_are_a_tensor(view: Callable[[Any], Any]) -> None:
    schema = Schema(3, 2, 300)
    rows = Rows(view(some_rows(schema, 0, 6).values), 0, schema)
    assert tensors.as_tensor(rows).tolist() == rows.values.tolist()


def test_no_batch_shares_memory_with_what_it_was_made_of() -> None:
    schema = Schema(2, 2, 8)
    trajectory, rows = Trajectory(schema), some_rows(schema, 0, 4)
    trajectory.add_call(range(5), [], rows)
    before = rows.values.copy()
    for made in (tensors.to_tensor(trajectory), tensors.pad([trajectory]), tensors.pack([trajectory])):
        made.rows.fill_(7)
        assert np.array_equal(rows.values, before)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_tensors_are_decoded(dtype: str) -> None:
    schema = Schema(2, 2, 256 if dtype in ("uint8", "int8") else 300)
    array = np.arange(16).astype(dtype).reshape(4, 2, 2)
    decoded = tensors.decode(torch.from_numpy(array), schema, source="vllm", num_tokens=5)
    assert decoded == client.decode(array, schema, source="vllm", num_tokens=5)
    assert np.shares_memory(decoded.values, array) == (np.dtype(dtype) == schema.dtype)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4, 2, 2),
        torch.zeros(4, 2, 2, dtype=torch.bool),
        torch.zeros(4, 2, 2, dtype=torch.bfloat16),
        torch.zeros(4, 2, 2, dtype=torch.int8, device="meta"),
        torch.zeros(4, 2, 2, requires_grad=True),
        torch.zeros(4, 2, 2).to_sparse(),
        torch.zeros(4, 3, 2, dtype=torch.uint8),
        torch.zeros(5, 2, 2, dtype=torch.uint8),
        torch.full((4, 2, 2), -1, dtype=torch.int16),
    ],
    ids=["float", "bool", "bfloat16", "meta", "gradient", "sparse", "layers", "count", "lost"],
)
@pytest.mark.parametrize("decode", [client.decode, tensors.decode], ids=["numpy", "torch"])
def test_what_is_no_tensor_of_ids_is_refused(decode: Any, tensor: torch.Tensor) -> None:
    with pytest.raises(RowsError, match="CLIENT-DECODE") as refused:
        decode(tensor, Schema(2, 2, 8), source="vllm", num_tokens=5, request="r")
    assert refused.value.request == "r"


@given(st.data(), st.integers(0, 3))
def test_targets_of_a_router(data: st.DataObject, surplus: int) -> None:
    trajectory = data.draw(schemas().flatmap(trajectories))
    schema, length = trajectory.schema, len(trajectory.tokens) + surplus
    rows, mask = tensors.to_tensor(trajectory, length)
    targets = tensors.router_targets(tensors.moe_rows(rows, schema), mask)
    wanted = client.moe_rows(client.to_array(trajectory, length, missing="arange").rows, schema)
    assert targets.dtype == torch.int64
    assert targets.tolist() == wanted.tolist()
    with pytest.raises(client.ShapeError):
        tensors.router_targets(rows, torch.ones(length + 1).bool())


def test_pinned_memory_is_asked_for_where_there_is_cuda_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()

    def empty(shape: Any, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        asked.append(pin_memory)
        return torch.zeros(shape, dtype=dtype)

    monkeypatch.setattr(tensors.torch, "empty", empty)
    for available in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=available: there)
        for pin in (False, True):
            tensors.pad([Trajectory(Schema(2, 2, 8))], 4, pin=pin)
    assert asked == [True] * 2


@pytest.mark.parametrize(
    ("device", "pinned", "waits"), [("cuda", True, False), ("cuda", False, True), ("cpu", True, True)]
)
def test_only_pinned_memory_travels_without_waiting(device: str, pinned: bool, waits: bool) -> None:
    asked = list[dict[str, Any]]()
    stand_in = SimpleNamespace(is_pinned=lambda: pinned, to=lambda *_, **options: asked.append(options))
    tensors.Packed(*[stand_in] * 3).to(device)  # type: ignore[arg-type]
    assert asked == [{"non_blocking": not waits}] * 3


@given(st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_conversations_at_random(rng: Any) -> None:
    conversation = fuzz.build(rng).conversation
    assert played_by_torch.play(conversation) == play(conversation)


def test_every_case_of_client_check() -> None:
    checked = check("client_tools.tensors:play")
    assert checked.verdict is Verdict.CONFORM
    assert [result.status for result in checked.results] == ["holds"] * len(all_cases())


def test_the_client_for_arrays_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import auxout.client, auxout.client.conversation; print('loaded')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "loaded\n"
