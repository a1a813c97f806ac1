"""``make bench``: our connectors against the released ones, in one process.

Writes tables and plots: docs/benchmark.md and .svg of the scheduler connector, docs/benchmark-worker.md and .svg of the
worker. Options: --part, --release, --quick, --only.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import numpy as np
import worker_workloads
import workers
from timing import Comparison, Side, Spread, compare
from workloads import (
    Workload,
    decode,
    dumps,
    loads,
    pickled_size,
    prefill,
    request_finished,
    take_output,
    turnover,
)

import auxout.connector
from auxout_conformance.targets import loading, wheels

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIZES = (32, 256, 1024, 4096)
CASES = {
    **{f"decode, {n} requests": decode(n) for n in SIZES},
    **{f"decode, metadata read, {n} requests": decode(n, read=True) for n in SIZES},
    **{f"decode, half scheduled, {n} requests": decode(n, 0.5) for n in SIZES},
    **{f"decode, one ends and one starts, {n} requests": turnover(n) for n in SIZES},
    "prefill, 16 requests, 2048 hashes each": prefill(16, 2048),
    "take_output, 1024 requests": take_output(1024),
    "request_finished, 256 requests, no hash unsent": request_finished(256, 8192, 0),
    "request_finished, 256 requests, 1 hash unsent": request_finished(256, 8192, 1),
    "request_finished, 256 requests, 16 hashes unsent": request_finished(256, 8192, 16),
    "request_finished, 64 requests, 64 hashes unsent": request_finished(64, 8192, 64),
    "request_finished, 16 requests, 256 hashes unsent": request_finished(16, 8192, 256),
    "request_finished, 16 requests, 1024 hashes unsent": request_finished(16, 32768, 1024),
    **{f"pickle, {n} requests": dumps(n) for n in SIZES},
    **{f"unpickle and read, {n} requests": loads(n) for n in SIZES},
}
SECONDS = 6.0
"""For each case."""
BUSY_REQUESTS = 256


def main(argv: list[str]) -> int:
    """Run every case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("scheduler", "worker"), help="only this half")
    parser.add_argument("--release", default="0.31.0", help="vLLM release to compare with (default 0.31.0)")
    parser.add_argument("--quick", action="store_true", help="a second a case, nothing written")
    parser.add_argument("--only", default="", help="only cases whose name contains this, nothing written")
    options = parser.parse_args(argv)
    folder = wheels.fetch(options.release)
    written = not (options.quick or options.only)
    DOCS.mkdir(exist_ok=True)
    if options.part != "worker":
        original = loading.load_connector_module(folder)
        results = _run(CASES, original, auxout.connector, options)
        if written:
            (DOCS / "benchmark.md").write_text(_page(results, original, options.release), encoding="utf-8")
            _plot(results, options.release, DOCS / "benchmark.svg")
    if options.part != "scheduler":
        makers = workers.released(folder), workers.ours()
        results = _run(worker_workloads.CASES, *makers, options)
        if written:
            page = _worker_page(results, makers, options.release)
            (DOCS / "benchmark-worker.md").write_text(page, encoding="utf-8")
            _plot(results, options.release, DOCS / "benchmark-worker.svg")
    return 0


def _run(
    cases: dict[str, Workload], original: Any, ours: Any, options: argparse.Namespace
) -> list[Comparison]:
    results: list[Comparison] = []
    for name, workload in cases.items():
        if options.only in name:
            results.append(compare(name, workload, original, ours, 1.0 if options.quick else SECONDS))
            print(_line(results[-1]), flush=True)
    return results


def _line(comparison: Comparison) -> str:
    original, ours = comparison.original.spread, comparison.ours.spread
    ratios = f"{comparison.ratio:5.2f} (p10 {comparison.ratio_p10:5.2f}, wall {_wall(comparison):>7})"
    return f"{comparison.name:48} {ratios}  {original.median:.1f} / {ours.median:.1f} us"


def _page(results: list[Comparison], original: ModuleType, release: str) -> str:
    lines = [
        "# Scheduler connector: ours against the released one",
        "",
        *_method(release),
        "",
        "In a decode step every request has a new token and one in 16 a new hash; *metadata read* adds that the",
        "released worker reads it, in the same process. With half of the requests scheduled, the halves take turns.",
        "Unlike the original, ours compares the hashes sent last where a request's list has grown (SCHED-HASH-12).",
        "",
        *_table(results),
    ]
    lines += ["", "| bytes of pickled metadata of a decode step | original | ours |", "| --- | ---: | ---: |"]
    for n in SIZES:
        sizes = pickled_size(original, n), pickled_size(auxout.connector, n)
        lines.append(f"| {n} requests | {sizes[0]:,} | {sizes[1]:,} |")
    return "\n".join([*lines, "", "![Ratios of processor time](benchmark.svg)", ""])


