"""Paired timing: two implementations in one process on the same requests, interleaved in random order.

Each sample has the processor time of all threads, which counts, and the wall time. A sample during which the
thread lost the processor says nothing about wall time, so there it is set aside; when that happens to one side
much more often than to the other, or leaves few samples, the comparison of wall times is refused. Garbage
collection is off while timing.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, NamedTuple

from workloads import Workload

MAX_KEPT_GAP = 0.25
"""Largest difference of kept shares under which wall times are compared."""
MIN_KEPT = 10
"""Fewest kept samples of a side with which wall times are compared."""
MIN_ROUNDS = 20
NUM_WARM_UP = 8


class Spread(NamedTuple):
    """Quantiles, in microseconds."""

    p10: float
    median: float
    p90: float


@dataclass
class Side:
    """One implementation's samples, in seconds; ``wall`` only has those that were kept."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def kept(self) -> float:
        return len(self.wall) / len(self.cpu)

    @property
    def spread(self) -> Spread:
        """Of the processor time. The quantiles are those of the samples, nothing is extrapolated."""
        tenths = quantiles(self.cpu, n=10, method="inclusive")
        return Spread(tenths[0] * 1e6, tenths[4] * 1e6, tenths[8] * 1e6)


@dataclass(frozen=True)
class Comparison:
    """Original against ours. Ratios above 1 mean that ours is faster."""

    name: str
    original: Side
    ours: Side

    @property
    def ratio(self) -> float:
        """Of the medians of processor time."""
        return self.original.spread.median / self.ours.spread.median

    @property
    def ratio_p10(self) -> float:
        """Of the tenth percentiles, which other processes disturb less."""
        return self.original.spread.p10 / self.ours.spread.p10

    @property
    def wall_ratio(self) -> float | None:
        """Of the medians of wall time; None when the kept samples do not compare."""
        sides = self.original, self.ours
        if (
            min(len(side.wall) for side in sides) < MIN_KEPT
            or abs(sides[0].kept - sides[1].kept) > MAX_KEPT_GAP
        ):
            return None
        return median(self.original.wall) / median(self.ours.wall)


def compare(
    name: str, workload: Workload, original: Any, ours: Any, seconds: float, seed: int = 0
) -> Comparison:
    """Time a workload on both modules, or whatever it takes, for about so many seconds, after a warm-up."""
    order = random.Random(seed)
    sides = Side(), Side()
    rounds = workload((original, ours))
    for _ in range(NUM_WARM_UP):
        for action in next(rounds).actions:
            action()
    gc.collect()
    gc.disable()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(sides[0].cpu) < MIN_ROUNDS:
            actions, prepare = next(rounds)
            for which in order.sample((0, 1), 2):
                prepare()
                wall, cpu, switched = _once(actions[which])
                sides[which].cpu.append(cpu)
                if not switched:
                    sides[which].wall.append(wall)
    finally:
        gc.enable()
    return Comparison(name, *sides)


def _once(action: Callable[[], Any]) -> tuple[float, float, bool]:
    """Wall time, processor time, and whether the thread was switched out against its will."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    result = action()
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    switched = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw != before
    del result  # freed outside the timed part
    return wall * 1e-9, cpu * 1e-9, switched
