"""The two kernels, written apart, agree on every small input; CrossHair proves it for all (tests/symbolic)."""

from __future__ import annotations

from itertools import product

import pytest

from auxout import _kernel
from auxout_spec import kernel

SMALL = range(9)


def same(name: str, *args: int) -> None:
    ours, theirs = getattr(_kernel, name)(*args), getattr(kernel, name)(*args)
    if ours != theirs:
        pytest.fail(f"{name}{args}: {ours}, the spec says {theirs}")


def test_emit_starts() -> None:
    for start, prompt, outputs in product(SMALL, range(1, 9), SMALL):
        same("emit_start_unclamped", start, outputs, prompt + outputs)
        same("emit_start_clamped", start, prompt, outputs, prompt + outputs)


def test_counts_and_ranges() -> None:
    for a, b in product(SMALL, SMALL):
        same("num_accepted_rows", a + 1, b)
        same("num_unsent", a, b)
        same("num_full_blocks", a, b + 1)
        same("block_range", a, b + 1)
        same("num_packed", a, b - 2)
