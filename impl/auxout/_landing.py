"""One step being processed: its requests in columns, where their rows go, what they are due.

Nothing here changes a request or the store before ``commit``; rows are copied beyond the capture cursors, where nobody
looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._capture import Span, aligned, as_items, as_list, blocks_of, copy_rows, gather, places
from ._intake import Writing
from ._outputs import StepOutputs
from ._wire import Roster
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from numpy.typing import NDArray

    from ._requests import Ints, RequestTable
    from ._steps import Counts, PendingStep
    from .store import Store


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
        self,
        table: RequestTable,
        step: PendingStep,
        block_size: int,
        sampled: NDArray[Any],
        rejected: NDArray[Any],
    ) -> None:
        """Line up the requests that live and have not failed."""
        self._table = table
        self._step = step
        self._block_size = block_size
        self._waiting: list[tuple[int, int, int]] = []
        """Seat, block number and slot of full blocks that have no key."""
        self._turned: dict[int, list[tuple[int, int]]] = {}
        """Seat of a request whose tokens were replaced -> blocks that waited for a key and still stand."""
        self.dropped: list[int] = []
        """Slots of rows that no longer stand once the step is processed."""
        self._starts_inside = False
        captured = table.capture[step.seats]
        is_first = captured < 0
        if np.count_nonzero(is_first):
            captured = np.where(is_first, step.starts, captured)
            self._starts_inside = np.count_nonzero(step.starts[is_first] % block_size) > 0
        if table.turned:
            captured = self._turned_back(captured)
        self._moves = np.count_nonzero(captured != step.starts) > 0
        place = np.arange(len(captured))
        self.parts = _Parts(
            place, step.seats, step.starts, step.counts, step.bounds[:-1], sampled, rejected, captured
        )
        self.errors: dict[str, str] = {name: str(each) for name, each in step.failing.items()}
        if table.errors or step.failing:
            for request_id, seat in zip(step.roster.ids, step.seats.tolist(), strict=True):
                if seat in table.errors:
                    self.errors[request_id] = table.errors[seat]
            self._keep_all_but(self.errors)
        if step.stale:
            pairs = zip(step.roster.ids, step.seats.tolist(), strict=True)
            stale = {request_id for request_id, seat in pairs if seat in step.stale}
            self.errors = {name: error for name, error in self.errors.items() if name not in stale}
            self._keep_all_but(stale)

    def _turned_back(self, captured: Ints) -> Ints:
        """The capture cursors, back where a step starts in the block begun by a request whose tokens were replaced."""
        table, starts, seats = self._table, self._step.starts, self._step.seats
        back = np.isin(seats, list(table.turned)) & (table.tail[seats] >= 0)
        back &= (captured - captured % self._block_size <= starts) & (starts < captured)
        return np.where(back, starts, captured)

    def objections(self) -> list[ProtocolViolation]:
        """What is wrong with single requests, in batch order (WORK-CAPTURE-2 to -5)."""
        parts, size = self.parts, self._block_size
        miscounted = (parts.rejected < 0) | (parts.rejected > parts.num_rows) | (parts.num_rows < 1)
        if not (self._moves or self._starts_inside or np.count_nonzero(miscounted)):
            return []
        unbacked = (parts.start > parts.cursor) & (parts.cursor >= self._table.scheduled[parts.seat])
        inside = (parts.cursor % size != 0) & (self._table.tail[parts.seat] < 0)
        wrong = miscounted | (parts.start < parts.cursor) | unbacked | inside
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
        tail = self._table.tail[parts.seat]
        again = self._begin_again(store, tail) if self._table.turned else []
        self.blocks, new = blocks_of(span, self._block_size, tail, store.take)
        copy_rows(span, self.blocks, self._rows, store.blocks, store.rows)
        return again + new

    def _begin_again(self, store: Store, tail: Ints) -> list[int]:
        """Copy the rows that stand of blocks begun by requests whose tokens were replaced; the new slots.

        Args:
            tail: ``(n,)``, slots of the blocks that the parts have begun; gets the copies.
        """
        table, parts, size, new = self._table, self.parts, self._block_size, list[int]()
        for index in places(np.isin(parts.seat, list(table.turned))):
            seat = int(parts.seat[index])
            start, cursor = int(parts.start[index]), int(parts.cursor[index])
            self._turned[seat] = [each for each in table.waiting[seat] if (each[0] + 1) * size <= start]
            self.dropped += [slot for number, slot in table.waiting[seat] if (number + 1) * size > start]
            if cursor < table.capture[seat]:
                begun, num_rows = int(tail[index]), cursor % size
                self.dropped.append(begun)
                if num_rows:
                    new += (copy := store.take(1))
                    store.blocks[copy[0], :num_rows] = store.blocks[begun, :num_rows]
                    tail[index] = copy[0]
        return new

    def complete(self) -> Writing:
        """The full blocks that have a key, to be put; the others are to wait (WORK-PUBLISH-1). O(blocks)."""
        writing, blocks, table = Writing(), self.blocks, self._table
        full = blocks.num_full.nonzero()[0]
        if self._turned:
            turned = np.isin(self.parts.seat, list(self._turned))
            full = (turned | (blocks.num_full > 0)).nonzero()[0]
        seats, firsts = as_list(self.parts.seat[full]), as_list(blocks.first[full])
        bases, counts = as_list(blocks.base[full]), as_list(blocks.num_full[full])
        slots = as_list(blocks.slots) if seats else []
        for seat, first, base, count in zip(seats, firsts, bases, counts, strict=True):
            for number, slot in self._turned.get(seat, ()):
                if number < len(table.keys[seat]):
                    writing.add(table.ids[seat], table.keys[seat][number], slot)
                else:
                    self._waiting.append((seat, number, slot))
            keys = table.keys[seat][first : first + count]
            num_keyed = len(keys)
            writing.owners += [table.ids[seat]] * num_keyed
            writing.keys += keys
            writing.slots += slots[base : base + num_keyed]
            for index in range(num_keyed, count):
                self._waiting.append((seat, first + index, slots[base + index]))
        return writing

    def commit(self) -> None:
        """Advance the cursors of capture. Nothing of the step is refused from here on."""
        table, parts, span = self._table, self.parts, self.span
        table.capture[parts.seat] = span.end
        table.scheduled[parts.seat] = parts.start + parts.num_rows
        table.tail[parts.seat] = self.blocks.tail
        if self._turned:
            table.emit[parts.seat] = self._due_from()
        for seat in self._turned:
            table.turned.discard(seat)
            table.keep_waiting(seat, [])
        self._wait()

    def _wait(self) -> None:
        for seat, number, slot in self._waiting:
            self._table.waiting[seat].append((number, slot))
        self._table.num_waiting += len(self._waiting)

    def _due_from(self) -> Ints:
        """First positions to return: of those whose tokens were replaced, rows of dropped ones did not count."""
        parts, emit = self.parts, self._table.emit[self.parts.seat]
        if not self._turned:
            return emit
        return np.where(np.isin(parts.seat, list(self._turned)), np.minimum(emit, parts.start), emit)

    def plan_reads(self, store: Store, writing: Writing) -> tuple[list[Read], list[ProtocolViolation]]:
        """What is due of earlier steps, and requests of which something is missing (STORE-READ-1, WORK-EMIT-3).

        Args:
            writing: the blocks that the step will put.
        """
        reads: list[Read] = []
        objections: list[ProtocolViolation] = []
        self._emit = emit = self._due_from()
        self._due = (self.parts.sampled > 0) & (emit <= self.span.end)
        if self.errors:
            self._due &= self._not_among(self.errors)
        far = emit < self.parts.cursor
        if np.count_nonzero(far):
            fresh = writing.by_key()
            for index in places(far & self._due):
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
        near = self._due & (emit >= parts.cursor)
        self._table.emit[parts.seat[self._due]] = end[self._due]
        # Of those whose rows the step computed: where they are in its rows.
        begins = (parts.source + emit - parts.cursor)[near]
        ends = (parts.source + self.span.num_accepted)[near]
        part, buffer = near.nonzero()[0], self._rows
        if reads or not self._step.owned:
            num_near = int((ends - begins).sum())
            num_rows = num_near + sum(read.num_rows for read in reads)
            buffer = aligned((num_rows, *buffer.shape[1:]), buffer.dtype)
            if num_near:
                begins, ends = self._copy_near(begins, ends, buffer[:num_near])
            if reads:
                self._copy_far(reads, arena, buffer[num_near:])
                far = np.array([(read.part, read.num_rows) for read in reads], np.int64)
                stop = num_near + far[:, 1].cumsum()
                part = np.concatenate([part, far[:, 0]])
                begins, ends = np.concatenate([begins, stop - far[:, 1]]), np.concatenate([ends, stop])
        if len(part) == len(self._step.starts) and (not reads or len(part) == 1):
            return StepOutputs(self._step.roster, emit, (begins, ends), buffer, {})
        roster, starts, begins, ends = self._in_batch_order(part, begins, ends)
        return StepOutputs(roster, starts, (begins, ends), buffer, self.errors)

    @property
    def _rows(self) -> NDArray[Any]:
        assert self._step.rows is not None
        return self._step.rows

    def _copy_near(self, begins: Ints, ends: Ints, out: NDArray[Any]) -> tuple[Ints, Ints]:
        """Copy rows of the step to ``out``, each request's from its begin to its end; where they are then."""
        rows, lengths = self._rows, ends - begins
        stop = lengths.cumsum()
        if len(out) == len(rows):
            out[:] = rows
        elif len(out):
            index = np.arange(len(out)) + (begins - (stop - lengths)).repeat(lengths)
            np.take(as_items(rows), index, out=as_items(out), mode="clip")
        return stop - lengths, stop

    @staticmethod
    def _copy_far(reads: Sequence[Read], arena: NDArray[Any], out: NDArray[Any]) -> None:
        """Copy rows read back, one request after the other."""
        for read in reads:
            rows, out = out[: read.num_rows], out[read.num_rows :]
            if read.slots:
                gather(arena, read.slots, read.skip, rows)
            num_tail = read.tail.stop - read.tail.start
            if num_tail:
                rows[read.num_rows - num_tail :] = arena[read.tail_slot, read.tail]

    def _in_batch_order(self, part: Ints, begins: Ints, ends: Ints) -> tuple[Roster, Ints, Ints, Ints]:
        """Put requests together whose rows the step computed, whose rows were read back, and that failed."""
        step, table = self._step, self._table
        ids = step.roster.ids
        failed = [place for place, name in enumerate(ids) if name in self.errors] if self.errors else []
        failed_starts = [int(table.emit[seat]) if seat >= 0 else 0 for seat in step.seats[failed].tolist()]
        nothing = np.zeros(len(failed), np.int64)
        place = np.concatenate([self.parts.place[part], np.array(failed, np.int64)])
        order = np.argsort(place)
        starts, begins, ends = (
            np.concatenate(columns)[order]
            for columns in (
                (self._emit[part], np.array(failed_starts, np.int64)),
                (begins, nothing),
                (ends, nothing),
            )
        )
        roster = Roster(tuple([ids[int(index)] for index in place[order].tolist()]))
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


