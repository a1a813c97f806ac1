"""One step being processed: its requests in columns, where their rows go, what they are due.

Nothing here changes a request or the store before ``commit``; rows are copied beyond the capture cursors, where nobody
looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._capture import Span, as_items, blocks_of, copy_rows, gather, num_new_blocks, places
from ._intake import Writing
from ._outputs import StepOutputs
from ._wire import Roster
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from numpy.typing import NDArray

    from ._requests import Ints, RequestTable
    from .store import Store

    Counts = Sequence[int] | NDArray[Any]


class PendingStep:
    """A step in flight: its boundaries, and its rows as soon as they are there."""

    __slots__ = ("bounds", "counts", "failing", "owned", "roster", "rows", "seats", "starts")

    def __init__(self, request_ids: Sequence[str], token_starts: Counts, query_start_loc: Counts) -> None:
        """Copies of what the runner reports."""
        self.roster = Roster(tuple(request_ids))
        self.starts: Ints = np.array(token_starts, np.int64)
        self.bounds: Ints = np.array(query_start_loc, np.int64)
        self.counts: Ints = self.bounds[1:] - self.bounds[:-1]
        self.seats: Ints = self.starts[:0]
        """``(batch,)``, set when it is launched; -1 for requests that never began."""
        self.failing: dict[str, ProtocolViolation] = {}
        """Requests that never began."""
        self.rows: NDArray[Any] | None = None
        """``(total, num_layers, top_k)``, contiguous."""
        self.owned = True
        """Whether ``rows`` stay as they are after the step was processed."""

    def require_sound(self, num_rows: int) -> None:
        """Refuse boundaries that are none (WORK-STEP-1). O(1) array operations."""
        count = len(self.roster.ids)
        if self.starts.shape != (count,) or self.bounds.shape != (count + 1,):
            problem = f"{count} requests, {self.starts.size} starts and {self.bounds.size} boundaries"
        elif self.bounds[0] != 0 or self.bounds[-1] != num_rows:
            problem = f"boundaries run from {self.bounds[0]} to {self.bounds[-1]}, rows from 0 to {num_rows}"
        elif count and self.starts.min() < 0:
            problem = "a start is negative"
        else:
            return
        raise ProtocolViolation("WORK-STEP-1", None, problem)


class _Parts(NamedTuple):
    """Requests of the step that take part, in columns."""

    place: Ints
    """In the batch."""
    seat: Ints
    start: Ints
    """First position as it was scheduled."""
    num_rows: Ints
    """Rejected drafts included."""
    source: Ints
    """Where they begin."""
    sampled: Ints
    rejected: Ints
    cursor: Ints
    """First position to store."""


class Read(NamedTuple):
    """Rows of one request to be read back: stored blocks, then some of the incomplete block."""

    part: int
    """Of the request among the parts."""
    num_rows: int
    slots: list[int]
    skip: int
    """Rows of the first block that are not due."""
    tail_slot: int
    tail: slice


class Landing:
    """The oldest step, while it is processed."""

    def __init__(
        self, table: RequestTable, step: PendingStep, block_size: int, sampled: Counts, rejected: Counts
    ) -> None:
        """Line up the requests that live and have not failed.

        Raises:
            ProtocolViolation: WORK-STEP-1: samples of another batch.
        """
        num_sampled, num_rejected = np.asarray(sampled, np.int64), np.asarray(rejected, np.int64)
        if not num_sampled.shape == num_rejected.shape == step.starts.shape:
            raise ProtocolViolation("WORK-STEP-1", None, "samples are not those of the step's batch")
        self._table = table
        self._step = step
        self._block_size = block_size
        cursor = table.capture[step.seats]
        cursor = np.where(cursor < 0, step.starts, cursor)
        place = np.arange(len(cursor))
        self.parts = _Parts(
            place, step.seats, step.starts, step.counts, step.bounds[:-1], num_sampled, num_rejected, cursor
        )
        self.errors: dict[str, str] = {name: str(each) for name, each in step.failing.items()}
        if table.errors or step.failing:
            for request_id, seat in zip(step.roster.ids, step.seats.tolist(), strict=True):
                if seat in table.errors:
                    self.errors[request_id] = table.errors[seat]
            self._keep_all_but(self.errors)

    def objections(self) -> list[ProtocolViolation]:
        """What is wrong with single requests, in batch order (WORK-CAPTURE-2 to -5)."""
        parts, size = self.parts, self._block_size
        scheduled = self._table.scheduled[parts.seat]
        unbacked = (parts.start > parts.cursor) & (parts.cursor >= scheduled)
        inside = (parts.cursor % size != 0) & (self._table.tail[parts.seat] < 0)
        miscounted = (parts.rejected < 0) | (parts.rejected > parts.num_rows) | (parts.num_rows < 1)
        wrong = miscounted | (parts.start < parts.cursor) | unbacked | inside
        if not wrong.any():
            return []
        return [
            self._objection(index, bool(miscounted[index]), bool(unbacked[index])) for index in places(wrong)
        ]

    def leave_out(self, failing: Mapping[str, ProtocolViolation]) -> None:
        """Store no rows of requests that fail."""
        if failing:
            self.fail(failing)
            self._keep_all_but(failing)

    def fail(self, failing: Mapping[str, ProtocolViolation]) -> None:
        """Return errors of requests instead of rows."""
        self.errors |= {name: str(violation) for name, violation in failing.items()}

    def store_rows(self, store: Store) -> list[int]:
        """Copy the accepted rows into blocks, beyond the capture cursors; the new slots. O(rows)."""
        parts = self.parts
        accepted = parts.num_rows - parts.rejected
        self.span = span = Span(parts.cursor, parts.cursor + accepted, accepted, parts.source)
        slots = store.take(num_new_blocks(span, self._block_size))
        self.blocks = blocks_of(span, self._block_size, self._table.tail[parts.seat], slots)
        copy_rows(span, self.blocks, self._rows, store.blocks)
        return slots

    def complete(self) -> Writing:
        """The full blocks that have a key, to be put; the others are to wait (WORK-PUBLISH-1). O(blocks)."""
        writing = Writing()
        self._waiting: list[tuple[int, int, int]] = []
        blocks, table = self.blocks, self._table
        full = np.flatnonzero(blocks.num_full)
        seats, firsts = self.parts.seat[full].tolist(), blocks.first[full].tolist()
        bases, counts = blocks.base[full].tolist(), blocks.num_full[full].tolist()
        slots: list[int] = blocks.slots.tolist()
        for seat, first, base, count in zip(seats, firsts, bases, counts, strict=True):
            keys: list[bytes] = table.keys[int(seat)][first : first + count]
            num_keyed = len(keys)
            writing.owners += [table.ids[seat]] * num_keyed
            writing.keys += keys
            writing.slots += slots[base : base + num_keyed]
            self._waiting += [(seat, first + index, slots[base + index]) for index in range(num_keyed, count)]
        return writing

    def commit(self) -> None:
        """Advance the cursors of capture. Nothing of the step is refused from here on."""
        table, parts, span = self._table, self.parts, self.span
        table.capture[parts.seat] = span.end
        table.scheduled[parts.seat] = parts.start + parts.num_rows
        table.tail[parts.seat] = self.blocks.tail
        for seat, block, slot in self._waiting:
            table.waiting[seat].append((block, slot))

    def plan_reads(
        self, store: Store, fresh: Mapping[bytes, int]
    ) -> tuple[list[Read], list[ProtocolViolation]]:
        """What is due of earlier steps, and requests of which something is missing (STORE-READ-1, WORK-EMIT-3).

        Args:
            fresh: key -> slot of the blocks that the step will put.
        """
        reads: list[Read] = []
        objections: list[ProtocolViolation] = []
        emit = self._table.emit[self.parts.seat]
        self._emit = emit
        self._due = (self.parts.sampled > 0) & (emit <= self.span.end)
        if self.errors:
            self._due &= self._not_among(self.errors)
        far = self._due & (emit < self.parts.cursor)
        if far.any():
            for index in places(far):
                planned = self._plan_read(index, store, fresh)
                if isinstance(planned, Read):
                    reads.append(planned)
                else:
                    objections.append(planned)
                    self._due[index] = False
        return reads, objections

    def outputs(self, arena: NDArray[Any], reads: Sequence[Read]) -> StepOutputs:
        """What the step's requests are due, and advance their emit cursors (WORK-EMIT-1, -2). O(batch + rows)."""
        parts, emit, end = self.parts, self._emit, self.span.end
        due = self._due
        near = due & (emit >= parts.cursor)
        self._table.emit[parts.seat[due]] = end[due]
        begins, ends = parts.source + emit - parts.cursor, parts.source + self.span.num_accepted
        everyone = not self.errors and bool(near.all())
        if not everyone:
            emit, begins, ends = emit[near], begins[near], ends[near]
        buffer = self._rows
        if reads or not self._step.owned:
            begins, ends, buffer = self._collect(begins, ends, arena, reads)
        if everyone:
            return StepOutputs(self._step.roster, emit, begins, ends, buffer, {})
        columns = self._in_batch_order(np.flatnonzero(near), emit, begins, ends, reads)
        return StepOutputs(*columns, buffer, self.errors)

    @property
    def _rows(self) -> NDArray[Any]:
        assert self._step.rows is not None
        return self._step.rows

    def _collect(
        self, begins: Ints, ends: Ints, arena: NDArray[Any], reads: Sequence[Read]
    ) -> tuple[Ints, Ints, NDArray[Any]]:
        """Copy rows of the step, from ``begins`` to ``ends``, and those read back, into a buffer of their own."""
        rows = self._rows
        lengths = ends - begins
        stop = np.cumsum(lengths)
        num_near = int(stop[-1]) if len(stop) else 0
        buffer = np.empty((num_near + sum(read.num_rows for read in reads), *rows.shape[1:]), rows.dtype)
        if num_near == len(rows):
            buffer[:num_near] = rows
        else:
            index = np.arange(num_near) + np.repeat(begins - (stop - lengths), lengths)
            np.take(as_items(rows), index, out=as_items(buffer[:num_near]), mode="clip")
        place = num_near
        for read in reads:
            out = buffer[place : place + read.num_rows]
            if read.slots:
                gather(arena, read.slots, read.skip, out)
            num_tail = read.tail.stop - read.tail.start
            if num_tail:
                out[read.num_rows - num_tail :] = arena[read.tail_slot, read.tail]
            place += read.num_rows
        return stop - lengths, stop, buffer

    def _in_batch_order(
        self, near: Ints, starts: Ints, begins: Ints, ends: Ints, reads: Sequence[Read]
    ) -> tuple[Roster, Ints, Ints, Ints]:
        """Put requests with rows of the step, with rows read back and with an error together."""
        parts, step, table = self.parts, self._step, self._table
        far = np.array([read.part for read in reads], np.int64)
        lengths = np.array([read.num_rows for read in reads], np.int64)
        first = int(ends[-1]) if len(ends) and len(reads) else 0
        stop = np.cumsum(lengths) + first
        failed = (
            [place for place, name in enumerate(step.roster.ids) if name in self.errors]
            if self.errors
            else []
        )
        nothing = np.zeros(len(failed), np.int64)
        failed_starts = [int(table.emit[seat]) if seat >= 0 else 0 for seat in step.seats[failed].tolist()]
        place = np.concatenate([parts.place[near], parts.place[far], np.array(failed, np.int64)])
        order = np.argsort(place)
        columns = (
            np.concatenate([starts, self._emit[far], np.array(failed_starts, np.int64)]),
            np.concatenate([begins, stop - lengths, nothing]),
            np.concatenate([ends, stop, nothing]),
        )
        ids = step.roster.ids
        roster = Roster(tuple([ids[int(index)] for index in place[order].tolist()]))
        starts, begins, ends = (column[order] for column in columns)
        return roster, starts, begins, ends

    def _plan_read(self, index: int, store: Store, fresh: Mapping[bytes, int]) -> Read | ProtocolViolation:
        size = self._block_size
        seat, start, end = int(self.parts.seat[index]), int(self._emit[index]), int(self.span.end[index])
        keys = self._table.keys[seat]
        stored_end = min(end // size, len(keys)) * size
        slots: list[int] = []
        if start < stored_end:
            wanted = keys[start // size : stored_end // size]
            found = store.find(wanted, fresh)
            if found is None:
                problem = f"of the blocks of rows [{start}, {stored_end}) some are not in the store"
                return ProtocolViolation("STORE-READ-1", self._table.ids[seat], problem)
            slots = found
        tail_start, first = end - end % size, max(start, stored_end)
        if first < tail_start:
            problem = f"the blocks of rows [{first}, {tail_start}) have no key yet"
            return ProtocolViolation("WORK-EMIT-3", self._table.ids[seat], problem)
        tail = slice(first - tail_start, end - tail_start)
        skip = start % size if slots else 0
        return Read(index, end - start, slots, skip, int(self.blocks.tail[index]), tail)

    def _objection(self, index: int, miscounted: bool, unbacked: bool) -> ProtocolViolation:
        parts = self.parts
        request_id = self._step.roster.ids[int(parts.place[index])]
        start, cursor = int(parts.start[index]), int(parts.cursor[index])
        if miscounted:
            problem = f"{parts.rejected[index]} of {parts.num_rows[index]} tokens are rejected"
            return ProtocolViolation("WORK-CAPTURE-5", request_id, problem)
        if start < cursor:
            problem = f"capture goes back from {cursor} to {start}"
            return ProtocolViolation("WORK-CAPTURE-2", request_id, problem)
        if unbacked:
            return ProtocolViolation("WORK-CAPTURE-3", request_id, f"capture skips [{cursor}, {start})")
        problem = f"the first capture starts at {cursor}, inside a block of {self._block_size}"
        return ProtocolViolation("WORK-CAPTURE-4", request_id, problem)

    def _keep_all_but(self, names: Container[str]) -> None:
        kept = self._not_among(names)
        self.parts = _Parts(*(column[kept] for column in self.parts))

    def _not_among(self, names: Container[str]) -> NDArray[np.bool_]:
        ids, seats = self._step.roster.ids, self.parts.place.tolist()
        return np.array([ids[int(place)] not in names for place in seats], np.bool_)
