"""Reports for people and machines, all made from the one file that ``--report`` writes.

``render`` turns the text of a report file into Markdown (a comment, a step summary), JUnit XML (what CI systems read)
or one HTML page (nothing else is loaded).
"""

from __future__ import annotations

from collections.abc import Callable

from ..report import ReportFile
from . import html, junit, markdown

FORMATS: dict[str, Callable[[ReportFile], str]] = {
    "markdown": markdown.render,
    "junit": junit.render,
    "html": html.render,
}
"""How a report file becomes a document of each kind."""

__all__ = ["FORMATS"]
