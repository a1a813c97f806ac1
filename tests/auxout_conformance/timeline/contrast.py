"""What differs between an expected and an actual answer, part by part, so that it can be set off."""

from __future__ import annotations

import re
from typing import NamedTuple


class Part(NamedTuple):
    """A piece of an answer."""

    text: str
    differs: bool


def differing(expected: str, actual: str) -> tuple[list[Part], list[Part]]:
    """Both texts in pieces between their outer commas; a piece that the other text lacks differs.

    Texts that have nothing in common are one piece each that does not stand out.
    """
    mine, others = _pieces(expected), _pieces(actual)
    common = set(mine) & set(others)
    if not common:
        return [Part(expected, False)], [Part(actual, False)]
    return _marked(mine, common), _marked(others, common)


def folded(parts: list[Part], width: int, indent: int) -> list[list[Part]]:
    """Pieces in lines of at most ``width`` letters; later lines are indented."""
    lines: list[list[Part]] = [[]]
    room = width
    for part in parts:
        text = part.text
        if len(text) > room and lines[-1]:
            lines.append([Part(" " * indent, False)])
            room = width - indent
            text = text.lstrip()
        while len(text) > room:
            lines[-1].append(Part(text[:room], part.differs))
            text = text[room:]
            lines.append([Part(" " * indent, False)])
            room = width - indent
        lines[-1].append(Part(text, part.differs))
        room -= len(text)
    return lines


def _pieces(text: str) -> list[str]:
    """Pieces between commas outside of brackets."""
    pieces, depth, start = list[str](), 0, 0
    for found in re.finditer(r"[\[\](){}]|, ", text):
        if found.group() == ", ":
            if depth == 0:
                pieces.append(text[start : found.start()])
                start = found.end()
        else:
            depth += 1 if found.group() in "[({" else -1
    return [*pieces, text[start:]]


def _marked(pieces: list[str], common: set[str]) -> list[Part]:
    parts: list[Part] = []
    for number, piece in enumerate(pieces):
        if number:
            parts.append(Part(", ", False))
        parts.append(Part(piece, piece not in common))
    return parts
