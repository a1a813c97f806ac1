"""Packing the hashes of a request, or refusing to (SCHED-HASH-8, -10).

Their lengths are checked by the sum: looking at each one costs more than joining them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._wire import HashColumns

    Replaced = dict[str, tuple[bytes, int]]
    """Request -> its whole hash list, joined, and the size of one hash."""


def pack_unsent(
    request_id: str, block_hashes: Sequence[bytes], num_sent: int, last: bytes, shrunk: str = "SCHED-HASH-8"
) -> tuple[bytes, int]:
    """The hashes that the worker lacks, at least one, joined, and the size of one. O(their number)."""
    unsent = len(block_hashes) - num_sent  # _kernel.num_unsent
    if unsent < 0:
        problem = f"has hashes [0, {len(block_hashes)}), but [0, {num_sent}) were sent"
        raise ProtocolViolation(shrunk, request_id, problem)
    new = block_hashes[num_sent:] if num_sent else block_hashes
    try:
        size = len(last) or len(block_hashes[0])
        data = b"".join(new) if unsent > 1 or type(block_hashes[-1]) is not bytes else block_hashes[-1]
    except TypeError:
        problem = f"hashes [{num_sent}, {num_sent + unsent}) are not all bytes"
        raise ProtocolViolation("SCHED-HASH-10", request_id, problem) from None
    if size and len(data) == unsent * size:
        return data, size
    problem = f"hashes [{num_sent}, {num_sent + unsent}) are not all of one length above 0"
    raise ProtocolViolation("SCHED-HASH-10", request_id, problem)


def check_unsent(request_id: str, block_hashes: Sequence[bytes], num_sent: int, last: bytes) -> None:
    """Refuse hashes that cannot be sent, of a list that has not just the length sent. O(hashes)."""
    if len(block_hashes) == num_sent:
        return
    if 0 < num_sent <= len(block_hashes) and block_hashes[num_sent - 1] != last:
        num_sent, last = 0, b""
    pack_unsent(request_id, block_hashes, num_sent, last)


def pack_replaced(
    replaced: Replaced, request_id: str, block_hashes: Sequence[bytes], num_sent: int
) -> tuple[bytes, int]:
    """Add a whole list to those that are sent again; its unsent part, joined, and the size of one."""
    data, size = replaced[request_id] = pack_unsent(request_id, block_hashes, 0, b"")
    return data[num_sent * size :], size


def columns_of(replaced: Replaced) -> HashColumns:
    """The lists that are sent again, in columns."""
    columns: HashColumns = [], [], []
    for request_id, packed in replaced.items():
        append(columns, request_id, packed)
    return columns


def append(columns: HashColumns, request_id: str, packed: tuple[bytes, int]) -> None:
    """Add one request's joined hashes to columns."""
    names, data, sizes = columns
    names.append(request_id)
    data.append(packed[0])
    sizes.append(packed[1])
