"""``make bench``: our scheduler connector against the released one, in one process.

Writes the table to docs/benchmark.md and the plot to docs/benchmark.svg. Options: --release, --quick.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import numpy as np
from timing import Comparison, compare
from workloads import decode, dumps, loads, pickled_size, prefill, request_finished, take_output

import auxout.connector
from auxout_conformance.targets import loading, wheels

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIZES = (32, 256, 1024, 4096)
CASES = {
    **{f"decode, 1/16 get a hash, {n} requests": (decode(n), n) for n in SIZES},
    **{f"half scheduled, {n} requests": (decode(n, 0.5), n) for n in SIZES},
    "prefill, 16 requests x 2048 hashes": (prefill(16, 2048), 1024),
    "take_output x 1024": (take_output(1024), 1024),
    "request_finished, 8k tokens x 16": (request_finished(16, 8192), 1024),
    "request_finished, 32k tokens x 16": (request_finished(16, 32768), 1024),
    **{f"pickle metadata, {n} requests": (dumps(n), n) for n in SIZES},
    **{f"unpickle and read metadata, {n} requests": (loads(n), n) for n in SIZES},
}


def main(argv: list[str]) -> int:
    """Run every case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", default="0.31.0", help="vLLM release to compare with (default 0.31.0)")
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    options = parser.parse_args(argv)
    original = loading.load_connector_module(wheels.fetch(options.release))
    results: list[Comparison] = []
    for name, (workload, size) in CASES.items():
        rounds = 20 if options.quick else max(60, 240_000 // (size + 600))
        results.append(compare(name, workload, original, auxout.connector, rounds))
        print(_line(results[-1]), flush=True)
    if not options.quick:
        DOCS.mkdir(exist_ok=True)
        (DOCS / "benchmark.md").write_text(_page(results, original, options.release), encoding="utf-8")
        _plot(results, options.release, DOCS / "benchmark.svg")
    return 0


def _line(comparison: Comparison) -> str:
    wall = "refused" if comparison.wall_ratio is None else f"{comparison.wall_ratio:.2f}"
    sides = " / ".join(f"{side.spread[1]:.1f}" for side in (comparison.original, comparison.ours))
    return f"{comparison.name:45} wall {wall:>7}  cpu {comparison.cpu_ratio:5.2f}  {sides} us"


def _page(results: list[Comparison], original: ModuleType, release: str) -> str:
    lines = [
        "# Scheduler connector: ours against the released one",
        "",
        f"Made by `make bench` (original: vLLM {release}; Python {platform.python_version()},",
        f"numpy {np.__version__}, {platform.machine()}).",
        "Both run in one process, interleaved in random order. Times are microseconds of",
        "wall time as median (p10 to p90) of the kept samples; a sample in which the thread was switched out is set",
        "aside, and the kept share of each side is shown. Ratios above 1 mean that ours is faster; the processor",
        "time of all threads uses every sample. Sizes are those of one pickled decode step.",
        "",
        "| case | original | ours | wall ratio | CPU ratio | kept |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for c in results:
        wall = "refused" if c.wall_ratio is None else f"{c.wall_ratio:.2f}"
        kept = f"{c.original.kept:.0%} / {c.ours.kept:.0%}"
        sides = f"{_spread(c.original.spread)} | {_spread(c.ours.spread)}"
        lines.append(f"| {c.name} | {sides} | {wall} | {c.cpu_ratio:.2f} | {kept} |")
    lines += ["", "| pickled metadata, bytes | original | ours |", "| --- | ---: | ---: |"]
    for size in SIZES:
        theirs, ours = pickled_size(original, size), pickled_size(auxout.connector, size)
        lines.append(f"| {size} requests | {theirs:,} | {ours:,} |")
    return "\n".join([*lines, "", "![CPU ratios](benchmark.svg)", ""])


def _spread(spread: tuple[float, float, float]) -> str:
    return f"{spread[1]:.1f} ({spread[0]:.1f} to {spread[2]:.1f})"


def _plot(results: list[Comparison], release: str, path: Path) -> None:
    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "auxout"
    names = [c.name for c in results][::-1]
    ratios = [c.cpu_ratio for c in results][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.34 * len(names) + 1.2), layout="constrained")
    bars = axes.barh(names, ratios, color=["#2a6f97" if ratio >= 1 else "#b23a48" for ratio in ratios])
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel(f"CPU time of vLLM {release} over ours (log scale; right of the line: ours is faster)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
