"""Which events are possible: what the explorer enumerates and the random judge draws from.

Options are upper bounds computed from the state; ``step`` stays the judge of what is possible.
"""

from __future__ import annotations

from collections.abc import Set

from .. import kernel, retention
from ..values import BlockHash
from .guards import Forbidden
from .state import EngineConfig, EngineRequest, EngineState, Entry, longest_hit, view, with_new_hashes


def step_forbidden(config: EngineConfig, state: EngineState) -> Forbidden | None:
    """Why no request may be scheduled now; None: some may."""
    full = len(state.in_flight) >= config.depth
    reasons = (
        (full, Forbidden("ENV-LAUNCH-1", f"{len(state.in_flight)} steps are in flight")),
        (state.paused, Forbidden("ENV-LAUNCH-4", "the engine is paused")),
    )
    return next((why for holds, why in reasons if holds and why.guard not in config.removed_guards), None)


def forbidden(config: EngineConfig, state: EngineState, request: EngineRequest) -> Forbidden | None:
    """Why a step may not take up a request; None: it may."""
    name = request.request_id
    if request.status == "lost":
        return Forbidden("ENV-LAUNCH-5", f"{name} is in no queue")
    waits, loads = request.status == "waiting_for_chunk", request.status == "waiting_for_kv"
    just = name in state.preempted
    reasons = (
        (waits, Forbidden("ENV-LAUNCH-5", f"{name} waits for its next chunk")),
        (awaits_output(request), Forbidden("ENV-RESUME-1", f"{name} has deliverable output in flight")),
        (just, Forbidden("ENV-RESUME-2", f"{name} was just preempted")),
        (loads, Forbidden("ENV-LAUNCH-6", f"the KV of {name} is being loaded")),
        (
            reaches_maximum(request),
            Forbidden("ENV-LAUNCH-3", f"{name} reaches its maximum with the steps in flight"),
        ),
    )
    return next((why for holds, why in reasons if holds and why.guard not in config.removed_guards), None)


def launchable(config: EngineConfig, state: EngineState) -> tuple[EngineRequest, ...]:
    """The requests that a step launched now may schedule."""
    if step_forbidden(config, state) is not None:
        return ()
    return tuple(
        request
        for request in state.requests
        if request.num_uncomputed_tokens > 0 and forbidden(config, state, request) is None
    )


def most_tokens(
    config: EngineConfig,
    state: EngineState,
    request: EngineRequest,
    skip_hit: bool,
    filled: Set[BlockHash] = frozenset(),
) -> int:
    """The most tokens, drafts not counted, that a step may schedule for a launchable request.

    Args:
        skip_hit: a request without KV starts from its first token, although a prefix is resident.
        filled: hashes of the blocks that requests scheduled before it in the same step fill.
    """
    if not admissible(request) or skip_hit:
        return request.num_uncomputed_tokens
    return request.num_uncomputed_tokens - num_hit(config, state, request, filled)


def filled_blocks(config: EngineConfig, request: EngineRequest, num_left: int) -> tuple[BlockHash, ...]:
    """Hashes of the blocks that are full once all tokens of a request but the last few are computed.

    Args:
        num_left: tokens that a step leaves uncomputed; below 0 for drafts.
    """
    computed = request.num_tokens + request.num_output_placeholders - num_left
    full = kernel.num_full_blocks(min(computed, request.num_tokens), config.block_size)
    return request.block_hashes[:full]


def num_hit(
    config: EngineConfig, state: EngineState, request: EngineRequest, filled: Set[BlockHash] = frozenset()
) -> int:
    """Tokens of the longest prefix hit of a request that has no KV.

    Args:
        filled: hashes of blocks that can be hit, too.
    """
    return longest_hit(as_admitted(config, request), state.resident_hashes | filled, config.block_size)


def as_admitted(config: EngineConfig, request: EngineRequest) -> EngineRequest:
    """A request without KV as the scheduler looks up its prefix.

    Hashes that look ahead may cover a token that a session has dropped since; then they are made anew.
    """
    if not config.lookahead or not request.session:
        return request
    return with_new_hashes(request._replace(block_hashes=()), config)


def admissible(request: EngineRequest) -> bool:
    """Whether the request has no KV yet, so that it is admitted with that of a prefix."""
    return request.status != "running" and not request.holds_kv


def awaits_output(request: EngineRequest) -> bool:
    """Whether output from before the request was preempted is still in flight, to be delivered when it lands."""
    return request.num_stale_output_tokens > 0 and not request.drop_stale_output


def takes_drafts(request: EngineRequest, num_tokens: int) -> bool:
    """Whether draft tokens may be scheduled with a launchable request.

    They follow a decoded token. A request that is admitted with one token to compute gets some too: vLLM fills its
    batch up with drafts that the model rejects.

    Args:
        num_tokens: the most tokens that a step may schedule for it.
    """
    return num_tokens == 1 and (request.has_drafts or request.status != "running")


def num_known_blocks(state: EngineState, request: EngineRequest) -> int:
    """Blocks of a request, from the first on, whose rows are stored."""
    stored = {key for key, _ in state.worker.store.objects}
    keys = [(state.connector.generation, block_hash) for block_hash in request.block_hashes]
    return next((number for number, key in enumerate(keys) if key not in stored), len(keys))


def num_loaded(
    config: EngineConfig, state: EngineState, request: EngineRequest, hit: int, external: int
) -> int:
    """How many of the ``external`` tokens found elsewhere, behind a prefix hit, are loaded: all, or none."""
    if config.cache is not None:
        kept, seen, resident = state.connector.kept, view(request), state.resident_hashes
        return retention.cap_external_hit(config.cache, kept, seen, hit, external, resident)[1]
    if not config.profile.gives_up_hits:
        return external
    whole = (hit + external) % config.block_size == 0
    known = num_known_blocks(state, request) * config.block_size
    return external if whole and hit + external <= known else 0


def reaches_maximum(request: EngineRequest) -> bool:
    """Whether the steps in flight bring the request to its maximum, even if all drafts are rejected."""
    placeholders = request.num_output_placeholders
    last = request.num_computed_tokens + 2 - placeholders
    return placeholders > 0 and last >= request.num_prompt_tokens + request.max_tokens


def runs_on_load(state: EngineState, entry: Entry) -> bool:
    """Whether KV was loaded with this part of a step, and its request still runs on it."""
    request = state.request(entry.request_id)
    runs = request is not None and request.activation == entry.activation
    return runs and entry.num_external_tokens > 0
