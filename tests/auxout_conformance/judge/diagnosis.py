"""Names the clause that a wrong answer breaks.

Called only when an answer is wrong, so it may take its time. Each function looks at one kind of answer, most
specific cause first.
"""

from __future__ import annotations

from collections import Counter

from auxout_spec import scheduler
from auxout_spec.calls import (
    BeginStep,
    BuildConnectorMeta,
    Call,
    Close,
    Halves,
    HitCall,
    MaxCacheHit,
    PrepareOutput,
    ProcessOutput,
    RequestFinished,
    RequestLoading,
    Reset,
    SchedulerCall,
    TakeOutput,
    Unpack,
)
from auxout_spec.profiles import Profile
from auxout_spec.scheduler import SchedulerState
from auxout_spec.values import BlockHash, Hashes, Metadata, Refusal, RequestView, Result, Rows, Tokens

from ..observation import Odd, Raised
from . import failing, worker_diagnosis
from .ledger import Ledger

NOT_ABOUT_ONE_CALL = frozenset(
    ("SCHED-META-1", "SCHED-TERM-1", "SCHED-TERM-7", "SCHED-RESET-1", "SCHED-TAKE-3")
)
"""Clauses whose sentences say nothing of the particular call, so that failing it is better told by itself."""


def broken_clause(
    profile: Profile,
    ledger: Ledger,
    halves: Halves,
    call: Call,
    right: Result,
    actual: Result | Raised | Odd,
) -> str:
    """The id of the clause that ``actual`` breaks, ``right`` being the spec's answer."""
    before = halves.scheduler
    if profile.fails_requests and (
        clause := failing.broken_clause(profile, ledger, halves, call, right, actual)
    ):
        return clause
    if isinstance(call, BeginStep | PrepareOutput | ProcessOutput | Close):
        return worker_diagnosis.broken_clause(ledger, halves, call, right, actual)
    if isinstance(right, Refusal):
        crashed = isinstance(actual, Raised) and not actual.refusal
        return "SCHED-REFUSE-1" if crashed and not right.clause.startswith("WIRE") else right.clause
    clause = _of_an_allowed_call(profile, ledger, before, call, right, actual)
    return "SCHED-ACCEPT-1" if isinstance(actual, Raised) and clause in NOT_ABOUT_ONE_CALL else clause


def _of_an_allowed_call(
    profile: Profile,
    ledger: Ledger,
    before: SchedulerState,
    call: SchedulerCall,
    right: Result,
    actual: Result | Raised | Odd,
) -> str:
    if isinstance(call, BuildConnectorMeta):
        assert isinstance(right, Metadata)
        if isinstance(actual, Metadata):
            return ledger.refused or _metadata(profile, ledger, before, call, right, actual)
        return ledger.refused or (
            "SCHED-HASH-9" if right.replaced_block_hashes else _no_metadata(before, call)
        )
    if isinstance(call, TakeOutput):
        return _rows(ledger, before, call, right, actual)
    if isinstance(call, RequestFinished):
        return ledger.refused or _finish(ledger, before, call)
    if isinstance(call, Reset):
        return "SCHED-RESET-1"
    if isinstance(call, HitCall):
        return _hit(call, right, actual)
    return _unpacked(call, actual)


def _metadata(
    profile: Profile,
    ledger: Ledger,
    before: SchedulerState,
    call: BuildConnectorMeta,
    right: Metadata,
    actual: Metadata,
) -> str:
    if actual.generation != right.generation:
        return "SCHED-RESET-1" if ledger.resets_since_metadata else "SCHED-META-4"
    return (
        _requests(profile, ledger, call, right, actual)
        or _finished(ledger, before, call, right, actual)
        or _replaced(right, actual)
        or _hashes(ledger, before, call, right, actual)
        or _kept(ledger, before, right, actual)
    )


def _no_metadata(before: SchedulerState, call: BuildConnectorMeta) -> str:
    scheduled = {request_id for request_id, _ in call.scheduled}
    if scheduled & {request_id for request_id, _ in before.ended}:
        return "SCHED-RESTART-1"
    return "SCHED-META-1" if scheduled else "SCHED-META-3"


