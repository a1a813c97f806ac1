"""Where released code departs from the protocol: one row each, apart from the transitions that say what is right.

A released implementation is judged against the spec *with* the deviations it is known for, answer by answer, so that
a known fault never hides a second one. A deviation is a sentence and, where it changes an answer, a wrapper around
each transition that it changes: a function that takes the right transition and returns the released one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from enum import Enum
from hashlib import sha256
from typing import Any, TypeVar

from . import retention, scheduler, wire, worker
from .profiles import Profile
from .retention import KvCache, Retention
from .scheduler import SchedulerState, Sent
from .values import BlockHash, Hashes, Metadata, Outputs, Refusal, RequestId, RequestView, Result
from .worker import Limits, Part, WorkerState

F = TypeVar("F", bound=Callable[..., Any])
Build = Callable[..., tuple[SchedulerState, Result]]
"""``scheduler.build_connector_meta``."""
Finish = Callable[..., tuple[SchedulerState, Result]]
"""``scheduler.request_finished``."""
Unpack = Callable[[bytes, int], Hashes | Refusal]
"""``wire.unpack``."""
Process = Callable[[Limits, WorkerState, tuple[Part, ...], int], tuple[WorkerState, Outputs | Refusal]]
"""``worker.process_output``."""
Scheduled = tuple[tuple[RequestId, int], ...]
Requests = tuple[RequestView, ...]
Entries = tuple[tuple[RequestId, tuple[BlockHash, ...]], ...]


def _restart_overwritten(build: Build) -> Build:
    def released(profile: Profile, state: SchedulerState, *step: Any) -> tuple[SchedulerState, Result]:
        state, answer = build(profile, state, *step)
        if isinstance(answer, Metadata):
            hashes = {**dict(answer.block_hashes), **dict(answer.finished_block_hashes)}
            answer = answer._replace(block_hashes=tuple(hashes.items()), finished_block_hashes=())
        return state, answer

    return released


def _as_if_sent(state: SchedulerState, requests: Requests) -> SchedulerState:
    """The state in which the hash sent last is the one that the request has there now."""
    views = {view.request_id: view for view in requests}

    def seen(request_id: RequestId, sent: Sent) -> Sent:
        have = views[request_id].block_hashes if request_id in views else ()
        return sent._replace(last=have[sent.num_hashes - 1]) if 0 < sent.num_hashes <= len(have) else sent

    return state._replace(active=tuple((name, seen(name, sent)) for name, sent in state.active))


def _replaced_hash_unsaid(build: Build) -> Build:
    def released(
        profile: Profile, state: SchedulerState, scheduled: Scheduled, requests: Requests, *more: Any
    ) -> tuple[SchedulerState, Result]:
        return build(profile, _as_if_sent(state, requests), scheduled, requests, *more)

    return released


class _OneLength:
    """Hashes under names of one length, so that nothing is noticed about their own."""

    def __init__(self) -> None:
        self.hashes: dict[BlockHash, BlockHash] = {}

    def name(self, block_hash: BlockHash) -> BlockHash:
        """The name of a hash."""
        name = sha256(block_hash).digest()
        self.hashes[name] = block_hash
        return name

    def view(self, view: RequestView) -> RequestView:
        """A request whose hashes have names."""
        return view._replace(block_hashes=tuple(map(self.name, view.block_hashes)))

    def state(self, state: SchedulerState) -> SchedulerState:
        """A state in which the hashes sent last have names; nothing sent stays nothing."""
        named = (
            (request_id, sent._replace(last=self.name(sent.last) if sent.num_hashes else b""))
            for request_id, sent in state.active
        )
        return state._replace(active=tuple(named), kept=_renamed(state.kept, self.name))

    def state_back(self, state: SchedulerState) -> SchedulerState:
        """The state with the hashes behind the names."""
        active = (
            (request_id, sent._replace(last=self.hashes.get(sent.last, sent.last)))
            for request_id, sent in state.active
        )
        kept = _renamed(state.kept, self.hash_back)
        return state._replace(active=tuple(active), ended=self.entries_back(state.ended), kept=kept)

    def hash_back(self, name: BlockHash) -> BlockHash:
        """The hash behind a name; a hash that has none is itself."""
        return self.hashes.get(name, name)

    def entries_back(self, entries: Entries) -> Entries:
        """The hashes behind the names, for each request."""
        return tuple((name, tuple(map(self.hash_back, found))) for name, found in entries)


def _renamed(kept: Retention, change: Callable[[BlockHash], BlockHash]) -> Retention:
    """What is remembered of rows for resident KV, with every hash changed."""
    return Retention(
        tuple(tuple(map(change, block)) for block in kept.blocks),
        tuple((request_id, tuple(map(change, names))) for request_id, names in kept.loading),
        tuple(map(change, kept.retained)),
        tuple(map(change, kept.released)),
    )


def _cut_at_first_length(entries: Entries) -> Entries:
    """What the worker reads: the packed bytes, cut at the first hash's length."""
    packed = ((name, b"".join(hashes), len(hashes[0])) for name, hashes in entries)
    return tuple(
        (name, tuple(data[at : at + size] for at in range(0, len(data), size))) for name, data, size in packed
    )


