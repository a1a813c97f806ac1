"""Stores: immutable blocks of rows in one arena, synchronous or behind a writer thread.

Theory of operation. The arena is one allocation of equal slots, each of one hash block. Whoever has rows takes slots,
fills them, and publishes them with ``put``: the slot stays where it is and only gets a key, so that a row is copied
once. A key without a reference may be evicted, the oldest first. Since retaining takes a key out of that order and
releasing makes it the youngest, only the objects without a reference have to be kept in order of age, and eviction is
O(1) however many are referenced. What is missing is an error, never other rows (STORE-READ-1).

Keys are raw bytes. Costs count keys.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ._capture import aligned, as_rows
from .errors import ProtocolViolation, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

_NOTHING: dict[bytes, int] = {}


class Store(Protocol):
    """What a worker asks of its store. One thread calls it."""

    @property
    def blocks(self) -> NDArray[Any]:
        """The arena, ``(num_slots, block_size, num_layers, top_k)``; another array after ``take`` made it grow."""
        ...

    @property
    def rows(self) -> NDArray[Any]:
        """The arena as rows, each an opaque item: ``(num_slots * block_size,)``."""
        ...

    @property
    def num_objects(self) -> int:
        """Stored blocks."""
        ...

    @property
    def num_references(self) -> int:
        """Sum of all reference counts."""
        ...

    def take(self, count: int) -> list[int]:
        """Slots for rows that are about to be written."""
        ...

    def give_back(self, slots: Sequence[int]) -> None:
        """Return taken slots that were not published."""
        ...

    def put(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        retain: Sequence[bytes] = (),
        release: Sequence[bytes] = (),
    ) -> None:
        """Publish filled slots under keys, and move references."""
        ...

    def require_room(self, keys: Sequence[bytes]) -> None:
        """Refuse what ``put`` would refuse for lack of room."""
        ...

    def find(self, keys: Sequence[bytes], fresh: Mapping[bytes, int] = _NOTHING) -> list[int] | None:
        """The slots of stored blocks, or of blocks that are about to be put; None if one is neither."""
        ...

    def close(self) -> None:
        """Drop everything."""
        ...


class ArenaStore:
    """At most ``max_objects`` blocks in one allocation; every method takes effect at once."""

    def __init__(
        self,
        *,
        max_objects: int,
        block_shape: tuple[int, int, int],
        dtype: DTypeLike,
        num_spare: int = 0,
    ) -> None:
        """Reserve the arena; the system provides its memory as it is written.

        Args:
            max_objects: hard limit of stored blocks (STORE-PUT-2).
            block_shape: ``(block_size, num_layers, top_k)``.
            dtype: of an expert id.
            num_spare: slots beside the stored blocks, for blocks that are incomplete or have no key yet. Where they
                do not suffice, and no other slot is free, the arena is copied into a larger one.

        Raises:
            ValueError: ``max_objects`` is below 1.
        """
        if max_objects < 1:
            raise ValueError(f"a store holds at least 1 block, not {max_objects}")
        self.max_objects = max_objects
        self.blocks: NDArray[Any] = aligned((max_objects + num_spare, *block_shape), dtype)
        self.rows = as_rows(self.blocks)
        self._slots: dict[bytes, int] = {}
        self._references: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Stored keys without a reference, the oldest first."""
        self._num_used = 0
        """Slots that were ever taken; those behind were never touched."""
        self._free: list[int] = []

    @property
    def num_free(self) -> int:
        """Slots that can be taken before the arena grows."""
        return len(self._free) + len(self.blocks) - self._num_used

    @property
    def num_objects(self) -> int:
        """Stored blocks."""
        return len(self._slots)

    @property
    def num_references(self) -> int:
        """Sum of all reference counts. O(referenced keys)."""
        return sum(self._references.values())

    def take(self, count: int) -> list[int]:
        """O(count); O(arena) when it has to grow, which doubles the spare slots."""
        free = self._free
        num_fresh = count - len(free)
        if num_fresh <= 0:
            start = len(free) - count
            taken = free[start:]
            del free[start:]
            return taken
        start = self._num_used
        if start + num_fresh > len(self.blocks):
            num_spare = len(self.blocks) - self.max_objects
            missing = start + num_fresh - len(self.blocks)
            num_slots = len(self.blocks) + max(num_spare, missing)
            grown = aligned((num_slots, *self.blocks.shape[1:]), self.blocks.dtype)
            grown[:start] = self.blocks[:start]
            self.blocks, self.rows = grown, as_rows(grown)
        self._num_used += num_fresh
        taken = [*free, *range(start, start + num_fresh)]
        free.clear()
        return taken

    def give_back(self, slots: Sequence[int]) -> None:
        """O(slots)."""
        self._free.extend(slots)

    def put(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        retain: Sequence[bytes] = (),
        release: Sequence[bytes] = (),
    ) -> None:
        """Publish slots under keys and move references, or change nothing. O(arguments).

        Args:
            keys: one for each slot. A key that is stored, or came before, keeps its rows (STORE-PUT-1), and the
                slot is free again.
            slots: taken and filled; the store's own from then on.
            retain: keys that get a reference more, stored or not; before ``release`` is applied.
            release: keys that lose one; those left with none become the youngest, in this order.

        Raises:
            ProtocolViolation: STORE-PUT-4: a key is released more often than retained; STORE-PUT-3: the blocks do
                not fit beside the referenced ones.
        """
        stored, references, idle = self._slots, self._references, self._idle
        if release:
            self._require_references(retain, release)
        if len(stored) + len(keys) > self.max_objects:
            self.require_room(keys, retain, release)
        if len(fresh := dict.fromkeys(retain, 1)) == len(retain) and references.keys().isdisjoint(fresh):
            references.update(fresh)  # by far the most frequent case
        else:
            for key in retain:
                references[key] = references.get(key, 0) + 1
        if not idle.keys().isdisjoint(retain):
            for key in retain:
                idle.pop(key, None)
        for key, slot in zip(keys, slots, strict=True):
            if stored.setdefault(key, slot) != slot:
                self._free.append(slot)
            if key not in references:
                idle[key] = None
                idle.move_to_end(key)
        for key in release:
            count = references[key] - 1
            if count:
                references[key] = count
            else:
                del references[key]
                if key in stored:
                    idle[key] = None
        if len(stored) > self.max_objects:
            self._evict(len(stored) - self.max_objects, keys, release)

    def require_room(
        self, keys: Sequence[bytes], retain: Sequence[bytes] = (), release: Sequence[bytes] = ()
    ) -> None:
        """Refuse a batch that ``put`` could not make room for (STORE-PUT-3). O(arguments)."""
        stored, references, idle = self._slots, self._references, self._idle
        if len(stored) + len(keys) - self.max_objects <= len(idle) - len(keys) - len(retain):
            return  # even if all keys are new and all that is retained or written again is idle
        fresh = {key for key in keys if key not in stored}
        excess = len(stored) + len(fresh) - self.max_objects
        if excess <= 0:
            return
        moved = Counter(retain)
        moved.subtract(release)
        freed = {key for key in set(release) if references.get(key, 0) + moved[key] == 0}
        kept = {key for key in (*retain, *keys) if key not in freed}
        evictable = len(idle) - sum(key in idle for key in kept)
        evictable += sum((key in stored or key in fresh) and key not in idle for key in freed)
        if excess > evictable:
            problem = f"{excess} blocks too many, {evictable} can be evicted (limit {self.max_objects})"
            raise ProtocolViolation("STORE-PUT-3", None, problem)

    def find(self, keys: Sequence[bytes], fresh: Mapping[bytes, int] = _NOTHING) -> list[int] | None:
        """The slots of keys, in order, and make those without a reference the youngest. O(keys).

        Args:
            fresh: key -> slot of blocks that the next ``put`` publishes.

        Returns:
            None if a key is neither stored nor fresh (STORE-READ-1).
        """
        stored, idle = self._slots, self._idle
        try:
            slots = [stored[key] for key in keys]
        except KeyError:
            slots = [stored.get(key, fresh.get(key, -1)) for key in keys]
            if -1 in slots:
                return None
        if idle:
            for key in keys:
                if key in idle:
                    idle.move_to_end(key)
        return slots

    def close(self) -> None:
        """Free the arena."""
        self.blocks = np.array(self.blocks[:0])
        self.rows = as_rows(self.blocks)
        self._num_used = 0
        for content in (self._slots, self._references, self._idle, self._free):
            content.clear()

    def _require_references(self, retain: Sequence[bytes], release: Sequence[bytes]) -> None:
        references = self._references
        released = set(release)
        if len(released) == len(release) and references.keys() >= released:
            return  # by far the most frequent case
        retained = Counter(retain)
        for key, count in Counter(release).items():
            if count > references.get(key, 0) + retained[key]:
                raise ProtocolViolation(
                    "STORE-PUT-4", None, "a key is released more often than it was retained"
                )

    def _evict(self, excess: int, keys: Sequence[bytes], release: Sequence[bytes]) -> None:
        """Drop the oldest idle blocks, but of those just written only what was released with them."""
        idle: Iterable[bytes] = self._idle
        if excess > len(self._idle) - len(keys) - len(release):  # else what was just written is younger
            written = set(keys) - set(release)
            idle = (key for key in self._idle if key not in written)
        for key in list(islice(idle, excess)):
            del self._idle[key]
            self._free.append(self._slots.pop(key))


