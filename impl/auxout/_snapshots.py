"""From the capture buffer to the host: rows of one step that later steps cannot overwrite.

On the CPU a snapshot is a narrowed copy, and that is all. On CUDA there is a ring of slots, one a step in flight, each
with memory on the device and pinned memory on the host. On the compute stream the step's rows are narrowed into the
slot; an event marks where. A copy stream waits for that event, copies the slot to the host and records another, which
is the only thing ever waited for, when the step is processed. The forward pass is never synchronized.

A slot is free again when its step was processed, so there are as many as steps in flight. Narrowing comes first: a
row crosses the bus with one or two bytes an id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from . import _foreign

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Snapshots(Protocol):
    """Takes snapshots of a capture buffer."""

    owned: bool
    """Whether the rows of a snapshot stay as they are when its slot is free again."""

    def take(self, num_tokens: int) -> Any:
        """A snapshot of the first rows, behind the work that is enqueued on the compute stream."""
        ...

    def tensor(self, snapshot: Any) -> Any:
        """Its rows on the device."""
        ...

    def start_copy(self, snapshot: Any) -> None:
        """Enqueue its copy to the host."""
        ...

    def rows(self, snapshot: Any) -> NDArray[Any]:
        """Its rows, ``(num_tokens, num_layers, top_k)``; waits for the copy."""
        ...

    def release(self, snapshot: Any) -> None:
        """Let its slot be used again."""
        ...


class HostSnapshots:
    """Of a buffer in host memory: each snapshot has memory of its own."""

    owned = True

    def __init__(self, buffer: Any, dtype: Any) -> None:
        """Snapshots of ``buffer``, ``(max_tokens, num_layers, top_k)``, in ``dtype``, a torch type."""
        self._buffer = buffer
        self._dtype = dtype

    def take(self, num_tokens: int) -> Any:
        """O(rows)."""
        rows = _foreign.torch().empty((num_tokens, *self._buffer.shape[1:]), dtype=self._dtype)
        return rows.copy_(self._buffer[:num_tokens])

    def tensor(self, snapshot: Any) -> Any:
        """The snapshot."""
        return snapshot

    def start_copy(self, snapshot: Any) -> None:
        """Nothing: the rows are there."""

    def rows(self, snapshot: Any) -> NDArray[Any]:
        """A view of the snapshot."""
        return snapshot.numpy()

    def release(self, snapshot: Any) -> None:
        """Nothing: its memory is freed with it."""


class _Slot(NamedTuple):
    device: Any
    host: Any
    taken: Any
    """Event on the compute stream: the rows are in ``device``."""
    copied: Any
    """Event on the copy stream: they are in ``host``."""


class RingSnapshot(NamedTuple):
    """A slot in use."""

    slot: _Slot
    num_tokens: int


class RingSnapshots:
    """Of a buffer in device memory. All memory is allocated at the start."""

    owned = False

    def __init__(
        self, buffer: Any, dtype: Any, num_slots: int, cuda: Any, *, pin_memory: bool = True
    ) -> None:
        """Allocate the ring.

        Args:
            buffer: ``(max_tokens, num_layers, top_k)`` on the device.
            dtype: torch type of the rows.
            num_slots: steps that may be in flight.
            cuda: ``torch.cuda``, or what has its streams and events.
            pin_memory: whether host memory is pinned; without, copies are not asynchronous.
        """
        torch = _foreign.torch()
        self._buffer = buffer
        self._cuda = cuda
        self._stream = cuda.Stream()
        self._free = [
            _Slot(
                torch.empty(buffer.shape, dtype=dtype, device=buffer.device),
                torch.empty(buffer.shape, dtype=dtype, pin_memory=pin_memory),
                cuda.Event(),
                cuda.Event(),
            )
            for _ in range(num_slots)
        ]

    def take(self, num_tokens: int) -> RingSnapshot:
        """Narrow the rows into a slot, on the current stream. Nothing waits."""
        slot = self._free.pop()
        slot.device[:num_tokens].copy_(self._buffer[:num_tokens], non_blocking=True)
        slot.taken.record()
        return RingSnapshot(slot, num_tokens)

    def tensor(self, snapshot: RingSnapshot) -> Any:
        """A view of the slot, valid until it is released."""
        return snapshot.slot.device[: snapshot.num_tokens]

    def start_copy(self, snapshot: RingSnapshot) -> None:
        """Copy the slot to the host, on the copy stream and behind ``take``. Nothing waits."""
        slot, num_tokens = snapshot
        self._stream.wait_event(slot.taken)
        with self._cuda.stream(self._stream):
            slot.host[:num_tokens].copy_(slot.device[:num_tokens], non_blocking=True)
            slot.copied.record(self._stream)

    def rows(self, snapshot: RingSnapshot) -> NDArray[Any]:
        """A view of the slot, valid until it is released; waits for the copy."""
        snapshot.slot.copied.synchronize()
        return snapshot.slot.host[: snapshot.num_tokens].numpy()

    def release(self, snapshot: RingSnapshot) -> None:
        """O(1)."""
        self._free.append(snapshot.slot)


def snapshots_of(buffer: Any, dtype: Any, num_slots: int) -> Snapshots:
    """What fits the buffer's device."""
    if buffer.device.type == "cpu":
        return HostSnapshots(buffer, dtype)
    return RingSnapshots(buffer, dtype, num_slots, _foreign.torch().cuda)  # pragma: no cover (CUDA)
