"""The client's arithmetic on plain integers, written apart from the specification's and proved equal to it."""

from __future__ import annotations


def num_rows_due(num_tokens: int, start: int) -> int:
    """Rows of ``num_tokens`` tokens from ``start`` on; negative when the start is beyond the last (CLIENT-DECODE-1).

    pre: num_tokens >= 0 and start >= 0
    post: start + __return__ == num_tokens - 1
    """
    return num_tokens - start - 1


def first_position(output: int, num_prompt_tokens: int) -> int:
    """The first position of the rows of output tokens from ``output`` on; 0 for output 0 (CLIENT-VERSION-2).

    pre: output >= 0 and num_prompt_tokens >= 0
    post: output > 0 or __return__ == 0
    post: output == 0 or __return__ - output == num_prompt_tokens - 1
    """
    if output == 0:
        return 0
    return output - 1 + num_prompt_tokens


def padding_before(num_tokens: int, length: int, left: bool) -> int:
    """Places in front of a sample of ``num_tokens`` in ``length`` places (CLIENT-PAD-1).

    pre: 0 <= num_tokens <= length
    post: 0 <= __return__ <= length - num_tokens
    post: left or __return__ == 0
    post: not left or __return__ + num_tokens == length
    """
    if not left:
        return 0
    return length - num_tokens


def aligned(num_tokens: int, align: int) -> int:
    """The smallest multiple of ``align`` that is not below ``num_tokens`` (CLIENT-PACK-1).

    pre: num_tokens >= 0 and align >= 1
    post: __return__ % align == 0
    post: 0 <= __return__ - num_tokens < align
    """
    over = num_tokens % align
    return num_tokens + align - over if over else num_tokens


def chunk(length: int, index: int, count: int) -> tuple[int, int]:
    """Places ``[start, end)`` of one of ``count`` equal chunks, ``(-1, -1)`` if there are none (CLIENT-SHARD-1).

    pre: length >= 0 and 0 <= index < count
    post: (__return__ == (-1, -1)) == (length % count > 0)
    post: __return__[0] == -1 or (__return__[1] - __return__[0]) * count == length
    post: __return__[0] == -1 or __return__[0] == index * (__return__[1] - __return__[0])
    """
    size, over = divmod(length, count)
    if over:
        return -1, -1
    start = size * index
    return start, start + size


def zigzag_chunks(rank: int, size: int) -> tuple[int, int]:
    """Which two of ``2 * size`` chunks a rank holds (CLIENT-SHARD-2).

    pre: 0 <= rank < size
    post: __return__[0] == rank
    post: __return__[1] == size + (size - 1 - rank)
    """
    return rank, size + size - rank - 1