class _Batch(NamedTuple):
    """The arguments of one ``put``."""

    keys: Sequence[bytes]
    slots: Sequence[int]
    retain: Sequence[bytes]
    release: Sequence[bytes]


class BackgroundStore:
    """A store whose changes a writer thread makes, in order.

    What a change raises surfaces at every later call, when the change itself is long taken in: so a refused batch
    does end the store, as it ends the original. Reading waits for what was put before.
    """

    def __init__(self, store: ArenaStore, *, max_pending: int = 512, close_timeout: float = 5.0) -> None:
        """Start the writer.

        Args:
            max_pending: batches that may wait for the writer; ``put`` then blocks until one is done.
            close_timeout: seconds that ``close`` waits for a writer that does not answer.
        """
        self._store = store
        self._queue: queue.Queue[_Batch | None] = queue.Queue(max_pending)
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._closed = False
        self._close_timeout = close_timeout
        self._thread = threading.Thread(target=self._write, name="auxout-writer", daemon=True)
        self._thread.start()

    @property
    def blocks(self) -> NDArray[Any]:
        """The arena."""
        return self._store.blocks

    @property
    def rows(self) -> NDArray[Any]:
        """The arena as rows."""
        return self._store.rows

    @property
    def num_objects(self) -> int:
        """Stored blocks, when what was put is written."""
        self._settle()
        return self._store.num_objects

    @property
    def num_references(self) -> int:
        """Sum of all reference counts, when what was put is written."""
        self._settle()
        return self._store.num_references

    def take(self, count: int) -> list[int]:
        """Slots for rows that are about to be written."""
        self._raise_if_failed()
        if count > self._store.num_free:
            self._settle()  # what waits may free some
        with self._lock:
            return self._store.take(count)

    def give_back(self, slots: Sequence[int]) -> None:
        """Return taken slots that were not published."""
        with self._lock:
            self._store.give_back(slots)

    def put(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        retain: Sequence[bytes] = (),
        release: Sequence[bytes] = (),
    ) -> None:
        """Hand a batch to the writer; blocks while too many wait."""
        self._raise_if_failed()
        # Copies, because the caller goes on.
        self._queue.put(_Batch(list(keys), list(slots), list(retain), list(release)))

    def require_room(self, keys: Sequence[bytes]) -> None:
        """Refuse what ``put`` would refuse for lack of room, when what was put is written."""
        self._settle()
        self._store.require_room(keys)

    def find(self, keys: Sequence[bytes], fresh: Mapping[bytes, int] = _NOTHING) -> list[int] | None:
        """The slots of keys, when what was put is written."""
        self._settle()
        return self._store.find(keys, fresh)

    def close(self) -> None:
        """Drop everything, batches that wait included, and stop the writer.

        Never hangs: a writer that does not answer in time is left behind, with the arena.

        Raises:
            StoreError: the writer failed before; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
            self._queue.task_done()
        self._queue.put(None)
        self._thread.join(self._close_timeout)
        if not self._thread.is_alive():
            self._store.close()
        self._raise_error()

    def _settle(self) -> None:
        """Wait until everything that was put is written."""
        self._queue.join()
        self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise StoreError(f"writing to the store failed: {self._error}") from self._error

    def _write(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                if self._error is None:
                    with self._lock:
                        self._store.put(*batch)
            except BaseException as error:  # whatever it is, the caller must learn of it
                self._error = error
            finally:
                self._queue.task_done()
