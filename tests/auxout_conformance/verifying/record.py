"""A verification as JSON lines: base and patched code as two targets of a report, then one ``verification`` line."""

from __future__ import annotations

import json
from typing import Any

from auxout_spec import scenario as scenarios

from .. import report
from ..verdicts import Violation
from .outcome import Change, ClauseOutcome, Move, Verification


def dump(verification: Verification, head: dict[str, Any]) -> str:
    """The text of a report file under the given header."""
    judged = [each for each in (verification.base, verification.patched) if each is not None]
    return report.dump(judged, head) + json.dumps(line(verification)) + "\n"


def line(verification: Verification) -> dict[str, Any]:
    """The verification's own line."""
    return {
        "line": "verification",
        "patch": verification.patch,
        "base": verification.base_name,
        "profile": verification.profile,
        "result": verification.result.value,
        "exit_code": verification.exit_code,
        "reason": verification.reason,
        "replay": verification.replay,
        "clauses": [_clause(each) for each in verification.clauses],
        "moves": [_move(each) for each in verification.moves],
        "changes": [_change(each) for each in verification.changes],
        "num_scenarios": verification.num_scenarios,
        "seconds": verification.seconds,
        "unplayed": list(verification.unplayed),
        "notes": list(verification.notes),
    }


def _clause(each: ClauseOutcome) -> dict[str, Any]:
    return {
        "clause": each.clause,
        "outcome": each.outcome,
        "findings": list(each.findings),
        "violation": each.violation and _violation(each.violation),
    }


def _violation(violation: Violation) -> dict[str, Any]:
    names = ("event", "call", "expected", "actual", "found_by", "seed", "replay")
    told = {name: getattr(violation, name) for name in names}
    return {**told, "scenario": json.loads(scenarios.dump(violation.scenario))}


def _move(move: Move) -> dict[str, Any]:
    return {**move._asdict(), "scenario": json.loads(scenarios.dump(move.scenario))}


def _change(change: Change) -> dict[str, Any]:
    names = ("what", "event", "call", "base", "patched")
    return {
        **{name: getattr(change, name) for name in names},
        "scenario": json.loads(scenarios.dump(change.scenario)),
    }
