"""Rows as arrays: one conversation, a padded or a packed batch, and the part that a rank or a stage holds.

Each is one allocation, into which every known row is copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import _kernel
from .errors import CountError, DtypeError, MissingError, ShapeError
from .schema import Schema
from .trajectory import Trajectory

Missing = Literal["mask", "refuse", "arange", -1]
Side = Literal["right", "left"]
How = Literal["contiguous", "zigzag"]
Empty = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Makes an array of a shape and a dtype, such as ``np.empty``: memory that a framework owns, pinned or shared."""


class Placed(NamedTuple):
    """Rows in their places."""

    rows: NDArray[Any]
    """(length, num_layers, top_k), or (samples, length, num_layers, top_k)."""
    mask: NDArray[np.bool_]
    """(length,) or (samples, length): where a row is known."""


class Packed(NamedTuple):
    """Samples one after another; sample i takes the places ``[offsets[i], offsets[i + 1])``."""

    rows: NDArray[Any]
    """(places, num_layers, top_k)."""
    mask: NDArray[np.bool_]
    """(places,)."""
    offsets: NDArray[np.int64]
    """(samples + 1,)."""


def to_array(
    trajectory: Trajectory,
    length: int | None = None,
    *,
    missing: Missing = "mask",
    empty: Empty = np.empty,
) -> Placed:
    """The row of each position in its place.

    Args:
        length: places, at least the number of tokens; None: that number.
        missing: what stands where no row is known. ``mask``: zeros; ``arange``: expert 0, 1, ... in layers with a
            router, since a router that replays needs valid, distinct ids; -1: that, in int16 or int32; ``refuse``:
            zeros, but only for the last token and padding.
        empty: makes the rows and the mask.

    Raises:
        CountError: ``length`` is below the tokens (CLIENT-ARRAY-2).
        MissingError: under ``refuse`` (CLIENT-ARRAY-3).
    """
    schema, num_tokens = trajectory.schema, len(trajectory.tokens)
    places = num_tokens if length is None else length
    if places < num_tokens:
        raise _too_short(trajectory, places, num_tokens, "CLIENT-ARRAY-2")
    if missing == "refuse":
        _check_complete(trajectory)
    dtype = np.dtype("int16" if schema.num_experts <= 2**15 else "int32") if missing == -1 else schema.dtype
    placed = _placed(empty, (places,), schema, dtype)
    _write(trajectory, placed.rows, placed.mask, 0, _filler(schema, missing))
    return placed


def pad(
    trajectories: Sequence[Trajectory],
    length: int | None = None,
    side: Side = "right",
    *,
    empty: Empty = np.empty,
) -> Placed:
    """Each conversation in ``length`` places of its own, zeros on one side; None: as long as the longest.

    Args:
        empty: makes the rows and the mask.

    Raises:
        CountError: ``length`` is below the longest (CLIENT-PAD-2).
        ShapeError: their schemas differ, or there are none (CLIENT-PACK-2).
    """
    schema = _schema_of(trajectories)
    longest = max(trajectories, key=lambda each: len(each.tokens))
    places = len(longest.tokens) if length is None else length
    if places < len(longest.tokens):
        raise _too_short(longest, places, len(longest.tokens), "CLIENT-PAD-2")
    placed = _placed(empty, (len(trajectories), places), schema, schema.dtype)
    for each, rows, mask in zip(trajectories, placed.rows, placed.mask, strict=True):
        _write(each, rows, mask, _kernel.padding_before(len(each.tokens), places, side == "left"), 0)
    return placed


def pack(
    trajectories: Sequence[Trajectory],
    *,
    dtype: DTypeLike | None = None,
    align: int = 1,
    empty: Empty = np.empty,
) -> Packed:
    """All conversations in one array without padding.

    Args:
        dtype: an integer type that holds every expert's id; None: the schema's.
        align: each conversation takes a multiple of it; the rest is masked.
        empty: makes the rows and the mask.

    Raises:
        ShapeError: their schemas differ, or there are none (CLIENT-PACK-2).
        DtypeError: the dtype is too small for the experts (CLIENT-PACK-3).
    """
    schema = _schema_of(trajectories)
    wanted: np.dtype[Any] = schema.dtype if dtype is None else np.dtype(dtype)
    if wanted.kind not in "iu" or np.iinfo(wanted).max < schema.num_experts - 1:
        raise DtypeError(f"{wanted} does not hold the ids of {schema.num_experts} experts", "CLIENT-PACK-3")
    if align < 1:
        raise ShapeError(f"samples cannot be aligned to {align} places")
    sizes = [_kernel.aligned(len(each.tokens), align) for each in trajectories]
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    placed = _placed(empty, (int(offsets[-1]),), schema, wanted)
    for each, start, end in zip(trajectories, offsets[:-1], offsets[1:], strict=True):
        _write(each, placed.rows[start:end], placed.mask[start:end], 0, 0)
    return Packed(placed.rows, placed.mask, offsets)


def places(length: int, rank: int, size: int, how: How = "contiguous") -> NDArray[np.int64]:
    """The places that one rank of a context- or sequence-parallel group holds, in its order.

    ``whole[places(len(whole), rank, size, how)]`` is its shard, of tensors too.

    Raises:
        ShapeError: there is no such rank, or the places do not divide evenly (CLIENT-SHARD-3).
    """
    return np.concatenate([np.arange(start, end) for start, end in ranges(length, rank, size, how)])


