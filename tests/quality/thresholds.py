"""Plants thresholds and single wrong values in a released scheduler connector, and says which of them are found.

``python tests/quality/thresholds.py 20 --seed 7`` draws 20 values between 5 and 5,000: numbers of hashes of an entry,
requests of a step, positions, generations and lengths of an id, every second five as single values. Each is judged by
``auxout conform`` and, with ``--verify``, compared with the release by ``auxout verify``, both in ``default``.
"""

from __future__ import annotations

import argparse
import difflib
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from auxout_conformance.targets import wheels

COMMAND = Path(sys.executable).with_name("auxout")
RELEASE = "0.32.0"
LEAST, MOST = 5, 5000
FAULTS = {
    "hashes of an entry": """
    for name, packed in list(metadata.block_hashes.items()):
        if len(packed.data) // packed.item_size {compare} {value}:
            metadata.block_hashes[name] = type(packed)(packed.data[: -packed.item_size], packed.item_size)
""",
    "requests of a step": """
    if len(metadata.requests) {compare} {value}:
        metadata.requests.popitem()
""",
    "position": """
    for name, start in list(metadata.requests.items()):
        if start {compare} {value}:
            metadata.requests[name] = start - 1
""",
    "generation": """
    if metadata.generation {compare} {value}:
        metadata = dataclasses.replace(metadata, generation=metadata.generation - 1)
""",
    "length of an id": """
    for name in list(metadata.requests):
        if len(name) {compare} {value}:
            del metadata.requests[name]
""",
}
PLANTED = """

import dataclasses

_build = AuxOutputSchedulerConnector.build_connector_meta


def _planted(self, scheduler_output, requests):
    metadata = _build(self, scheduler_output, requests)
{fault}    return metadata


AuxOutputSchedulerConnector.build_connector_meta = _planted
"""


def drawn(count: int, seed: int) -> Iterator[tuple[str, str, int]]:
    """Quantities, comparisons and values."""
    random = Random(seed)
    for number in range(count):
        quantity = list(FAULTS)[number % len(FAULTS)]
        yield quantity, ("==", ">=")[number // len(FAULTS) % 2], random.randint(LEAST, MOST)


def planted(released: Path, fault: str) -> str:
    """The diff that plants a fault."""
    before = (released / "connector.py").read_text(encoding="utf-8")
    after = before + PLANTED.format(fault=fault.lstrip("\n"))
    name = "vllm/distributed/aux_output_connector/connector.py"
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(lines)


def is_found(command: list[str]) -> bool:
    """Whether a command says that something is broken."""
    done = subprocess.run([COMMAND, *command], check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"auxout {' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.returncode == 1


def main() -> int:
    """Judge each; 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=None, help="draw the same values again")
    parser.add_argument("--verify", action="store_true", help="also compare each with the release")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}")
    missed, released = 0, wheels.fetch(RELEASE)
    for quantity, compare, value in drawn(options.count, seed):
        with tempfile.TemporaryDirectory() as scratch:
            patch = Path(scratch) / "planted.diff"
            patch.write_text(planted(released, FAULTS[quantity].format(compare=compare, value=value)))
            commands = {"conform": ["conform", f"vllm=={RELEASE}", "--patch", str(patch), "-x"]}
            if options.verify:
                commands["verify"] = ["verify", str(patch), "--base", f"vllm=={RELEASE}", "--allow-unplayed"]
            found = {name: is_found(command) for name, command in commands.items()}
        missed += not all(found.values())
        said = ", ".join(f"{name} {'finds' if each else 'MISSES'} it" for name, each in found.items())
        print(f"{quantity} {compare} {value}: {said}", flush=True)
    print(f"{missed} missed")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
