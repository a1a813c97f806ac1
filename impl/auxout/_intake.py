"""What one step's metadata asks for, found out before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._capture import as_items, places
from ._requests import RequestTable, columns
from ._wire import NewHashes, PackedBlockHashes
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from numpy.typing import NDArray

    from ._requests import Ints
    from ._wire import AuxOutputConnectorMetadata, Roster

_GENERATION_BYTES = 8


class Writing:
    """Blocks to be put, in columns."""

    __slots__ = ("keys", "owners", "slots")

    def __init__(self) -> None:
        """Nothing."""
        self.owners: list[str] = []
        self.keys: list[bytes] = []
        self.slots: list[int] = []

    def add(self, owner: str, key: bytes, slot: int) -> None:
        """One more block."""
        self.owners.append(owner)
        self.keys.append(key)
        self.slots.append(slot)

    def by_key(self) -> dict[bytes, int]:
        """Key -> slot; of blocks of one key the first one stays."""
        return dict(zip(reversed(self.keys), reversed(self.slots), strict=True))

    def without(self, owner: str) -> tuple[Writing, list[int]]:
        """The blocks of the others, and the slots of this one's."""
        rest, dropped = Writing(), list[int]()
        for name, key, slot in zip(self.owners, self.keys, self.slots, strict=True):
            if name == owner:
                dropped.append(slot)
            else:
                rest.add(name, key, slot)
        return rest, dropped


class Intake:
    """A step's metadata, read."""

    __slots__ = (
        "added", "emit_starts", "ending", "num_kept", "objections", "roster", "seats", "starting", "table",
    )  # fmt: skip

    def __init__(
        self, table: RequestTable, roster: Roster, emit_starts: NDArray[np.integer[Any]], seats: Ints
    ) -> None:
        """Of a batch that was looked up.

        Args:
            table: an empty one if the step begins a generation.
            seats: ``(n,)`` of the roster; -1 for those that start.
        """
        self.table = table
        self.roster = roster
        self.emit_starts = emit_starts
        self.seats = seats
        self.starting: dict[str, int] = {}
        """Request -> emit start."""
        self.added: dict[str, list[bytes]] = {}
        """Request -> its new keys."""
        self.num_kept: dict[str, int] = {}
        """Request whose keys were replaced -> how many of them still stand."""
        self.ending: dict[str, int] = {}
        """Request -> seat."""
        self.objections: list[ProtocolViolation] = []
        """To single requests."""

    def keys(self, request_id: str) -> list[bytes]:
        """All keys of a request, the new ones included."""
        known = self._known(request_id)
        return known[: self.num_kept.get(request_id)] + self.added.get(request_id, [])

    def without(self, request_id: str) -> list[bytes]:
        """Take in no hashes of a request that fails; the keys that it has."""
        self.added.pop(request_id, None)
        self.num_kept.pop(request_id, None)
        return self.keys(request_id)

    def replaced(self) -> list[bytes]:
        """The keys that no longer stand, each request's last one first."""
        return [key for name, kept in self.num_kept.items() for key in reversed(self._known(name)[kept:])]

    def replace(self, request_id: str, keys: list[bytes]) -> None:
        """Take these for a request's keys, old and new (WORK-KEYS-2). O(keys)."""
        known = self._known(request_id)
        pairs = enumerate(zip(known, keys, strict=False))
        kept = next((n for n, (old, new) in pairs if old != new), min(len(known), len(keys)))
        self.num_kept[request_id], self.added[request_id] = kept, keys[kept:]

    def _known(self, request_id: str) -> list[bytes]:
        seat = self.table.seats.get(request_id)
        return [] if seat is None else self.table.keys[seat]

    def _publishes(self, request_id: str, seat: int) -> bool:
        """Whether the rows of blocks that wait are those of its tokens: which were replaced, its next step says."""
        return request_id not in self.num_kept and seat not in self.table.turned

    def commit(self) -> None:
        """Seat the requests that start, append keys, note who ended. Blocks that are ready wait no more."""
        table = self.table
        table.start(self.starting)
        for request_id, added in self.added.items():
            seat = table.seats[request_id]
            keys = table.keys[seat]
            del keys[self.num_kept.get(request_id, len(keys)) :]
            keys += added
            if table.waiting[seat] and self._publishes(request_id, seat):
                table.keep_waiting(seat, [each for each in table.waiting[seat] if each[0] >= len(keys)])
        for seat in self.ending.values():
            if not table.ends[seat]:
                table.ends[seat] = True
                table.num_ending += 1

    def object_to_more(self, is_old: bool) -> None:
        """Further objections, where requests fail: to old metadata, and to ids that run again too early.

        Those run again while a step of their earlier activation is in flight.

        Args:
            is_old: the metadata is of an earlier generation, and so are all its hashes.
        """
        table = self.table
        if is_old:
            problem = "the metadata is of an earlier generation"
            named = dict.fromkeys((*self.roster.ids, *self.added))
            self.objections[:0] = [ProtocolViolation("WORK-BEGIN-2", name, problem) for name in named]
        if table.num_ending:
            for place in places(table.ends[self.seats] & (self.seats >= 0)):
                problem = "it runs again while a step of it from before is in flight"
                self.objections.append(ProtocolViolation("WORK-BEGIN-1", self.roster.ids[place], problem))

    def go_on(self, failing: Container[str]) -> None:
        """Failed requests of the step run on: that one ended before is no longer told from it. O(step)."""
        table = self.table
        for request_id in self.roster.ids:
            if request_id in failing and table.ends[seat := table.seats[request_id]]:
                table.ends[seat] = False
                table.num_ending -= 1

    def ready(self) -> Writing:
        """Waiting blocks whose key arrives, ordered by request: of two that have one block, the first one's stays."""
        writing = Writing()
        table = self.table
        if not table.num_waiting:
            return writing
        for request_id in sorted(self.added):
            seat = table.seats.get(request_id)
            if seat is None or not table.waiting[seat] or not self._publishes(request_id, seat):
                continue
            keys = self.keys(request_id)
            for block, slot in table.waiting[seat]:
                if block < len(keys):
                    writing.add(request_id, keys[block], slot)
        return writing


