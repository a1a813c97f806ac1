"""The client's two kernels agree on every small input; CrossHair proves it for all (tests/symbolic)."""

from __future__ import annotations

from itertools import product

from auxout.client import _kernel
from auxout_spec.client import kernel

SMALL = range(8)


def same(name: str, *args: int) -> None:
    assert getattr(_kernel, name)(*args) == getattr(kernel, name)(*args), f"{name}{args}"


def test_counts_and_places() -> None:
    for a, b in product(SMALL, SMALL):
        same("num_rows_due", a, b)
        same("first_position", a, b)
        same("aligned", a, b + 1)
        for left in (True, False):
            same("padding_before", a, a + b, left)


def test_chunks() -> None:
    for length, count in product(range(20), range(1, 8)):
        for index in range(count):
            same("chunk", length, index, count)
            same("zigzag_chunks", index, count)
