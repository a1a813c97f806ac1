"""Packed block hashes: how hashes travel from scheduler to worker, and which bytes are not hashes.

A packed value is one byte string and the length of each hash in it. Wrong lengths must not become wrong keys,
so bytes that do not divide evenly are refused where they are read.
"""

from __future__ import annotations

from . import kernel
from .values import Hashes, Refusal


def unpack(data: bytes, item_size: int) -> Hashes | Refusal:
    """The hashes in ``data``, in order (WIRE-HASH-1 to -4).

    Args:
        item_size: length of one hash in bytes.
    """
    count = kernel.num_packed(len(data), item_size)
    if count >= 0:
        return Hashes(tuple(data[i * item_size : (i + 1) * item_size] for i in range(count)))
    if item_size <= 0:
        return Refusal("WIRE-HASH-2", f"packed block hashes: item size {item_size} is not positive")
    return Refusal(
        "WIRE-HASH-3",
        f"packed block hashes: {len(data)} bytes are not a multiple of the item size {item_size}",
    )
