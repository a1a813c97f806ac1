"""``auxout client-check``: judges how a trainer's code joins and lays out rows, by conversations with a known answer.

``cases.json`` needs nothing of this package: each case is a conversation and the array, or the kind of error, that
must come of it. A function under judgement gets one conversation as a dictionary and returns what
``cases.schema.json`` calls an answer; it raises to refuse, and ``NotImplementedError`` where it does not offer what is
asked. It runs in a process of its own.
"""

from .cases import Case, all_cases, named
from .checking import Checked, Result, check, lines, summary, table

__all__ = ["Case", "Checked", "Result", "all_cases", "check", "lines", "named", "summary", "table"]
