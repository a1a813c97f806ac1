"""What a worker remembers between calls: its requests, the steps in flight, and the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from .capture import Request
    from .store import BlockStore, Key


@dataclass(frozen=True)
class PendingStep:
    """A step in flight: its boundaries and its rows, copied."""

    request_ids: tuple[str, ...]
    token_starts: tuple[int, ...]
    """First position of each request, as it was scheduled."""
    rows: tuple[NDArray[Any], ...]
    """One ``(num_tokens, num_layers, top_k)`` a request, rejected drafts included."""
    unknown: frozenset[str]
    """Requests that never began (``errors="request"``)."""
    generation: int
    """The worker's when the step was prepared; a step of an earlier one is void (``errors="request"``)."""


@dataclass
class State:
    """Everything the worker remembers between calls."""

    generation: int
    requests: dict[str, Request]
    in_flight: tuple[PendingStep, ...]
    store: BlockStore
    release: tuple[Key, ...] = ()
    """Keys to release before the call returns."""

    def copy(self) -> State:
        """A state that changes on its own."""
        return State(self.generation, dict(self.requests), self.in_flight, self.store.copy())

    def drop(self, request_id: str) -> None:
        """Forget a request; its keys are released last first, so that a prefix outlives what follows it."""
        self.release += self.requests.pop(request_id).keys[::-1]

    def drop_ended(self, request_ids: Iterable[str]) -> None:
        """Forget those of the requests that ended and have nothing in flight (WORK-TEAR-1, -2)."""
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None and request.finished and not request.num_in_flight:
                self.drop(request_id)
