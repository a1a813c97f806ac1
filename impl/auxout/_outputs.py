"""A step's outputs: rows of all requests in one buffer, pickled as such, read like ``dict[str, AuxRequestOutput]``.

In a decode step every request is due one row, and an array, an object and a pickle entry for each cost far more than
the rows. So outputs are columns over one buffer, and an ``AuxRequestOutput`` is made for whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

import numpy as np

from ._wire import AuxRequestOutput, Roster, unpack_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._wire import FlatIds

    Ints = NDArray[np.integer[Any]]


class StepOutputs(Mapping[str, AuxRequestOutput]):
    """Request -> its output, in batch order; read-only. The first look-up makes them all, in O(n).

    Rows are views of the buffer that all requests of the step share: who keeps some of them keeps it all.
    """

    __slots__ = ("_begins", "_buffer", "_ends", "_errors", "_roster", "_starts", "_table")

    def __init__(
        self,
        roster: Roster,
        starts: Ints,
        begins: Ints,
        ends: Ints,
        buffer: NDArray[Any],
        errors: Mapping[str, str],
    ) -> None:
        """Columns over a buffer; they are kept, not copied, and must not change.

        Args:
            roster: the requests that have an output.
            starts: ``(n,)``, position of each one's first row.
            begins: ``(n,)``, where its rows begin in ``buffer``.
            ends: ``(n,)``, where they end.
            buffer: ``(num_rows, num_layers, top_k)``.
            errors: request -> why it failed.
        """
        self._roster = roster
        self._starts = starts
        self._begins = begins
        self._ends = ends
        self._buffer = buffer
        self._errors = errors
        self._table: dict[str, AuxRequestOutput] | None = None

    def __getitem__(self, request_id: str) -> AuxRequestOutput:
        return (self._table or self._make_table())[request_id]

    def get(self, key: str, default: Any = None) -> Any:
        """The request's output, without an exception on the way where there is none."""
        return (self._table or self._make_table()).get(key, default)

    def __contains__(self, request_id: object) -> bool:
        return request_id in (self._table or self._make_table())

    def __iter__(self) -> Iterator[str]:
        return iter(self._roster.ids)

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        return f"StepOutputs({dict(self)})"

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:
        """Pickle as one buffer with its columns. O(bytes of rows + n)."""
        lengths = self._ends - self._begins
        rows: Any = self._compact(lengths)
        # An array's own pickle costs more than the other columns together.
        data = PickleBuffer(rows) if protocol >= 5 else rows.tobytes()
        columns = self._roster.pack(), _packed(self._starts), _packed(lengths)
        return _restore, (*columns, data, rows.dtype.str, rows.shape[1:], dict(self._errors))

    def _compact(self, lengths: Ints) -> NDArray[Any]:
        """The rows that are due, in the order of the requests."""
        ends = np.cumsum(lengths)
        total = int(lengths.sum())
        if total == len(self._buffer) and not np.count_nonzero(self._begins != ends - lengths):
            return self._buffer
        return self._buffer[np.arange(total) + np.repeat(self._begins - (ends - lengths), lengths)]

    def _make_table(self) -> dict[str, AuxRequestOutput]:
        buffer, begins, ends = self._buffer, self._begins, self._ends
        one_each = np.arange(len(buffer))
        if np.array_equal(begins, one_each) and np.array_equal(ends, one_each + 1):  # a decode step
            views = buffer[:, np.newaxis]
        else:
            views = [buffer[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        made = map(AuxRequestOutput, self._starts.tolist(), views)
        self._table = dict(zip(self._roster.ids, made, strict=True))
        for request_id, error in self._errors.items():
            self._table[request_id].error = error
        return self._table


def _packed(positions: Ints) -> bytes:
    """Positions and counts are below 2**32."""
    return positions.astype("<u4").tobytes()


def _restore(
    ids: FlatIds,
    starts: bytes,
    lengths: bytes,
    data: Any,
    dtype: str,
    shape: tuple[int, ...],
    errors: Mapping[str, str],
) -> StepOutputs:
    if memoryview(data).readonly:  # a transport's shared memory, which is not ours to keep
        data = bytearray(data)
    flat: Any = np.frombuffer(data, dtype)
    buffer = flat.reshape(-1, *shape)
    counts = np.frombuffer(lengths, "<u4").astype(np.int64)
    ends = np.cumsum(counts)
    roster = Roster(unpack_ids(ids), ids)
    return StepOutputs(roster, np.frombuffer(starts, "<u4"), ends - counts, ends, buffer, errors)