def _requests(
    profile: Profile, ledger: Ledger, call: BuildConnectorMeta, right: Metadata, actual: Metadata
) -> str:
    """What is wrong with the scheduled requests or their emit starts; empty if nothing is."""
    wanted, found = dict(right.requests), dict(actual.requests)
    if wanted.keys() != found.keys():
        return "SCHED-META-1"
    views = {view.request_id: view for view in call.requests}
    for request_id, start in right.requests:
        if found[request_id] != start:
            return _emit_start(profile, ledger, views[request_id], found[request_id])
    return "" if right.requests == actual.requests else "SCHED-META-2"


def _emit_start(profile: Profile, ledger: Ledger, view: RequestView, actual: int) -> str:
    beyond = "SCHED-EMIT-4" if profile.clamps_prompt_start else "SCHED-EMIT-3"
    other = profile._replace(clamps_prompt_start=not profile.clamps_prompt_start)
    if actual == scheduler.emit_start(other, view):
        return beyond
    if actual == ledger.emit_starts.get(view.request_id):
        return "SCHED-EMIT-5"
    if view.prompt_start > view.num_prompt_tokens:
        return beyond
    return "SCHED-EMIT-2" if view.num_output_tokens else "SCHED-EMIT-1"


def _finished(
    ledger: Ledger, before: SchedulerState, call: BuildConnectorMeta, right: Metadata, actual: Metadata
) -> str:
    """What is wrong with the terminal events; empty if nothing is."""
    wanted, found = Counter(right.finished_requests), Counter(actual.finished_requests)
    scheduled = {request_id for request_id, _ in call.scheduled}
    for request_id in wanted - found:
        if request_id in scheduled:
            return "SCHED-RESTART-1"
        if not scheduled:
            return "SCHED-META-3"
        return "SCHED-TERM-7" if request_id in ledger.preempted else "SCHED-TERM-1"
    for request_id in found - wanted:
        return _extra_event(ledger, before, request_id, wanted[request_id])
    return "" if right.finished_requests == actual.finished_requests else "SCHED-TERM-6"


def _extra_event(ledger: Ledger, before: SchedulerState, request_id: str, due: int) -> str:
    if due:
        return "SCHED-TERM-4"
    if request_id in ledger.dropped:
        return "SCHED-RESET-3"
    if request_id in ledger.reset_while_active:
        return "SCHED-RESET-4"
    if request_id in ledger.delivered or request_id in dict(before.active):
        return "SCHED-TERM-2"
    return "SCHED-TERM-2" if request_id in ledger.activated else "SCHED-TERM-3"


def _replaced(right: Metadata, actual: Metadata) -> str:
    """What is wrong with the hashes of requests whose history was replaced; empty if nothing is."""
    same = dict(right.replaced_block_hashes) == dict(actual.replaced_block_hashes)
    return "" if same else "SCHED-HASH-12"


def _hashes(
    ledger: Ledger, before: SchedulerState, call: BuildConnectorMeta, right: Metadata, actual: Metadata
) -> str:
    """What is wrong with the hashes of requests; empty if nothing is."""
    wanted, found = dict(right.block_hashes), dict(actual.block_hashes)
    for request_id in [*wanted, *found]:
        expected, got = wanted.get(request_id), found.get(request_id)
        if expected != got:
            return _entry(ledger, before, call, request_id, expected or (), got)
    return "" if right.finished_block_hashes == actual.finished_block_hashes else "SCHED-RESTART-3"


def _kept(ledger: Ledger, before: SchedulerState, right: Metadata, actual: Metadata) -> str:
    """What is wrong with the rows that the scheduler keeps; something is."""
    still = {block_hash for block in before.kept.blocks for block_hash in block}
    due, found = Counter(right.retained_block_hashes), Counter(actual.retained_block_hashes)
    if lacks := due - found:
        return "SCHED-RETAIN-3" if ledger.unscheduled & lacks.keys() else "SCHED-RETAIN-1"
    if more := found - due:
        return "SCHED-RETAIN-2" if still & more.keys() else "SCHED-RETAIN-4"
    due, found = Counter(right.released_block_hashes), Counter(actual.released_block_hashes)
    lacks, more = due - found, found - due
    if lacks and ledger.resets_since_metadata:
        return "SCHED-RELEASE-5"
    if lacks and not more and ledger.unmarked & lacks.keys():
        return "SCHED-LOAD-1"
    if lacks:
        return "SCHED-RELEASE-4" if more else "SCHED-RELEASE-3"
    if more:
        return "SCHED-RELEASE-2" if still & more.keys() else "SCHED-RELEASE-1"
    return "WIRE-META-2"


