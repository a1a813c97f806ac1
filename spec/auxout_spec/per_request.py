"""The connectors where an inconsistent request fails alone, and no call is refused for it.

The rules are those of ``scheduler`` and ``worker``; what differs is what follows when one is broken. There the call is
refused and an engine ends. Here the request that the rule speaks of *fails*: it gives up what it holds, each output of
a step that has it says so, and from then on the scheduler connector hands out nothing of it, through preemption, reset
and turns, until the engine says that it has ended. All others get what they get anyway (FAIL-ALONE-1).

A step whose output comes after the generation has changed is *void*: the engine drops it, or its requests fail.
"""

from __future__ import annotations

from collections.abc import Set

from . import retention, scheduler, worker
from .profiles import Profile
from .retention import KvCache
from .scheduler import NOTHING_SENT, SchedulerState, Sent
from .store import Block, Key, StoreState
from .values import BlockHash, Metadata, Outputs, Refusal, RequestId, RequestOutput, RequestView, Result
from .worker import Limits, Part, Requests, WorkerRequest, WorkerState

Owned = tuple[RequestId, tuple[Key, Block]]
"""An object to write, and whose it is."""


def build_connector_meta(
    profile: Profile,
    state: SchedulerState,
    scheduled: tuple[tuple[RequestId, int], ...],
    requests: tuple[RequestView, ...],
    cache: KvCache | None = None,
) -> tuple[SchedulerState, Result]:
    """``scheduler.build_connector_meta``; a request whose hashes cannot be sent gets none, and fails.

    A session's next turn, which drops tokens, says so in the first metadata that it is in (FAIL-TURN-1).
    """
    views, active = {view.request_id: view for view in requests}, dict(state.active)
    tokens, prompts = dict(scheduled), dict(state.prompts)
    failing, turned = set[RequestId](), dict[RequestId, tuple[BlockHash, ...]]()
    for request_id in scheduler.build_order(state, tuple(tokens)):
        sent = active.get(request_id, NOTHING_SENT)
        view = scheduler.as_computed(views[request_id], sent, tokens.get(request_id, 0), cache)
        is_named = request_id in tokens or len(view.block_hashes) > sent.num_hashes
        turns = is_named and _is_next_turn(state, view)
        if is_named and (not view.num_output_tokens or request_id not in prompts):
            prompts[request_id] = view.num_prompt_tokens
        again = turns or scheduler.is_replaced(view, sent, request_id in tokens)
        if isinstance(scheduler.unsent_hashes(view, sent, again), Refusal):
            failing.add(request_id)
            views[request_id] = _as_sent(view, sent)
        elif turns and view.block_hashes:
            turned[request_id] = view.block_hashes
    after, answer = scheduler.build_connector_meta(profile, state, scheduled, tuple(views.values()), cache)
    if isinstance(answer, Metadata):
        again_sent = dict(sorted(turned.items())) | dict(answer.replaced_block_hashes)
        answer = answer._replace(replaced_block_hashes=tuple(again_sent.items()))
    failed = _joined(state.failed, failing)
    return after._replace(failed=failed, prompts=tuple(sorted(prompts.items()))), answer


def take_output(
    state: SchedulerState, view: RequestView, outputs: Outputs | None
) -> tuple[SchedulerState, Result]:
    """``scheduler.take_output``; nothing of a request that has failed, or fails now (FAIL-LAST-1)."""
    output = dict(outputs or ()).get(view.request_id)
    taken = scheduler.take_output(view, outputs)
    told = output is not None and output.failed
    if view.request_id not in state.failed and not told and not isinstance(taken, Refusal):
        return state, taken
    return state._replace(failed=_joined(state.failed, {view.request_id})), None


def request_finished(
    state: SchedulerState,
    view: RequestView,
    resident: Set[BlockHash] = frozenset(),
    cache: KvCache | None = None,
) -> tuple[SchedulerState, Result]:
    """``scheduler.request_finished``; when it has really ended, its id starts sound (FAIL-AGAIN-1)."""
    sent = dict(state.active).get(view.request_id, NOTHING_SENT)
    failing: set[RequestId] = set()
    shown = scheduler.as_computed(view, sent, 0, cache)
    if len(shown.block_hashes) > sent.num_hashes and _is_next_turn(state, shown):
        shown = _as_sent(shown, sent)  # the worker would take them for those of dropped tokens (FAIL-TURN-1)
    elif isinstance(scheduler.unsent_hashes(shown, sent), Refusal):
        failing = {view.request_id} & dict(state.active).keys()
        shown = _as_sent(shown, sent)
    after, answer = scheduler.request_finished(state, shown)
    if cache is not None:
        after = after._replace(kept=retention.ended(cache, state.kept, view, resident))
    prompts = tuple(each for each in state.prompts if each[0] in dict(after.active))
    failed = _joined(state.failed, failing)
    ended = {view.request_id} if view.finished else set[RequestId]()
    kept = tuple(name for name in failed if name not in ended)
    return after._replace(failed=kept, prompts=prompts), answer