def read(table: RequestTable, metadata: AuxOutputConnectorMetadata) -> Intake:
    """Read metadata against the requests that live. O(scheduled requests + new hashes + ended requests)."""
    roster, emit_starts = columns(metadata.requests)
    batch = table.find(roster)
    intake = Intake(table, roster, emit_starts, batch.seats)
    if not batch.complete:
        ids = roster.ids
        intake.starting = {ids[place]: int(emit_starts[place]) for place in places(batch.seats < 0)}
    ended = dict.fromkeys(metadata.finished_requests)
    both = sorted(ended.keys() & set(roster.ids)) if ended else ()
    for request_id in both:
        problem = "it runs and ends in one step"
        intake.objections.append(ProtocolViolation("WORK-BEGIN-1", request_id, problem))
    # vLLM's own metadata has no such field.
    replaced: Mapping[str, PackedBlockHashes] = getattr(metadata, "replaced_block_hashes", {})
    _read_hashes(intake, metadata.block_hashes, replaced, namespace(metadata.generation))
    for request_id in ended:
        if request_id in table.seats and request_id not in both:
            intake.ending[request_id] = table.seats[request_id]
        elif request_id not in both:
            intake.objections.append(_unknown(request_id))
    _object_to_emit_starts(intake)
    return intake


def _object_to_emit_starts(intake: Intake) -> None:
    """Settled requests' emit starts are not beyond their emit cursors (WORK-BEGIN-4)."""
    table, seats, emit_starts = intake.table, intake.seats, intake.emit_starts
    ids = intake.roster.ids
    known = table.emit[seats]
    suspect = emit_starts > known
    if not np.count_nonzero(suspect):
        return
    suspect &= (table.in_flight[seats] == 0) & (seats >= 0)
    for place in places(suspect):
        if int(seats[place]) not in table.errors:
            problem = f"emit start {emit_starts[place]} is beyond the emit cursor {known[place]}"
            intake.objections.append(ProtocolViolation("WORK-BEGIN-4", ids[place], problem))


def _read_hashes(
    intake: Intake,
    block_hashes: Mapping[str, PackedBlockHashes],
    replaced: Mapping[str, PackedBlockHashes],
    prefix: bytes,
) -> None:
    """New keys of each request (WORK-KEYS-1, -2, WORK-BEGIN-5)."""
    seats, errors, starting, added = intake.table.seats, intake.table.errors, intake.starting, intake.added
    for request_id, data, size in zip(*NewHashes.of(block_hashes).columns(), strict=True):
        seat = seats.get(request_id, -1)
        if seat < 0 and request_id not in starting:
            intake.objections.append(_unknown(request_id))
        elif seat not in errors:
            # A single hash is by far the most frequent case.
            single = len(data) == size > 0
            added[request_id] = (
                [prefix + data] if single else _read_keys(intake, request_id, prefix, data, size)
            )
    for request_id, packed in replaced.items():
        seat = seats.get(request_id, -1)
        if seat < 0 and request_id not in starting:
            intake.objections.append(_unknown(request_id))
        elif seat not in errors:
            keys = _read_keys(intake, request_id, prefix, packed.data, packed.item_size)
            intake.replace(request_id, keys)


def _read_keys(intake: Intake, request_id: str, prefix: bytes, data: bytes, size: int) -> list[bytes]:
    """The keys of a request's joined hashes; none where they cannot be cut, which is objected to."""
    try:
        return _keys(prefix, data, size)
    except ProtocolViolation as violation:
        intake.objections.append(ProtocolViolation(violation.clause, request_id, violation.args[2]))
        return []


def _keys(prefix: bytes, data: bytes, size: int) -> list[bytes]:
    """The keys of joined hashes. O(hashes), in arrays: a prompt may have thousands."""
    if size < 1 or len(data) % size:
        iter(PackedBlockHashes(data, size))  # refuses
    count = len(data) // size
    keys = np.empty((count, len(prefix) + size), np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    keys[:, len(prefix) :] = np.ndarray((count, size), np.uint8, data)
    return as_items(keys).tolist()


def _unknown(request_id: str) -> ProtocolViolation:
    return ProtocolViolation("WORK-BEGIN-5", request_id, "it gets hashes or ends and never began")


def namespace(generation: int) -> bytes:
    """What the keys of a generation begin with."""
    return generation.to_bytes(_GENERATION_BYTES, "little", signed=True)
