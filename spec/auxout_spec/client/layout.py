"""Rows as arrays: one sample, a padded or a packed batch, and the parts of one that ranks and stages hold.

A cell is a row or, where none is known, what stands in its place; the mask says which of the two.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from .kernel import aligned, chunk, padding_before, zigzag_chunks
from .values import Refused, Row, Schema, Trajectory

Missing = Literal["mask", "refuse", "arange", -1]
Side = Literal["right", "left"]
How = Literal["contiguous", "zigzag"]


class Placed(NamedTuple):
    """Rows in their places, and which of them are known."""

    rows: tuple[Row, ...]
    mask: tuple[bool, ...]


class Packed(NamedTuple):
    """Samples one after another; sample i takes the places ``[offsets[i], offsets[i + 1])``."""

    rows: tuple[Row, ...]
    mask: tuple[bool, ...]
    offsets: tuple[int, ...]


def to_array(
    trajectory: Trajectory, length: int | None = None, missing: Missing = "mask"
) -> Placed | Refused:
    """The row of each position in its place (CLIENT-ARRAY).

    Args:
        length: places, at least the number of tokens; None: that number.
        missing: what stands where no row is known. ``mask``: zeros; ``arange``: expert 0, 1, ... in layers with a
            router, which a router can replay; -1: that, in every layer; ``refuse``: zeros, but only for the last
            token and padding.
    """
    num_tokens = len(trajectory.tokens)
    places = num_tokens if length is None else length
    if places < num_tokens:
        return Refused("CLIENT-ARRAY-2", f"{places} places for {num_tokens} tokens", (places, num_tokens))
    unknown = [position for position, row in enumerate(trajectory.rows[:-1]) if row is None]
    if missing == "refuse" and unknown:
        message = "positions before the last token have no row"
        return Refused("CLIENT-ARRAY-3", message, (unknown[0], unknown[-1] + 1))
    filler = _filler(trajectory.schema, missing)
    rows = trajectory.rows + (None,) * (places - num_tokens)
    return Placed(tuple(filler if r is None else r for r in rows), tuple(r is not None for r in rows))


def _filler(schema: Schema, missing: Missing) -> Row:
    if missing == -1:
        return ((-1,) * schema.top_k,) * schema.num_layers
    ids = tuple(range(schema.top_k)) if missing == "arange" else (0,) * schema.top_k
    routed = set(schema.moe_layers)
    return tuple(ids if layer in routed else (0,) * schema.top_k for layer in range(schema.num_layers))


def pad(
    trajectories: tuple[Trajectory, ...], length: int | None = None, side: Side = "right"
) -> tuple[Placed, ...] | Refused:
    """Each sample in ``length`` places, with padding on one side; None: as long as the longest (CLIENT-PAD)."""
    longest = max((len(each.tokens) for each in trajectories), default=0)
    places = longest if length is None else length
    if refused := _check_schemas(trajectories):
        return refused
    if places < longest:
        return Refused("CLIENT-PAD-2", f"{places} places for {longest} tokens", (places, longest))
    return tuple(_padded(each, places, side) for each in trajectories)


def _padded(trajectory: Trajectory, places: int, side: Side) -> Placed:
    before = padding_before(len(trajectory.tokens), places, side == "left")
    after = places - before - len(trajectory.tokens)
    rows = (None,) * before + trajectory.rows + (None,) * after
    filler = _filler(trajectory.schema, "mask")
    return Placed(tuple(filler if r is None else r for r in rows), tuple(r is not None for r in rows))


def pack(
    trajectories: tuple[Trajectory, ...], max_value: int | None = None, align: int = 1
) -> Packed | Refused:
    """All samples in one array without padding, but to a multiple of ``align`` (CLIENT-PACK).

    Args:
        max_value: largest value of the dtype to pack into; None: that of the schema.
    """
    if refused := _check_schemas(trajectories):
        return refused
    if trajectories and max_value is not None and max_value < trajectories[0].schema.num_experts - 1:
        return Refused("CLIENT-PACK-3", f"ids up to {trajectories[0].schema.num_experts - 1} do not fit")
    rows: tuple[Row, ...] = ()
    mask: tuple[bool, ...] = ()
    offsets = [0]
    for each in trajectories:
        placed = _padded(each, aligned(len(each.tokens), align), "right")
        rows, mask = rows + placed.rows, mask + placed.mask
        offsets.append(len(rows))
    return Packed(rows, mask, tuple(offsets))


def _check_schemas(trajectories: tuple[Trajectory, ...]) -> Refused | None:
    if len({each.schema for each in trajectories}) > 1:
        return Refused("CLIENT-PACK-2", "the samples' schemas differ")
    return None


def places_of(length: int, rank: int, size: int, how: How) -> tuple[int, ...] | Refused:
    """The places of a sequence that one rank of a context- or sequence-parallel group holds (CLIENT-SHARD)."""
    chunks, count = ((rank,), size) if how == "contiguous" else (zigzag_chunks(rank, size), 2 * size)
    ranges = [chunk(length, index, count) for index in chunks]
    if any(start < 0 for start, _ in ranges):
        return Refused("CLIENT-SHARD-3", f"{length} places are no {count} equal chunks; pad them first")
    return tuple(place for start, end in ranges for place in range(start, end))


def stage_layers(schema: Schema, layers: tuple[int, ...]) -> tuple[int, ...] | Refused:
    """The layers with a router among those that a pipeline stage holds, in its order (CLIENT-LAYERS)."""
    if any(not 0 <= layer < schema.num_layers for layer in layers):
        return Refused("CLIENT-LAYERS-3", f"layers {layers} of a model of {schema.num_layers}")
    if list(layers) != sorted(set(layers)):
        return Refused("CLIENT-LAYERS-3", f"layers {layers} are not in the model's order")
    return tuple(layer for layer in layers if layer in schema.moe_layers)


def only_layers(rows: tuple[Row, ...], layers: tuple[int, ...]) -> tuple[Row, ...]:
    """Rows with only these layers."""
    return tuple(tuple(row[layer] for layer in layers) for row in rows)