def _is_next_turn(state: SchedulerState, view: RequestView) -> bool:
    """Whether an active request without output has another prompt than before."""
    known = dict(state.prompts).get(view.request_id, view.num_prompt_tokens)
    return known != view.num_prompt_tokens and not view.num_output_tokens


def _as_sent(view: RequestView, sent: Sent) -> RequestView:
    """A request with no hashes but as many as were sent."""
    return view._replace(block_hashes=(sent.last,) * sent.num_hashes)


def reset(state: SchedulerState) -> SchedulerState:
    """``scheduler.reset``; what has failed stays so."""
    return scheduler.reset(state)._replace(failed=state.failed)


def begin_step(limits: Limits, state: WorkerState, metadata: Metadata) -> WorkerState:
    """``worker.begin_step``; a request of which the metadata cannot be right fails."""
    wrong = _wrong(state, metadata)
    if metadata.generation < state.generation:
        # Of another generation: hashes that may name other rows.
        metadata = _only(metadata._replace(generation=state.generation), set())
    generation = metadata.generation
    requests, release = _entered(state, metadata, wrong)
    sound = _only(metadata, {name for name, each in requests.items() if not each.failed})
    retain, dropped = worker.held_by_scheduler(state.generation, metadata)
    release = dropped + release
    retain += worker.take_keys(generation, requests, sound, release)
    running = {name for name, _ in metadata.requests}
    ended = [name for name in metadata.finished_requests if name in requests and name not in running]
    for name in ended:
        requests[name] = requests[name]._replace(finished=True)
    objects = _owned(generation, requests, tuple(sorted(requests)))
    for name in ended:
        if not requests[name].num_in_flight:
            release += worker.keys_backwards(generation, requests.pop(name))
    held = _written(limits, generation, requests, state.store, objects, retain, release)
    void = len(state.in_flight) if generation > state.generation else state.num_void
    return WorkerState(generation, worker.in_order(requests), state.in_flight, held, void)


def prepare_output(state: WorkerState, request_ids: tuple[RequestId, ...]) -> WorkerState:
    """``worker.prepare_output``; a request that never began is in no one's way."""
    requests: Requests = dict(state.requests)
    for name in request_ids:
        if name in requests:
            requests[name] = requests[name]._replace(num_in_flight=requests[name].num_in_flight + 1)
    in_flight = (*state.in_flight, request_ids)
    return state._replace(requests=worker.in_order(requests), in_flight=in_flight)


def process_output(
    limits: Limits, state: WorkerState, parts: tuple[Part, ...], step: int = 0
) -> tuple[WorkerState, Outputs | Refusal]:
    """``worker.process_output``; a request whose rows cannot be stored or returned fails."""
    names = sorted(part.request_id for part in parts)
    if step or not state.in_flight or sorted(state.in_flight[0]) != names:
        return state, Refusal("WORK-STEP-1", f"the step of {', '.join(names)} is not the oldest in flight")
    if state.num_void:
        void = tuple((part.request_id, RequestOutput(0, (), failed=True)) for part in parts)
        return state._replace(in_flight=state.in_flight[1:], num_void=state.num_void - 1), void
    requests, release = dict(state.requests), list[Key]()
    known = tuple(part for part in parts if part.request_id in requests)
    here = worker.without_stale(requests, known)
    parts = tuple(part for part in parts if part not in known or part in here)
    sound = [part for part in here if not requests[part.request_id].failed]
    for part in sound:
        captured = worker.capture(limits, requests[part.request_id], part)
        if isinstance(captured, Refusal):
            release += _fail(state.generation, requests, part.request_id)
        else:
            requests[part.request_id] = captured
    objects = _owned(state.generation, requests, tuple(part.request_id for part in sound))
    held = _written(limits, state.generation, requests, state.store, objects, [], release)
    held, outputs, release = _outputs(limits, state.generation, requests, held, parts)
    began = tuple(n for n in state.in_flight[0] if n in requests and requests[n].num_in_flight)
    state = state._replace(in_flight=(began, *state.in_flight[1:]))
    return worker.landed(limits, state, requests, held, release), outputs


