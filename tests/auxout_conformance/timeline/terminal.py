"""Draws a timeline for a terminal: lanes as rows, events as columns, in bands as wide as the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap

from rich.text import Text

from ..render import printable
from .model import LANES, RIGHT_COURSE, Column, Flight, Line, Timeline

COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "bright_red")
"""Of requests, in order of appearance."""
WIDEST, GAP = 28, 2
_GUTTER = max(map(len, LANES)) + GAP
_STYLES = {"call": "bold", "refused": "bold yellow", "wrong": "bold reverse red"}
_SIGNS = {"wrong": "✗ ", "refused": "! "}


def draw(timeline: Timeline, width: int) -> list[Text]:
    """The timeline as lines of at most ``width`` characters, as long as a column of 28 fits."""
    widths = [_width(timeline, column) for column in timeline.columns]
    lines: list[Text] = []
    for first, end in bands(widths, width):
        lines += _band(timeline, first, widths[first:end])
        lines.append(Text())
    notes = [timeline.note] if timeline.note else []
    if timeline.wrong is not None and timeline.wrong.expected:
        notes.append(RIGHT_COURSE)
    for note in notes:
        lines += [Text(part, "dim") for part in wrap(printable(f"({note})"), width)]
    return [*lines, Text()] if notes else lines


def fits(timeline: Timeline, width: int) -> bool:
    """Whether it needs no more than one band."""
    return len(bands([_width(timeline, column) for column in timeline.columns], width)) <= 1


def bands(widths: Sequence[int], width: int) -> list[tuple[int, int]]:
    """The columns in groups that fit beside each other: pairs of the first and the one behind the last."""
    found: list[tuple[int, int]] = []
    first, used = 0, _GUTTER
    for place, each in enumerate(widths):
        if place > first and used + each > width:
            found.append((first, place))
            first, used = place, _GUTTER
        used += each + GAP
    return [*found, (first, len(widths))] if widths else found


def _width(timeline: Timeline, column: Column) -> int:
    place = timeline.columns.index(column)
    labels = [_label(flight) for flight in timeline.flights if flight.first == place]
    texts = [_text(line) for cell in column.cells for line in cell]
    longest = max(map(len, [_title(column), *texts, *(f"{label}--" for label in labels)]))
    return min(longest, WIDEST)


def _band(timeline: Timeline, first: int, widths: Sequence[int]) -> Iterator[Text]:
    columns = timeline.columns[first : first + len(widths)]
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(timeline.requests)}
    yield from _rows("", [[Text(part, "bold") for part in wrap(_title(c), WIDEST)] for c in columns], widths)
    yield Text("─" * (_GUTTER + sum(widths) + GAP * (len(widths) - 1)), "dim")
    for place, lane in enumerate(LANES):
        cells = [
            [part for line in column.cells[place] for part in _parts(line, colours)] for column in columns
        ]
        bars = _bars(timeline.flights, first, widths, colours) if lane == "channel" else []
        if not bars and not any(cells):
            continue
        for number, bar in enumerate(bars):
            yield Text(f"{'' if number else lane:<{_GUTTER}}", "bold").append_text(bar)
        yield from _rows("" if bars else lane, cells, widths)


def _rows(name: str, cells: Sequence[Sequence[Text]], widths: Sequence[int]) -> Iterator[Text]:
    for number, row in enumerate(zip_longest(*cells, fillvalue=Text())):
        line = Text(f"{'' if number else name:<{_GUTTER}}", "bold")
        for part, width in zip(row, widths, strict=True):
            line.append_text(part).append(" " * (width + GAP - len(part)))
        line.rstrip()
        yield line


def _parts(line: Line, colours: dict[str, str]) -> list[Text]:
    style = _STYLES.get(line.tone, colours.get(line.request, ""))
    return [Text(part, style) for part in wrap(_text(line), WIDEST, subsequent_indent="  ")]


def _bars(
    flights: Sequence[Flight], first: int, widths: Sequence[int], colours: dict[str, str]
) -> Iterator[Text] | list[Text]:
    """The steps in flight as bars, one a line; those that overlap nothing share one."""
    starts = [sum(widths[:place]) + GAP * place for place in range(len(widths) + 1)]
    tracks: list[Text] = []
    for flight in flights:
        last = flight.last if flight.last is not None else first + len(widths)
        if last < first or flight.first >= first + len(widths):
            continue
        left = starts[max(flight.first - first, 0)]
        inside = last < first + len(widths)
        right = starts[last - first] + 1 if inside else starts[-1] - GAP
        bar = Text("├" if flight.first >= first else "╶").append(" ")
        label = _label(flight) if flight.first >= first else f"step {flight.number}"
        style = colours[flight.parts[0].request] if len(flight.parts) == 1 else ""
        bar.append(label, style).append(" ")
        bar.append("─" * (right - left - len(bar) - 1)).append("┤" if inside else "╴")
        track = next((track for track in tracks if len(track) <= left), None)
        if track is None:
            tracks.append(Text(" " * left).append_text(bar))
        else:
            track.append(" " * (left - len(track))).append_text(bar)
    return tracks


def _label(flight: Flight) -> str:
    return printable(f"step {flight.number}: {'  '.join(part.text for part in flight.parts)}")


def _title(column: Column) -> str:
    return printable(f"{column.number} {column.title}")


def _text(line: Line) -> str:
    return printable(_SIGNS.get(line.tone, "") + line.text)
