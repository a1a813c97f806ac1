"""Which rows are right: every computation of a position has a row of its own, and KV remembers which it was.

A request's KV at a position was computed once, by itself or, for a prefix hit, by whoever filled the block. The
row of that computation is the one its tokens were sampled with, so it is the one a trainer must replay.
"""

from __future__ import annotations

from .. import kernel
from ..values import Row
from .state import Activation, Block, EngineRequest, EngineState, Entry, Text, block_name


def text_at(tokens: Text, position: int) -> str:
    """The name of the run that holds a position; a token that is not settled yet continues the last one."""
    return next((text for text, end in tokens if position < end), tokens[-1][0])


def step_rows(entry: Entry, start: int, generation: int) -> tuple[Row, ...]:
    """The rows that an entry's forward pass over its tokens computes, from where it really starts."""
    return tuple(
        Row(entry.request_id, position, generation, entry.computation, text_at(entry.tokens, position))
        for position in range(start, start + entry.num_tokens)
    )


def num_rejected(entry: Entry, sampled: dict[str, int]) -> int:
    """Drafts of an entry that the model rejected."""
    tokens = sampled.get(entry.request_id, 0)
    return entry.num_drafts - (tokens - 1) if tokens else 0


def hit_rows(
    state: EngineState, request: EngineRequest, block_size: int, hit: int, external: int
) -> tuple[Row, ...]:
    """The rows behind the KV that a request is admitted with: those of resident blocks, then of what is loaded.

    Loaded KV was computed elsewhere, by no request of this engine, and its rows did not come with it.
    """
    resident = {block.block_hash: block.rows for block in state.resident}
    blocks = kernel.num_full_blocks(hit, block_size)
    rows = [row for block_hash in request.block_hashes[:blocks] for row in resident.get(block_hash, ())]
    generation = state.connector.generation
    loaded = range(hit, hit + external)
    return (*rows, *(Row("", at, generation, 0, text_at(request.tokens, at)) for at in loaded))


def on_invalid_kv(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows of a forward pass over KV that failed to load: they are of nobody's tokens."""
    return tuple(row._replace(text=f"{row.text}:") for row in rows)


def activation_of(state: EngineState, request_id: str, number: int) -> Activation:
    """The activation of an entry or a request."""
    return next(a for a in state.activations if (a.request_id, a.number) == (request_id, number))


def with_activation(state: EngineState, activation: Activation) -> EngineState:
    """The state with an activation's record replaced."""
    known = [(each.request_id, each.number) for each in state.activations]
    at = known.index((activation.request_id, activation.number))
    return state._replace(activations=(*state.activations[:at], activation, *state.activations[at + 1 :]))


def with_fresh_blocks(
    state: EngineState,
    request: EngineRequest,
    computed: int,
    launched: tuple[tuple[int, Entry], ...],
    block_size: int,
) -> EngineState:
    """The state with the KV blocks resident that a request has filled; unsettled tokens complete none.

    Steps in flight may still lose drafts, but only behind the settled tokens, so the rows before are final.

    Args:
        computed: tokens of the request whose KV is computed, or will be by the steps in flight.
        launched: entries that are not in flight yet, with their generations.
    """
    num_tokens = min(computed, request.num_tokens)
    if not kernel.num_full_blocks(num_tokens, block_size):
        return state
    rows = activation_of(state, request.request_id, request.activation).rows
    flying = [(step.generation, entry) for step in state.in_flight for entry in step.entries]
    for generation, entry in (*flying, *launched):
        if (entry.request_id, entry.activation) == (request.request_id, request.activation):
            start = min(entry.token_start, len(rows))
            rows = rows[:start] + step_rows(entry, start, generation)
    fresh = new_blocks(state, request, rows, num_tokens, block_size)
    return state._replace(resident=(*state.resident, *fresh)) if fresh else state


def new_blocks(
    state: EngineState, request: EngineRequest, rows: tuple[Row, ...], num_tokens: int, block_size: int
) -> tuple[Block, ...]:
    """The blocks that become resident with the KV of a request's first tokens, whose rows are given."""
    known = state.resident_hashes
    full = min(kernel.num_full_blocks(num_tokens, block_size), len(request.block_hashes))
    return tuple(
        Block(
            request.block_hashes[block],
            block_name(request.tokens, block, block_size),
            rows[block * block_size : (block + 1) * block_size],
        )
        for block in range(full)
        if request.block_hashes[block] not in known
    )