def _hit(call: HitCall, right: Result, actual: Result | Raised | Odd) -> str:
    if isinstance(call, RequestLoading):
        return "SCHED-LOAD-1"
    found = actual.num_tokens if isinstance(actual, Tokens) else 0
    if isinstance(call, MaxCacheHit):
        more = isinstance(right, Tokens) and right.num_tokens < found < call.request.num_tokens
        return "SCHED-HIT-2" if more else "SCHED-HIT-1"
    beyond = isinstance(actual, Tokens) and not 0 <= actual.num_tokens <= call.num_external
    return "SCHED-HIT-4" if beyond else "SCHED-HIT-3"


def _entry(
    ledger: Ledger,
    before: SchedulerState,
    call: BuildConnectorMeta,
    request_id: str,
    expected: tuple[BlockHash, ...],
    got: tuple[BlockHash, ...] | None,
) -> str:
    """What is wrong with one request's hashes."""
    scheduled = request_id in dict(call.scheduled)
    active, ended = dict(before.active), dict(before.ended)
    if got == ():
        return "SCHED-HASH-5"
    if scheduled and request_id in ended:
        return "SCHED-RESTART-2"
    if not scheduled and request_id not in active and request_id not in ended:
        return _inactive(ledger, request_id, bool(got))
    sent = active[request_id].num_hashes if request_id in active else 0
    if request_id in ended:
        known = ledger.known_hashes(request_id)
        sent = len(known) - len(expected)
    else:
        known = {view.request_id: view for view in call.requests}[request_id].block_hashes
    if set(got or ()) & set(known[:sent]) or len(set(got or ())) != len(got or ()):
        return "SCHED-HASH-2"
    if sorted(got or ()) == sorted(expected):
        return "SCHED-HASH-4"
    if request_id in ended:
        return "SCHED-TERM-5"
    if not scheduled:
        return "SCHED-HASH-6"
    return "SCHED-HASH-3" if request_id in active else _first_hashes(ledger, request_id)


def _inactive(ledger: Ledger, request_id: str, got: bool) -> str:
    """Hashes of a request that owes none."""
    if request_id in ledger.reset_while_active:
        return "SCHED-RESET-4"
    if request_id in ledger.dropped:
        return "SCHED-RESET-3"
    return "SCHED-TERM-9" if request_id in ledger.activated and got else "SCHED-HASH-7"


def _first_hashes(ledger: Ledger, request_id: str) -> str:
    """Wrong hashes at the start of an activation."""
    if request_id in ledger.reset_while_active or request_id in ledger.dropped:
        return "SCHED-RESET-2"
    return "SCHED-HASH-11" if request_id in ledger.activated else "SCHED-HASH-1"


def _rows(
    ledger: Ledger, before: SchedulerState, call: TakeOutput, right: Result, actual: Result | Raised | Odd
) -> str:
    view = call.request
    stale = view.request_id in ledger.preempted and view.request_id not in dict(before.active)
    if isinstance(right, Rows) and stale and not (isinstance(actual, Rows) and actual.rows):
        return "SCHED-TAKE-12"
    if right is None:
        return "SCHED-TAKE-5"
    if not isinstance(right, Rows) or not isinstance(actual, Rows):
        return "SCHED-TAKE-4" if isinstance(right, Rows) and not right.rows else "SCHED-TAKE-3"
    given = dict(call.outputs or ())[view.request_id].rows
    if any(row not in given and row.position >= 0 for row in actual.rows):
        return "SCHED-TAKE-11"
    if any(row.position < 0 for row in actual.rows):
        return "SCHED-TAKE-9"
    whole = actual.rows == given
    return "SCHED-TAKE-8" if whole and len(given) > len(right.rows) else "SCHED-TAKE-3"


def _finish(ledger: Ledger, before: SchedulerState, call: RequestFinished) -> str:
    request_id = call.request.request_id
    sent, hashes = dict(before.active).get(request_id), call.request.block_hashes
    if sent is not None and sent.num_hashes and hashes[sent.num_hashes - 1] != sent.last:
        return "SCHED-HASH-9"
    if sent is not None:
        return "SCHED-TERM-7" if call.preempted else "SCHED-TERM-1"
    return "SCHED-TERM-4" if request_id in ledger.activated else "SCHED-TERM-3"


def _unpacked(call: Unpack, actual: Result | Raised | Odd) -> str:
    empty = not call.data and not (isinstance(actual, Hashes) and not actual.hashes)
    return "WIRE-HASH-4" if empty else "WIRE-HASH-1"
