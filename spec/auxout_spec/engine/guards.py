"""Environment guards: what a real engine never does, each with the place in its source that prevents it.

A model that is too strict hides faults, one that is too loose invents them. So every restriction is named here
and can be removed (``EngineConfig.removed_guards``), and a test says what happens then: a verdict changes (``needed``),
or only more of the same happens (``bound``). What an event means (``word``) cannot be removed from it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Role = Literal["needed", "bound", "word"]


class Guard(NamedTuple):
    """One restriction of the engine model."""

    id: str
    sentence: str
    source: str
    role: Role = "needed"


_SCHEDULER = "vLLM 0.31.0 v1/core/sched/scheduler.py"

# One row per line: these are read as a table.
# fmt: off
_GUARDS = (
    Guard("ENV-FORM-1", "An event's numbers are in range and its request exists, or is new.", "what the words mean", "word"),
    Guard("ENV-ADD-1", "An id is used again only when no step of its predecessor is in flight.", f"{_SCHEDULER} add_request; engine core ids carry a random suffix"),
    Guard("ENV-ADD-2", "A request whose prompt was cut short is only prefilled: it samples one token.", "vLLM 0.32.0 nixl/base_scheduler.py _truncate_request_for_prefill"),
    Guard("ENV-LAUNCH-1", "At most depth steps are in flight.", "vLLM max_concurrent_batches", "bound"),
    Guard("ENV-LAUNCH-2", "A request is scheduled for at least one and at most all tokens it lacks; drafts come only with a decode.", f"{_SCHEDULER} schedule, num_new_tokens"),
    Guard("ENV-LAUNCH-3", "No step is scheduled for a request that reaches its maximum with those in flight.", f"{_SCHEDULER} schedule, max_tokens check", "bound"),
    Guard("ENV-LAUNCH-4", "A paused engine schedules nothing.", f"{_SCHEDULER} schedule, PAUSED_ALL", "bound"),
    Guard("ENV-LAUNCH-5", "A session that waits for its next chunk is not scheduled.", f"{_SCHEDULER} _handle_blocked_waiting_request"),
    Guard("ENV-LAUNCH-6", "A request is not scheduled while its KV is being loaded.", f"{_SCHEDULER} _handle_blocked_waiting_request, WAITING_FOR_REMOTE_KVS", "bound"),
    Guard("ENV-HIT-1", "A hit is whole resident blocks and leaves at least the last token to compute.", "vLLM 0.31.0 v1/core/kv_cache_manager.py get_computed_blocks"),
    Guard("ENV-LOAD-1", "KV is loaded from elsewhere only for a request without KV, behind its prefix hit; not only in whole blocks.", f"{_SCHEDULER} schedule, get_num_new_matched_tokens where num_computed_tokens == 0"),
    Guard("ENV-LOAD-2", "A load that fails leaves whole blocks valid: the request goes back to the first invalid block.", f"{_SCHEDULER} _update_requests_with_invalid_blocks"),
    Guard("ENV-LOAD-3", "From profile 0.33 on KV is loaded only by a KV connector, and only if the rows of all of it are known.", "vLLM 0.33.0 v1/core/sched/scheduler.py schedule, cap_external_hit", "word"),
    Guard("ENV-RESUME-1", "A preempted request resumes only after its deliverable output in flight has drained.", f"{_SCHEDULER} schedule, num_stale_output_tokens"),
    Guard("ENV-RESUME-2", "The step that preempts a request does not resume it.", f"{_SCHEDULER} schedule, preempted_reqs"),
    Guard("ENV-LAND-1", "Outputs are consumed in launch order.", "vLLM v1/engine/core.py step_with_batch_queue", "word"),
    Guard("ENV-LAND-2", "A request that samples gets one token plus at most its accepted drafts; those that fill up a batch at an admission are rejected.", f"{_SCHEDULER} update_from_output"),
    Guard("ENV-PREEMPT-1", "Only a running request is preempted.", f"{_SCHEDULER} _preempt_request"),
    Guard("ENV-EVICT-1", "Only unreferenced blocks are evicted.", "vLLM 0.31.0 v1/core/block_pool.py", "bound"),
    Guard("ENV-RESET-1", "Profile 0.31: a reset of running requests needs a paused engine with nothing in flight.", f"{_SCHEDULER} reset_prefix_cache"),
    Guard("ENV-RESET-2", "A reset that keeps its requests running comes with nothing in flight.", "the worker drops request state on a new generation"),
    Guard("ENV-CHUNK-1", "Only an open streaming session takes chunks.", f"{_SCHEDULER} add_request", "word"),
    Guard("ENV-TAMPER-1", "A corruption applies to something the next event shows the connector.", "what the words mean", "word"),
)
# fmt: on

GUARDS: dict[str, Guard] = {guard.id: guard for guard in _GUARDS}


class Impossible(Exception):
    """An event that no engine can bring about in this state.

    Attributes:
        guard: the restriction that forbids it.
    """

    def __init__(self, guard: str, detail: str) -> None:
        self.guard = GUARDS[guard]
        super().__init__(f"{guard}: {detail}")


class Forbidden(NamedTuple):
    """Why something may not happen: the guard, and what it finds."""

    guard: str
    detail: str


def permit(why: Forbidden | None) -> None:
    """Raise ``Impossible`` if something is forbidden."""
    if why is not None:
        raise Impossible(why.guard, why.detail)


def require(condition: bool, guard: str, detail: str, removed: frozenset[str] = frozenset()) -> None:
    """Raise ``Impossible`` unless the condition holds or the guard is removed."""
    if not condition and guard not in removed:
        raise Impossible(guard, detail)
