"""Walking through a model at random: for models too large to try everything."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Hashable, Iterator

from .model import Model
from .search import Result, system_of
from .system import Move, System
from .witnesses import names_of


def simulate(model: Model, seed: int, runs: int = 1000, max_steps: int = 200) -> Result:
    """Walk from the start, ``runs`` times at most; the same seed gives the same walks.

    What is not found is not excluded: without a finding the verdict is ``CUT``.
    """
    begun, draw = time.process_time(), random.Random(seed)
    system = system_of(model)
    seen: set[Hashable] = set()
    events: Counter[str] = Counter()
    longest = witnesses = 0
    found: list[Move] = []
    for _ in range(runs):
        walk = list(_walk(system, draw, max_steps))
        seen.update(move.after for move in walk)
        events.update(move.choice.kind for move in walk)
        longest = max(longest, len(walk))
        for move in walk:
            witnesses |= move.witnesses
        if walk[-1].broken is not None:
            found = walk
            break
    seconds = time.process_time() - begun
    counts = len(seen), sum(events.values()), longest, seconds, events, names_of(witnesses)
    if not found:
        return Result(model.name, "CUT", *counts)
    trace = system.events([move.choice for move in found])
    return Result(model.name, "VIOLATION", *counts, found[-1].broken, trace)


def _walk(system: System, draw: random.Random, max_steps: int) -> Iterator[Move]:
    """One random walk, to where nothing goes on or something breaks."""
    state = system.start()
    for _ in range(max_steps):
        moves = list(system.moves(state))
        if not moves:
            return
        move = draw.choice(moves)
        yield move
        if move.broken is not None:
            return
        state = move.after
