"""A drift as JSON; ``drift.schema.json`` describes it."""

from __future__ import annotations

import json
from typing import Any

from ..verifying.record import line
from .outcome import Difference, Drift, Played

FORMAT = "drift/1"


def dump(drift: Drift, head: dict[str, Any]) -> str:
    """The text of a file.

    Args:
        head: the tool, where it ran, and when (``report.header``).
    """
    told = {name: value for name, value in head.items() if name not in ("line", "auxout")}
    data = {
        "auxout": FORMAT,
        **told,
        "old": drift.old._asdict(),
        "new": drift.new._asdict(),
        "result": drift.result.value,
        "exit_code": drift.exit_code,
        "differences": [_difference(each) for each in drift.differences],
        "played": [_played(each) for each in drift.played],
        "notes": list(drift.notes),
        "unordered": drift.unordered,
        "seconds": drift.seconds,
    }
    return json.dumps(data, indent=2) + "\n"


def _difference(each: Difference) -> dict[str, Any]:
    return {
        "part": each.part.value,
        "path": each.path,
        "name": each.name,
        "lines": [line._asdict() for line in each.lines],
    }


def _played(each: Played) -> dict[str, Any]:
    told = line(each.verification) if each.verification is not None else {}
    return {
        "half": each.half,
        "profile": each.profile,
        "unbound": each.unbound,
        "reason": each.left or each.broken,
        "clauses": told.get("clauses", []),
        "moves": told.get("moves", []),
        "changes": told.get("changes", []),
    }