def _mixed_lengths_sent(build: Build) -> Build:
    def released(
        profile: Profile, state: SchedulerState, scheduled: Scheduled, requests: Requests, *more: Any
    ) -> tuple[SchedulerState, Result]:
        if not profile.truncates_session_hashes or profile.resumes_sessions:
            # Its engine replaces no history, so released code compares none: a corrupted list may be sound again.
            state = _as_if_sent(state, requests)
        names = _OneLength()
        views = tuple(map(names.view, requests))
        after, answer = build(profile, names.state(state), scheduled, views, *more)
        if isinstance(answer, Metadata):
            packed = (answer.block_hashes, answer.finished_block_hashes, answer.replaced_block_hashes)
            found, apart, again = (_cut_at_first_length(names.entries_back(entries)) for entries in packed)
            answer = answer._replace(
                block_hashes=found,
                finished_block_hashes=apart,
                replaced_block_hashes=again,
                retained_block_hashes=tuple(map(names.hash_back, answer.retained_block_hashes)),
                released_block_hashes=tuple(map(names.hash_back, answer.released_block_hashes)),
            )
        return names.state_back(after), answer

    return released


def _mixed_lengths_final(finish: Finish) -> Finish:
    def released(
        state: SchedulerState, view: RequestView, resident: Set[BlockHash], *more: Any
    ) -> tuple[SchedulerState, Result]:
        names = _OneLength()
        cached = frozenset(map(names.name, resident))
        after, answer = finish(names.state(state), names.view(view), cached, *more)
        return names.state_back(after), answer

    return released


def _build_not_atomic(build: Build) -> Build:
    def released(
        profile: Profile,
        state: SchedulerState,
        scheduled: Scheduled,
        requests: Requests,
        cache: KvCache | None = None,
    ) -> tuple[SchedulerState, Result]:
        after, answer = build(profile, state, scheduled, requests, cache)
        return (_reached(state, scheduled, requests, cache) if isinstance(answer, Refusal) else after), answer

    return released


def _reached(
    state: SchedulerState, scheduled: Scheduled, requests: Requests, cache: KvCache | None
) -> SchedulerState:
    """The state after the requests before the one that is refused."""
    views, active = {view.request_id: view for view in requests}, dict(state.active)
    tokens = dict(scheduled)
    for request_id in scheduler.build_order(state, tuple(tokens)):
        sent = active.get(request_id, scheduler.NOTHING_SENT)
        view = scheduler.as_computed(views[request_id], sent, tokens.get(request_id, 0), cache)
        hashes = scheduler.unsent_hashes(view, sent)
        if isinstance(hashes, Refusal):
            break
        active[request_id] = scheduler.advance(sent, hashes)
    return state._replace(active=tuple(active.items()))


def _finish_not_atomic(finish: Finish) -> Finish:
    def released(state: SchedulerState, view: RequestView, *more: Any) -> tuple[SchedulerState, Result]:
        after, answer = finish(state, view, *more)
        if isinstance(answer, Refusal):
            left = tuple(entry for entry in state.active if entry[0] != view.request_id)
            after = state._replace(active=left)
        return after, answer

    return released


