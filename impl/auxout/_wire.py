"""What travels between scheduler and worker, and how it is pickled.

Metadata is pickled in every step, for every scheduled request, on the thread that schedules. So it is pickled
flat: one string of ids, one buffer of emit starts and one of hashes, instead of one object per request. Any
id and any integer survives; what does not fit the flat form is pickled as it is.
"""

from __future__ import annotations

import struct
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _kernel
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEPARATOR = "\0"
_JOIN_LIMIT = 1024
"""Average bytes of hashes per request up to which those of all requests are joined; above, the copy costs more."""

if TYPE_CHECKING:
    FlatIds = str | tuple[str, ...]
    """Ids joined by the separator, or as they are."""
    FlatInts = bytes | tuple[int, ...]
    """64-bit little-endian integers, or as they are."""
    FlatHashes = tuple[FlatIds, bytes | tuple[bytes, ...], int | FlatInts, int | FlatInts]
    """Ids; hashes, joined if short; bytes per id and bytes per hash, one number if all are alike."""


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

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids
        self._packed: FlatIds | None = None

    def pack(self) -> FlatIds:
        """The ids as one string, or as they are if one string would be ambiguous. O(n) once, then O(1)."""
        if self._packed is None:
            self._packed = _pack_ids(self.ids)
        return self._packed


class EmitStarts(Mapping[str, int]):
    """Request -> emit start, read-only: ids of a roster beside their positions.

    Creating one is O(1); the first look-up builds a dictionary in O(n).
    """

    __slots__ = ("_roster", "_starts", "_table")

    def __init__(self, roster: Roster, starts: Sequence[int]) -> None:
        """``starts`` is kept, not copied, and must not change."""
        self._roster = roster
        self._starts = starts
        self._table: dict[str, int] | None = None

    def _by_id(self) -> dict[str, int]:
        if self._table is None:
            self._table = dict(zip(self._roster.ids, self._starts, strict=True))
        return self._table

    def __getitem__(self, request_id: str) -> int:
        return self._by_id()[request_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._roster.ids)

    def __len__(self) -> int:
        return len(self._starts)

    def keys(self) -> KeysView[str]:
        """Ids in batch order."""
        return self._by_id().keys()

    def values(self) -> ValuesView[int]:
        """Emit starts in batch order."""
        return self._by_id().values()

    def items(self) -> ItemsView[str, int]:
        """Pairs in batch order."""
        return self._by_id().items()

    def __repr__(self) -> str:
        return f"EmitStarts({self._by_id()})"

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_starts, self.pack()

    def pack(self) -> tuple[FlatIds, FlatInts]:
        """Ids and starts, flat."""
        return self._roster.pack(), _pack_ints(self._starts)


class NewHashes(Mapping[str, PackedBlockHashes]):
    """Request -> its new hashes, read-only; the first look-up builds a dictionary in O(n)."""

    __slots__ = ("_entries", "_table")

    def __init__(self, entries: Sequence[tuple[str, bytes, int]]) -> None:
        """``entries`` of id, joined hashes and size of one; it is kept, not copied, and must not change."""
        self._entries = entries
        self._table: dict[str, PackedBlockHashes] | None = None

    def _by_id(self) -> dict[str, PackedBlockHashes]:
        if self._table is None:
            self._table = {name: PackedBlockHashes(data, size) for name, data, size in self._entries}
        return self._table

    def __getitem__(self, request_id: str) -> PackedBlockHashes:
        return self._by_id()[request_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id())

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> ItemsView[str, PackedBlockHashes]:
        """Pairs, in no order that means anything."""
        return self._by_id().items()

    def __repr__(self) -> str:
        return f"NewHashes({self._by_id()})"

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_hashes, (self.pack(),)

    def pack(self) -> FlatHashes | None:
        """Ids, hashes, bytes per id and bytes per hash, flat; None if there is no entry."""
        if not self._entries:
            return None
        ids, data, sizes = zip(*self._entries, strict=True)
        lengths = tuple(map(len, data))
        joined = b"".join(data) if sum(lengths) <= _JOIN_LIMIT * len(lengths) else data
        return _pack_ids(ids), joined, _pack_alike(lengths), _pack_alike(sizes)


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
        requests, hashes = self.requests, self.block_hashes
        if not isinstance(requests, EmitStarts):
            requests = EmitStarts(Roster(tuple(requests)), tuple(requests.values()))
        return _restore_metadata, (
            self.generation,
            *requests.pack(),
            _flatten(hashes),
            self.finished_requests,
            _flatten(self.finished_block_hashes),
        )


def _restore_metadata(
    generation: int,
    ids: FlatIds,
    starts: FlatInts,
    hashes: FlatHashes | None,
    finished_requests: tuple[str, ...],
    finished_hashes: FlatHashes | None,
) -> AuxOutputConnectorMetadata:
    return AuxOutputConnectorMetadata(
        generation,
        _restore_starts(ids, starts),
        _restore_hashes(hashes),
        finished_requests,
        _restore_hashes(finished_hashes),
    )


def _restore_starts(ids: FlatIds, starts: FlatInts) -> EmitStarts:
    return EmitStarts(Roster(_unpack_ids(ids)), _unpack_ints(starts))


def _restore_hashes(flat: FlatHashes | None) -> NewHashes:
    if flat is None:
        return NewHashes(())
    ids, data, lengths, sizes = flat
    names = _unpack_ids(ids)
    if isinstance(data, bytes):
        data = _cut(data, _unpack_alike(lengths, len(names)))
    return NewHashes(tuple(zip(names, data, _unpack_alike(sizes, len(names)), strict=True)))


def _flatten(hashes: Mapping[str, PackedBlockHashes]) -> FlatHashes | None:
    if not isinstance(hashes, NewHashes):
        hashes = NewHashes([(name, packed.data, packed.item_size) for name, packed in hashes.items()])
    return hashes.pack()


def _pack_ids(ids: Sequence[str]) -> FlatIds:
    packed = _SEPARATOR.join(ids)
    # An id that holds the separator, or no id at all, could not be told apart.
    return packed if packed.count(_SEPARATOR) == len(ids) - 1 else tuple(ids)


def _unpack_ids(packed: FlatIds) -> tuple[str, ...]:
    return tuple(packed.split(_SEPARATOR)) if isinstance(packed, str) else packed


def _pack_ints(values: Sequence[int]) -> FlatInts:
    try:
        return struct.pack(f"<{len(values)}q", *values)
    except struct.error:  # beyond 64 bits
        return tuple(values)


def _unpack_ints(packed: FlatInts) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}q", packed) if isinstance(packed, bytes) else packed


def _pack_alike(values: Sequence[int]) -> int | FlatInts:
    return values[0] if values.count(values[0]) == len(values) else _pack_ints(values)


def _unpack_alike(packed: int | FlatInts, count: int) -> tuple[int, ...]:
    return (packed,) * count if isinstance(packed, int) else _unpack_ints(packed)


def _cut(data: bytes, lengths: tuple[int, ...]) -> tuple[bytes, ...]:
    pieces: list[bytes] = []
    end = 0
    for length in lengths:
        start, end = end, end + length
        pieces.append(data[start:end])
    return tuple(pieces)
