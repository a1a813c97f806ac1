"""What travels between scheduler and worker, and how it is pickled.

Metadata is made and pickled in every step, for every scheduled request, on the thread that schedules. So it
is kept in columns, one list of emit starts beside the ids of the batch, and pickled by the column: one string
of ids and one buffer of emit starts instead of an entry per request. It still reads like
dictionaries: iterating walks the columns, and the first look-up of an id makes a table. Any id and any integer
survives; what does not fit the flat form is pickled as it is.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import countOf
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import _kernel
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEPARATOR = "\0"

if TYPE_CHECKING:
    FlatIds = str | Sequence[str]
    """Ids joined by the separator, or as they are."""
    FlatInts = bytes | Sequence[int]
    """32-bit unsigned little-endian integers, or as they are."""
    HashColumns = tuple[list[str], list[bytes], list[int]]
    """Ids; hashes, joined for each id; bytes per hash."""
    FlatHashes = tuple[FlatIds, bytes | Sequence[bytes], int | Sequence[int]]
    """The same with one number if all hashes have one length, and one buffer if also each id has one hash. Other
    data is not joined: it may be long."""

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
        if len(data) == size > 0:  # by far the most frequent case
            return iter((data,))
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
        error: why the request failed, of a worker that fails requests and not the engine; it has no rows then.
    """

    token_start: int
    rows: NDArray[Any]
    error: str | None = None


class Roster:
    """The ids of one batch, in order; batches of several steps share it, so that they are joined once."""

    __slots__ = ("_packed", "ids")

    def __init__(self, ids: Sequence[str], packed: FlatIds | None = None) -> None:
        """``ids`` is kept, not copied, and must not change; ``packed`` is what they were unpacked from."""
        self.ids = ids
        self._packed = packed

    @staticmethod
    def unpack(packed: FlatIds) -> Roster:
        """The roster of ``pack``. O(1) where it is one of the latest, as in most steps, else O(n)."""
        return _unpacked(packed) if isinstance(packed, str) else Roster(packed, packed)

    @property
    def key(self) -> FlatIds:
        """Equal keys are equal rosters; two that came in different ways may differ all the same. O(1)."""
        return self.ids if self._packed is None else self._packed

    def pack(self) -> FlatIds:
        """The ids as one string, or as they are if one string would be ambiguous. O(n) once, then O(1)."""
        if self._packed is None:
            self._packed = _pack_ids(self.ids)
        return self._packed


@lru_cache(maxsize=8)
def _unpacked(packed: str) -> Roster:
    return Roster(tuple(packed.split(_SEPARATOR)), packed)


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
    """Request -> emit start: ids of a roster beside their positions.

    Creating one packs the positions, O(n): just computed they are in the processor's cache, and when the metadata
    is pickled they no longer are.
    """

    __slots__ = ("_packed", "_starts", "roster")

    def __init__(self, roster: Roster, starts: Sequence[int], packed: FlatInts | None = None) -> None:
        """``starts`` is kept, not copied, and must not change; ``packed`` is what they were unpacked from."""
        self.roster = roster
        self._starts = starts
        self._packed = _pack_ints(starts) if packed is None else packed
        self._table = None

    def walk(self) -> Iterator[tuple[str, int]]:
        """Pairs in batch order."""
        return zip(self.roster.ids, self._starts, strict=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self.roster.ids)

    def __len__(self) -> int:
        return len(self._starts)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_starts, self.pack()

    def pack(self) -> tuple[FlatIds, FlatInts]:
        """Ids and starts, flat."""
        return self.roster.pack(), self._packed


