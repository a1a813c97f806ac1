"""Bounded progress: from every reachable state it is possible that everything ends."""

from __future__ import annotations

from collections.abc import Sequence


def never_drains(
    num_states: int, sources: Sequence[int], targets: Sequence[int], drained: Sequence[int]
) -> int | None:
    """The first state from which no drained state can be reached.

    Walks backwards over the transitions until a walk finds nothing new. Nearly all lead from a state to one that
    was found later, so two walks or three are enough, and the transitions need not be sorted by their targets.

    Args:
        sources: where each transition starts, in the order in which they were found.
        targets: where it ends.
        drained: the states in which nothing is left to do.
    """
    reaches = bytearray(num_states)
    for state in drained:
        reaches[state] = 1
    stuck, before = reaches.count(0), num_states + 1
    while 0 < stuck < before:
        for source, target in zip(reversed(sources), reversed(targets), strict=True):
            if reaches[target]:
                reaches[source] = 1
        stuck, before = reaches.count(0), stuck
    return reaches.find(0) if stuck else None
