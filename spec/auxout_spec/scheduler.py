"""The scheduler connector: what it remembers, and what each of its four calls does.

Two rules for this file. It knows values (``values.py``) and arithmetic (``kernel.py``), never an engine, a
worker or an implementation. And every function is pure: given a state it returns the next one.

Theory of operation. A request is *active* from the first step that schedules it until its terminal event.
While it is active the connector owes the worker every block hash of the request, in order and once; the state
is the number already sent, plus the last of them, which is enough to notice that a history was replaced: then the
whole list is sent again, apart. When a request finishes, is aborted or is preempted, one *terminal event* with the
hashes still owed is queued; the next metadata delivers the whole queue and forgets it. A reset starts the next
generation with nothing active and nothing queued: the worker drops what it knew, so everything that runs on is sent
again from its first hash.

A call outside the protocol returns a ``Refusal`` and the state it was given.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from . import kernel, retention
from .profiles import Profile
from .retention import KvCache, Retention
from .values import BlockHash, Metadata, Outputs, Refusal, RequestId, RequestOutput, RequestView, Result, Rows


class Sent(NamedTuple):
    """How much of an active request's hash list the worker has."""

    num_hashes: int
    last: BlockHash
    """The last hash sent; empty bytes when none was."""


NOTHING_SENT = Sent(0, b"")
_Entry = tuple[RequestId, tuple[BlockHash, ...]]


class SchedulerState(NamedTuple):
    """Everything the scheduler connector remembers.

    ``active`` is in order of activation; ``ended`` is in order of the terminal events.
    """

    generation: int = 0
    active: tuple[tuple[RequestId, Sent], ...] = ()
    ended: tuple[tuple[RequestId, tuple[BlockHash, ...]], ...] = ()
    failed: tuple[RequestId, ...] = ()
    """Requests that have failed and not ended, sorted (``per_request``)."""
    prompts: tuple[tuple[RequestId, int], ...] = ()
    """Tokens in the prompt of each active request as it was last scheduled, sorted (``per_request``)."""
    kept: Retention = Retention()
    """Rows for resident KV; nothing before profile 0.33."""


INITIAL = SchedulerState()


def build_connector_meta(
    profile: Profile,
    state: SchedulerState,
    scheduled: tuple[tuple[RequestId, int], ...],
    requests: tuple[RequestView, ...],
    cache: KvCache | None = None,
) -> tuple[SchedulerState, Result]:
    """Describe one step to the worker: who runs, which hashes are new, who ended (SCHED-META, -EMIT, -HASH, -TERM).

    Args:
        scheduled: ``num_scheduled_tokens``, in the engine's order.
        requests: every request the engine knows, so those scheduled and those active (ENGINE-TABLE-1), with the
            tokens computed before the step.
        cache: the KV cache that the connector was built with; None before profile 0.33.
    """
    views, tokens = {view.request_id: view for view in requests}, dict(scheduled)
    active, new_hashes, replaced = dict(state.active), list[_Entry](), list[_Entry]()
    if missing := set(build_order(state, tuple(tokens))) - views.keys():
        return state, _not_shown(missing)
    for request_id in build_order(state, tuple(tokens)):
        sent = active.get(request_id, NOTHING_SENT)
        view = as_computed(views[request_id], sent, tokens.get(request_id, 0), cache)
        again = is_replaced(view, sent, request_id in tokens)
        hashes = unsent_hashes(view, sent, again)
        if isinstance(hashes, Refusal):
            return state, hashes
        active[request_id] = sent_so_far(view) if again else advance(sent, hashes)
        new_hashes += [(request_id, hashes)] if hashes else []
        replaced += [(request_id, view.block_hashes)] if again else []
    metadata = Metadata(
        state.generation,
        tuple((request_id, emit_start(profile, views[request_id])) for request_id in tokens),
        tuple(new_hashes),
        tuple(request_id for request_id, _ in state.ended),
        replaced_block_hashes=tuple(replaced),
    )
    kept = retention.told(state.kept, tuple(tokens))
    return SchedulerState(state.generation, tuple(active.items()), kept=kept), _with_queued(metadata, state)


def _not_shown(missing: set[RequestId]) -> Refusal:
    return Refusal("ENGINE-TABLE-1", f"request {min(missing)} is not shown")


def build_order(state: SchedulerState, scheduled: tuple[RequestId, ...]) -> tuple[RequestId, ...]:
    """The requests that contribute to a step's metadata: those it schedules, then the other active ones."""
    return (*scheduled, *(request_id for request_id, _ in state.active if request_id not in scheduled))


def take_output(view: RequestView, outputs: Outputs | None) -> Result:
    """Cut a request's worker output to its accepted tokens (SCHED-TAKE).

    The connector's state plays no part: a request that was preempted in the meantime still gets its rows.

    Args:
        outputs: the step's worker output, or None when the step had none.
    """
    output = dict(outputs or ()).get(view.request_id)
    if output is None:
        clause = "SCHED-TAKE-1" if outputs is None else "SCHED-TAKE-2"
        return Refusal(clause, f"the worker returned no output for request {view.request_id}")
    end = view.num_tokens - 1
    accepted = kernel.num_accepted_rows(view.num_tokens, output.token_start)
    if accepted < 0 and view.finished:
        beyond = f"start beyond the accepted end {end} of a finished request"
        return Refusal("SCHED-TAKE-6", f"{_span(view, output)} {beyond}")
    if accepted < 0:
        return None
    if accepted > len(output.rows):
        return Refusal("SCHED-TAKE-7", f"{_span(view, output)} end before the accepted end {end}")
    return Rows(output.rows[:accepted])


