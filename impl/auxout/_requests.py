"""What the worker keeps of its requests, in columns, so that a step's requests are updated at once.

Every request has a *seat*, its row in the columns, until it is torn down. Batches of ids are looked up once and
remembered while no request leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._wire import EmitStarts, Roster
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ._wire import FlatIds

    Ints = NDArray[np.int64]

_NUM_RECENT = 4
"""Batches remembered: scheduler and runner may order a batch differently, and pipeline stages take turns."""
_FIRST_SEATS = 64


class Batch(NamedTuple):
    """A batch of ids, looked up."""

    key: FlatIds
    """Of the roster, as it came."""
    roster: Roster
    """Of the batch before, where that came with the same ids: they may be joined already."""
    seats: Ints
    """-1 for ids that have none."""
    complete: bool
    """Whether all have one."""


class RequestTable:
    """The requests that live, by id."""

    def __init__(self) -> None:
        """Empty."""
        self.seats: dict[str, int] = {}
        self.capture: Ints = np.full(_FIRST_SEATS, -1, np.int64)
        """Next position to store; -1 before the first step was processed."""
        self.scheduled: Ints = np.zeros(_FIRST_SEATS, np.int64)
        """End of the last processed step as it was scheduled, rejected drafts included."""
        self.emit: Ints = np.zeros(_FIRST_SEATS, np.int64)
        """Next position to return."""
        self.in_flight: Ints = np.zeros(_FIRST_SEATS, np.int64)
        """Steps of it that are in flight."""
        self.tail: Ints = np.full(_FIRST_SEATS, -1, np.int64)
        """Slot of the incomplete block; -1 when there is none."""
        self.ends: NDArray[np.bool_] = np.zeros(_FIRST_SEATS, np.bool_)
        """Ended; torn down when nothing is in flight."""
        self.num_ending = 0
        self.num_waiting = 0
        """Blocks in ``waiting``."""
        self.ids: list[str] = [""] * _FIRST_SEATS
        self.keys: list[list[bytes]] = [[] for _ in range(_FIRST_SEATS)]
        """Of its blocks, in order, as far as they were sent."""
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in range(_FIRST_SEATS)]
        """Block number and slot of full blocks that have no key yet."""
        self.errors: dict[int, str] = {}
        """Seat -> why the request failed. It holds nothing, until its terminal event."""
        self.turned: set[int] = set()
        """Seats of requests whose last tokens were replaced: where, the next step of each says (WORK-KEYS-2)."""
        self._free = list(range(_FIRST_SEATS - 1, -1, -1))
        self._recent: list[Batch] = []

    def find(self, roster: Roster) -> Batch:
        """Look a batch up. A comparison of ids when it is a recent one, else O(n).

        Raises:
            ProtocolViolation: WORK-STEP-1: an id comes twice.
        """
        key, ids = roster.key, roster.ids
        for batch in self._recent:
            # Ids that were pickled come joined; the runner's are the same objects in each step.
            if batch.key == key:
                return batch
        if len(set(ids)) < len(ids):
            raise ProtocolViolation("WORK-STEP-1", None, "a request is in the batch twice")
        seats = [self.seats.get(request_id, -1) for request_id in ids]
        batch = Batch(key, roster, np.array(seats, np.int64), -1 not in seats)
        if batch.complete:
            self._recent = [batch, *self._recent[: _NUM_RECENT - 1]]
        return batch

    def start(self, emit_starts: Mapping[str, int]) -> None:
        """Seat new requests. O(new)."""
        while len(self._free) < len(emit_starts):
            self._grow()
        for request_id, emit_start in emit_starts.items():
            seat = self._free.pop()
            self.seats[request_id] = seat
            self.ids[seat] = request_id
            self.emit[seat] = emit_start

    def keep_waiting(self, seat: int, blocks: list[tuple[int, int]]) -> None:
        """Replace the blocks of a request that wait for a key. O(blocks)."""
        self.num_waiting += len(blocks) - len(self.waiting[seat])
        self.waiting[seat] = blocks

    def fail(self, seat: int, error: str) -> None:
        """Let a request hold nothing but the reason why it failed. O(1)."""
        self.tail[seat] = -1
        self.keys[seat] = []
        self.keep_waiting(seat, [])
        self.errors[seat] = error
        self.turned.discard(seat)

    def leave(self, seat: int) -> None:
        """Make a seat free, as good as new. O(1)."""
        del self.seats[self.ids[seat]]
        self.capture[seat] = self.tail[seat] = -1
        self.scheduled[seat] = self.in_flight[seat] = 0
        self.num_ending -= int(self.ends[seat])
        self.ends[seat] = False
        self.ids[seat] = ""
        self.keys[seat] = []
        self.keep_waiting(seat, [])
        self.errors.pop(seat, None)
        self.turned.discard(seat)
        self._free.append(seat)
        self._recent.clear()

    def slots(self, seat: int) -> list[int]:
        """The slots that a request holds outside the store."""
        held = [slot for _, slot in self.waiting[seat]]
        return held if self.tail[seat] < 0 else [*held, int(self.tail[seat])]

    def num_buffered_rows(self, block_size: int) -> int:
        """Rows of incomplete blocks and of blocks without a key. O(seats)."""
        tails = self.capture[self.tail >= 0] % block_size
        return int(tails.sum()) + block_size * self.num_waiting

    def _grow(self) -> None:
        """Twice the seats."""
        size = len(self.ids)
        for name in ("capture", "scheduled", "emit", "in_flight", "tail", "ends"):
            column = getattr(self, name)
            fill = -1 if name in {"capture", "tail"} else 0
            setattr(self, name, np.concatenate([column, np.full(size, fill, column.dtype)]))
        self.ids += [""] * size
        self.keys += [[] for _ in range(size)]
        self.waiting += [[] for _ in range(size)]
        self._free = [*range(2 * size - 1, size - 1, -1), *self._free]


def columns(requests: Mapping[str, int]) -> tuple[Roster, NDArray[np.integer[Any]]]:
    """Ids and emit starts of a step's metadata. O(n), of ours without a Python object for each."""
    if isinstance(requests, EmitStarts):
        packed: Any = requests.pack()[1]
        if isinstance(packed, bytes):
            return requests.roster, np.frombuffer(packed, "<u4")
    return Roster(tuple(requests)), np.array(list(requests.values()), np.int64)
