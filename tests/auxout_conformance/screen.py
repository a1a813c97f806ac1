"""The terminal: lines on standard output, progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from . import interrupts
from .render import columns
from .verdicts import Progress, Verdict

STYLES = {
    Verdict.CONFORM: "green",
    Verdict.VIOLATION: "bold red",
    Verdict.BROKEN: "bold magenta",
    Verdict.INCOMPLETE: "yellow",
}

LOG_WIDTH = 120
"""Letters in a line when nobody looks at a terminal."""


class Screen:
    """Writes results. Lines are never wrapped, cut or read as markup."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)

    @property
    def width(self) -> int:
        """Letters in a line of the terminal, or of a log file."""
        return self._console.width if self._console.is_terminal else LOG_WIDTH

    def line(self, text: str | Text = "", style: str = "") -> None:
        """One line, whatever its length; coloured if a person looks."""
        styled = text if isinstance(text, Text) else Text(text, style=style)
        if self._console.is_terminal and (style or isinstance(text, Text)):
            self._console.print(styled, soft_wrap=True)
        else:
            print(styled.plain)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Aligned columns; the last one is folded to fit if a person looks."""
        if not self._console.is_terminal:
            self.lines(columns([head, *rows]))
            return
        table = Table(*head, box=None, pad_edge=False, header_style="bold")
        for column in table.columns[:-1]:
            column.no_wrap = True
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print(table)

    def lines(self, lines: Iterable[str | Text]) -> None:
        """Several lines."""
        for line in lines:
            self.line(line)


class Display(Protocol):
    """Shows how far a judgement is."""

    def show(self, progress: Progress) -> None:
        """Take notice of progress."""
        ...


class Sparse:
    """One line on standard error for each phase of each target: fit for a log file."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str]] = set()

    def show(self, progress: Progress) -> None:
        interrupts.check()
        phase = (progress.target, progress.phase)
        if phase not in self._shown:
            total = f" ({progress.total})" if progress.total else ""
            print(f"{progress.target}: {progress.phase}{total}", file=sys.stderr, flush=True)
            self._shown.add(phase)


class Bar:
    """A progress bar that disappears when it is done."""

    def __init__(self, rich_progress: RichProgress) -> None:
        self._progress = rich_progress
        self._task: TaskID | None = None

    def show(self, progress: Progress) -> None:
        interrupts.check()
        if self._task is None:
            self._task = self._progress.add_task("", total=None)
        what = f"{progress.target}  {progress.phase}"
        total = progress.total or None
        done = min(progress.done, total or progress.done)
        self._progress.update(self._task, description=what, completed=done, total=total)


@contextmanager
def progress_display() -> Iterator[Display]:
    """A bar when standard error is a terminal, sparse lines otherwise."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Sparse()
        return
    shown = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with RichProgress(*shown, console=console, transient=True) as rich_progress:
        yield Bar(rich_progress)