class PlainLanding(Landing):
    """A step that most decode steps are: every request adds one row and is due just that row.

    The same as ``Landing`` with most of the arithmetic left out.
    """

    def __init__(self, table: RequestTable, step: PendingStep, block_size: int) -> None:
        """A step of which ``is_plain`` holds."""
        self._table = table
        self._step = step
        self._block_size = block_size
        self._waiting = []
        self.dropped = []
        self.errors = {}

    @staticmethod
    def fits(table: RequestTable, step: PendingStep, sampled: NDArray[Any], rejected: NDArray[Any]) -> bool:
        """Whether a step is a plain one."""
        if (
            not step.is_plain
            or step.stale
            or table.turned
            or np.count_nonzero(rejected)
            or np.count_nonzero(sampled > 0) < len(sampled)
        ):
            return False
        starts, seats = step.starts, step.seats
        other = (table.capture[seats] != starts) | (table.emit[seats] != starts)
        return np.count_nonzero(other) == 0

    def objections(self) -> list[ProtocolViolation]:
        """Nothing is wrong with single requests."""
        return []

    def store_rows(self, store: Store) -> list[int]:
        """Copy the rows into blocks, beyond the capture cursors; the new slots. O(rows)."""
        size, cursor = self._block_size, self._step.starts
        self._numbers = numbers = cursor // size
        self._offsets = offsets = cursor - numbers * size
        self._slots = slots = self._table.tail[self._step.seats]
        is_new = offsets == 0
        new = store.take(int(np.count_nonzero(is_new)))
        if new:
            slots[is_new] = new
        store.rows[slots * size + offsets] = as_items(self._rows)
        return new

    def complete(self) -> Writing:
        """The full blocks that have a key, to be put; the others are to wait (WORK-PUBLISH-1). O(blocks)."""
        full = (self._offsets == self._block_size - 1).nonzero()[0]
        slots = self._slots[full]
        self._slots[full] = -1
        writing = Writing()
        owners, written, filled = writing.owners, writing.keys, writing.slots
        ids, all_keys = self._table.ids, self._table.keys
        seats, numbers = as_list(self._step.seats[full]), as_list(self._numbers[full])
        for seat, number, slot in zip(seats, numbers, as_list(slots), strict=True):
            keys = all_keys[seat]
            if number < len(keys):
                owners.append(ids[seat])
                written.append(keys[number])
                filled.append(slot)
            else:
                self._waiting.append((seat, number, slot))
        return writing

    def commit(self) -> None:
        """Advance the cursors. Nothing of the step is refused from here on."""
        table, seats = self._table, self._step.seats
        end = self._step.starts + 1
        table.capture[seats] = table.scheduled[seats] = table.emit[seats] = end
        table.tail[seats] = self._slots
        self._wait()

    def plan_reads(self, store: Store, writing: Writing) -> tuple[list[Read], list[ProtocolViolation]]:
        """Nothing is due of earlier steps."""
        return [], []

    def outputs(self, arena: NDArray[Any], reads: Sequence[Read]) -> StepOutputs:
        """What the step's requests are due: its rows (WORK-EMIT-1, -2)."""
        step = self._step
        rows = self._rows if step.owned else np.array(self._rows)
        return StepOutputs(step.roster, step.starts, None, rows, {})


def land(
    table: RequestTable, step: PendingStep, block_size: int, sampled: Counts, rejected: Counts, strict: bool
) -> Landing:
    """Begin to process a step. O(1) array operations.

    Args:
        strict: whether a batch that does not fit is refused as a whole, which ``PlainLanding`` takes for granted.

    Raises:
        ProtocolViolation: WORK-STEP-1: samples of another batch.
    """
    num_sampled, num_rejected = np.asarray(sampled, np.int64), np.asarray(rejected, np.int64)
    if not num_sampled.shape == num_rejected.shape == step.starts.shape:
        raise ProtocolViolation("WORK-STEP-1", None, "samples are not those of the step's batch")
    if strict and PlainLanding.fits(table, step, num_sampled, num_rejected):
        return PlainLanding(table, step, block_size)
    return Landing(table, step, block_size, num_sampled, num_rejected)