class NewHashes(_Columns[PackedBlockHashes]):
    """Request -> its new hashes. Creating one packs them, O(requests + bytes), like ``EmitStarts``."""

    __slots__ = ("_data", "_names", "_packed", "_sizes")

    def __init__(
        self,
        names: Sequence[str],
        data: Sequence[bytes],
        sizes: Sequence[int],
        packed: FlatHashes | None = None,
    ) -> None:
        """Columns of ids, joined hashes and bytes per hash; they are kept, not copied, and must not change.

        Args:
            packed: what they were unpacked from.
        """
        self._names = names
        self._data = data
        self._sizes = sizes
        self._packed = _pack_hashes(names, data, sizes) if packed is None else packed
        self._table = None

    @staticmethod
    def of(hashes: Mapping[str, PackedBlockHashes | Iterable[bytes]]) -> NewHashes:
        """The same entries in columns; hashes may also be a sequence instead of packed."""
        if isinstance(hashes, NewHashes):
            return hashes
        packed = [_packed_of(name, each) for name, each in hashes.items()]
        return NewHashes(list(hashes), [each.data for each in packed], [each.item_size for each in packed])

    def columns(self) -> tuple[Sequence[str], Sequence[bytes], Sequence[int]]:
        """Ids, joined hashes and bytes per hash."""
        return self._names, self._data, self._sizes

    def walk(self) -> Iterator[tuple[str, PackedBlockHashes]]:
        """Pairs, in no order that means anything."""
        return zip(self._names, map(PackedBlockHashes, self._data, self._sizes), strict=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_hashes, self.pack()

    def pack(self) -> FlatHashes:
        """Ids, hashes and bytes per hash, flat."""
        return self._packed


def _packed_of(request_id: str, hashes: PackedBlockHashes | Iterable[bytes]) -> PackedBlockHashes:
    """Hashes as they are, or packed. O(hashes).

    Raises:
        ProtocolViolation: WIRE-HASH-3: one is no bytes, or they are not all of one length above 0.
    """
    if hasattr(hashes, "item_size"):  # also vLLM's own class
        return cast("PackedBlockHashes", hashes)
    items: list[Any] = list(cast("Iterable[bytes]", hashes))
    if not all(isinstance(item, bytes) for item in items):
        raise ProtocolViolation("WIRE-HASH-3", request_id, "its hashes are not all bytes")
    sizes = {len(item) for item in items}
    if len(sizes) > 1 or 0 in sizes:
        raise ProtocolViolation("WIRE-HASH-3", request_id, "its hashes are not all of one length above 0")
    return PackedBlockHashes(b"".join(items), sizes.pop() if sizes else 1)


NO_HASHES = NewHashes((), (), (), ((), (), 0))
"""Of no request."""


def _no_hashes() -> Mapping[str, PackedBlockHashes]:
    return NO_HASHES


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
        replaced_block_hashes: every hash of a request of which hashes that were sent no longer stand; our worker
            takes these and leaves the entry in ``block_hashes`` aside (SCHED-HASH-12).
    """

    generation: int
    requests: Mapping[str, int]
    block_hashes: Mapping[str, PackedBlockHashes]
    finished_requests: tuple[str, ...]
    finished_block_hashes: Mapping[str, PackedBlockHashes] = field(default_factory=_no_hashes)
    replaced_block_hashes: Mapping[str, PackedBlockHashes] = field(default_factory=_no_hashes)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle flat (WIRE-META-1). O(scheduled requests + bytes of hashes)."""
        requests, apart, again = self.requests, self.finished_block_hashes, self.replaced_block_hashes
        if not isinstance(requests, EmitStarts):
            requests = EmitStarts(Roster(tuple(requests)), tuple(requests.values()))
        state = (
            self.generation,
            self.finished_requests,
            *requests.pack(),
            *NewHashes.of(self.block_hashes).pack(),
        )
        if (apart is NO_HASHES or not apart) and (again is NO_HASHES or not again):
            return _restore_metadata, state
        return _restore_metadata, (*state, NewHashes.of(apart).pack(), NewHashes.of(again).pack())


def _restore_metadata(
    generation: int,
    finished_requests: tuple[str, ...],
    ids: FlatIds,
    starts: FlatInts,
    names: FlatIds,
    data: bytes | Sequence[bytes],
    sizes: int | Sequence[int],
    *rare: FlatHashes,
) -> AuxOutputConnectorMetadata:
    return AuxOutputConnectorMetadata(
        generation,
        _restore_starts(ids, starts),
        _restore_hashes(names, data, sizes),
        finished_requests,
        *(_restore_hashes(*packed) for packed in rare),
    )


def _restore_starts(ids: FlatIds, starts: FlatInts) -> EmitStarts:
    return EmitStarts(Roster.unpack(ids), _unpack_ints(starts), starts)


def _restore_hashes(names: FlatIds, data: Any, sizes: int | Sequence[int]) -> NewHashes:
    packed = names, data, sizes
    if isinstance(sizes, int):
        if isinstance(data, bytes):
            data = [data[start : start + sizes] for start in range(0, len(data), sizes)]
        sizes = [sizes] * len(data)
    return NewHashes(_unpack_ids(names), data, sizes, packed)


def _pack_ids(ids: Sequence[str]) -> FlatIds:
    packed = _SEPARATOR.join(ids)
    # An id that holds the separator, or no id at all, could not be told apart.
    return packed if packed.count(_SEPARATOR) == len(ids) - 1 else tuple(ids)


def _unpack_ids(packed: FlatIds) -> Sequence[str]:
    return packed.split(_SEPARATOR) if isinstance(packed, str) else packed


def _pack_hashes(names: Sequence[str], data: Sequence[bytes], sizes: Sequence[int]) -> FlatHashes:
    if not names:
        return (), (), 0
    size = sizes[0]
    if sizes.count(size) != len(sizes):
        return _pack_ids(names), data, sizes
    single = size > 0 and countOf(map(len, data), size) == len(data)
    return _pack_ids(names), b"".join(data) if single else data, size


def _pack_ints(values: Sequence[int]) -> FlatInts:
    try:
        packed = array("I", values)
    except OverflowError:  # negative, or beyond 32 bits
        return tuple(values)
    return _little_endian(packed).tobytes()


def _unpack_ints(packed: FlatInts) -> Sequence[int]:
    return _little_endian(array("I", packed)) if isinstance(packed, bytes) else packed


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder != "little":
        values.byteswap()
    return values
