"""The errors of the client: one family, each with what it is about."""

from __future__ import annotations


class RowsError(ValueError):
    """Rows that would be lost, made up or put in another place. What was given is unchanged.

    Attributes:
        problem: one sentence, what does not fit.
        clause: which rule, by its id in the protocol's clause registry; None where the arguments alone are wrong.
        request: the request that it is about, where it was named.
        call: 0-based number of the call within its conversation, where there is one.
        positions: token positions ``[start, end)``, where it is about some.
    """

    def __init__(
        self,
        problem: str,
        clause: str | None = None,
        *,
        request: str | None = None,
        call: int | None = None,
        positions: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem, self.clause = problem, clause
        self.request, self.call, self.positions = request, call, positions

    def __str__(self) -> str:
        about = [] if self.request is None else [f"request {self.request}"]
        about += [] if self.call is None else [f"call {self.call}"]
        if self.positions is not None:
            start, end = self.positions
            about.append(f"position {start}" if end == start + 1 else f"positions [{start}, {end})")
        prefix = f"{', '.join(about)}: " if about else ""
        return f"{prefix}{self.problem}{f' [{self.clause}]' if self.clause else ''}"

    def __reduce__(self) -> tuple[object, ...]:
        # Workers of a trainer send errors to one another.
        return type(self), (self.problem,), self.__dict__


class CountError(RowsError):
    """Another number of rows, tokens or places than there must be."""


class StartError(RowsError):
    """A first position that is none, or another than the payload's."""


class ShapeError(RowsError):
    """Other layers, slots or schemas, or a length that does not divide."""


class DtypeError(RowsError):
    """Values or a dtype that do not hold expert ids without loss."""


class PayloadError(RowsError):
    """A payload that is malformed, or not of the size that it names."""


class IdError(RowsError):
    """Ids that no router can have chosen."""


class GapError(RowsError):
    """Positions between known rows that no call returned a row for."""


class ConflictError(RowsError):
    """Tokens or rows that contradict what is known."""


class VersionError(RowsError):
    """Weight versions that do not cover the output."""


class MissingError(RowsError):
    """Rows that are due and did not come."""
