"""What travels between scheduler and worker, and how it is pickled.

Metadata is made and pickled in every step, for every scheduled request, on the thread that schedules. So it
is kept in columns, one list of emit starts beside the ids of the batch, and pickled by the column: one string
of ids, one buffer of emit starts and one of hashes, instead of an object per request. It still reads like
dictionaries: iterating walks the columns, and the first look-up of an id makes a table. Any id and any integer
survives; what does not fit the flat form is pickled as it is.
"""

from __future__ import annotations

import struct
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from . import _kernel
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEPARATOR = "\0"
_JOIN_LIMIT = 1024
"""Average bytes of hashes per request up to which those of all requests are joined; above, the copy costs more."""

if TYPE_CHECKING:
    FlatIds = str | Sequence[str]
    """Ids joined by the separator, or as they are."""
    FlatInts = bytes | Sequence[int]
    """32-bit unsigned little-endian integers, or as they are."""
    FlatHashes = tuple[FlatIds, bytes | Sequence[bytes], int | FlatInts, int | FlatInts]
    """Ids; hashes, joined if short; bytes per id and bytes per hash, one number if all are alike."""
    HashColumns = tuple[list[str], list[bytes], list[int]]
    """Ids; hashes, joined for each id; bytes per hash."""

_V = TypeVar("_V")


@dataclass(slots=True)
class PackedBlockHashes:
    """Block hashes of one request, joined.

    Attributes:
        data: the hashes, back to back.
        item_size: bytes per hash.
    """

    data: bytes
    item_size: int

    def __iter__(self) -> Iterator[bytes]:
        """Yield the hashes in order (WIRE-HASH-1, -4). O(number of hashes).

        Raises:
            ProtocolViolation: ``item_size`` is not positive (WIRE-HASH-2) or does not divide the length of
                ``data`` (WIRE-HASH-3). Unpickling does not check, reading does.
        """
        data, size = self.data, self.item_size
        if _kernel.num_packed(len(data), size) < 0:
            if size < 1:
                raise ProtocolViolation("WIRE-HASH-2", None, f"packed hashes have item size {size}")
            problem = f"packed hashes of {len(data)} bytes cannot be cut into items of {size}"
            raise ProtocolViolation("WIRE-HASH-3", None, problem)
        return map(data.__getitem__, map(slice, range(0, len(data), size), range(size, len(data) + 1, size)))


@dataclass(slots=True)
class AuxRequestOutput:
    """Rows that the worker returned for one request of one step.

    Attributes:
        token_start: position of ``rows[0]``.
        rows: ``(num_rows, num_layers, top_k)``, ``uint8`` or ``uint16`` logical expert ids.
    """

    token_start: int
    rows: NDArray[Any]


class Roster:
    """The ids of one batch, in order; batches of several steps share it, so that they are joined once."""

    __slots__ = ("_packed", "ids")

    def __init__(self, ids: Sequence[str], packed: FlatIds | None = None) -> None:
        """``ids`` is kept, not copied, and must not change; ``packed`` is what they were unpacked from."""
        self.ids = ids
        self._packed = packed

    def pack(self) -> FlatIds:
        """The ids as one string, or as they are if one string would be ambiguous. O(n) once, then O(1)."""
        if self._packed is None:
            self._packed = _pack_ids(self.ids)
        return self._packed


class _Columns(Mapping[str, _V]):
    """Id -> value, read-only. Iterating walks columns; the first look-up builds a dictionary in O(n)."""

    __slots__ = ("_table",)

    _table: dict[str, _V] | None

    def walk(self) -> Iterator[tuple[str, _V]]:
        """The pairs in order."""
        raise NotImplementedError

    def _by_id(self) -> dict[str, _V]:
        if self._table is None:
            self._table = dict(self.walk())
        return self._table

    def __getitem__(self, request_id: str) -> _V:
        return self._by_id()[request_id]

    def items(self) -> ItemsView[str, _V]:
        """Pairs in order."""
        return _Pairs(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._by_id()})"


class _Pairs(ItemsView[str, _V]):
    """The items of columns, without a look-up for each."""

    __slots__ = ("_columns",)

    def __init__(self, columns: _Columns[_V]) -> None:
        super().__init__(columns)
        self._columns = columns

    def __iter__(self) -> Iterator[tuple[str, _V]]:
        return self._columns.walk()


class EmitStarts(_Columns[int]):
    """Request -> emit start: ids of a roster beside their positions. Creating one is O(1)."""

    __slots__ = ("_roster", "_starts")

    def __init__(self, roster: Roster, starts: Sequence[int]) -> None:
        """``starts`` is kept, not copied, and must not change."""
        self._roster = roster
        self._starts = starts
        self._table = None

    def walk(self) -> Iterator[tuple[str, int]]:
        """Pairs in batch order."""
        return zip(self._roster.ids, self._starts, strict=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._roster.ids)

    def __len__(self) -> int:
        return len(self._starts)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_starts, self.pack()

    def pack(self) -> tuple[FlatIds, FlatInts]:
        """Ids and starts, flat."""
        return self._roster.pack(), _pack_ints(self._starts)


