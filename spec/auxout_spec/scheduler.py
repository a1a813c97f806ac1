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

from typing import NamedTuple

from . import kernel
from .profiles import Deviation, Profile
from .values import BlockHash, Metadata, Outputs, Refusal, RequestId, RequestView, Result, Rows


class Sent(NamedTuple):
    """How much of an active request's hash list the worker has."""

    num_hashes: int
    last: BlockHash
    """The last hash sent; empty bytes when none was."""


NOTHING_SENT = Sent(0, b"")


class SchedulerState(NamedTuple):
    """Everything the scheduler connector remembers.

    ``active`` is sorted by id (its order means nothing); ``ended`` is in order of the terminal events.
    """

    generation: int = 0
    active: tuple[tuple[RequestId, Sent], ...] = ()
    ended: tuple[tuple[RequestId, tuple[BlockHash, ...]], ...] = ()


INITIAL = SchedulerState()


def build_connector_meta(
    profile: Profile,
    state: SchedulerState,
    scheduled: tuple[RequestId, ...],
    requests: tuple[RequestView, ...],
) -> tuple[SchedulerState, Result]:
    """Describe one step to the worker: who runs, which hashes are new, who ended (SCHED-META, -EMIT, -HASH, -TERM).

    Args:
        scheduled: ids of ``num_scheduled_tokens``, in the engine's order; all are among ``requests``.
        requests: every request the engine knows.
    """
    views = {view.request_id: view for view in requests}
    active = dict(state.active)
    started = {request_id: active.get(request_id, NOTHING_SENT) for request_id in scheduled}
    new_hashes: dict[RequestId, tuple[BlockHash, ...]] = {}
    replaced: dict[RequestId, tuple[BlockHash, ...]] = {}
    for request_id, sent in {**started, **active}.items():
        view = views[request_id]
        again = is_replaced(profile, view, sent, request_id in started)
        hashes = unsent_hashes(profile, view, sent, again)
        if isinstance(hashes, Refusal):
            return _refused_build(profile, state, active, hashes)
        if again:
            replaced[request_id] = view.block_hashes
        active[request_id] = sent_so_far(view) if again else advance(sent, hashes)
        if hashes:
            new_hashes[request_id] = _on_the_wire(hashes)
    metadata = Metadata(
        state.generation,
        tuple((request_id, emit_start(profile, views[request_id])) for request_id in started),
        tuple(new_hashes.items()),
        tuple(request_id for request_id, _ in state.ended),
        replaced_block_hashes=tuple(replaced.items()),
    )
    metadata = _deliver(profile, metadata, state.ended)
    return SchedulerState(state.generation, _stored(profile, active)), metadata


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
    span = f"request {view.request_id}: rows [{output.token_start}, {output.token_start + len(output.rows)})"
    if accepted < 0 and view.finished:
        return Refusal("SCHED-TAKE-6", f"{span} start beyond the accepted end {end} of a finished request")
    if accepted < 0:
        return None
    if accepted > len(output.rows):
        return Refusal("SCHED-TAKE-7", f"{span} end before the accepted end {end}")
    return Rows(output.rows[:accepted])


def request_finished(
    profile: Profile, state: SchedulerState, view: RequestView
) -> tuple[SchedulerState, Result]:
    """Queue the terminal event of a request that finished, was aborted or was preempted (SCHED-TERM)."""
    active = dict(state.active)
    sent = active.pop(view.request_id, None)
    if sent is None:
        return state, None
    hashes = unsent_hashes(profile, view, sent)
    if isinstance(hashes, Refusal):
        forgets = Deviation.FINISH_NOT_ATOMIC in profile.deviations
        kept = state._replace(active=_stored(profile, active)) if forgets else state
        clause = "SCHED-TERM-8" if hashes.clause == "SCHED-HASH-8" else hashes.clause
        return kept, hashes._replace(clause=clause)
    # An id that ended twice since the last metadata can only have started in between, and a start is
    # delivered by the metadata that empties this queue: no id is ever queued twice.
    ended = (*state.ended, (view.request_id, hashes))
    return SchedulerState(state.generation, _stored(profile, active), ended), None


def reset(state: SchedulerState) -> SchedulerState:
    """Start the next generation after a successful prefix-cache reset (SCHED-RESET)."""
    return SchedulerState(state.generation + 1)


