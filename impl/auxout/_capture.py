"""Where a step's rows go: arithmetic over the batch, without a loop over requests.

Every request's accepted rows continue at its capture cursor, fill the block that was begun and then new ones. Blocks
are slots of the store's arena, so this is where a row is copied, once.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike, NDArray

    Ints = NDArray[np.int64]

_CACHE_LINE = 64


class Span(NamedTuple):
    """The positions that a step's requests store: ``[cursor, end)`` each, in arrays over the batch."""

    cursor: Ints
    end: Ints
    num_accepted: Ints
    source: Ints
    """Where each one's rows begin in the step's rows."""


class Blocks(NamedTuple):
    """The blocks that a span touches, request after request."""

    first: Ints
    """``(n,)``, number of each request's first block."""
    base: Ints
    """``(n,)``, where its slots begin in ``slots``."""
    num_full: Ints
    """``(n,)``, its blocks that are full now; they come first."""
    slots: Ints
    tail: Ints
    """``(n,)``, slot of the block that is incomplete now; -1 when there is none."""


def blocks_of(
    span: Span, block_size: int, tail: Ints, take: Callable[[int], list[int]]
) -> tuple[Blocks, list[int]]:
    """Lay out the blocks of a span; also the new slots among them.

    Args:
        tail: ``(n,)``, slot of the block that each request had begun; any value where it had none.
        take: gives so many new slots.
    """
    first = span.cursor // block_size
    ends_in = span.end // block_size
    rest = span.end - ends_in * block_size
    begun = span.cursor != first * block_size
    num_begun = int(np.count_nonzero(begun))
    count = ends_in + (rest > 0) - first
    stop = count.cumsum()
    base = stop - count
    total = int(stop[-1]) if len(stop) else 0
    new = take(total - num_begun)
    if not num_begun:
        slots = np.array(new, np.int64)
    elif not new:
        slots = tail[begun]
    else:
        slots = np.empty(total, np.int64)
        is_new = np.ones(total, np.bool_)
        is_new[base[begun]] = False
        slots[base[begun]] = tail[begun]
        slots[is_new] = new
    last = np.full(len(first), -1, np.int64)
    is_open = rest > 0
    last[is_open] = slots[stop[is_open] - 1]
    return Blocks(first, base, ends_in - first, slots, last), new


def copy_rows(
    span: Span, blocks: Blocks, rows: NDArray[Any], arena: NDArray[Any], target: NDArray[Any]
) -> None:
    """Copy accepted rows into their blocks: short runs of all requests at once, long ones by the block.

    Args:
        rows: ``(total, num_layers, top_k)``, the step's, contiguous.
        arena: ``(num_slots, block_size, num_layers, top_k)``.
        target: the arena as rows.
    """
    block_size = arena.shape[1]
    accepted = span.num_accepted
    is_long = accepted >= block_size
    if np.count_nonzero(is_long):
        for index in places(is_long):
            _copy_run(span, blocks, index, rows, arena)
        accepted = np.where(is_long, 0, accepted)
    total = int(accepted.sum())
    if total:
        source = as_items(rows)
        offset = span.cursor - blocks.first * block_size
        # Row j of a request is in its block (offset + j) // block_size, at (offset + j) % block_size.
        begin = accepted.cumsum() - accepted
        j = np.arange(total)
        position = j + (offset - begin).repeat(accepted)
        block = position // block_size
        slot = blocks.slots[block + blocks.base.repeat(accepted)]
        target[slot * block_size + position - block * block_size] = source[
            j + (span.source - begin).repeat(accepted)
        ]


def _copy_run(span: Span, blocks: Blocks, index: int, rows: Any, arena: NDArray[Any]) -> None:
    """One request's rows: the rest of the block that was begun, whole blocks, the begin of the next."""
    block_size = arena.shape[1]
    source = int(span.source[index])
    stop = source + int(span.num_accepted[index])
    base, num_full = int(blocks.base[index]), int(blocks.num_full[index])
    slots = blocks.slots[base : base + num_full]
    offset = int(span.cursor[index]) % block_size
    if offset:
        head = block_size - offset
        arena[slots[0], offset:] = rows[source : source + head]
        source, slots = source + head, slots[1:]
    middle = source + len(slots) * block_size
    whole = rows[source:middle].reshape(-1, *arena.shape[1:])
    as_items(arena)[slots] = as_items(whole)
    if middle < stop:
        arena[int(blocks.tail[index]), : stop - middle] = rows[middle:stop]


def gather(arena: NDArray[Any], slots: list[int], skip: int, out: Any) -> None:
    """Copy the rows of consecutive blocks, without the first ``skip``, to the begin of ``out``."""
    block_size = arena.shape[1]
    if skip:
        out[: block_size - skip] = arena[slots[0], skip:]
        out, slots = out[block_size - skip :], slots[1:]
    whole = out[: len(slots) * block_size].reshape(-1, *arena.shape[1:])
    np.take(as_items(arena), slots, out=as_items(whole), mode="clip")  # unlike "raise", "clip" copies once


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """New memory that begins where a cache line does: copies between such blocks take up to half the time."""
    kind = np.dtype(dtype)
    memory = np.empty(prod(shape) * kind.itemsize + _CACHE_LINE, np.uint8)
    start = -memory.__array_interface__["data"][0] % _CACHE_LINE
    return np.ndarray(shape, kind, memory, start)


def as_items(array: Any) -> NDArray[Any]:
    """``(n, ...)`` contiguous as ``(n,)`` of opaque items, which numpy copies whole."""
    return np.ndarray(len(array), _item(array.dtype.itemsize * prod(array.shape[1:])), array)


@cache
def _item(num_bytes: int) -> np.dtype[np.void]:
    """The type of an opaque item; looking it up by name costs more than all the rest of ``as_items``."""
    return np.dtype((np.void, num_bytes))


def as_rows(arena: Any) -> NDArray[Any]:
    """``(num_slots, block_size, ...)`` contiguous as ``(num_slots * block_size,)`` of opaque rows."""
    return as_items(arena.reshape(-1, *arena.shape[2:]))


def as_list(column: Ints) -> list[int]:
    """Python integers: items of arrays are slow to get one by one."""
    return column.tolist()


def places(mask: NDArray[np.bool_]) -> list[int]:
    """Where a mask is true."""
    return np.flatnonzero(mask).tolist()
