"""Draws a timeline as SVG: lanes as bands, events as columns, steps in flight as bars, row ranges to scale.

The picture is complete in itself: no style sheet, no font and no script from elsewhere. Text is set in a monospaced
font, so widths follow from lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from ..render import printable
from .contrast import Part, differing, folded
from .model import LANES, RIGHT_COURSE, Column, Flight, Line, Timeline, Wrong

COLOURS = ("#0060a8", "#a34700", "#7a3e8f", "#00694e", "#8a6d00", "#a8205a")
"""Of requests, in order of appearance; each has a contrast above 4.5 on the lanes' backgrounds."""
INK, FAINT, PAPER, SHADE, WRONG, REFUSED = "#1b1f24", "#57606a", "#ffffff", "#f4f6f8", "#b3261e", "#7a4a00"
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SIZE, LETTER, ROW, PAD, GUTTER, BAR = 13, 7.9, 19, 10, 92, 26
WIDEST = 30
"""Letters of a line before it is folded."""
_TONES = {"call": INK, "refused": REFUSED, "wrong": WRONG}
_SIGNS = {"wrong": "✗ ", "refused": "! "}


class _Box(NamedTuple):
    """Where a column or a lane is."""

    start: float
    size: float


def draw(timeline: Timeline, name: str = "timeline", *, legend: bool = True) -> str:
    """The picture of a timeline.

    Args:
        name: makes its ids unique in a page.
        legend: say under it what is wrong; a page may say it beside the picture.
    """
    columns = _column_boxes(timeline)
    lanes, tracks = _lane_boxes(timeline)
    width = max(columns[-1].start + columns[-1].size if columns else GUTTER, 560)
    foot = _foot(timeline, width) if legend else []
    top = lanes[-1].start + lanes[-1].size
    height = top + ROW * len(foot) + (2 * PAD if foot else 1)
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    look = f'font-family="{FONT}" font-size="{SIZE}" fill="{INK}"'
    names = f'role="img" aria-labelledby="{name}-title {name}-text"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {names} {look}>',
        f'<title id="{name}-title">{escape(_title(timeline))}</title>',
        f'<desc id="{name}-text">{escape(_description(timeline))}</desc>',
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
        *_frame(timeline, columns, lanes, width),
        *_cells(timeline, columns, lanes, tracks),
        *_flights(timeline, columns, lanes[LANES.index("channel")], tracks),
    ]
    parts += [_pieces(PAD, top + PAD + ROW * number + SIZE, line) for number, line in enumerate(foot)]
    return "\n".join([*parts, "</svg>", ""])


def _column_boxes(timeline: Timeline) -> list[_Box]:
    boxes: list[_Box] = []
    start: float = GUTTER
    for place, column in enumerate(timeline.columns):
        labels = [_label(flight) for flight in timeline.flights if flight.first == place]
        lines = [part for cell in column.cells for line in cell for part in _folded(line)]
        longest = max(map(len, [*_heading(column), *lines, *(label + "   " for label in labels)]))
        size = longest * LETTER + 2 * PAD + 8
        boxes.append(_Box(start, size))
        start += size
    return boxes


def _lane_boxes(timeline: Timeline) -> tuple[list[_Box], list[list[Flight]]]:
    """The lanes under the heading, and the tracks of the flights in the channel's."""
    tracks = _tracks(timeline)
    start = float(PAD + 4 + ROW * max((len(_heading(column)) for column in timeline.columns), default=1))
    boxes: list[_Box] = []
    for place, lane in enumerate(LANES):
        rows = max(
            (sum(_height(line) for line in column.cells[place]) for column in timeline.columns), default=0
        )
        bars = BAR * len(tracks) if lane == "channel" else 0
        size = max(rows + bars, ROW) + 2 * PAD - 4
        boxes.append(_Box(start, size))
        start += size
    return boxes, tracks


def _tracks(timeline: Timeline) -> list[list[Flight]]:
    tracks: list[list[Flight]] = []
    for flight in timeline.flights:
        free = (track for track in tracks if track[-1].last is not None and track[-1].last <= flight.first)
        track = next(free, None)
        if track is None:
            tracks.append([flight])
        else:
            track.append(flight)
    return tracks


def _frame(timeline: Timeline, columns: Sequence[_Box], lanes: Sequence[_Box], width: float) -> Iterator[str]:
    """Backgrounds, names of lanes, headings of columns."""
    bottom = lanes[-1].start + lanes[-1].size
    for place, (lane, box) in enumerate(zip(LANES, lanes, strict=True)):
        fill = PAPER if place % 2 else SHADE
        yield f'<rect y="{box.start:g}" width="{width:g}" height="{box.size:g}" fill="{fill}"/>'
        yield _text(PAD, box.start + PAD + SIZE - 4, lane, FAINT, bold=True)
    for column, box in zip(timeline.columns, columns, strict=True):
        yield f'<path d="M{box.start:g} {PAD} V{bottom:g}" stroke="#d0d7de" fill="none"/>'
        for number, line in enumerate(_heading(column)):
            yield _text(box.start + PAD, PAD + SIZE - 2 + ROW * number, line, bold=True)
    if timeline.wrong is not None and columns:
        box = columns[-1]
        yield (
            f'<rect x="{box.start + 1:g}" y="1" width="{box.size - 2:g}" height="{bottom - 2:g}" rx="4" '
            f'fill="{WRONG}" fill-opacity="0.06" stroke="{WRONG}" stroke-width="2"/>'
        )


