"""A conversation: its tokens, and the row of each position as the call that returned it left it.

Rows are kept as they came, as views on ranges of positions; joining calls moves no row. They are copied once, into the
array that a trainer asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _kernel
from .errors import ConflictError, CountError, GapError, MissingError, RowsError, ShapeError, VersionError
from .rows import Rows, first_difference
from .schema import Schema

Version = str | int | None
"""Names the weights that computed a row; None: not told."""
Keep = Literal["first", "last", "equal"]
Tokens = Sequence[int] | NDArray[np.integer[Any]]


class Span(NamedTuple):
    """A version of the weights and the range ``[start, end)`` that it holds for."""

    version: Version
    start: int
    end: int


class Segment(NamedTuple):
    """Rows of the positions ``[start, start + len(values))`` that one call returned under one version."""

    start: int
    values: NDArray[Any]
    call: int
    version: Version

    @property
    def end(self) -> int:
        return self.start + len(self.values)

    def clipped(self, start: int, end: int) -> Segment | None:
        """The part in ``[start, end)``; None if there is none."""
        first, last = max(self.start, start), min(self.end, end)
        if first >= last:
            return None
        return self._replace(start=first, values=self.values[first - self.start : last - self.start])


class Trajectory:
    """The tokens of a conversation and their rows; calls are added in order.

    Args:
        schema: of the model whose rows they are.
        request: a name for messages.

    Attributes:
        tokens: all tokens so far, read-only, int64.
        segments: the known rows, ascending and without a gap between them.
        num_calls: calls added, those without rows included.
    """

    def __init__(self, schema: Schema, *, request: str | None = None) -> None:
        self.schema, self.request = schema, request
        self.tokens: NDArray[np.int64] = _as_tokens(())
        self.segments: tuple[Segment, ...] = ()
        self.num_calls = 0

    @property
    def known(self) -> tuple[int, int]:
        """Positions ``[start, end)`` that have a row; (0, 0) if none has."""
        return (self.segments[0].start, self.segments[-1].end) if self.segments else (0, 0)

    def add_call(
        self,
        prompt: Tokens,
        output: Tokens,
        rows: Rows | None,
        *,
        version: Version | Sequence[tuple[Version, int, int]] = None,
        keep: Keep = "first",
    ) -> None:
        """Add one call: a turn, or the next part of a rollout that was interrupted.

        Its rows fill what is not known, the last token of the call before included. O(tokens); no row is copied.

        Args:
            prompt: all tokens that the call was sent; begins with ``tokens``.
            output: the tokens that it sampled.
            rows: None where it ended before anything was sampled.
            version: of the weights that computed the rows; where they changed during the call, (version, start, end)
                by output index, as vLLM's ``return_weight_versions`` tells them.
            keep: which row a position has that was known already. ``first``: the one that its token was sampled with;
                ``last``: the new one; ``equal``: both must agree.

        Raises:
            RowsError: the conversation is as it was (CLIENT-MERGE, CLIENT-VERSION-1).
        """
        try:
            before, after = _as_tokens(prompt), _as_tokens(output)
            self._check_prompt(before)
            spans = _spans(version, len(before), len(after))
            self._check_range(rows, len(before) + len(after), len(after))
            if keep == "equal" and rows is not None:
                self._check_equal(rows)
        except RowsError as error:
            error.request, error.call = self.request, self.num_calls
            raise
        if rows is not None:
            self.segments = tuple(self._joined(_segments(rows, spans, self.num_calls), keep))
        self.tokens = _read_only(np.concatenate((before, after)))
        self.num_calls += 1

    def truncate(self, num_tokens: int) -> None:
        """Keep the first tokens and their rows, after a stop string or a length limit.

        Raises:
            CountError: there are fewer (CLIENT-CUT-2).
        """
        if not 0 <= num_tokens <= len(self.tokens):
            problem = f"a cut to {num_tokens} tokens of {len(self.tokens)}"
            raise CountError(problem, "CLIENT-CUT-2", request=self.request)
        self.tokens = self.tokens[:num_tokens]
        self.segments = tuple(_clipped(self.segments, 0, num_tokens))

    def branch(self, position: int) -> Trajectory:
        """Another conversation that begins with the tokens before ``position`` and their rows, not copied.

        Raises:
            CountError: there are fewer (CLIENT-CUT-2).
        """
        other = Trajectory(self.schema, request=self.request)
        other.tokens, other.segments, other.num_calls = self.tokens, self.segments, self.num_calls
        other.truncate(position)
        return other

    def _check_prompt(self, prompt: NDArray[np.int64]) -> None:
        num_known = len(self.tokens)
        if np.array_equal(prompt[:num_known], self.tokens):
            return
        common = min(len(prompt), num_known)
        differs = first_difference(prompt[:common], self.tokens[:common])
        raise ConflictError(
            "the prompt does not begin with the tokens so far; branch where it departs from them",
            "CLIENT-MERGE-1",
            positions=(common if differs is None else differs, num_known),
        )

    def _check_range(self, rows: Rows | None, num_tokens: int, num_output: int) -> None:
        if rows is None:
            if num_output:
                problem = f"{num_output} tokens were sampled and there are no rows of them"
                raise MissingError(problem, "CLIENT-MERGE-8")
            return
        if rows.schema != self.schema:
            raise ShapeError("the rows are of another schema than the conversation", "CLIENT-PACK-2")
        _, end = self.known
        if self.segments and rows.start > end:
            raise GapError(
                f"rows start at {rows.start}, and those from {end} on were never returned",
                "CLIENT-MERGE-2",
                positions=(end, rows.start),
            )
        if rows.end != num_tokens - 1:
            problem = f"rows end at {rows.end}; those of {num_tokens} tokens end at {num_tokens - 1}"
            raise CountError(problem, "CLIENT-MERGE-3")

    def _check_equal(self, rows: Rows) -> None:
        for segment in _clipped(self.segments, rows.start, rows.end):
            first = segment.start - rows.start
            at = first_difference(segment.values, rows.values[first : first + len(segment.values)])
            if at is not None:
                position = segment.start + at
                raise ConflictError(
                    f"calls {segment.call} and {self.num_calls} returned different rows",
                    "CLIENT-MERGE-6",
                    positions=(position, position + 1),
                )

    def _joined(self, new: Sequence[Segment], keep: Keep) -> Iterator[Segment]:
        """Old and new segments as one range; where they overlap, one of them is kept."""
        if not (new and self.segments):
            yield from new or self.segments
            return
        kept, filling = (new, self.segments) if keep == "last" else (self.segments, new)
        start, end = kept[0].start, kept[-1].end
        yield from _clipped(filling, 0, start)
        yield from kept
        yield from _clipped(filling, end, max(end, filling[-1].end))


def versions(trajectory: Trajectory) -> list[Span]:
    """Ranges of positions whose rows are of the same weights, ascending (CLIENT-VERSION-2)."""
    spans: list[Span] = []
    for segment in trajectory.segments:
        if spans and spans[-1].version == segment.version:
            spans[-1] = spans[-1]._replace(end=segment.end)
        else:
            spans.append(Span(segment.version, segment.start, segment.end))
    return spans


def _as_tokens(tokens: Tokens) -> NDArray[np.int64]:
    values = np.asarray(tokens)
    if not values.size:
        return np.empty(0, np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise RowsError(f"tokens are integers in one dimension, not {values.dtype} of shape {values.shape}")
    return values.astype(np.int64, copy=False)


def _read_only(values: NDArray[np.int64]) -> NDArray[np.int64]:
    values.flags.writeable = False
    return values


def _spans(
    version: Version | Sequence[tuple[Version, int, int]], num_prompt: int, num_output: int
) -> list[Span]:
    """Versions by position, from 0 on; the last one has no end."""
    if version is None or isinstance(version, (str, int)):
        return [Span(version, 0, num_prompt + num_output)]
    spans, at = list[Span](), 0
    for name, start, end in version:
        if start != at or end <= start:
            problem = f"a span of version {name!r} starts at output {start}, not at {at}, or is empty"
            raise VersionError(problem, "CLIENT-VERSION-1")
        positions = (_kernel.first_position(output, num_prompt) for output in (start, end))
        spans.append(Span(name, *positions))
        at = end
    if at != num_output:
        raise VersionError(f"the spans end at output {at} of {num_output}", "CLIENT-VERSION-1")
    return spans


def _segments(rows: Rows, spans: Iterable[Span], call: int) -> list[Segment]:
    whole = Segment(rows.start, rows.values, call, None)
    parts = ((span.version, whole.clipped(span.start, span.end)) for span in spans)
    return [part._replace(version=version) for version, part in parts if part is not None]


def _clipped(segments: Iterable[Segment], start: int, end: int) -> Iterator[Segment]:
    for segment in segments:
        part = segment.clipped(start, end)
        if part is not None:
            yield part
