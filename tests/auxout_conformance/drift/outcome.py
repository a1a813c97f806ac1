"""What comparing two vLLMs yields: differences, each in a part of the protocol and at a place, as marked lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from typing import Literal, NamedTuple

from ..verdicts import Verdict
from ..verifying import Result as Verified
from ..verifying import Verification

Half = Literal["scheduler", "worker"]
"""What is played apart."""
_RUNS = (Verified.CLEAN, Verified.BROKEN, Verified.INCOMPLETE)

GONE, NEW, SAME = "-", "+", " "


class Part(str, Enum):
    """The part of the protocol that a difference is in; the order is that of the output."""

    FILES = "files"
    SIGNATURES = "signatures"
    FIELDS = "fields"
    PACKAGE = "package"
    CALLS = "calls"
    LOOKUPS = "lookups"
    INPUTS = "inputs"
    CAPTURE = "capture"
    GATES = "gates"
    ORDER = "order"

    @property
    def sentence(self) -> str:
        """What the part is."""
        return _SENTENCES[self.value]


_SENTENCES = {
    "files": "Files of the connector's package, and the modules that use its names.",
    "signatures": "Public classes and functions of the package; constructors are listed under their class.",
    "fields": "Fields of the dataclasses that carry the protocol's values.",
    "package": "What functions of the package do: what they read, call, refuse, and keep.",
    "calls": "Functions of the engine that call the connector: its calls, and calls that give or get what it takes "
    "and returns, in the order of the source, with the nearest conditions.",
    "lookups": "Functions of the engine that are given an answer of the connector, as for a prefix-cache hit.",
    "inputs": "How the engine makes and changes what the connector reads of a request.",
    "capture": "Functions outside the package that it imports and that hand it rows, sizes and groups.",
    "gates": "Conditions, refusals and environment variables that decide whether and where the connector is on.",
    "order": "Calls of the connector and of the KV cache manager, on the real schedulers, in 20 engine events.",
}


class Line(NamedTuple):
    """One line of a difference."""

    mark: str
    """``-`` only in the older, ``+`` only in the newer, a space in both."""
    text: str


@dataclass(frozen=True)
class Difference:
    """One place that differs."""

    part: Part
    path: str
    """The file."""
    name: str
    """The function or class in it; empty for the file as a whole."""
    lines: tuple[Line, ...]

    @property
    def where(self) -> str:
        """The place as people name it."""
        return f"{self.path} {self.name}".rstrip()


def marked(old: Sequence[str], new: Sequence[str], *, context: bool = False) -> tuple[Line, ...]:
    """The lines of two texts with their marks, in order; empty if they do not differ.

    Args:
        context: keep lines that are in both.
    """
    lines: list[Line] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            lines += [Line(SAME, text) for text in old[a:b]] if context else []
        else:
            lines += [Line(GONE, text) for text in old[a:b]]
            lines += [Line(NEW, text) for text in new[c:d]]
    return tuple(lines) if any(line.mark != SAME for line in lines) else ()


def told(
    part: Part, path: str, name: str, old: Sequence[str], new: Sequence[str], *, context: bool = False
) -> list[Difference]:
    """The difference between two texts of one place, if there is one."""
    lines = marked(old, new, context=context)
    return [Difference(part, path, name, lines)] if lines else []


class Result(str, Enum):
    """What became of a comparison, in a word or two."""

    NONE = "no drift"
    DRIFT = "drift"
    BROKEN = "does not run"
    """The newer code does not import, hangs or kills its process; how its source differs is told all the same."""
    INCOMPLETE = "incomplete"
    """No difference was found, and not everything was looked at."""

    @property
    def exit_code(self) -> int:
        """That of the command."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Result.NONE: Verdict.CONFORM.exit_code,
    Result.DRIFT: Verdict.VIOLATION.exit_code,
    Result.BROKEN: Verdict.BROKEN.exit_code,
    Result.INCOMPLETE: Verdict.INCOMPLETE.exit_code,
}


class Side(NamedTuple):
    """One of the two that are compared."""

    name: str
    """As the user named it."""
    version: str
    """Empty if it cannot be told."""


@dataclass(frozen=True)
class Played:
    """The older release's suite on one half of the newer code."""

    half: Half
    profile: str
    """The older one's."""
    verification: Verification | None = None
    """None: it was not played."""
    unbound: str = ""
    """Why the suite cannot build it, which is a difference."""
    reason: str = ""
    """Why it was not played, for want of something here."""

    @property
    def differs(self) -> bool:
        """Whether it answers otherwise, or is built otherwise."""
        told = self.verification
        if told is None:
            return bool(self.unbound)
        return bool(told.having("broken") or told.having("fixed") or told.moves or told.changes)

    @property
    def broken(self) -> str:
        """Why it does not run; empty if it does."""
        told = self.verification
        is_broken = told is not None and told.result not in (*_RUNS, Verified.BASE_BROKEN)
        return f"{told.result.value}: {told.reason}" if told is not None and is_broken else ""

    @property
    def left(self) -> str:
        """Why it was not judged, or not to the end; empty if it was."""
        told = self.verification
        if told is None or told.result not in (Verified.BASE_BROKEN, Verified.INCOMPLETE):
            return self.reason
        return f"{told.result.value}: {told.reason}"

    @property
    def clauses(self) -> tuple[str, ...]:
        """The clauses that differ."""
        told = self.verification
        differing = (*told.having("broken"), *told.having("fixed"), *told.having("moved")) if told else ()
        return tuple(each.clause for each in differing)


@dataclass(frozen=True)
class Drift:
    """What differs from an older vLLM to a newer one."""

    old: Side
    new: Side
    differences: tuple[Difference, ...]
    played: tuple[Played, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not looked at, and why."""
    unordered: str = ""
    """Why the order of connector calls was not recorded; empty if it was, or was not asked for."""
    seconds: float = 0.0

    @property
    def result(self) -> Result:
        """What became of it."""
        if any(each.broken for each in self.played):
            return Result.BROKEN
        if self.differences or any(each.differs for each in self.played):
            return Result.DRIFT
        is_left = bool(self.notes) or any(each.left for each in self.played)
        return Result.INCOMPLETE if is_left else Result.NONE

    @property
    def exit_code(self) -> int:
        """That of the command."""
        return self.result.exit_code

    def of(self, part: Part) -> tuple[Difference, ...]:
        """The differences in one part."""
        return tuple(each for each in self.differences if each.part is part)