def _cells(
    timeline: Timeline, columns: Sequence[_Box], lanes: Sequence[_Box], tracks: Sequence[Sequence[Flight]]
) -> Iterator[str]:
    colours = _colours(timeline)
    for column, box in zip(timeline.columns, columns, strict=True):
        for lane, cell, band in zip(LANES, column.cells, lanes, strict=True):
            top = band.start + PAD - 4 + (BAR * len(tracks) if lane == "channel" else 0)
            for line in cell:
                yield from _line(line, box, top, colours, timeline.end)
                top += _height(line)


def _line(line: Line, box: _Box, top: float, colours: dict[str, str], end: int) -> Iterator[str]:
    """A line of a cell; a range is shown to scale under its text, on a track that is as long as all positions."""
    colour = _TONES.get(line.tone) or colours.get(line.request, INK)
    bold = line.tone != "plain"
    for number, part in enumerate(_folded(line)):
        yield _text(box.start + PAD, top + SIZE + ROW * number, part, colour, bold)
    if line.span is not None and end:
        first, last = line.span
        full = box.size - 2 * PAD
        y, left, length = top + ROW * len(_folded(line)) - 2, box.start + PAD, full * (last - first) / end
        yield f'<rect x="{left:g}" y="{y:g}" width="{full:g}" height="3" rx="1.5" fill="#d8dee4"/>'
        yield (
            f'<rect x="{left + full * first / end:.1f}" y="{y:g}" width="{max(length, 1.5):.1f}" height="3" '
            f'rx="1.5" fill="{colours.get(line.request, INK)}"/>'
        )


def _flights(
    timeline: Timeline, columns: Sequence[_Box], channel: _Box, tracks: Sequence[Sequence[Flight]]
) -> Iterator[str]:
    """Steps in flight: bars from the middle of their launch to their landing."""
    colours = _colours(timeline)
    right_edge = columns[-1].start + columns[-1].size - 3 if columns else 0
    for number, track in enumerate(tracks):
        y = channel.start + PAD - 4 + BAR * number
        for flight in track:
            left = columns[flight.first].start + PAD / 2
            flies = flight.last is None
            right = right_edge if flight.last is None else columns[flight.last].start + PAD / 2 - 2
            colour = colours.get(flight.parts[0].request, INK) if len(flight.parts) == 1 else FAINT
            dashes = ' stroke-dasharray="5 4"' if flies else ""
            yield (
                f'<rect x="{left:g}" y="{y:g}" width="{right - left:g}" height="{BAR - 5}" rx="5" '
                f'fill="{PAPER}" stroke="{colour}" stroke-width="1.5"{dashes}/>'
            )
            yield _text(left + 7, y + SIZE + 2, _label(flight), colour, bold=True)


def _foot(timeline: Timeline, width: float) -> list[list[Part]]:
    """What is wrong, or why the picture ends, as lines of pieces under it."""
    letters = int((width - 2 * PAD) / LETTER)
    lines: list[list[Part]] = []
    if timeline.wrong is not None:
        lines += _wrong_lines(timeline.wrong, letters)
    if timeline.note:
        lines += [[Part(text, False)] for text in wrap(printable(f"({timeline.note})"), letters)]
    return lines


def _wrong_lines(wrong: Wrong, letters: int) -> Iterator[list[Part]]:
    for text in wrap(f"✗ {wrong.clause}  {wrong.sentence}", letters):
        yield [Part(text, True)]
    if not wrong.call:
        yield from ([Part(text, False)] for text in wrap(printable(wrong.actual), letters))
        return
    marked = differing(printable(wrong.expected), printable(wrong.actual))
    for name, parts in zip(("expected", "actual"), marked, strict=True):
        yield from folded([Part(f"{name:<9}", False), *parts], letters, 9)
    if wrong.expected:
        yield from ([Part(text, False)] for text in wrap(f"({RIGHT_COURSE})", letters))


def _text(x: float, y: float, text: str, colour: str = "", bold: bool = False) -> str:
    fill = f" fill={quoteattr(colour)}" if colour else ""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" xml:space="preserve"{fill}{weight}>{escape(printable(text))}</text>'


def _pieces(x: float, y: float, parts: Sequence[Part]) -> str:
    spans = (
        f'<tspan fill="{WRONG}" font-weight="600">{escape(part.text)}</tspan>'
        if part.differs
        else escape(part.text)
        for part in parts
    )
    return f'<text x="{x:g}" y="{y:g}" xml:space="preserve">{"".join(spans)}</text>'


def _height(line: Line) -> float:
    return ROW * len(_folded(line)) + (4 if line.span is not None else 0)


def _heading(column: Column) -> list[str]:
    return wrap(f"{column.number} {column.title}", WIDEST)


def _folded(line: Line) -> list[str]:
    return wrap(_SIGNS.get(line.tone, "") + line.text, WIDEST, subsequent_indent="  ")


def _label(flight: Flight) -> str:
    return f"step {flight.number}: {'  '.join(part.text for part in flight.parts)}"


def _colours(timeline: Timeline) -> dict[str, str]:
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(timeline.requests)}


def _title(timeline: Timeline) -> str:
    about = f": {timeline.wrong.clause}" if timeline.wrong else ""
    return f"Timeline of {len(timeline.columns)} events{about}"


def _description(timeline: Timeline) -> str:
    """The picture in words, for those who do not see it."""
    sentences: list[str] = []
    for column in timeline.columns:
        said = [
            f"{lane}: {', '.join(_SIGNS.get(line.tone, '') + line.text for line in cell)}"
            for lane, cell in zip(LANES, column.cells, strict=True)
            if cell
        ]
        sentences.append(f"Event {column.number}, {column.title}. {'; '.join(said)}.")
    return printable(" ".join(sentences))