def shard(
    array: NDArray[Any], rank: int, size: int, how: How = "contiguous", *, axis: int = 0
) -> NDArray[Any]:
    """One rank's part of rows or of their mask: a view if contiguous, else two parts copied.

    Args:
        how: ``contiguous``: equal parts in order; ``zigzag``: of ``2 * size`` equal parts one from the front and one
            from the back, which divides the work of causal attention evenly.
        axis: the axis of the places.

    Raises:
        ShapeError: there is no such rank, or the places do not divide evenly (CLIENT-SHARD-3).
    """
    before = (slice(None),) * axis
    parts = [array[(*before, slice(start, end))] for start, end in ranges(array.shape[axis], rank, size, how)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def moe_rows(array: NDArray[Any], schema: Schema) -> NDArray[Any]:
    """The layers with a router only, in order: (..., MoE layers, top_k); a view where they are evenly spaced.

    Raises:
        ShapeError: the array has another number of layers (CLIENT-LAYERS-3).
    """
    return array[..., layer_index(array.shape, schema), :]


def for_stage(array: NDArray[Any], schema: Schema, layers: Sequence[int]) -> NDArray[Any]:
    """The layers with a router among those of a pipeline stage: (..., routers, top_k), in the routers' order.

    Args:
        layers: the model's layers that the stage holds, ascending; those of all its virtual stages.

    Raises:
        ShapeError: a layer is not the model's, or they are out of order (CLIENT-LAYERS-3).
    """
    return array[..., layer_index(array.shape, schema, layers), :]


def layer_index(
    shape: Sequence[int], schema: Schema, layers: Sequence[int] | None = None
) -> slice | list[int]:
    """Where the layers with a router are on the axis before the last: a slice where they are evenly spaced.

    Args:
        shape: of the rows, (..., num_layers, top_k).
        layers: only those among these; None: all.

    Raises:
        ShapeError: rows of another shape, or layers that are not the model's or out of order (CLIENT-LAYERS-3).
    """
    routers = list(schema.moe_layers if layers is None else _routers_among(layers, schema))
    if tuple(shape[-2:]) != schema.row_shape:
        problem = f"an array of shape {tuple(shape)} has no rows of {schema.row_shape}"
        raise ShapeError(problem, "CLIENT-LAYERS-3")
    steps = set(np.diff(routers).tolist())
    if not routers or len(steps) > 1:
        return routers
    return slice(routers[0], routers[-1] + 1, steps.pop() if steps else 1)


def _routers_among(layers: Sequence[int], schema: Schema) -> list[int]:
    if any(not 0 <= layer < schema.num_layers for layer in layers):
        raise ShapeError(f"layers {list(layers)} are not all of {schema.num_layers}", "CLIENT-LAYERS-3")
    if list(layers) != sorted(set(layers)):
        raise ShapeError(f"layers {list(layers)} are not in the model's order", "CLIENT-LAYERS-3")
    return [layer for layer in layers if layer in schema.moe_layers]


def ranges(length: int, rank: int, size: int, how: How) -> list[tuple[int, int]]:
    """The ranges of places ``[start, end)`` that one rank holds, in its order.

    Raises:
        ShapeError: there is no such rank, or the places do not divide evenly (CLIENT-SHARD-3).
    """
    if not 0 <= rank < size:
        raise ShapeError(f"there is no rank {rank} of {size}", "CLIENT-SHARD-3")
    chunks, count = ((rank,), size) if how == "contiguous" else (_kernel.zigzag_chunks(rank, size), 2 * size)
    ranges = [_kernel.chunk(length, index, count) for index in chunks]
    if ranges[0][0] < 0:
        raise ShapeError(f"{length} places are no {count} equal parts; pad them first", "CLIENT-SHARD-3")
    return ranges


def _schema_of(trajectories: Sequence[Trajectory]) -> Schema:
    """The one schema of a batch."""
    schemas = {each.schema for each in trajectories}
    if len(schemas) != 1:
        problem = "the conversations' schemas differ" if schemas else "an empty batch has no schema"
        raise ShapeError(problem, "CLIENT-PACK-2")
    return schemas.pop()


def _placed(empty: Empty, places: tuple[int, ...], schema: Schema, dtype: np.dtype[Any]) -> Placed:
    """Rows that nothing is written to yet, of which none is known."""
    placed = Placed(empty((*places, *schema.row_shape), dtype), empty(places, np.dtype(np.bool_)))
    placed.mask[...] = False
    return placed


def _write(
    trajectory: Trajectory,
    rows: NDArray[Any],
    mask: NDArray[np.bool_],
    first: int,
    filler: NDArray[Any] | int,
) -> None:
    """Put position 0 to place ``first`` and what is not known to ``filler``."""
    for segment in trajectory.segments:
        rows[first + segment.start : first + segment.end] = segment.values
    start, end = trajectory.known
    mask[first + start : first + end] = True
    rows[: first + start] = filler
    rows[first + end :] = filler


def _filler(schema: Schema, missing: Missing) -> NDArray[Any] | int:
    """What stands for a row that is not known: one number, or a row."""
    if missing != "arange":
        return -1 if missing == -1 else 0
    row = np.zeros(schema.row_shape, schema.dtype)
    row[list(schema.moe_layers)] = np.arange(schema.top_k)
    return row


def _check_complete(trajectory: Trajectory) -> None:
    start, end = trajectory.known
    needed = len(trajectory.tokens) - 1
    if needed > 0 and (start > 0 or end < needed):
        # Known rows are one range: what is missing is in front of it, behind it, or both.
        first = 0 if start > 0 or end == 0 else end
        last = needed if end < needed else start
        raise MissingError(
            "positions before the last token have no row",
            "CLIENT-ARRAY-3",
            request=trajectory.request,
            positions=(first, last),
        )


def _too_short(trajectory: Trajectory, places: int, num_tokens: int, clause: str) -> CountError:
    return CountError(
        f"{places} places are too few for {num_tokens} tokens",
        clause,
        request=trajectory.request,
        positions=(places, num_tokens),
    )
