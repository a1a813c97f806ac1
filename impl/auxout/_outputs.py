"""A step's outputs: rows of all requests in one buffer, pickled as such, read like ``dict[str, AuxRequestOutput]``.

In a decode step every request is due one row, and an array, an object and a pickle entry for each cost far more than
the rows. So outputs are columns over one buffer. An ``AuxRequestOutput`` of each request is made only when one is
looked up, which our scheduler connector does not do.

A view of the buffer keeps all of it alive. Rows that are looked up are therefore copies where the buffer is more than
twice as large, and ``RowSharing`` decides whether those that our scheduler connector hands out are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from operator import methodcaller
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ._wire import AuxRequestOutput, Roster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._wire import FlatIds

    Ints = NDArray[np.integer[Any]]
    Parts = dict[str, tuple[int, int, NDArray[Any]]]
    """Request -> token start, token end and rows."""


class StepOutputs(Mapping[str, AuxRequestOutput]):
    """Request -> its output, in batch order; read-only. The first look-up makes a table of all, in O(n + rows).

    Attributes:
        parts: what the scheduler connector hands out, once ``RowSharing`` has split the step.
    """

    def __init__(
        self,
        roster: Roster,
        starts: Ints,
        ranges: tuple[Ints, Ints] | None,
        buffer: NDArray[Any],
        errors: Mapping[str, str],
    ) -> None:
        """Columns over a buffer; they are kept, not copied, and must not change.

        Args:
            roster: the requests that have an output.
            starts: ``(n,)``, position of each one's first row.
            ranges: where each one's rows begin and end in ``buffer``, ``(n,)`` each; None: one row each, in order.
            buffer: ``(num_rows, num_layers, top_k)``.
            errors: request -> why it failed.
        """
        self._roster = roster
        self._starts = starts
        self._ranges = ranges
        self._buffer = buffer
        self._errors = errors
        self.parts: Parts | None = None

    def split(self, copy: bool) -> Parts:
        """Rows of each request by itself, failed ones left out. O(n), with copies also of the rows.

        Args:
            copy: whether rows are copied where the buffer is more than twice as large; else all are views of it.
        """
        buffer = self._buffer
        if self._ranges is None:
            lengths: Any = 1
            rows: Any = buffer[:, np.newaxis]
            if copy:
                rows = map(methodcaller("copy") if len(buffer) > 2 else owned, rows)
        else:
            begins, ends = self._ranges
            lengths = ends - begins
            bounds = zip(begins.tolist(), ends.tolist(), strict=True)
            rows = [buffer[begin:end] for begin, end in bounds]
            if copy:
                rows = map(owned, rows)
        starts, ends = self._starts.tolist(), (self._starts.astype(np.int64) + lengths).tolist()
        parts = dict(zip(self._roster.ids, zip(starts, ends, rows, strict=True), strict=True))
        for request_id in self._errors:
            parts.pop(request_id, None)
        return parts

    @cached_property
    def _by_id(self) -> dict[str, AuxRequestOutput]:
        parts = self.split(copy=True)
        sound = {name: AuxRequestOutput(start, rows) for name, (start, _, rows) in parts.items()}
        if not self._errors:
            return sound
        starts, no_rows = self._starts.tolist(), self._buffer[:0]
        return {
            name: sound[name] if name in sound else AuxRequestOutput(start, no_rows, self._errors[name])
            for name, start in zip(self._roster.ids, starts, strict=True)
        }

    def __getitem__(self, request_id: str) -> AuxRequestOutput:
        return self._by_id[request_id]

    def get(self, key: str, default: Any = None) -> Any:
        """The request's output, without an exception on the way where there is none."""
        return self._by_id.get(key, default)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def __iter__(self) -> Iterator[str]:
        return iter(self._roster.ids)

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        return f"StepOutputs({dict(self)})"

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:
        """Pickle as one buffer with its columns. O(bytes of rows + n)."""
        rows: Any = self._buffer
        lengths: bytes | None = None
        if self._ranges is not None:
            begins, ends = self._ranges
            rows, lengths = self._compact(begins, ends - begins), _packed(ends - begins)
        # An array's own pickle costs more than the other columns together.
        data = PickleBuffer(rows) if protocol >= 5 else rows.tobytes()
        columns = self._roster.pack(), _packed(self._starts), lengths
        return _restore, (*columns, data, rows.dtype.str, rows.shape[1:], dict(self._errors))

    def _compact(self, begins: Ints, lengths: Ints) -> NDArray[Any]:
        """The rows that are due, in the order of the requests."""
        ends = lengths.cumsum()
        total = int(lengths.sum())
        if total == len(self._buffer) and not np.count_nonzero(begins != ends - lengths):
            return self._buffer
        return self._buffer[np.arange(total) + (begins - (ends - lengths)).repeat(lengths)]


class RowSharing:
    """Whether the rows that are handed out for the requests of a step may share its buffer.

    Views cost less than copies, and where the engine drops rows within the step, as it does when it sends them to
    another process, sharing holds no more memory. Where it keeps some, each holds the rows of all requests of its step.
    So the first step's rows are copies; while no rows of the step before are alive, the next step's are views; and
    from the first time that some are alive, all are copies. What is held beyond twice the rows kept is at most one
    buffer of one step, once.
    """

    def __init__(self) -> None:
        """Nothing is handed out yet."""
        self._last: list[ref[NDArray[Any]]] | None = None
        """The memory of the rows handed out last."""
        self._kept = False

    def split(self, outputs: StepOutputs) -> Parts:
        """Set the ``parts`` of a step's outputs, when the first of them is taken. O(n)."""
        first = self._last is None
        for memory in self._last or ():
            self._kept = self._kept or memory() is not None
        outputs.parts = parts = outputs.split(first or self._kept)
        self._last = []
        if not self._kept:
            for _, _, rows in parts.values():
                self._last.append(ref(_memory(rows)))
                if not first:
                    break  # the others are views of the same memory
        return parts


def owned(rows: Any) -> NDArray[Any]:
    """The rows, copied where they are a view of memory more than twice as large."""
    return rows.copy() if _memory(rows).nbytes > 2 * rows.nbytes else rows


def _memory(rows: NDArray[Any]) -> NDArray[Any]:
    """The array that a view is of: numpy lets all views of an array, also views of views, refer to it alone."""
    base = rows.base
    return base if isinstance(base, np.ndarray) else rows


def _packed(positions: Ints) -> bytes:
    """Positions and counts are below 2**32."""
    return positions.astype("<u4").tobytes()


def _restore(
    ids: FlatIds,
    starts: bytes,
    lengths: bytes | None,
    data: Any,
    dtype: str,
    shape: tuple[int, ...],
    errors: Mapping[str, str],
) -> StepOutputs:
    if memoryview(data).readonly:  # a transport's shared memory, which is not ours to keep
        data = bytearray(data)
    flat: Any = np.frombuffer(data, dtype)
    buffer = flat.reshape(-1, *shape)
    roster, token_starts = Roster.unpack(ids), np.frombuffer(starts, "<u4")
    if lengths is None:
        return StepOutputs(roster, token_starts, None, buffer, errors)
    counts = np.frombuffer(lengths, "<u4").astype(np.int64)
    ends = counts.cumsum()
    return StepOutputs(roster, token_starts, (ends - counts, ends), buffer, errors)
