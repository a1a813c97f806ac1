"""What a verification says, as plain lines for a terminal."""

from __future__ import annotations

from ..render import columns
from .document import Patch


def lines(patch: Patch) -> list[str]:
    """The clauses by their outcome, what else changed, and the result last."""
    rows = [
        (
            outcome,
            f"{len(names)} clause{'' if len(names) == 1 else 's'}" if outcome == "kept" else ", ".join(names),
        )
        for outcome, names in patch.outcomes
    ]
    rows += [("moved", move) for move in patch.moves]
    rows += [("changed", what) for what, *_ in patch.changes]
    facts = [patch.title, patch.result, patch.reason]
    notes = [f"note: {note}" for note in patch.notes]
    return [*columns(rows), *notes, "  ".join(fact for fact in facts if fact)]
