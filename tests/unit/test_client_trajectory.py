"""Conversations: rows are joined by position without a copy, and what is refused changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from auxout.client import (
    ConflictError,
    CountError,
    DtypeError,
    GapError,
    MissingError,
    Rows,
    RowsError,
    Schema,
    ShapeError,
    Trajectory,
    VersionError,
    for_stage,
    moe_rows,
    pack,
    pad,
    places,
    shard,
    to_array,
    versions,
)

SCHEMA = Schema(num_layers=2, top_k=2, num_experts=256)


def rows(start: int, end: int, tag: int = 0, schema: Schema = SCHEMA) -> Rows:
    ids = [[[p, p + 1 + tag], [p + 2, p + 9 + tag]] for p in range(start, end)]
    return Rows(np.array(ids, schema.dtype).reshape(-1, 2, 2), start, schema)


def one_call(num_prompt: int = 3, num_output: int = 2, tag: int = 0) -> Trajectory:
    trajectory = Trajectory(SCHEMA, request="r")
    tokens = list(range(num_prompt + num_output))
    trajectory.add_call(tokens[:num_prompt], tokens[num_prompt:], rows(0, len(tokens) - 1, tag))
    return trajectory


def test_rows_are_not_copied_until_they_are_laid_out() -> None:
    first, second = rows(0, 4), rows(4, 8)
    trajectory = Trajectory(SCHEMA)
    trajectory.add_call([0, 1, 2], [3, 4], first)
    trajectory.add_call(list(range(7)), [7, 8], second)
    assert [
        np.shares_memory(s.values, r.values)
        for s, r in zip(trajectory.segments, (first, second), strict=True)
    ]
    branch = trajectory.branch(6)
    assert np.shares_memory(branch.segments[1].values, second.values)
    assert trajectory.known == (0, 8)
    assert branch.known == (0, 6)


def test_a_branch_goes_its_own_way() -> None:
    trajectory = one_call()
    branch = trajectory.branch(3)
    branch.add_call([0, 1, 2], [9], rows(0, 3, 5))
    trajectory.add_call(list(range(5)), [5], rows(4, 5))
    assert branch.tokens.tolist() == [0, 1, 2, 9]
    assert trajectory.tokens.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(to_array(branch).rows[:3], rows(0, 3).values)


def snapshot(trajectory: Trajectory) -> tuple[object, ...]:
    placed = to_array(trajectory)
    return trajectory.tokens.tolist(), placed.rows.tolist(), placed.mask.tolist(), trajectory.num_calls


REFUSED = {
    "another prompt": (ConflictError, [0, 1, 7, 3, 4], [5], rows(0, 5), {}, (2, 5)),
    "a shorter prompt": (ConflictError, [0, 1], [5], rows(0, 2), {}, (2, 5)),
    "a gap": (GapError, [0, 1, 2, 3, 4, 5], [6], rows(5, 6), {}, (4, 5)),
    "too few rows": (CountError, [0, 1, 2, 3, 4], [5, 6], rows(4, 5), {}, None),
    "too many rows": (CountError, [0, 1, 2, 3, 4], [5, 6], rows(4, 7), {}, None),
    "no rows": (MissingError, [0, 1, 2, 3, 4], [5], None, {}, None),
    "other rows": (ConflictError, [0, 1, 2, 3, 4], [5], rows(2, 5, 1), {"keep": "equal"}, (2, 3)),
    "too few versions": (
        VersionError,
        [0, 1, 2, 3, 4],
        [5, 6],
        rows(4, 6),
        {"version": [("a", 0, 1)]},
        None,
    ),
    "another schema": (ShapeError, [0, 1, 2, 3, 4], [5], rows(4, 5, 0, Schema(2, 2, 300)), {}, None),
    "tokens that are no integers": (RowsError, [0.5, 1, 2, 3, 4], [5], rows(4, 5), {}, None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_changes_nothing_and_says_which_it_was(name: str) -> None:
    error, prompt, output, given, options, positions = REFUSED[name]
    trajectory = one_call()
    before = snapshot(trajectory)
    with pytest.raises(error) as refused:
        trajectory.add_call(prompt, output, given, **options)  # type: ignore[arg-type]
    assert snapshot(trajectory) == before
    assert (refused.value.request, refused.value.call, refused.value.positions) == ("r", 1, positions)


def test_tokens_may_be_of_any_integer_type() -> None:
    trajectory = Trajectory(SCHEMA)
    trajectory.add_call(np.arange(3, dtype=np.int32), np.array([3], np.uint16), rows(0, 3))
    trajectory.add_call((0, 1, 2, 3), [4], rows(3, 4))
    assert trajectory.tokens.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        trajectory.tokens[0] = 7


def test_versions_may_change_in_a_call_and_between_calls() -> None:
    trajectory = Trajectory(SCHEMA)
    trajectory.add_call([0, 1, 2], [3, 4, 5], rows(0, 5), version=[("a", 0, 1), ("b", 1, 3)])
    trajectory.add_call(range(6), [6, 7], rows(0, 7, 3), version="c")
    assert versions(trajectory) == [("a", 0, 3), ("b", 3, 5), ("c", 5, 7)]
    with pytest.raises(VersionError):
        trajectory.add_call(range(8), [8], rows(7, 8), version=[("d", 0, 1), ("e", 1, 1)])


def test_a_cut_into_the_first_rows_leaves_none() -> None:
    trajectory = Trajectory(SCHEMA)
    trajectory.add_call([0, 1, 2, 3], [4], rows(3, 4))
    trajectory.truncate(2)
    assert trajectory.known == (0, 0)
    assert to_array(trajectory).mask.tolist() == [False, False]
    trajectory.truncate(0)
    assert to_array(trajectory).rows.shape == (0, 2, 2)
    with pytest.raises(CountError):
        trajectory.truncate(1)


def test_missing_rows_are_named() -> None:
    trajectory = Trajectory(SCHEMA)
    trajectory.add_call([0, 1, 2, 3], [4], rows(2, 4))
    with pytest.raises(MissingError) as refused:
        to_array(trajectory, missing="refuse")
    assert refused.value.positions == (0, 2)
    waiting = one_call()
    waiting.add_call(range(8), [], None)
    with pytest.raises(MissingError) as refused:
        to_array(waiting, missing="refuse")
    assert refused.value.positions == (4, 7)
    to_array(one_call(), 9, missing="refuse")


@pytest.mark.parametrize("num_experts", [256, 32768, 32769, 65536])
def test_minus_one_never_meets_an_id(num_experts: int) -> None:
    schema = Schema(1, 1, num_experts)
    trajectory = Trajectory(schema)
    trajectory.add_call([0], [1], Rows(np.array([[[num_experts - 1]]], schema.dtype), 0, schema))
    placed = to_array(trajectory, missing=-1)
    assert placed.rows.ravel().tolist() == [num_experts - 1, -1]


def test_layouts_of_a_batch_hold_every_row() -> None:
    batch = [one_call(3, 2), one_call(1, 1, 5), one_call(4, 4, 9)]
    packed = pack(batch, align=4)
    assert packed.offsets.tolist() == [0, 8, 12, 20]
    left, right = pad(batch, 9, "left"), pad(batch)
    for number, each in enumerate(batch):
        alone, length = to_array(each), len(each.tokens)
        start = int(packed.offsets[number])
        for rows_, mask in (
            (packed.rows[start : start + length], packed.mask[start : start + length]),
            (left.rows[number, 9 - length :], left.mask[number, 9 - length :]),
            (right.rows[number, :length], right.mask[number, :length]),
        ):
            assert np.array_equal(rows_, alone.rows)
            assert np.array_equal(mask, alone.mask)
    assert packed.mask.sum() == left.mask.sum() == right.mask.sum() == 4 + 1 + 7


def test_batches_that_cannot_be_are_refused() -> None:
    for make in (pack, pad):
        with pytest.raises(ShapeError, match="empty batch"):
            make([])
        with pytest.raises(ShapeError, match="differ"):
            make([one_call(), Trajectory(Schema(2, 2, 300))])
    with pytest.raises(CountError) as refused:
        pad([one_call(), one_call(4, 4)], 7)
    assert refused.value.positions == (7, 8)
    for dtype in (np.int8, np.float32, np.bool_):
        with pytest.raises(DtypeError):
            pack([one_call()], dtype=dtype)
    with pytest.raises(ShapeError):
        pack([one_call()], align=0)


@pytest.mark.parametrize("how", ["contiguous", "zigzag"])
def test_shards_put_together_are_the_whole(how: str) -> None:
    whole = np.arange(2 * 12 * 3).reshape(2, 12, 3)
    back = np.zeros_like(whole)
    for rank in range(3):
        back[:, places(12, rank, 3, how)] = shard(whole, rank, 3, how, axis=1)  # type: ignore[arg-type]
    assert np.array_equal(back, whole)
    with pytest.raises(ShapeError, match="pad them first"):
        shard(whole, 0, 5, how, axis=1)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="no rank 3"):
        shard(whole, 3, 3, how, axis=1)  # type: ignore[arg-type]


def test_a_contiguous_shard_and_evenly_spaced_layers_are_views() -> None:
    schema = Schema(4, 2, 16, (1, 3))
    whole = np.arange(8 * 4 * 2, dtype=np.uint8).reshape(8, 4, 2)
    assert np.shares_memory(shard(whole, 1, 2), whole)
    assert np.shares_memory(moe_rows(whole, schema), whole)
    assert np.array_equal(moe_rows(whole, schema), whole[:, [1, 3]])
    uneven = Schema(4, 2, 16, (0, 1, 3))
    assert np.array_equal(moe_rows(whole, uneven), whole[:, [0, 1, 3]])
    assert for_stage(whole, schema, [0, 2]).shape == (8, 0, 2)
    for layers in ([3, 1], [1, 1], [4], [-1]):
        with pytest.raises(ShapeError):
            for_stage(whole, schema, layers)
    with pytest.raises(ShapeError):
        moe_rows(whole[:, :3], schema)


@pytest.mark.parametrize(
    "fields",
    [
        (0, 1, 8),
        (2, 0, 8),
        (2, 9, 8),
        (2, 2, 0),
        (2, 2, 65537),
        (2, 2, 8, (2,)),
        (2, 2, 8, (1, 0)),
        (2, 2, 8, (-1,)),
    ],
)
def test_a_schema_of_no_model_is_refused(fields: tuple[object, ...]) -> None:
    with pytest.raises(ShapeError):
        Schema(*fields)  # type: ignore[arg-type]


def test_schemas_are_equal_however_their_layers_are_said() -> None:
    assert Schema(2, 2, 8) == Schema(2, 2, 8, (0, 1)) == Schema(2, 2, 8, [0, 1])  # type: ignore[arg-type]
    assert len({Schema(2, 2, 8), Schema(2, 2, 8, (0, 1))}) == 1