def _worker_page(results: list[Comparison], makers: tuple[Any, Any], release: str) -> str:
    lines = [
        "# Worker connector: ours against the released one",
        "",
        *_method(release),
        "",
        "Both sides get their rows as ready tensors, so capture and device are left out. A decode step is processing",
        "one and beginning the next; the original's writer thread is waited for, and its time counts. In a decode step",
        "one in 16 requests has a full block and its key. A prefill is one prompt of 8192 tokens whose keys are known,",
        "a prefix hit one of which all but the last block is stored. The whole step adds both connectors' metadata and",
        "outputs on their way between processes, and taking all rows. The memory of both stores is provided before, as",
        "it is in a server that has run for a while. Outputs of either side may need new memory.",
        "",
        *_table(results),
        "",
        *_copies(),
        "",
        f"Wall time of a decode step of {BUSY_REQUESTS} requests, in microseconds, while another thread computes:",
        "",
        "| | median | 99th percentile | steps during which it did |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, make in zip(("original", "ours"), makers, strict=True):
        times, num_interrupted = worker_workloads.busy(make, worker_workloads.LARGE, BUSY_REQUESTS, 8)
        quantiles = f"{np.median(times) * 1e6:,.0f} | {np.percentile(times, 99) * 1e6:,.0f}"
        lines.append(f"| {name} | {quantiles} | {num_interrupted} of {len(times)} |")
    return "\n".join([*lines, "", "![Ratios of processor time](benchmark-worker.svg)", ""])


def _copies() -> list[str]:
    lines = [
        "One copy of every row is what no worker can do without: rows arrive in the order of the step, and stay in the",
        "order of blocks. Where that copy is much of the time, it bounds the ratio. Processor time of that copy alone,",
        "in microseconds, into memory that is no longer in the processor's cache:",
        "",
        "| copy | median (p10 to p90) |",
        "| --- | ---: |",
    ]
    for name, arguments in worker_workloads.COPIES.items():
        lines.append(f"| {name} | {_spread(Side(cpu=worker_workloads.copies(*arguments)).spread)} |")
    return lines


def _method(release: str) -> list[str]:
    versions = (
        f"vLLM {release}; Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}"
    )
    return [
        f"Made by `make bench` (original: {versions}; {os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f}).",
        "Both run in one process on the same requests, interleaved in random order. Times are microseconds of",
        "processor time of all threads as median (p10 to p90) of all samples. Ratios are original over ours, so above",
        "1 ours is faster: of the medians, of the p10, which other processes disturb less, and of the medians of wall",
        "time. For wall time a sample in which the thread was switched out is set aside; where that leaves too few, or",
        "much less of one side than of the other, the comparison is refused. The kept share of each side is shown.",
    ]


def _table(results: list[Comparison]) -> list[str]:
    lines = [
        "| case | original | ours | ratio | p10 | wall | kept |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for c in results:
        times = f"{_spread(c.original.spread)} | {_spread(c.ours.spread)}"
        kept = f"{c.original.kept:.0%} / {c.ours.kept:.0%}"
        lines.append(f"| {c.name} | {times} | **{c.ratio:.2f}** | {c.ratio_p10:.2f} | {_wall(c)} | {kept} |")
    return lines


def _spread(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.p10:.1f} to {spread.p90:.1f})"


def _wall(comparison: Comparison) -> str:
    return "refused" if comparison.wall_ratio is None else f"{comparison.wall_ratio:.2f}"


def _plot(results: list[Comparison], release: str, path: Path) -> None:
    mpl.use("svg")
    from matplotlib import pyplot as plt

    # Text stays text, and the same numbers give the same file.
    mpl.rcParams.update({"svg.hashsalt": "auxout", "svg.fonttype": "none"})
    names = [c.name for c in results][::-1]
    ratios = np.array([c.ratio for c in results][::-1])
    figure, axes = plt.subplots(figsize=(9, 0.3 * len(names) + 1), layout="constrained")
    colors = np.where(ratios >= 1, "#2a6f97", "#b23a48")
    bars = axes.barh(names, ratios - 1, left=1, color=colors)
    axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    ticks = [
        tick
        for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256)
        if ratios.min() / 2 < tick < ratios.max() * 2
    ]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(min(0.8, ratios.min() * 0.9), ratios.max() * 1.15)
    axes.margins(y=0.01)
    axes.set_xlabel(f"processor time of vLLM {release} over ours (right of the line: ours is faster)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
