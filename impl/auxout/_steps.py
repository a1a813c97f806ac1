"""Steps in flight: what the runner reported of them, until they are processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._outputs import StepOutputs
from ._wire import Roster
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ._requests import Ints

    Counts = Sequence[int] | NDArray[Any]


class PendingStep:
    """A step in flight: its boundaries, and its rows as soon as they are there."""

    __slots__ = (
        "bounds", "counts", "failing", "is_plain", "owned", "roster", "rows", "seats", "stale", "starts",
        "void_since",
    )  # fmt: skip

    def __init__(self, request_ids: Sequence[str], token_starts: Counts, query_start_loc: Counts) -> None:
        """Copies of what the runner reports."""
        self.roster = Roster(tuple(request_ids))
        self.starts: Ints = np.array(token_starts, np.int64)
        self.bounds: Ints = np.array(query_start_loc, np.int64)
        self.counts: Ints = self.bounds[1:] - self.bounds[:-1]
        self.is_plain = False
        """Whether each request has one row."""
        self.seats: Ints = self.starts[:0]
        """``(batch,)``, set when it is launched; -1 for requests that never began."""
        self.failing: dict[str, ProtocolViolation] = {}
        """Requests that never began."""
        self.rows: NDArray[Any] | None = None
        """``(total, num_layers, top_k)``, contiguous."""
        self.owned = True
        """Whether ``rows`` stay as they are after the step was processed."""
        self.stale: frozenset[int] = frozenset()
        """Seats of requests whose tokens have been replaced since, so that their rows are dropped (WORK-KEYS-2)."""
        self.void_since = 0
        """The generation that began while the step was in flight, which drops it; 0: none."""

    def require_sound(self, num_rows: int) -> None:
        """Refuse boundaries that are none (WORK-STEP-1). O(1) array operations."""
        count = len(self.roster.ids)
        if self.starts.shape != (count,) or self.bounds.shape != (count + 1,):
            problem = f"{count} requests, {self.starts.size} starts and {self.bounds.size} boundaries"
        elif self.bounds.item(0) != 0 or self.bounds.item(-1) != num_rows:
            problem = f"boundaries run from {self.bounds[0]} to {self.bounds[-1]}, rows from 0 to {num_rows}"
        elif np.count_nonzero(self.starts < 0):
            problem = "a start is negative"
        else:
            self.is_plain = num_rows == count and np.count_nonzero(self.counts != 1) == 0
            return
        raise ProtocolViolation("WORK-STEP-1", None, problem)


def failed_outputs(step: PendingStep, errors: Mapping[str, str]) -> StepOutputs:
    """The outputs of a step in which every request failed."""
    assert step.rows is not None
    nothing = np.zeros(len(step.roster.ids), np.int64)
    return StepOutputs(step.roster, nothing, (nothing, nothing), step.rows[:0], errors)
