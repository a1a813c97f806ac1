"""Which events are possible: what the explorer enumerates and the random judge draws from.

Options are upper bounds computed from the state; ``step`` stays the judge of what is possible.
"""

from __future__ import annotations

from .state import EngineConfig, EngineRequest, EngineState, longest_hit


def launchable(config: EngineConfig, state: EngineState) -> tuple[EngineRequest, ...]:
    """The requests that a step launched now may schedule."""
    removed = config.removed_guards
    room = len(state.in_flight) < config.depth or "ENV-LAUNCH-1" in removed
    if not room or (state.paused and "ENV-LAUNCH-4" not in removed):
        return ()
    return tuple(request for request in state.requests if _may_run(state, request, removed))


def most_tokens(config: EngineConfig, state: EngineState, request: EngineRequest, skip_hit: bool) -> int:
    """The most tokens, drafts not counted, that a step may schedule for a launchable request.

    Args:
        skip_hit: a request without KV starts from its first token, although a prefix is resident.
    """
    admitted = request.status == "running" or request.holds_kv
    if admitted or skip_hit:
        return request.num_uncomputed_tokens
    return request.num_uncomputed_tokens - longest_hit(request, state.resident, config.block_size)


def takes_drafts(request: EngineRequest) -> bool:
    """Whether the request decodes, so that draft tokens may be scheduled with it."""
    return request.has_drafts and request.num_uncomputed_tokens == 1


def reaches_maximum(request: EngineRequest) -> bool:
    """Whether the steps in flight bring the request to its maximum, even if all drafts are rejected."""
    placeholders = request.num_output_placeholders
    last = request.num_computed_tokens + 2 - placeholders
    return placeholders > 0 and last >= request.num_prompt_tokens + request.max_tokens


def _may_run(state: EngineState, request: EngineRequest, removed: frozenset[str]) -> bool:
    if request.status == "waiting_for_chunk":
        return "ENV-LAUNCH-5" in removed and request.num_uncomputed_tokens > 0
    if request.request_id in state.preempted and "ENV-RESUME-2" not in removed:
        return False
    stale = request.num_stale_output_tokens > 0 and not request.drop_stale_output
    if stale and request.status != "running" and "ENV-RESUME-1" not in removed:
        return False
    enough = reaches_maximum(request) and "ENV-LAUNCH-3" not in removed
    return not enough and request.num_uncomputed_tokens > 0
