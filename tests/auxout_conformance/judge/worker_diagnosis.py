"""Names the clause that a worker's wrong answer breaks.

Called only when an answer is wrong, most specific cause first. What the worker holds after a call is an answer too.
"""

from __future__ import annotations

from collections.abc import Iterable

from auxout_spec.calls import BeginStep, Call, Close, Halves, PrepareOutput, ProcessOutput, WorkerCall
from auxout_spec.values import Refusal, RequestOutput, Result, Row, StepOutput
from auxout_spec.worker import Limits, Part, WorkerState

from ..objects import LATER_ROW
from ..observation import Odd, Raised, Usage
from .ledger import Ledger


def broken_clause(
    ledger: Ledger, before: Halves, call: WorkerCall, right: Result, actual: Result | Raised | Odd
) -> str:
    """The id of the clause that ``actual`` breaks, ``right`` being the spec's answer."""
    if isinstance(right, Refusal):
        crashed = isinstance(actual, Raised) and not actual.refusal
        return "WORK-REFUSE-1" if crashed else right.clause
    if isinstance(call, Close):
        return "WORK-CLOSE-1"
    if ledger.worker_refused:
        return ledger.worker_refused
    if isinstance(call, BeginStep):
        return _no_begin(before.worker, call)
    if isinstance(call, PrepareOutput):
        return "WORK-ACCEPT-1"
    assert isinstance(right, StepOutput)
    if isinstance(actual, StepOutput):
        return _outputs(ledger, before, call, right, actual)
    return _of_a_full_store(ledger, before.worker, call) or _no_output(before.worker, call)


def _no_begin(before: WorkerState, call: BeginStep) -> str:
    """Metadata that is in order was not taken in."""
    metadata = call.metadata
    if set(metadata.retained_block_hashes) & set(metadata.released_block_hashes):
        return "WORK-RETAIN-2"
    if metadata.generation > before.generation:
        return "WORK-BEGIN-2"
    if metadata.replaced_block_hashes:
        return "WORK-KEYS-2"
    if metadata.finished_requests:
        return "WORK-TEAR-1"
    known = dict(before.requests)
    ahead = [name for name, start in metadata.requests if name in known and start > known[name].emit_cursor]
    return "WORK-BEGIN-4" if ahead else "WORK-ACCEPT-1"


def _of_a_full_store(ledger: Ledger, before: WorkerState, call: ProcessOutput) -> str:
    """Why a store that grows did not give what it would have no room for; empty if that is no question."""
    if ledger.cache is None:
        return ""
    hits = {name for name, request in before.requests if request.capture_cursor < 0}
    if before.store.grown and any(p.request_id in hits and p.token_start for p in call.parts):
        return "ROW-RESIDENT-1"
    return "STORE-GROW-1" if 0 < ledger.capacity < len(before.store.references) else ""


def _no_output(before: WorkerState, call: ProcessOutput) -> str:
    """A step that is in order was not processed."""
    known = dict(before.requests)
    here = [(part, known[part.request_id]) for part in call.parts if part.request_id in known]
    if any(part.token_start > request.capture_cursor >= 0 for part, request in here):
        return "WORK-CAPTURE-3"
    if any(request.finished for _, request in here):
        return "WORK-TEAR-1"
    reads = any(
        part.num_sampled and known[part.request_id].emit_cursor < part.token_start for part in call.parts
    )
    return "WORK-EMIT-3" if reads else "WORK-ACCEPT-1"


def _outputs(
    ledger: Ledger, before: Halves, call: ProcessOutput, right: StepOutput, actual: StepOutput
) -> str:
    """Which request's output is wrong, and in what."""
    ledger.record_parts(call, before)
    parts = {part.request_id: part for part in call.parts}
    wanted, found = dict(right.outputs), dict(actual.outputs)
    for name in (*wanted, *found):
        if wanted.get(name) != found.get(name):
            if name not in wanted or name not in found:
                return "WORK-EMIT-1"
            return _rows(ledger, parts[name], wanted[name], found[name])
    raise ValueError("the outputs are equal")


