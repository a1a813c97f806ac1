"""A step's outputs: rows of all requests in one buffer, pickled as such, read like ``dict[str, AuxRequestOutput]``.

In a decode step every request is due one row, and an array, an object and a pickle entry for each cost far more than
the rows. So outputs are columns over one buffer, and an ``AuxRequestOutput`` is made for whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._wire import AuxRequestOutput, Roster, unpack_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._wire import FlatIds

    Ints = NDArray[np.integer[Any]]


class _Index(NamedTuple):
    """Where each request's output is, as Python integers: items of arrays are slow to get one by one."""

    places: dict[str, int]
    starts: list[int]
    begins: list[int]
    ends: list[int]


class StepOutputs(Mapping[str, AuxRequestOutput]):
    """Request -> its output, in batch order; read-only. A look-up is O(1), the first one O(n).

    Rows are views of the buffer that all requests of the step share: who keeps some of them keeps it all.
    """

    __slots__ = ("_begins", "_buffer", "_ends", "_errors", "_index", "_roster", "_starts")

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
            begins: ``(n,)``, where its rows begin in ``buffer``, in ascending order.
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
        self._index: _Index | None = None

    def __getitem__(self, request_id: str) -> AuxRequestOutput:
        index = self._index or self._make_index()
        place = index.places[request_id]
        rows = self._buffer[index.begins[place] : index.ends[place]]
        error = self._errors.get(request_id) if self._errors else None
        return AuxRequestOutput(index.starts[place], rows, error)

    def get(self, key: str, default: Any = None) -> Any:
        """The request's output, without an exception on the way where there is none."""
        index = self._index or self._make_index()
        return self[key] if key in index.places else default

    def __contains__(self, request_id: object) -> bool:
        return request_id in (self._index or self._make_index()).places

    def __iter__(self) -> Iterator[str]:
        return iter(self._roster.ids)

    def __len__(self) -> int:
        return len(self._starts)

    def __repr__(self) -> str:
        return f"StepOutputs({dict(self)})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as one buffer with its columns. O(bytes of rows + n)."""
        lengths = self._ends - self._begins
        state = self._roster.pack(), _packed(self._starts), _packed(lengths), self._compact(lengths)
        return _restore, (*state, dict(self._errors)) if self._errors else state

    def _compact(self, lengths: Ints) -> NDArray[Any]:
        """The buffer without rows that nobody is due."""
        total = int(lengths.sum())
        if total == len(self._buffer):
            return self._buffer
        ends = np.cumsum(lengths)
        return self._buffer[np.arange(total) + np.repeat(self._begins - (ends - lengths), lengths)]

    def _make_index(self) -> _Index:
        places = {request_id: place for place, request_id in enumerate(self._roster.ids)}
        columns = self._starts.tolist(), self._begins.tolist(), self._ends.tolist()
        self._index = _Index(places, *columns)
        return self._index


def _packed(positions: Ints) -> bytes:
    """Positions and counts are below 2**32."""
    return positions.astype("<u4").tobytes()


def _restore(
    ids: FlatIds, starts: bytes, lengths: bytes, buffer: NDArray[Any], errors: Mapping[str, str] | None = None
) -> StepOutputs:
    if not buffer.flags.writeable:  # a transport's shared memory, which is not ours to keep
        buffer = np.array(buffer)
    counts = np.frombuffer(lengths, "<u4").astype(np.int64)
    ends = np.cumsum(counts)
    roster = Roster(unpack_ids(ids), ids)
    return StepOutputs(roster, np.frombuffer(starts, "<u4"), ends - counts, ends, buffer, errors or {})