def _entered(state: WorkerState, metadata: Metadata, wrong: set[RequestId]) -> tuple[Requests, list[Key]]:
    """The requests that live in the metadata's generation, those that start included, and the keys to release."""
    requests, release = dict(state.requests), list[Key]()
    if metadata.generation > state.generation:
        release = [key for each in requests.values() for key in worker.keys_backwards(state.generation, each)]
        requests = {}
    for request_id, emit_start in metadata.requests:
        requests.setdefault(request_id, WorkerRequest(emit_start))
    running = {name for name, _ in metadata.requests}
    for name in sorted(wrong & requests.keys()):
        release += _fail(metadata.generation, requests, name)
        # It runs on: what ended before is no longer told from it.
        requests[name] = requests[name]._replace(finished=requests[name].finished and name not in running)
    return requests, release


def _wrong(state: WorkerState, metadata: Metadata) -> set[RequestId]:
    """The requests of which metadata cannot be right (WORK-BEGIN-1, -2, -4).

    One that runs again while a step of its earlier activation is in flight is among them.
    """
    running = dict(metadata.requests)
    if metadata.generation < state.generation:
        return {*running, *dict(metadata.block_hashes), *dict(metadata.replaced_block_hashes)}
    known = dict(state.requests) if metadata.generation == state.generation else {}
    ahead = {
        name
        for name, start in metadata.requests
        if name in known and (known[name].finished or _is_late(known[name], start))
    }
    return ahead | (running.keys() & set(metadata.finished_requests))


def _is_late(request: WorkerRequest, emit_start: int) -> bool:
    """Whether a settled request's emit start is beyond its emit cursor."""
    return not request.num_in_flight and emit_start > request.emit_cursor


def _only(metadata: Metadata, names: set[RequestId]) -> Metadata:
    """Metadata with the hashes of some requests only."""
    return metadata._replace(
        block_hashes=tuple(each for each in metadata.block_hashes if each[0] in names),
        replaced_block_hashes=tuple(each for each in metadata.replaced_block_hashes if each[0] in names),
    )


def _fail(generation: int, requests: Requests, name: RequestId) -> list[Key]:
    """Let a request hold nothing; the keys that it releases (FAIL-FREE-1)."""
    request = requests[name]
    released = worker.keys_backwards(generation, request)
    requests[name] = request._replace(keys=(), pending=(), tail=(), failed=True)
    return released


def _owned(generation: int, requests: Requests, order: tuple[RequestId, ...]) -> list[Owned]:
    """``worker.publish``, with whose each object is."""
    return [(name, each) for name in order for each in worker.publish(generation, requests, (name,))]


def _written(
    limits: Limits,
    generation: int,
    requests: Requests,
    held: StoreState,
    objects: list[Owned],
    retain: list[Key],
    release: list[Key],
) -> StoreState:
    """One batch for the store; where it does not fit the last request with objects in it fails, until it does."""
    while True:
        batch = tuple(each for _, each in objects)
        written = worker.put(limits, held, batch, tuple(retain), tuple(release))
        if isinstance(written, StoreState):
            return written
        last = objects[-1][0]
        if last in requests:  # else it has ended with this step, and its keys are released already
            release = [*release, *_fail(generation, requests, last)]
        objects = [each for each in objects if each[0] != last]


def _outputs(
    limits: Limits, generation: int, requests: Requests, held: StoreState, parts: tuple[Part, ...]
) -> tuple[StoreState, Outputs, tuple[Key, ...]]:
    """What a step returns, and the keys of requests that fail because rows are missing (FAIL-TELL-1)."""
    outputs: list[tuple[RequestId, RequestOutput]] = []
    release: list[Key] = []
    for part in parts:
        name, request = part.request_id, requests.get(part.request_id)
        if request is None:
            outputs.append((name, RequestOutput(0, (), failed=True)))
            continue
        start = request.emit_cursor
        if not request.failed and part.num_sampled and start <= request.capture_cursor:
            read, rows = worker.emitted(limits, generation, held, request, part)
            if isinstance(rows, Refusal):
                release += _fail(generation, requests, name)
            else:
                held, requests[name] = read, request._replace(emit_cursor=request.capture_cursor)
                outputs.append((name, RequestOutput(start, rows)))
        if requests[name].failed:
            outputs.append((name, RequestOutput(start, (), failed=True)))
    return held, tuple(outputs), tuple(release)


def _joined(failed: tuple[RequestId, ...], more: set[RequestId]) -> tuple[RequestId, ...]:
    return tuple(sorted({*failed, *more}))
