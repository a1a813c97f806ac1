"""A step's outputs: rows of all requests in one buffer, pickled as such, read like ``dict[str, AuxRequestOutput]``.

In a decode step every request is due one row, and an array, an object and a pickle entry for each cost far more than
the rows. So outputs are columns over one buffer, and an ``AuxRequestOutput`` is made for whoever asks for it: our
scheduler connector does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

import numpy as np

from ._wire import AuxRequestOutput, Roster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._wire import FlatIds

    Ints = NDArray[np.integer[Any]]


class StepOutputs(Mapping[str, AuxRequestOutput]):
    """Request -> its output, in batch order; read-only. The first look-up makes a table of all, in O(n).

    Rows are views of the buffer that all requests of the step share: who keeps some of them keeps it all.
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

    @cached_property
    def parts(self) -> dict[str, tuple[int, int, NDArray[Any]]]:
        """Token start, token end and rows of each request. O(n) once, then O(1)."""
        if self._ranges is None:
            lengths: Any = 1
            views: Any = self._buffer[:, np.newaxis]
        else:
            begins, ends = self._ranges
            lengths = ends - begins
            views = [
                self._buffer[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
            ]
        starts, ends = self._starts.tolist(), (self._starts.astype(np.int64) + lengths).tolist()
        return dict(zip(self._roster.ids, zip(starts, ends, views, strict=True), strict=True))

    def __getitem__(self, request_id: str) -> AuxRequestOutput:
        start, _, rows = self.parts[request_id]
        return AuxRequestOutput(start, rows, self._errors.get(request_id))

    def get(self, key: str, default: Any = None) -> Any:
        """The request's output, without an exception on the way where there is none."""
        return self[key] if key in self.parts else default

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.parts

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
