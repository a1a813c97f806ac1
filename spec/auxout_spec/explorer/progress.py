"""Bounded progress: from every reachable state it is possible that everything ends."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


def never_drains(
    num_states: int, sources: Sequence[int], targets: Sequence[int], drained: Sequence[int]
) -> int | None:
    """The first state from which no drained state can be reached.

    Args:
        sources: where each transition starts.
        targets: where it ends.
        drained: the states in which nothing is left to do.
    """
    first = array("L", [0]) * (num_states + 1)
    for target in targets:
        first[target + 1] += 1
    for state in range(num_states):
        first[state + 1] += first[state]
    free, before = array("L", first), array("L", [0]) * len(targets)
    for source, target in zip(sources, targets, strict=True):
        before[free[target]] = source
        free[target] += 1
    reaches = bytearray(num_states)
    found = list(drained)
    for state in found:
        reaches[state] = 1
    while found:
        state = found.pop()
        for source in before[first[state] : first[state + 1]]:
            if not reaches[source]:
                reaches[source] = 1
                found.append(source)
    stuck = reaches.find(0)
    return None if stuck < 0 else stuck
