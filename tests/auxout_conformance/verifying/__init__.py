"""Verifying a patch: which clauses it keeps, breaks and fixes, and what it changes besides.

Base and patched code are judged by the same suite with the same seeds, then compared call by call. A clause is
*broken* if there is a scenario in which the base answers rightly and the patched code does not; *fixed* if the base
breaks it and the patched code nowhere does.
"""

from .expecting import apply_expectations, broken_report
from .outcome import Change, ClauseOutcome, Move, Result, Verification
from .record import dump
from .render import detail_lines, summary_line, verification_lines
from .verifier import Base, load_base, play_newer, verify

__all__ = [
    "Base",
    "Change",
    "ClauseOutcome",
    "Move",
    "Result",
    "Verification",
    "apply_expectations",
    "broken_report",
    "detail_lines",
    "dump",
    "load_base",
    "play_newer",
    "summary_line",
    "verification_lines",
    "verify",
]