def _rows(ledger: Ledger, part: Part, right: RequestOutput, actual: RequestOutput) -> str:
    """What is wrong with one request's rows; something is."""
    rejected = any(row in ledger.rejected for row in actual.rows)
    if rejected:
        return "WORK-CAPTURE-1"
    by_number = _first_wrong(enumerate(right.rows), enumerate(actual.rows))
    by_position = _first_wrong(
        enumerate(right.rows, right.token_start), enumerate(actual.rows, actual.token_start)
    )
    # The right rows under a wrong start, or right rows before those that are due, are no wrong rows.
    if by_number and by_position:
        another = _is_another_block(ledger, right, actual, by_number[1].position)
        return _row(ledger, part, *by_number, another)
    if part.request_id in ledger.reattached and len(actual.rows) != len(right.rows):
        return "WORK-CAPTURE-3"
    return "WORK-EMIT-1"


def _first_wrong(
    right: Iterable[tuple[int, Row]], actual: Iterable[tuple[int, Row]]
) -> tuple[Row, Row] | None:
    """The first row that is not the one due under the same number, and that one."""
    due = dict(right)
    return next(((row, due[at]) for at, row in actual if row != due.get(at, row)), None)


def _is_another_block(ledger: Ledger, right: RequestOutput, actual: RequestOutput, position: int) -> bool:
    """Whether the rows of one block are those of another one."""
    number = position // ledger.block_size
    pairs = zip(actual.rows, right.rows, strict=False)
    shifts = {
        row.position - due.position for row, due in pairs if due.position // ledger.block_size == number
    }
    return len(shifts) == 1 and shifts.pop() % ledger.block_size == 0


def _row(ledger: Ledger, part: Part, row: Row, due: Row, is_another_block: bool) -> str:
    """What is wrong with one row."""
    if row == LATER_ROW:
        return "WORK-STEP-3"
    if row.position < 0:
        return "WORK-EMIT-4"
    if row.generation != due.generation:
        return "STORE-READ-2"
    if ledger.replaced and (row.text != due.text or row.request != due.request):
        return "WORK-KEYS-2"
    if row.text != due.text:
        return "ROW-EXACT-2"
    if row.position != due.position and part.request_id in ledger.reattached:
        return "WORK-CAPTURE-3"
    if row.position != due.position:
        return "WORK-KEYS-1" if is_another_block and due not in part.rows else "ROW-EXACT-1"
    if row in ledger.overwritten:
        return "STORE-REPLACE-1"
    # Another computation of the same position: the step's own rows come first, the store keeps its first.
    return "WORK-EMIT-2" if due in part.rows else "STORE-PUT-1"


def right_usage(state: WorkerState) -> Usage:
    """What a worker in this state holds."""
    requests = [request for _, request in state.requests]
    return Usage(
        len(requests),
        len(state.in_flight),
        sum(count for _, count in state.store.references),
        len(state.store.objects),
        sum(len(r.tail) + sum(len(rows) for _, rows in r.pending) for r in requests),
    )


def broken_usage(
    ledger: Ledger, limits: Limits, state: WorkerState, usage: Usage, call: Call | None = None
) -> str:
    """The clause that breaks when the worker holds ``usage`` in this state after a call; empty if none does.

    Rows may be kept outside the store as an implementation likes while a request lives.
    """
    right = right_usage(state)
    if usage == right or (usage[:4] == right[:4] and right.requests):
        return ""
    if ledger.worker_refused:
        return ledger.worker_refused
    if usage.steps_in_flight != right.steps_in_flight:
        return "WORK-STEP-1"
    if usage.requests != right.requests:
        return "WORK-TEAR-2" if usage.requests > right.requests else "WORK-TEAR-1"
    if usage.references != right.references and ledger.replaced:
        return "WORK-KEYS-2"
    if usage.references != right.references and isinstance(call, BeginStep) and ledger.lets_go(call.metadata):
        return "WORK-RETAIN-1"
    if usage.references != right.references:
        return "STORE-REF-1" if usage.references > right.references else "STORE-PUT-4"
    if usage.objects > max(limits.capacity, state.store.grown):
        return "STORE-PUT-2"
    if usage.objects != right.objects:
        names = {block_hash for (_, block_hash), _ in state.store.objects}
        # As many as when blocks of all generations share their names.
        return "STORE-READ-2" if usage.objects == len(names) else "WORK-PUBLISH-1"
    return "WORK-TEAR-2"
