"""Rows of consecutive positions, what cannot be right in them, and two parts of a call made one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from .errors import ConflictError, DtypeError, GapError, IdError, ShapeError, StartError
from .schema import Schema

Level = Literal["capture", "ids"]
_AT_ONCE = 4096
"""Rows that are sorted at once, so that checking takes little memory."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of the positions ``[start, end)``; never written to.

    Args:
        values: (rows, num_layers, top_k), of the schema's dtype; not copied.

    Raises:
        ShapeError, DtypeError, StartError: the values are no rows of the schema.
    """

    values: NDArray[Any]
    start: int
    schema: Schema

    def __post_init__(self) -> None:
        if self.values.ndim != 3 or self.values.shape[1:] != self.schema.row_shape:
            raise ShapeError(
                f"values of shape {self.values.shape} are no rows of {self.schema.row_shape}",
                "CLIENT-DECODE-3",
            )
        if self.values.dtype != self.schema.dtype:
            raise DtypeError(f"rows are {self.schema.dtype}, not {self.values.dtype}", "CLIENT-DECODE-5")
        if self.start < 0:
            raise StartError(f"rows cannot start at {self.start}", "CLIENT-DECODE-2")
        view: NDArray[Any] = self.values[:]
        view.flags.writeable = False
        object.__setattr__(self, "values", view)

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + len(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows):
            return NotImplemented
        same = self.start == other.start and self.schema == other.schema
        return same and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]  # equality reads the values


def validate(rows: Rows, level: Level = "ids", *, request: str | None = None) -> None:
    """Look for what no router can have chosen.

    Args:
        level: ``capture`` looks for layers that were not captured, which is quick: O(ids) without a copy; ``ids``
            also for ids beyond the experts, twice in a layer, or in a layer without a router.

    Raises:
        IdError: there is some; ``positions`` tells the first (CLIENT-IDS).
    """
    schema, values = rows.schema, rows.values
    if not len(values):
        return

    def refuse(clause: str, problem: str, start: int, end: int | None = None) -> NoReturn:
        first = rows.start + start
        last = first + 1 if end is None else rows.start + end
        raise IdError(problem, clause, request=request, positions=(first, last))

    if level == "ids" and int(values.max()) >= schema.num_experts:
        position = int(np.argmax((values >= schema.num_experts).any(axis=(1, 2))))
        refuse("CLIENT-IDS-1", f"an id beyond the {schema.num_experts} experts", position)
    captured: NDArray[np.bool_] = np.any(values, axis=(0, 2))
    for layer in schema.moe_layers if schema.top_k > 1 else ():
        if not captured[layer]:
            refuse("CLIENT-IDS-4", f"layer {layer} is zero in every row; was it captured?", 0, len(values))
    if level == "capture":
        return
    for start, repeated in _repeated(values[:, schema.moe_layers]):
        if repeated.any():
            refuse("CLIENT-IDS-2", "an expert twice in one layer", start + int(np.argmax(repeated)))
    dense = [layer for layer in range(schema.num_layers) if layer not in schema.moe_layers]
    if captured[dense].any():
        position = int(np.argmax(values[:, dense].any(axis=(1, 2))))
        refuse("CLIENT-IDS-3", "an id in a layer without a router", position)


def _repeated(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """For some rows at a time the index of the first, and which of them name an expert twice in a layer."""
    for start in range(0, len(values), _AT_ONCE):
        ordered = np.sort(values[start : start + _AT_ONCE], axis=2)
        yield start, (ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=(1, 2))


def splice(first: Rows, second: Rows, *, request: str | None = None) -> Rows:
    """The rows of one call that two engines computed, such as prefill and decode, in either order.

    Copies both, unless one holds all of the other.

    Raises:
        GapError: a position between the two is in neither (CLIENT-SPLICE-1).
        ConflictError: they differ where they overlap (CLIENT-SPLICE-2).
        ShapeError: their schemas differ.
    """
    if first.schema != second.schema:
        raise ShapeError("the two parts' schemas differ", "CLIENT-PACK-2", request=request)
    if first.start > second.start:
        first, second = second, first
    if second.start > first.end:
        raise GapError(
            f"rows end at {first.end} and go on at {second.start}",
            "CLIENT-SPLICE-1",
            request=request,
            positions=(first.end, second.start),
        )
    overlap = min(first.end, second.end) - second.start
    mine, theirs = first.values[second.start - first.start :][:overlap], second.values[:overlap]
    if (at := first_difference(mine, theirs)) is not None:
        raise ConflictError(
            "the two parts' rows differ",
            "CLIENT-SPLICE-2",
            request=request,
            positions=(second.start + at, second.start + at + 1),
        )
    if second.end <= first.end:
        return first
    if overlap == len(first):
        return second
    return Rows(np.concatenate((first.values, second.values[overlap:])), first.start, first.schema)


def first_difference(mine: NDArray[Any], theirs: NDArray[Any]) -> int | None:
    """Index of the first row that differs between arrays of one shape; None: they are equal."""
    if np.array_equal(mine, theirs):
        return None
    return int(np.argmax((mine != theirs).reshape(len(mine), -1).any(axis=1)))