def _span(view: RequestView, output: RequestOutput) -> str:
    """Which rows an output has, made only where it is told: text is made of concrete numbers only."""
    return f"request {view.request_id}: rows [{output.token_start}, {output.token_start + len(output.rows)})"


def request_finished(
    state: SchedulerState,
    view: RequestView,
    resident: Set[BlockHash] = frozenset(),
    cache: KvCache | None = None,
) -> tuple[SchedulerState, Result]:
    """Queue the terminal event of a request that finished, was aborted or was preempted (SCHED-TERM).

    Args:
        view: the request before its KV is given back.
        resident: names of the blocks that are cached; read from profile 0.33 on.
        cache: the KV cache that the connector was built with; None before profile 0.33.
    """
    kept = retention.ended(cache, state.kept, view, resident) if cache is not None else state.kept
    active = dict(state.active)
    sent = active.pop(view.request_id, None)
    if sent is None:
        return state._replace(kept=kept), None
    hashes = unsent_hashes(as_computed(view, sent, 0, cache), sent)
    if isinstance(hashes, Refusal):
        clause = "SCHED-TERM-8" if hashes.clause == "SCHED-HASH-8" else hashes.clause
        return state, hashes._replace(clause=clause)
    # An id that ended twice since the last metadata can only have started in between, and a start is
    # delivered by the metadata that empties this queue: no id is ever queued twice.
    ended = (*state.ended, (view.request_id, hashes))
    return SchedulerState(state.generation, tuple(active.items()), ended, kept=kept), None


def reset(state: SchedulerState) -> SchedulerState:
    """Start the next generation after a successful prefix-cache reset (SCHED-RESET)."""
    return SchedulerState(state.generation + 1, kept=retention.reset(state.kept))


def emit_start(profile: Profile, view: RequestView) -> int:
    """First position whose row the worker still has to emit, were the request to start now (SCHED-EMIT)."""
    if profile.clamps_prompt_start:
        return kernel.emit_start_clamped(
            view.prompt_start, view.num_prompt_tokens, view.num_output_tokens, view.num_tokens
        )
    return kernel.emit_start_unclamped(view.prompt_start, view.num_output_tokens, view.num_tokens)


def as_computed(view: RequestView, sent: Sent, num_scheduled: int, cache: KvCache | None) -> RequestView:
    """The request without hashes of blocks that are not computed, except those sent before (SCHED-HASH-1, -3).

    Args:
        num_scheduled: its tokens in the step that is built.
        cache: None before profile 0.33: hashes are sent as soon as they are there.
    """
    if cache is None:
        return view
    computed = kernel.num_full_blocks(view.num_computed_tokens + num_scheduled, cache.hash_block_size)
    return view._replace(block_hashes=view.block_hashes[: max(computed, sent.num_hashes)])


def is_replaced(view: RequestView, sent: Sent, scheduled: bool) -> bool:
    """Whether hashes that were sent no longer stand, and this step must say so (SCHED-HASH-12).

    The history is compared when it is extended, and when a request without output is scheduled: only a
    session's next turn replaces hashes, and that is how it comes. Each hash covers its whole prefix, so a change
    anywhere in what was sent shows in the last one.
    """
    unsent = kernel.num_unsent(len(view.block_hashes), sent.num_hashes)
    compared = unsent > 0 or (unsent == 0 and scheduled and view.num_output_tokens == 0)
    return compared and sent.num_hashes > 0 and view.block_hashes[sent.num_hashes - 1] != sent.last


def unsent_hashes(view: RequestView, sent: Sent, again: bool = False) -> tuple[BlockHash, ...] | Refusal:
    """The hashes behind those that were sent, or why there can be none (SCHED-HASH-8, -10).

    Args:
        again: the whole list is sent too, so all of it must have one length.
    """
    name = f"request {view.request_id}"
    unsent = kernel.num_unsent(len(view.block_hashes), sent.num_hashes)
    if unsent < 0:
        return Refusal(
            "SCHED-HASH-8", f"{name}: {len(view.block_hashes)} block hashes, {sent.num_hashes} were sent"
        )
    first, expected = (0, 0) if again else (sent.num_hashes, len(sent.last))
    packed = view.block_hashes[first:]
    expected = expected or (len(packed[0]) if packed else 1)
    if not expected or any(len(block_hash) != expected for block_hash in packed):
        return Refusal("SCHED-HASH-10", f"{name}: block hashes of different lengths, or empty ones")
    return view.block_hashes[sent.num_hashes :]


def advance(sent: Sent, hashes: tuple[BlockHash, ...]) -> Sent:
    """What the worker has once ``hashes`` are sent too."""
    return Sent(sent.num_hashes + len(hashes), hashes[-1]) if hashes else sent


def sent_so_far(view: RequestView) -> Sent:
    """What the worker has once the whole list was sent."""
    return Sent(len(view.block_hashes), view.block_hashes[-1])


def _with_queued(metadata: Metadata, state: SchedulerState) -> Metadata:
    """Add the terminal events' hashes, and those that the scheduler starts and stops holding.

    The entry of an id that runs stays its own (SCHED-RESTART-2, -3).
    """
    running = dict(metadata.requests)
    final = tuple((request_id, hashes) for request_id, hashes in state.ended if hashes)
    return metadata._replace(
        block_hashes=metadata.block_hashes + tuple(each for each in final if each[0] not in running),
        finished_block_hashes=tuple(each for each in final if each[0] in running),
        retained_block_hashes=state.kept.retained,
        released_block_hashes=state.kept.released,
    )
