"""Paired timing: two implementations in one process, interleaved in random order, with what was set aside.

A sample during which the thread lost the processor says nothing about the code, so it is set aside; when that
happens to one side much more often than to the other, the comparison of wall times is refused and only processor
time is compared. Garbage collection is off while timing.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from dataclasses import dataclass, field
from statistics import median, quantiles
from types import ModuleType

from workloads import Workload

MAX_KEPT_GAP = 0.25
"""Largest difference of kept shares under which wall times are compared."""


@dataclass
class Side:
    """One implementation's samples, in seconds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    num_rounds: int = 0

    @property
    def kept(self) -> float:
        return len(self.wall) / self.num_rounds

    @property
    def spread(self) -> tuple[float, float, float]:
        """p10, median and p90 of the wall times in microseconds."""
        values = self.wall if len(self.wall) > 1 else self.cpu
        cuts = quantiles(values, n=10)
        return cuts[0] * 1e6, median(values) * 1e6, cuts[8] * 1e6


@dataclass(frozen=True)
class Comparison:
    """Original against ours."""

    name: str
    original: Side
    ours: Side

    @property
    def wall_ratio(self) -> float | None:
        """Median wall time of the original over ours; None when the kept samples do not compare."""
        if abs(self.original.kept - self.ours.kept) > MAX_KEPT_GAP or not (
            self.original.wall and self.ours.wall
        ):
            return None
        return median(self.original.wall) / median(self.ours.wall)

    @property
    def cpu_ratio(self) -> float:
        """Median processor time of all threads, original over ours; every sample counts."""
        return median(self.original.cpu) / median(self.ours.cpu)


def compare(
    name: str, workload: Workload, original: ModuleType, ours: ModuleType, rounds: int, seed: int = 0
) -> Comparison:
    """Time a workload on both modules, a fifth of the rounds as warm-up."""
    order = random.Random(seed)
    sides = {0: Side(), 1: Side()}
    series = {0: workload(original), 1: workload(ours)}
    warm_up = rounds // 5
    gc.collect()
    gc.disable()
    try:
        for number in range(warm_up + rounds):
            for which in order.sample((0, 1), 2):
                timed = next(series[which])
                wall, cpu, switched = _once(timed.action)
                if number >= warm_up:
                    side = sides[which]
                    side.num_rounds += 1
                    side.cpu.append(cpu)
                    if not switched:
                        side.wall.append(wall)
    finally:
        gc.enable()
    return Comparison(name, sides[0], sides[1])


def _once(action: object) -> tuple[float, float, bool]:
    """Wall time, processor time, and whether the thread was switched out against its will."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    result = action()  # type: ignore[operator]
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    switched = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw != before
    del result
    return wall * 1e-9, cpu * 1e-9, switched
