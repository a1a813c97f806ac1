"""What a client handles, as immutable values."""

from __future__ import annotations

from typing import Literal, NamedTuple

Row = tuple[tuple[int, ...], ...]
"""The expert ids of one position, (num_layers, top_k)."""
Version = str | int | None
"""Names the weights that computed a row; None: not told."""
Keep = Literal["first", "last", "equal"]
"""Which row a position keeps that two calls returned one for."""

MAX_EXPERTS = 65536


class Schema(NamedTuple):
    """What the rows of one model look like."""

    num_layers: int
    top_k: int
    num_experts: int
    moe_layers: tuple[int, ...]
    """Layers that have a router, ascending; the others' ids are zero."""

    @property
    def max_value(self) -> int:
        """The largest value of the dtype: 255 (uint8) up to 256 experts, else 65535 (uint16) (CLIENT-DECODE-5)."""
        return 255 if self.num_experts <= 256 else 65535


class Payload(NamedTuple):
    """What an engine returned, unpacked from its encoding: numbers with a shape."""

    shape: tuple[int, ...]
    """(rows, num_layers, top_k), or (numbers,) where the engine sends a flat buffer."""
    values: tuple[int | float, ...]
    """In row-major order."""
    flat: bool = False
    """A flat buffer: its shape says nothing about rows."""


class Rows(NamedTuple):
    """Rows of consecutive positions."""

    rows: tuple[Row, ...]
    start: int

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + len(self.rows)


class Span(NamedTuple):
    """A version of the weights and the range that it holds for."""

    version: Version
    start: int
    end: int


class Source(NamedTuple):
    """Where the row of a position comes from."""

    call: int
    """0-based number of the call."""
    version: Version


class Trajectory(NamedTuple):
    """The tokens of a conversation and, by position, the row of each and its source; None: not known."""

    schema: Schema
    tokens: tuple[int, ...] = ()
    rows: tuple[Row | None, ...] = ()
    sources: tuple[Source | None, ...] = ()
    num_calls: int = 0


class Refused(NamedTuple):
    """What a client must not do with what it was given."""

    clause: str
    message: str
    positions: tuple[int, int] | None = None
    """The range that it is about."""

    @property
    def error(self) -> str:
        """The name of the error that an implementation raises."""
        return ERRORS[self.clause]


ERRORS = {
    "CLIENT-DECODE-1": "CountError",
    "CLIENT-DECODE-2": "StartError",
    "CLIENT-DECODE-3": "ShapeError",
    "CLIENT-DECODE-4": "DtypeError",
    "CLIENT-DECODE-6": "MissingError",
    "CLIENT-DECODE-7": "PayloadError",
    "CLIENT-IDS-1": "IdError",
    "CLIENT-IDS-2": "IdError",
    "CLIENT-IDS-3": "IdError",
    "CLIENT-IDS-4": "IdError",
    "CLIENT-MERGE-1": "ConflictError",
    "CLIENT-MERGE-2": "GapError",
    "CLIENT-MERGE-3": "CountError",
    "CLIENT-MERGE-6": "ConflictError",
    "CLIENT-MERGE-8": "MissingError",
    "CLIENT-CUT-2": "CountError",
    "CLIENT-SPLICE-1": "GapError",
    "CLIENT-SPLICE-2": "ConflictError",
    "CLIENT-ARRAY-2": "CountError",
    "CLIENT-ARRAY-3": "MissingError",
    "CLIENT-PAD-2": "CountError",
    "CLIENT-PACK-2": "ShapeError",
    "CLIENT-PACK-3": "DtypeError",
    "CLIENT-SHARD-3": "ShapeError",
    "CLIENT-LAYERS-3": "ShapeError",
    "CLIENT-VERSION-1": "VersionError",
}
"""Clause -> the error of the client that names it."""
