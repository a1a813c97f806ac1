"""Models of a few hundred states each, with every number pinned: the first judge of a broken spec.

They are shaped for one kind of transition each and take about a second together, so that ``quality/mutation`` can ask
them thousands of times. A change of a number is a question, not a verdict: say in the commit why it moved.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from auxout_spec.engine import Add, Chunk, Reset
from auxout_spec.explorer.model import Menu, Model
from auxout_spec.explorer.search import explore


class Numbers(NamedTuple):
    """What a search must come to."""

    states: int
    transitions: int
    depth: int
    witnesses: int
    """Kinds of rare interplay that are met."""


_WEIGHTS = Reset(weights=True)
_ONE = (Add("A", 3, 0, 3),)
_TWO = (Add("A", 3, 0, 2), Add("B", 2, 1, 1))
_SHARED = (Add("A", 3, 0, 3, text="T"), Add("B", 5, 0, 1, text="T"))
_THREE = (Add("A", 4, 0, 2), Add("B", 2, 0, 1), Add("C", 5, 0, 1))
_REREAD = (Add("A", 3, 0, 1, text="T"), Add("B", 5, 0, 2, text="T"))
_SESSION = (Add("A", 3, 0, 2, session=True),)
_TURNS = (Chunk("A", 2), Chunk("A", 1, 7))

# One row per line: these are read as a table.
# fmt: off
SMALL = [
    (Model("everything", "", Menu(_ONE, stops=True, preemptions=1, aborts=1, resets=(_WEIGHTS,), drained_resets=True)), Numbers(500, 848, 12, 23)),
    (Model("two requests", "", Menu(_TWO, preemptions=1)), Numbers(241, 461, 10, 11)),
    (Model("running reset", "", Menu(_TWO, resets=(Reset(running=True),), drained_resets=True)), Numbers(179, 300, 10, 10)),
    (Model("running reset", "", Menu(_TWO, resets=(Reset(running=True),), pauses=1), profile="0.31"), Numbers(322, 624, 12, 10)),
    (Model("id again", "", Menu((Add("A", 3, 0, 2), Add("A", 2, 0, 2)), aborts=1, settled_ids=True)), Numbers(75, 102, 13, 11)),
    (Model("session", "", Menu(_SESSION, chunks=_TURNS, preemptions=1, settled_turns=True), depth=1, profile="0.31"), Numbers(108, 164, 19, 7)),
    (Model("session", "", Menu((Add("A", 2, 0, 1, session=True),), chunks=(Chunk("A", 2, 0, 1),)), depth=1), Numbers(14, 16, 8, 4)),
    (Model("drafts", "", Menu((Add("A", 2, 1, 4),), drafts=2, stops=True)), Numbers(239, 533, 10, 13)),
    (Model("chunks", "", Menu((Add("A", 5, 2, 2),), prefill_chunks=(2,), preemptions=1)), Numbers(148, 208, 12, 13)),
    (Model("evicted", "", Menu((Add("A", 3, 0, 3),), preemptions=1, skips_hits=True, evictions=1)), Numbers(152, 234, 11, 16)),
    (Model("blocks of three", "", Menu((Add("A", 4, 0, 3),), drafts=1), block_size=3, depth=3), Numbers(158, 273, 10, 11)),
    (Model("start beyond", "", Menu((Add("A", 3, 5, 2),), preemptions=1)), Numbers(37, 48, 8, 12)),
    (Model("shared text", "", Menu(_SHARED, preemptions=1)), Numbers(473, 895, 12, 17)),
    (Model("shared text", "", Menu(_SHARED, aborts=1), whole=True), Numbers(403, 806, 11, 14)),
    (Model("elsewhere", "", Menu((Add("A", 5, 5, 2),), external=(2, 4), loads=2, preemptions=1, prefill_chunks=(2,))), Numbers(279, 388, 12, 16)),
    (Model("failed loads", "", Menu((Add("A", 5, 4, 2), Add("B", 2, 0, 1)), external=(4,), loads=1, load_failures=True)), Numbers(160, 299, 8, 10)),
    (Model("waited for", "", Menu((Add("A", 5, 5, 2),), external=(4, 5), loads=2, waits_for_loads=True, load_failures=True, aborts=1, resets=(_WEIGHTS,), drained_resets=True)), Numbers(743, 1102, 12, 20)),
    (Model("known rows", "", Menu(_REREAD, external=(2, 4), loads=1, known_rows=True, evictions=1, max_running=1)), Numbers(82, 115, 10, 11)),
    (Model("cut", "", Menu((Add("A", 4, 4, 1, text="T", cut=1), Add("B", 5, 0, 1, text="T")), preemptions=1)), Numbers(72, 118, 8, 13)),
    (Model("bounded store", "", Menu(_THREE, aborts=1, max_running=1), capacity=3), Numbers(349, 683, 12, 8)),
    (Model("bounded store", "", Menu((Add("A", 3, 0, 2), Add("B", 2, 0, 2), Add("C", 2, 0, 1)), max_running=1), capacity=2), Numbers(139, 231, 14, 6)),
]
# fmt: on


@pytest.mark.parametrize(("model", "expected"), SMALL, ids=lambda value: getattr(value, "name", ""))
def test_comes_to_these_numbers(model: Model, expected: Numbers) -> None:
    result = explore(model, max_states=5_000)
    found = Numbers(result.states, result.transitions, result.depth, len(result.witnesses))
    assert (result.verdict, found) == ("OK", expected)
