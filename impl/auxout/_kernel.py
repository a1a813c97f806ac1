"""The protocol's arithmetic on plain integers.

The contracts are checked symbolically, and the functions are proved equal to those of the specification,
which this module does not import. The connector calls them off its hot paths; where it repeats one of them
inline, a comment names it.
"""

from __future__ import annotations


def emit_start_unclamped(prompt_start: int, num_output_tokens: int, num_tokens: int) -> int:
    """First position to emit in profile 0.31 (SCHED-EMIT-1, -2, -3).

    pre: prompt_start >= 0 and 0 <= num_output_tokens < num_tokens
    post: __return__ in (prompt_start, num_tokens - 1)
    post: __return__ >= prompt_start
    post: __return__ == prompt_start or num_output_tokens > 0
    """
    if num_output_tokens and num_tokens - 1 > prompt_start:
        return num_tokens - 1
    return prompt_start


def emit_start_clamped(
    prompt_start: int, num_prompt_tokens: int, num_output_tokens: int, num_tokens: int
) -> int:
    """First position to emit from profile 0.32 on (SCHED-EMIT-1, -2, -4).

    A prompt start cut to the prompt never exceeds the last output token's position, so no maximum is needed.

    pre: prompt_start >= 0 and num_output_tokens >= 0
    pre: num_prompt_tokens >= 1 and num_tokens == num_prompt_tokens + num_output_tokens
    post: 0 <= __return__ <= num_tokens
    post: num_output_tokens == 0 or __return__ == num_tokens - 1
    post: num_output_tokens > 0 or __return__ == min(prompt_start, num_prompt_tokens)
    """
    if num_output_tokens:
        return num_tokens - 1
    return min(num_prompt_tokens, prompt_start)


def num_accepted_rows(num_tokens: int, token_start: int) -> int:
    """Rows of accepted tokens from ``token_start`` on; negative when the start is ahead (SCHED-TAKE-3).

    pre: num_tokens >= 1 and token_start >= 0
    post: __return__ + token_start + 1 == num_tokens
    """
    return num_tokens - token_start - 1


def num_unsent(num_hashes: int, num_sent: int) -> int:
    """Hashes still to be sent; negative when the list shrank (SCHED-HASH-8).

    pre: num_hashes >= 0 and num_sent >= 0
    post: __return__ + num_sent == num_hashes
    """
    return num_hashes - num_sent


def num_full_blocks(num_tokens: int, block_size: int) -> int:
    """Hash blocks that ``num_tokens`` tokens fill completely.

    pre: num_tokens >= 0 and block_size >= 1
    post: 0 <= num_tokens - __return__ * block_size < block_size
    """
    return (num_tokens - num_tokens % block_size) // block_size


def block_range(block: int, block_size: int) -> tuple[int, int]:
    """Token positions ``[start, end)`` of a hash block.

    pre: block >= 0 and block_size >= 1
    post: __return__[0] == block * block_size
    post: __return__[1] == __return__[0] + block_size
    """
    start = block * block_size
    return start, start + block_size


def num_packed(num_bytes: int, item_size: int) -> int:
    """Hashes in ``num_bytes`` bytes of packed data; -1 when it is malformed (WIRE-HASH-2, -3).

    pre: num_bytes >= 0
    post: __return__ >= -1
    post: __return__ == -1 or __return__ * item_size == num_bytes
    post: (__return__ == -1) == (item_size < 1 or num_bytes % item_size > 0)
    """
    if item_size < 1:
        return -1
    count, rest = divmod(num_bytes, item_size)
    return -1 if rest else count