def _retained_at_refusal(finish: Finish) -> Finish:
    def released(
        state: SchedulerState,
        view: RequestView,
        resident: Set[BlockHash] = frozenset(),
        cache: KvCache | None = None,
    ) -> tuple[SchedulerState, Result]:
        after, answer = finish(state, view, resident, cache)
        if isinstance(answer, Refusal) and cache is not None:
            after = after._replace(kept=retention.ended(cache, state.kept, view, resident))
        return after, answer

    return released


def _negative_item_size_empty(unpack: Unpack) -> Unpack:
    return lambda data, item_size: Hashes(()) if item_size < 0 else unpack(data, item_size)


def _ragged_data_short_hash(unpack: Unpack) -> Unpack:
    def released(data: bytes, item_size: int) -> Hashes | Refusal:
        if item_size <= 0:
            return unpack(data, item_size)
        return Hashes(tuple(data[at : at + item_size] for at in range(0, len(data), item_size)))

    return released


def _last_of_step_kept(process: Process) -> Process:
    def released(
        limits: Limits, state: WorkerState, parts: tuple[Part, ...], step: int = 0
    ) -> tuple[WorkerState, Outputs | Refusal]:
        after, outputs = process(limits, state, parts, step)
        # With the parts the other way round the last is the first.
        reverse, reversed_outputs = process(limits, state, parts[::-1], step)
        if isinstance(outputs, Refusal) or isinstance(reversed_outputs, Refusal):
            return after, outputs
        kept = dict(reverse.store.objects)
        objects = tuple((key, kept.get(key, rows)) for key, rows in after.store.objects)
        return after._replace(store=after.store._replace(objects=objects)), reversed_outputs[::-1]

    return released


def _unkeyed_rows_unread(process: Process) -> Process:
    def released(
        limits: Limits, state: WorkerState, parts: tuple[Part, ...], step: int = 0
    ) -> tuple[WorkerState, Outputs | Refusal]:
        return process(
            limits._replace(profile=limits.profile._replace(reads_unkeyed=False)), state, parts, step
        )

    return released


Wrappers = Mapping[Callable[..., Any], Callable[[Any], Any]]
_NONE: Wrappers = {}