class NewHashes(_Columns[PackedBlockHashes]):
    """Request -> its new hashes. Creating one is O(1)."""

    __slots__ = ("_data", "_names", "_sizes")

    def __init__(self, names: Sequence[str], data: Sequence[bytes], sizes: Sequence[int]) -> None:
        """Columns of ids, joined hashes and bytes per hash; they are kept, not copied, and must not change."""
        self._names = names
        self._data = data
        self._sizes = sizes
        self._table = None

    def walk(self) -> Iterator[tuple[str, PackedBlockHashes]]:
        """Pairs, in no order that means anything."""
        return zip(self._names, map(PackedBlockHashes, self._data, self._sizes), strict=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_hashes, (self.pack(),)

    def pack(self) -> FlatHashes | None:
        """Ids, hashes, bytes per id and bytes per hash, flat; None if there is no entry."""
        names, data, sizes = self._names, self._data, self._sizes
        if not names:
            return None
        lengths = list(map(len, data))
        joined = b"".join(data) if sum(lengths) <= _JOIN_LIMIT * len(names) else data
        return _pack_ids(names), joined, _pack_alike(lengths), _pack_alike(sizes)


def _no_hashes() -> dict[str, PackedBlockHashes]:
    return {}


@dataclass
class AuxOutputConnectorMetadata:
    """What the worker has to know before one step.

    Attributes:
        generation: namespace of the hashes.
        requests: scheduled request -> emit start, in batch order.
        block_hashes: request -> hashes that the worker lacks; no entry when there are none.
        finished_requests: requests that ended since the last metadata, in that order.
        finished_block_hashes: last hashes of requests whose id ended and runs again in this step; their
            entry in ``block_hashes`` is that of the new activation (SCHED-RESTART-3).
    """

    generation: int
    requests: Mapping[str, int]
    block_hashes: Mapping[str, PackedBlockHashes]
    finished_requests: tuple[str, ...]
    finished_block_hashes: Mapping[str, PackedBlockHashes] = field(default_factory=_no_hashes)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle flat (WIRE-META-1). O(scheduled requests + bytes of hashes)."""
        requests, apart = self.requests, self.finished_block_hashes
        if not isinstance(requests, EmitStarts):
            requests = EmitStarts(Roster(tuple(requests)), tuple(requests.values()))
        columns = (
            self.generation,
            self.finished_requests,
            *requests.pack(),
            _flatten(self.block_hashes),
        )
        return _restore_metadata, (*columns, _flatten(apart)) if apart else columns


def _restore_metadata(
    generation: int,
    finished_requests: tuple[str, ...],
    ids: FlatIds,
    starts: FlatInts,
    hashes: FlatHashes | None,
    apart: FlatHashes | None = None,
) -> AuxOutputConnectorMetadata:
    return AuxOutputConnectorMetadata(
        generation,
        _restore_starts(ids, starts),
        _restore_hashes(hashes),
        finished_requests,
        _restore_hashes(apart),
    )


def _restore_starts(ids: FlatIds, starts: FlatInts) -> EmitStarts:
    return EmitStarts(Roster(_unpack_ids(ids), ids), _unpack_ints(starts))


def _restore_hashes(flat: FlatHashes | None) -> NewHashes:
    if flat is None:
        return NewHashes((), (), ())
    ids, data, lengths, sizes = flat
    names = _unpack_ids(ids)
    if isinstance(data, bytes):
        data = _cut(data, lengths, len(names))
    return NewHashes(names, data, [sizes] * len(names) if isinstance(sizes, int) else _unpack_ints(sizes))


def _flatten(hashes: Mapping[str, PackedBlockHashes]) -> FlatHashes | None:
    if not isinstance(hashes, NewHashes):
        packed = list(hashes.values())
        hashes = NewHashes(list(hashes), [each.data for each in packed], [each.item_size for each in packed])
    return hashes.pack()


def _pack_ids(ids: Sequence[str]) -> FlatIds:
    packed = _SEPARATOR.join(ids)
    # An id that holds the separator, or no id at all, could not be told apart.
    return packed if packed.count(_SEPARATOR) == len(ids) - 1 else tuple(ids)


def _unpack_ids(packed: FlatIds) -> Sequence[str]:
    return packed.split(_SEPARATOR) if isinstance(packed, str) else packed


def _pack_ints(values: Sequence[int]) -> FlatInts:
    try:
        return struct.pack(f"<{len(values)}I", *values)
    except struct.error:  # negative, or beyond 32 bits
        return tuple(values)


def _unpack_ints(packed: FlatInts) -> Sequence[int]:
    return struct.unpack(f"<{len(packed) // 4}I", packed) if isinstance(packed, bytes) else packed


def _pack_alike(values: Sequence[int]) -> int | FlatInts:
    return values[0] if values.count(values[0]) == len(values) else _pack_ints(values)


def _cut(data: bytes, lengths: int | FlatInts, count: int) -> Sequence[bytes]:
    """Cut bytes into ``count`` pieces of these lengths, or all of one length."""
    if isinstance(lengths, int):
        return [data[index * lengths : (index + 1) * lengths] for index in range(count)]
    ends = list(accumulate(_unpack_ints(lengths)))
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
