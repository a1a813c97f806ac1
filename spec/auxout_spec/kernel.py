"""The protocol's arithmetic: pure functions on integers and tuples, nothing else.

They are small on purpose: CrossHair proves the contracts in their docstrings over all inputs
(``make symbolic``), and compares them with the kernel of the fast implementation, which is written
independently. ``pre`` names the domain, ``post`` the rule. Keep numpy, dictionaries and classes out.
"""

from __future__ import annotations


def emit_start_unclamped(prompt_start: int, num_output_tokens: int, num_tokens: int) -> int:
    """First position to emit under profile 0.31 (SCHED-EMIT-1, -2, -3).

    pre: prompt_start >= 0 and 0 <= num_output_tokens < num_tokens
    post: __return__ >= prompt_start
    post: num_output_tokens > 0 or __return__ == prompt_start
    post: num_output_tokens == 0 or __return__ >= num_tokens - 1
    post: __return__ in (prompt_start, num_tokens - 1)
    """
    resumed = 0 if num_output_tokens == 0 else num_tokens - 1
    return max(prompt_start, resumed)


def emit_start_clamped(
    prompt_start: int, num_prompt_tokens: int, num_output_tokens: int, num_tokens: int
) -> int:
    """First position to emit from profile 0.32 on: the prompt start counts up to the prompt's end (SCHED-EMIT-4).

    pre: prompt_start >= 0 and num_output_tokens >= 0
    pre: num_prompt_tokens >= 1 and num_tokens == num_prompt_tokens + num_output_tokens
    post: num_output_tokens > 0 or __return__ == min(prompt_start, num_prompt_tokens)
    post: num_output_tokens == 0 or __return__ == num_tokens - 1
    post: __return__ <= num_tokens
    """
    return emit_start_unclamped(min(prompt_start, num_prompt_tokens), num_output_tokens, num_tokens)


def num_accepted_rows(num_tokens: int, token_start: int) -> int:
    """How many rows from ``token_start`` on belong to accepted tokens; negative: none, and the start is ahead.

    The last sampled token has not been forwarded, so a request of ``n`` tokens has rows for ``[0, n-1)``
    (SCHED-TAKE-3).

    pre: num_tokens >= 1 and token_start >= 0
    post: token_start + __return__ == num_tokens - 1
    """
    return num_tokens - 1 - token_start


def num_unsent(num_hashes: int, num_sent: int) -> int:
    """How many hashes at the end of the list are still to be sent; negative: the list shrank (SCHED-HASH-8).

    pre: num_hashes >= 0 and num_sent >= 0
    post: num_sent + __return__ == num_hashes
    """
    return num_hashes - num_sent


def num_full_blocks(num_tokens: int, block_size: int) -> int:
    """How many hash blocks ``num_tokens`` tokens complete.

    pre: num_tokens >= 0 and block_size >= 1
    post: __return__ * block_size <= num_tokens < (__return__ + 1) * block_size
    """
    return num_tokens // block_size


def block_range(block: int, block_size: int) -> tuple[int, int]:
    """Token positions ``[start, end)`` of one hash block.

    pre: block >= 0 and block_size >= 1
    post: __return__[1] - __return__[0] == block_size
    post: __return__[0] == block * block_size
    """
    return block * block_size, (block + 1) * block_size


def num_packed(num_bytes: int, item_size: int) -> int:
    """How many hashes a packed wire value of ``num_bytes`` holds; -1 if it is not well formed (WIRE-HASH-2, -3).

    pre: num_bytes >= 0
    post: (__return__ == -1) == (item_size <= 0 or num_bytes % item_size != 0)
    post: __return__ == -1 or __return__ * item_size == num_bytes
    """
    if item_size <= 0 or num_bytes % item_size:
        return -1
    return num_bytes // item_size
