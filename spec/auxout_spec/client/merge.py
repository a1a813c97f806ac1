"""Joining the calls of a conversation by position, so that every token keeps the row of its own prefix.

Example: a call sends tokens 0 to 4 and gets tokens 5 to 7; its rows are those of 0 to 6. The next turn's prompt holds
all eight and four more. With start 7 its first row is that of token 7, which the first call could not have.
"""

from __future__ import annotations

from .kernel import first_position
from .values import Keep, Refused, Row, Rows, Source, Span, Trajectory, Version


def add_call(
    trajectory: Trajectory,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    rows: Rows | None,
    version: Version | tuple[Span, ...] = None,
    keep: Keep = "first",
) -> Trajectory | Refused:
    """The conversation after one more call (CLIENT-MERGE).

    Args:
        rows: None where the call ended before anything was sampled.
        version: of the weights that computed the rows; where they changed during the call, spans of the output, by
            output index.
    """
    tokens = prompt + output
    known = [position for position, row in enumerate(trajectory.rows) if row is not None]
    refused = (
        _check_tokens(trajectory, prompt)
        or _check_versions(version, len(output))
        or _check_range(rows, known[-1] + 1 if known else None, len(tokens), len(output))
        or (_check_equal(trajectory, rows) if keep == "equal" and rows else None)
    )
    if refused:
        return refused
    found: dict[int, tuple[Row, Source]] = {}
    for position, row in enumerate(rows.rows, rows.start) if rows else ():
        of_row = _version(version, position, len(prompt))
        found[position] = row, Source(trajectory.num_calls, of_row)
    for position in known:
        row, source = trajectory.rows[position], trajectory.sources[position]
        if row is not None and source is not None and (keep != "last" or position not in found):
            found[position] = row, source
    joined = [found.get(position, (None, None)) for position in range(len(tokens))]
    return trajectory._replace(
        tokens=tokens,
        rows=tuple(row for row, _ in joined),
        sources=tuple(source for _, source in joined),
        num_calls=trajectory.num_calls + 1,
    )


def _check_tokens(trajectory: Trajectory, prompt: tuple[int, ...]) -> Refused | None:
    known = trajectory.tokens
    for position, token in enumerate(known):
        if position >= len(prompt) or prompt[position] != token:
            message = "the prompt is not what the calls before left; branch there first"
            return Refused("CLIENT-MERGE-1", message, (position, len(known)))
    return None


def _check_range(
    rows: Rows | None, known_end: int | None, num_tokens: int, num_output: int
) -> Refused | None:
    if rows is None:
        if num_output:
            return Refused("CLIENT-MERGE-8", f"{num_output} tokens were sampled, and there are no rows")
        return None
    if known_end is not None and rows.start > known_end:
        message = f"rows begin at {rows.start}, and those of {known_end} on are not known"
        return Refused("CLIENT-MERGE-2", message, (known_end, rows.start))
    if rows.end != num_tokens - 1:
        return Refused("CLIENT-MERGE-3", f"rows end at {rows.end}, tokens at {num_tokens}")
    return None


def _check_equal(trajectory: Trajectory, rows: Rows) -> Refused | None:
    for position, row in enumerate(rows.rows, rows.start):
        known = trajectory.rows[position] if position < len(trajectory.rows) else None
        if known not in (None, row):
            return Refused("CLIENT-MERGE-6", "two calls returned different rows", (position, position + 1))
    return None


def _check_versions(version: Version | tuple[Span, ...], num_output: int) -> Refused | None:
    if not isinstance(version, tuple):
        return None
    at = 0
    for span in version:
        if span.start != at or span.end <= at:
            return Refused("CLIENT-VERSION-1", f"a span begins at output {span.start}, not at {at}")
        at = span.end
    if at != num_output:
        return Refused("CLIENT-VERSION-1", f"the spans end at output {at} of {num_output}")
    return None


def _version(version: Version | tuple[Span, ...], position: int, num_prompt: int) -> Version:
    if not isinstance(version, tuple):
        return version
    begun = (span for span in reversed(version) if first_position(span.start, num_prompt) <= position)
    return next((span.version for span in begun), None)


def truncate(trajectory: Trajectory, num_tokens: int) -> Trajectory | Refused:
    """The first tokens and their rows; the rest was cut by a stop string or a length limit (CLIENT-CUT)."""
    if not 0 <= num_tokens <= len(trajectory.tokens):
        return Refused("CLIENT-CUT-2", f"a cut to {num_tokens} of {len(trajectory.tokens)} tokens")
    return trajectory._replace(
        tokens=trajectory.tokens[:num_tokens],
        rows=trajectory.rows[:num_tokens],
        sources=trajectory.sources[:num_tokens],
    )


def branch(trajectory: Trajectory, position: int) -> Trajectory | Refused:
    """Another continuation of the tokens before ``position``; the values are immutable, so nothing is shared."""
    return truncate(trajectory, position)


def splice(first: Rows, second: Rows) -> Rows | Refused:
    """Rows of one request that two engines computed, such as prefill and decode (CLIENT-SPLICE)."""
    if first.start > second.start:
        first, second = second, first
    if second.start > first.end:
        message = f"rows end at {first.end} and go on at {second.start}"
        return Refused("CLIENT-SPLICE-1", message, (first.end, second.start))
    for position in range(second.start, min(first.end, second.end)):
        if first.rows[position - first.start] != second.rows[position - second.start]:
            return Refused("CLIENT-SPLICE-2", "the two parts' rows differ", (position, position + 1))
    return Rows(first.rows + second.rows[first.end - second.start :], first.start)


def versions_of(trajectory: Trajectory) -> tuple[Span, ...]:
    """Ranges of positions whose rows are of the same weights, ascending (CLIENT-VERSION-2)."""
    spans: list[Span] = []
    for position, source in enumerate(trajectory.sources):
        if source is None:
            continue
        if spans and spans[-1].end == position and spans[-1].version == source.version:
            spans[-1] = spans[-1]._replace(end=position + 1)
        else:
            spans.append(Span(source.version, position, position + 1))
    return tuple(spans)