class Deviation(Enum):
    """A way in which released code departs from a clause; each is a known finding of some version.

    Where several wrap one transition, the last of them is the innermost.
    """

    RESTART_OVERWRITTEN = (
        "restart-overwritten",
        "The hashes of an activation that starts are overwritten by those of the one that ended (SCHED-RESTART-2).",
        {scheduler.build_connector_meta: _restart_overwritten},
    )
    REPLACED_HASH_UNNOTICED = (
        "replaced-hash-unnoticed",
        "That hashes which were sent have been replaced is not said (SCHED-HASH-12).",
        {scheduler.build_connector_meta: _replaced_hash_unsaid},
    )
    MIXED_LENGTHS_PACKED = (
        "mixed-lengths-packed",
        "Hashes of different lengths are packed as if they had one (SCHED-HASH-10).",
        {
            scheduler.build_connector_meta: _mixed_lengths_sent,
            scheduler.request_finished: _mixed_lengths_final,
        },
    )
    BUILD_NOT_ATOMIC = (
        "build-not-atomic",
        "A refused build_connector_meta has already counted earlier requests' hashes as sent (SCHED-REFUSE-3).",
        {scheduler.build_connector_meta: _build_not_atomic},
    )
    FINISH_NOT_ATOMIC = (
        "finish-not-atomic",
        "A refused request_finished has already forgotten the request (SCHED-REFUSE-4).",
        {scheduler.request_finished: _finish_not_atomic},
    )
    RETAINED_AT_REFUSAL = (
        "retained-at-refusal",
        "A refused request_finished has already retained and released blocks (SCHED-REFUSE-4).",
        {scheduler.request_finished: _retained_at_refusal},
    )
    NEGATIVE_ITEM_SIZE_EMPTY = (
        "negative-item-size-empty",
        "A packed value with a negative item size iterates to nothing (WIRE-HASH-2).",
        {wire.unpack: _negative_item_size_empty},
    )
    RAGGED_DATA_SHORT_HASH = (
        "ragged-data-short-hash",
        "Packed data that is not a multiple of the item size ends in a shorter hash (WIRE-HASH-3).",
        {wire.unpack: _ragged_data_short_hash},
    )
    ASSERT_ONLY = (
        "assert-only",
        "Refusals are assert statements and vanish under ``python -O`` (SCHED-REFUSE-6).",
    )
    WORKER_NOT_ATOMIC = (
        "worker-not-atomic",
        "A refused begin_step has changed the worker (WORK-REFUSE-2); nothing after a refusal can be judged.",
        _NONE,
        "WORK-REFUSE-2",
    )
    WORKER_STEP_LOST = (
        "worker-step-lost",
        "A refused process_output has taken its step out of flight (WORK-REFUSE-3).",
        _NONE,
        "WORK-REFUSE-3",
    )
    UNKNOWN_REQUEST_CRASHES = (
        "unknown-request-crashes",
        "Metadata that names a request which the worker does not know raises KeyError (WORK-REFUSE-1).",
        _NONE,
        "",
        ("WORK-BEGIN-5", "WORK-STEP-2"),
    )
    ANY_STEP_ORDER = (
        "any-step-order",
        "A step that is not the oldest in flight is processed (WORK-STEP-1).",
        _NONE,
        "",
        (),
        ("WORK-STEP-1",),
    )
    LAST_OF_STEP_KEPT = (
        "last-of-step-kept",
        "Of two requests that compute a block in one step, the last one's rows are stored (STORE-PUT-1).",
        {worker.process_output: _last_of_step_kept},
    )
    UNKEYED_ROWS_UNREAD = (
        "unkeyed-rows-unread",
        "Rows of full blocks that wait for their key are not found (WORK-EMIT-3).",
        {worker.process_output: _unkeyed_rows_unread},
    )
    BATCH_KEPT = (
        "batch-kept",
        "A prepared step keeps the runner's own arrays of starts and boundaries (WORK-STEP-4).",
    )
    WORKER_ASSERT_ONLY = (
        "worker-assert-only",
        "The worker's refusals are assert statements and vanish under ``python -O`` (WORK-REFUSE-4).",
    )

    def __new__(cls, word: str, *_: object) -> Deviation:
        """A member whose value is its word in files."""
        member = object.__new__(cls)
        member._value_ = word
        return member

    def __init__(
        self,
        word: str,
        sentence: str,
        wrappers: Wrappers = _NONE,
        spoils: str = "",
        crashes: tuple[str, ...] = (),
        unnoticed: tuple[str, ...] = (),
    ) -> None:
        self.sentence = sentence
        self.wrappers = wrappers
        """Transition -> what makes the released one of the right one."""
        self.spoils = spoils
        """The clause by which a refusal leaves the worker as it was; after one the released worker is of no use."""
        self.crashes = crashes
        """Clauses by which the released worker should refuse and crashes."""
        self.unnoticed = unnoticed
        """Clauses by which it should refuse and does not look."""


OPTIMIZED = frozenset({Deviation.ASSERT_ONLY, Deviation.WORKER_ASSERT_ONLY})
"""Deviations that show under ``python -O`` alone."""
_INNERMOST_FIRST = tuple(reversed(Deviation))


def released(profile: Profile, transition: F) -> F:
    """A transition as the code of a profile has it: the right one, inside the wrappers of its deviations."""
    if not profile.deviations:
        return transition
    wrapped = transition
    for deviation in _INNERMOST_FIRST:
        if deviation in profile.deviations and transition in deviation.wrappers:
            wrapped = deviation.wrappers[transition](wrapped)
    return wrapped


def spoils(profile: Profile, clause: str) -> bool:
    """Whether the worker of a profile is of no use after a refusal that should leave it as it was, by that clause."""
    return any(deviation.spoils == clause for deviation in profile.deviations)


def crashes(profile: Profile, clause: str) -> bool:
    """Whether the worker of a profile crashes where it should refuse by a clause."""
    return any(clause in deviation.crashes for deviation in profile.deviations)


def looks(profile: Profile, clause: str) -> bool:
    """Whether the worker of a profile refuses, and does not crash, where it should refuse by a clause."""
    missed = any(clause in deviation.unnoticed for deviation in profile.deviations)
    return not missed and not crashes(profile, clause)
