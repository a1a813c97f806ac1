"""What one request's rows go through, as functions: captured, cut into blocks, and emitted.

A request's rows arrive step by step. Its *capture cursor* is the next position to store: rows fill a tail, full
blocks wait until their key has arrived. Its *emit cursor* is the next position to return.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ProtocolViolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .store import BlockStore, Key


@dataclass(frozen=True)
class Request:
    """What the worker keeps of one activation."""

    emit_cursor: int
    """Next position to return."""
    tail: NDArray[Any]
    """Rows of the incomplete block before the capture cursor."""
    keys: tuple[Key, ...] = ()
    """Of its blocks, in order, as far as they were sent."""
    pending: tuple[tuple[int, NDArray[Any]], ...] = ()
    """Number and rows of full blocks that have no key yet."""
    capture_cursor: int = -1
    """Next position to store; -1 before the first step was processed."""
    scheduled_cursor: int = 0
    """End of the last processed step as it was scheduled, rejected drafts included."""
    num_in_flight: int = 0
    finished: bool = False
    """Ended; torn down when nothing is in flight."""
    turned: bool = False
    """Tokens at its end were replaced: where, its next step says (WORK-KEYS-2)."""
    num_stale: int = 0
    """How many of its steps in flight, the first ones, are of tokens that were replaced."""
    error: str | None = None
    """Why it failed (``errors="request"``); from then on it holds nothing."""

    def turned_to(self, start: int, block_size: int) -> Request:
        """The request without rows of tokens from ``start`` on, which were replaced.

        A block that was complete is not made incomplete again: there capture goes back (WORK-CAPTURE-2). Rows of
        dropped tokens that were returned did not count, so from ``start`` on rows are due again.
        """
        kept = tuple(entry for entry in self.pending if (entry[0] + 1) * block_size <= start)
        request = replace(self, turned=False, pending=kept, emit_cursor=min(self.emit_cursor, start))
        tail_start = self.capture_cursor - len(self.tail)
        if tail_start <= start < self.capture_cursor:
            return replace(request, tail=self.tail[: start - tail_start], capture_cursor=start)
        return request

    def failed(self, error: str) -> Request:
        """What stays of it when it fails: enough to say so until it ends."""
        return replace(self, tail=self.tail[:0], keys=(), pending=(), error=error)


def accepted_rows(request_id: str, rows: NDArray[Any], num_rejected: int) -> NDArray[Any]:
    """A step's rows without those of rejected drafts (WORK-CAPTURE-1, -5)."""
    if not 0 <= num_rejected <= len(rows) or len(rows) == 0:
        what = f"{num_rejected} of {len(rows)} tokens are rejected"
        raise ProtocolViolation("WORK-CAPTURE-5", request_id, what)
    return rows[: len(rows) - num_rejected]


def captured(
    request_id: str, request: Request, start: int, num_tokens: int, rows: NDArray[Any], block_size: int
) -> Request:
    """The request after a step's accepted rows were appended at its capture cursor.

    Args:
        start: first position as it was scheduled; ``num_tokens`` were.
        rows: ``(num_accepted, num_layers, top_k)``.

    Raises:
        ProtocolViolation: WORK-CAPTURE-2: it goes back; WORK-CAPTURE-3: it skips positions that no step had
            scheduled; WORK-CAPTURE-4: the first capture is inside a block.
    """
    if request.turned:
        request = request.turned_to(start, block_size)
    cursor = start if request.capture_cursor < 0 else request.capture_cursor
    if start < cursor:
        raise ProtocolViolation("WORK-CAPTURE-2", request_id, f"capture goes back from {cursor} to {start}")
    if start > cursor and cursor >= request.scheduled_cursor:
        raise ProtocolViolation("WORK-CAPTURE-3", request_id, f"capture skips [{cursor}, {start})")
    if len(request.tail) != cursor % block_size:
        what = f"the first capture starts at {cursor}, inside a block of {block_size}"
        raise ProtocolViolation("WORK-CAPTURE-4", request_id, what)
    buffered = np.concatenate((request.tail, rows))
    first_block = cursor // block_size
    num_full = len(buffered) // block_size
    blocks = tuple(
        (first_block + i, buffered[i * block_size : (i + 1) * block_size]) for i in range(num_full)
    )
    return replace(
        request,
        pending=request.pending + blocks,
        tail=buffered[num_full * block_size :],
        capture_cursor=cursor + len(rows),
        scheduled_cursor=start + num_tokens,
    )


def published(request: Request) -> tuple[Request, list[tuple[Key, NDArray[Any]]]]:
    """The request without the blocks whose key has arrived, and these blocks (WORK-PUBLISH-1).

    None where tokens were replaced, until it is known which.
    """
    if request.turned:
        return request, []
    ready = [(request.keys[block], rows) for block, rows in request.pending if block < len(request.keys)]
    waiting = tuple((block, rows) for block, rows in request.pending if block >= len(request.keys))
    return replace(request, pending=waiting), ready


def first_of_each(blocks: list[tuple[str, Key, NDArray[Any]]]) -> list[tuple[str, Key, NDArray[Any]]]:
    """The first block of each key; whose it is, its key and its rows."""
    first: dict[Key, tuple[str, Key, NDArray[Any]]] = {}
    for block in blocks:
        first.setdefault(block[1], block)
    return list(first.values())


def emitted(
    request_id: str,
    request: Request,
    rows: NDArray[Any],
    store: BlockStore,
    block_size: int,
    reads_unkeyed: bool = False,
) -> NDArray[Any]:
    """The rows from the emit to the capture cursor.

    Args:
        rows: what the step itself computed, up to the capture cursor; taken where it is enough (WORK-EMIT-2).
        reads_unkeyed: full blocks without a key are read too, as from profile 0.33 on.

    Raises:
        ProtocolViolation: STORE-READ-1: a block is not stored; WORK-EMIT-3: a block has no key yet.
    """
    start, end = request.emit_cursor, request.capture_cursor
    step_start = end - len(rows)
    if start >= step_start:
        return rows[start - step_start :]
    waiting = [block for _, block in request.pending] if reads_unkeyed else []
    rest = np.concatenate([*waiting, request.tail])
    rest_start = end - len(rest)
    stored_end = min(end // block_size, len(request.keys)) * block_size
    parts: list[NDArray[Any]] = []
    if start < stored_end:
        keys = request.keys[start // block_size : stored_end // block_size]
        parts.append(_read(store, request_id, keys)[start % block_size :])
    start = max(start, stored_end)
    if start < rest_start:
        what = f"the blocks of rows [{start}, {rest_start}) have no key yet"
        raise ProtocolViolation("WORK-EMIT-3", request_id, what)
    return np.concatenate([*parts, rest[start - rest_start :]])


def _read(store: BlockStore, request_id: str, keys: tuple[Key, ...]) -> NDArray[Any]:
    """Stored rows, or a refusal that names the request."""
    try:
        return store.read(keys)
    except ProtocolViolation as violation:
        raise ProtocolViolation(violation.clause, request_id, violation.what) from None
