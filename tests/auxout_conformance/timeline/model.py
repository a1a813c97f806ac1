"""The timeline as values: lanes, columns, steps in flight, and the answer that was wrong."""

from __future__ import annotations

from typing import Literal, NamedTuple

LANES = ("engine", "scheduler", "channel", "worker", "store")
"""From where decisions are made to where rows are kept; the channel carries metadata down and rows up."""

RIGHT_COURSE = "beside the wrong answer the last column shows what should have happened"

Tone = Literal["plain", "call", "refused", "wrong"]
"""How a line is meant: something that happened, a connector call, a refusal that is right, the wrong answer."""


class Line(NamedTuple):
    """One line of a cell. Rows and positions are ranges: ``A[0, 4)`` are those of A from 0 to 3."""

    text: str
    request: str = ""
    """Whose it is; empty: nobody's in particular."""
    tone: Tone = "plain"
    span: tuple[int, int] | None = None
    """The range of positions that it is about, if it is about one."""


class Column(NamedTuple):
    """One event."""

    number: int
    """1-based, as in the scenario."""
    title: str
    """The event in words."""
    cells: tuple[tuple[Line, ...], ...]
    """One for each of ``LANES``."""


class Flight(NamedTuple):
    """A step in flight: a bar of the channel lane, from its launch to its landing."""

    number: int
    """1-based, in launch order."""
    first: int
    """The column (from 0) in which it was launched."""
    last: int | None
    """The column in which its output was consumed; None: it still flies."""
    parts: tuple[Line, ...]
    """What it computes of each request, such as ``A[0, 4)``."""


class Wrong(NamedTuple):
    """What the timeline is about: the rule that is broken in its last column."""

    clause: str
    sentence: str
    call: str
    """The connector call whose answer was wrong; empty: a property of the whole system."""
    expected: str
    actual: str


class Timeline(NamedTuple):
    """A scenario as it went."""

    block_size: int
    depth: int
    profile: str
    columns: tuple[Column, ...]
    flights: tuple[Flight, ...]
    wrong: Wrong | None = None
    note: str = ""
    """Why it ends before its scenario does, or what its lanes leave out; empty if nothing is missing."""

    @property
    def requests(self) -> tuple[str, ...]:
        """Every request that it names, in order of appearance."""
        lines = (line for column in self.columns for cell in column.cells for line in cell)
        return tuple(dict.fromkeys(line.request for line in lines if line.request))

    @property
    def end(self) -> int:
        """The end of the last range."""
        lines = (line for column in self.columns for cell in column.cells for line in cell)
        return max((line.span[1] for line in lines if line.span), default=0)
