"""Drift: what of the protocol differs from one vLLM to another, for which there may be no profile yet.

The protocol's part of a vLLM is found by structure: the connector's package, the modules that use its names, what it
reads of a request and where that is written, what its answers are given to, and what it imports. Both are compared by
syntax tree, and the older one's suite is played on the newer code, as far as that can be built.
"""

from .behaviour import Playing
from .drifter import compare, from_the_newest_known
from .outcome import Difference, Drift, Line, Part, Result, Side
from .record import dump
from .render import in_one_line, lines, summary_line

__all__ = [
    "Difference",
    "Drift",
    "Line",
    "Part",
    "Playing",
    "Result",
    "Side",
    "compare",
    "dump",
    "from_the_newest_known",
    "in_one_line",
    "lines",
    "summary_line",
]