def emit_start(profile: Profile, view: RequestView) -> int:
    """First position whose row the worker still has to emit, were the request to start now (SCHED-EMIT)."""
    if profile.clamps_prompt_start:
        return kernel.emit_start_clamped(
            view.prompt_start, view.num_prompt_tokens, view.num_output_tokens, view.num_tokens
        )
    return kernel.emit_start_unclamped(view.prompt_start, view.num_output_tokens, view.num_tokens)


def is_replaced(profile: Profile, view: RequestView, sent: Sent, scheduled: bool) -> bool:
    """Whether hashes that were sent no longer stand, and this step must say so (SCHED-HASH-12).

    The history is compared when it is extended, and when a request without output is scheduled: only a
    session's next turn replaces hashes, and that is how it comes. Each hash covers its whole prefix, so a change
    anywhere in what was sent shows in the last one.
    """
    if Deviation.REPLACED_HASH_UNNOTICED in profile.deviations or not sent.num_hashes:
        return False
    unsent = kernel.num_unsent(len(view.block_hashes), sent.num_hashes)
    compared = unsent > 0 or (unsent == 0 and scheduled and view.num_output_tokens == 0)
    return compared and view.block_hashes[sent.num_hashes - 1] != sent.last


def unsent_hashes(
    profile: Profile, view: RequestView, sent: Sent, again: bool = False
) -> tuple[BlockHash, ...] | Refusal:
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
    if again:
        whole = _one_length(profile, name, view.block_hashes, NOTHING_SENT)
        return whole if isinstance(whole, Refusal) else whole[sent.num_hashes :]
    return _one_length(profile, name, view.block_hashes[sent.num_hashes :], sent)


def advance(sent: Sent, hashes: tuple[BlockHash, ...]) -> Sent:
    """What the worker has once ``hashes`` are sent too."""
    return Sent(sent.num_hashes + len(hashes), hashes[-1]) if hashes else sent


def sent_so_far(view: RequestView) -> Sent:
    """What the worker has once the whole list was sent."""
    return Sent(len(view.block_hashes), view.block_hashes[-1])


def _one_length(
    profile: Profile, name: str, hashes: tuple[BlockHash, ...], sent: Sent
) -> tuple[BlockHash, ...] | Refusal:
    """Refuse hashes of different lengths; the release packs them at the first one's length instead."""
    expected = len(sent.last) or len(hashes[0]) if hashes else 1
    if expected and all(len(block_hash) == expected for block_hash in hashes):
        return hashes
    if Deviation.MIXED_LENGTHS_PACKED in profile.deviations:
        return hashes
    return Refusal("SCHED-HASH-10", f"{name}: block hashes of different lengths, or empty ones")


def _deliver(
    profile: Profile,
    metadata: Metadata,
    ended: tuple[tuple[RequestId, tuple[BlockHash, ...]], ...],
) -> Metadata:
    """Add the terminal events' hashes; a running id's own entry stays (SCHED-RESTART-2, -3)."""
    running = dict(metadata.requests)
    hashes = dict(metadata.block_hashes)
    overwritten = Deviation.RESTART_OVERWRITTEN in profile.deviations
    restarted: list[tuple[RequestId, tuple[BlockHash, ...]]] = []
    for request_id, final in ended:
        if not final:
            continue
        final = _on_the_wire(final)
        if request_id in running and not overwritten:
            restarted.append((request_id, final))
        else:
            hashes[request_id] = final
    return metadata._replace(block_hashes=tuple(hashes.items()), finished_block_hashes=tuple(restarted))


def _refused_build(
    profile: Profile,
    state: SchedulerState,
    reached: dict[RequestId, Sent],
    refusal: Refusal,
) -> tuple[SchedulerState, Refusal]:
    """Keep the state (SCHED-REFUSE-3); the release keeps what it had counted before it failed."""
    if Deviation.BUILD_NOT_ATOMIC in profile.deviations:
        return state._replace(active=_stored(profile, reached)), refusal
    return state, refusal


def _stored(profile: Profile, active: dict[RequestId, Sent]) -> tuple[tuple[RequestId, Sent], ...]:
    """Sort what has no order, so that equal states are equal values.

    How far the release got before it failed depends on the order of activation, so there it is kept.
    """
    kept = Deviation.BUILD_NOT_ATOMIC in profile.deviations
    return tuple(active.items() if kept else sorted(active.items()))


def _on_the_wire(hashes: tuple[BlockHash, ...]) -> tuple[BlockHash, ...]:
    """What the worker reads: the packed bytes cut at the first hash's length, so mixed lengths are not recovered."""
    data, size = b"".join(hashes), len(hashes[0])
    return tuple(data[start : start + size] for start in range(0, len(data), size))
