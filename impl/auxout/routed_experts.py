"""Which of the ids that a router returned are this rank's rows, and whether they can be rows at all.

Pure functions on numbers and arrays, apart from any runner: a port passes its own batch in and, where ids have to be
gathered first, does that with its own collectives. ``vectors()`` is the same in numbers, as JSON beside this module:
shapes in, slice out.

A router sees its tokens in one of four layouts: those of this rank alone; those of all data-parallel ranks, one
after the other; shards of all ranks that were gathered with their padding; or only this rank's shard of its tokens
(tensor or sequence parallel), which has to be gathered. A row holds *logical* ids: what a load balancer's physical
ids or the slot of a shared expert would leave in it, a trainer cannot replay.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

MAX_UINT8_EXPERTS = 256
"""Experts whose ids fit one byte."""
MAX_UINT16_EXPERTS = 65536


class Batch(NamedTuple):
    """What is known of a step's tokens when a router has run. Counts are tokens."""

    num_tokens_across_dp: Sequence[int] | None = None
    """Of each data-parallel rank, padding included where the runner pads; None without data parallelism."""
    dp_rank: int = 0
    tp_size: int = 1
    shard_sizes: Sequence[int] | None = None
    """Of all gathered shards, in data-parallel then tensor-parallel order, padding included; None if none are."""


class Slice(NamedTuple):
    """Where this rank's rows are: ``ids[start:stop]``, after gathering along tokens if ``gather``."""

    start: int
    stop: int
    gather: bool = False


def row_dtype(num_experts: int) -> str:
    """``"uint8"`` for at most 256 experts, else ``"uint16"``.

    Raises:
        ValueError: fewer than 1 or more than 65536 experts.
    """
    if not 1 <= num_experts <= MAX_UINT16_EXPERTS:
        raise ValueError(
            f"routed experts are returned of 1 to {MAX_UINT16_EXPERTS} experts, not of {num_experts}"
        )
    return "uint8" if num_experts <= MAX_UINT8_EXPERTS else "uint16"


def locate(num_ids: int, batch: Batch) -> Slice:
    """Find this rank's rows among what one layer's router returned. O(ranks).

    Layouts are told apart by their length. Where two have one length they hold the same rows for the first tensor-
    parallel rank, which is the one that returns rows.

    Args:
        num_ids: tokens that the router returned ids of.

    Raises:
        ValueError: the length is that of no layout.
    """
    counts = batch.num_tokens_across_dp
    if counts is None:
        return Slice(0, num_ids)
    num_local = counts[batch.dp_rank]
    if num_ids == sum(counts):
        stop = sum(counts[: batch.dp_rank + 1])
        return Slice(stop - num_local, stop)
    if num_ids == num_local:
        return Slice(0, num_local)
    shards = batch.shard_sizes
    if shards is not None and num_ids == sum(shards) and len(shards) % len(counts) == 0:
        start = sum(shards[: batch.dp_rank * (len(shards) // len(counts))])
        return Slice(start, start + num_local)
    shard = -(-num_local // batch.tp_size)
    if batch.tp_size > 1 and num_ids == shard:
        return Slice(0, num_local, gather=True)
    raise ValueError(
        f"a router returned ids of {num_ids} tokens; rank {batch.dp_rank} of {list(counts)} expects {num_local}, "
        f"{sum(counts)} of all ranks, or a shard of {shard}"
        + ("" if shards is None else f", or {sum(shards)} of all shards")
    )


def logical_ids(
    ids: Any, top_k: int, *, num_shared: int = 0, physical_to_logical: Any = None, sentinel: int = -1
) -> Any:
    """The logical ids of the routed experts among what a kernel was given.

    Args:
        ids: ``(num_tokens, top_k + num_shared)``, array or tensor.
        num_shared: slots behind the routed ones that shared experts occupy.
        physical_to_logical: ``(num_physical,)``, of the layer, where ids name replicas of experts.
        sentinel: id of padding; stays as it is.

    Returns:
        ``(num_tokens, top_k)``.

    Raises:
        ValueError: the ids have another number of slots.
    """
    if ids.shape[1] != top_k + num_shared:
        raise ValueError(
            f"ids of {ids.shape[1]} slots are not {top_k} routed and {num_shared} shared experts; a shared expert's "
            "slot is not part of a row"
        )
    routed = ids[:, :top_k]
    if physical_to_logical is None:
        return routed
    padding = routed == sentinel
    return physical_to_logical[routed * ~padding] * ~padding + routed * padding


def require_layer(layer: int, num_layers: int) -> None:
    """Refuse a layer that has no column.

    Raises:
        IndexError: it is none of ``[0, num_layers)``.
    """
    if not 0 <= layer < num_layers:
        raise IndexError(f"layer {layer} has no column in rows of {num_layers} layers")


def faults(rows: NDArray[Any], num_experts: int, moe_layers: Iterable[int]) -> list[str]:
    """What cannot be right in rows, in words; at most one entry for each kind and layer (``self_check``).

    Args:
        rows: ``(num_tokens, num_layers, top_k)``, before narrowing, which would hide ids out of range.
        moe_layers: layers whose rows are routed; the others are zero.
    """
    found: list[str] = []
    for layer in moe_layers:
        ids = rows[:, layer]
        if not len(ids):
            continue
        outside = np.argwhere((ids < 0) | (ids >= num_experts))
        if len(outside):
            token, slot = outside[0]
            found.append(f"layer {layer}: id {ids[token, slot]} of {num_experts} experts in row {token}")
        if not ids.any() and (ids.shape[1] > 1 or len(ids) > 1):
            found.append(f"layer {layer}: all rows are zero; its router does not report what it chooses")
            continue
        ordered = np.sort(ids, axis=1)
        twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if len(twice):
            found.append(f"layer {layer}: an expert comes twice in row {twice[0]}")
    return found


def vectors() -> dict[str, Any]:
    """The layouts in numbers: JSON that a port in any language can check itself against."""
    return json.loads(files("auxout").joinpath("routed_experts.json").read_text(encoding="utf-8"))
