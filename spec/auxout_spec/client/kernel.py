"""The arithmetic of positions: pure functions on integers, proved by CrossHair like ``auxout_spec.kernel``."""

from __future__ import annotations


def num_rows_due(num_tokens: int, start: int) -> int:
    """Rows that an engine returns for ``num_tokens`` tokens from ``start`` on; negative: the start is beyond them.

    The last token was sampled and never forwarded, so it has no row (CLIENT-DECODE-1, CLIENT-DECODE-2).

    pre: num_tokens >= 0 and start >= 0
    post: __return__ + start + 1 == num_tokens
    """
    return num_tokens - 1 - start


def first_position(output: int, num_prompt_tokens: int) -> int:
    """The first position whose row counts to the output tokens from ``output`` on (CLIENT-VERSION-2).

    An output token is sampled by the forward pass of the token before it; a prompt's rows all count to output 0.

    pre: output >= 0 and num_prompt_tokens >= 0
    post: __return__ >= 0
    post: output > 0 or __return__ == 0
    post: output == 0 or __return__ + 1 == num_prompt_tokens + output
    """
    return num_prompt_tokens + output - 1 if output else 0


def padding_before(num_tokens: int, length: int, left: bool) -> int:
    """Places before the first token of a padded sample (CLIENT-PAD-1).

    pre: 0 <= num_tokens <= length
    post: __return__ == (length - num_tokens if left else 0)
    """
    return length - num_tokens if left else 0


def aligned(num_tokens: int, align: int) -> int:
    """Places that a packed sample takes: the smallest multiple of ``align`` that holds it (CLIENT-PACK-1).

    pre: num_tokens >= 0 and align >= 1
    post: __return__ % align == 0
    post: num_tokens <= __return__ < num_tokens + align
    """
    return -(-num_tokens // align) * align


def chunk(length: int, index: int, count: int) -> tuple[int, int]:
    """Positions ``[start, end)`` of one of ``count`` equal chunks; ``(-1, -1)`` if they do not divide (CLIENT-SHARD-1).

    pre: length >= 0 and 0 <= index < count
    post: (__return__ == (-1, -1)) == (length % count != 0)
    post: __return__[0] < 0 or __return__[1] - __return__[0] == length // count
    post: __return__[0] < 0 or __return__[0] == index * (length // count)
    """
    if length % count:
        return -1, -1
    size = length // count
    return index * size, (index + 1) * size


def zigzag_chunks(rank: int, size: int) -> tuple[int, int]:
    """The two of ``2 * size`` chunks that a rank holds, one from each end: equal work for all (CLIENT-SHARD-2).

    pre: 0 <= rank < size
    post: __return__[0] == rank
    post: __return__[0] + __return__[1] == 2 * size - 1
    """
    return rank, 2 * size - 1 - rank
