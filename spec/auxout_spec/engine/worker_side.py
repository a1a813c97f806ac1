"""The other half of the system: what the worker connector makes of a step, beside the engine that runs it.

With ``EngineConfig.limits`` the engine is driven through the spec's worker and store, and what they return is
compared with what is right; a refusal or a wrong row is a ``Problem`` that ends the run. Without it, a right worker
is assumed, which is all that judging a scheduler connector needs.
"""

from __future__ import annotations

from collections.abc import Callable

from ..calls import BeginStep, Call, PrepareOutput, ProcessOutput, WorkerCall
from ..deviations import looks, spoils
from ..values import Metadata, Outputs, Refusal, RequestOutput, Result, StepOutput
from ..worker import Part
from .guards import require
from .rows import num_rejected, on_invalid_kv, step_rows, text_at
from .state import EngineConfig, EngineState, Entry, Problem, Step
from .tampering import tampered_batches, tampered_metadata, tampered_reports


def begin_step(
    config: EngineConfig,
    state: EngineState,
    metadata: Metadata,
    entries: tuple[Entry, ...],
    call: Callable[[Call], Result],
) -> EngineState:
    """The worker takes in the metadata; its step is in flight as soon as its forward pass ran."""
    if config.limits is None:
        return state
    for corrupted in tampered_metadata(state, metadata):
        state = _must_refuse(config, state, BeginStep(corrupted), call)
    if state.problem is not None:
        return state
    refusal = call(BeginStep(metadata))
    if not isinstance(refusal, Refusal) and entries:
        batch = tuple((entry.request_id, entry.reported_start, entry.num_tokens) for entry in entries)
        for corrupted in tampered_batches(state, batch):
            state = _must_refuse(config, state, PrepareOutput(corrupted), call)
        refusal = call(PrepareOutput(batch))
    return _with_problem(state, refusal) if isinstance(refusal, Refusal) else state


def process_output(
    config: EngineConfig,
    state: EngineState,
    sampled: dict[str, int],
    right: Outputs,
    call: Callable[[Call], Result],
    invalid: frozenset[str] = frozenset(),
) -> tuple[EngineState, Outputs | None]:
    """The oldest step's output as the worker returns it, compared with the right one; None if it refused.

    Args:
        sampled: tokens that the model runner returned for each request that sampled.
        invalid: requests that were computed on KV that failed to load; the worker is not told.
    """
    if config.limits is None:
        return state, right
    steps = state.in_flight if state.tampered else state.in_flight[:1]
    flying = [_parts(state, step, sampled if at == 0 else {}, invalid) for at, step in enumerate(steps)]
    for corrupted in tampered_reports(state, flying):
        state = _must_refuse(config, state, corrupted, call)
    if state.problem is not None:
        return state, None
    output = call(ProcessOutput(flying[0]))
    if isinstance(output, Refusal):
        return _with_problem(state, output), None
    assert isinstance(output, StepOutput)
    return _compared(state, output.outputs, dict(right)), output.outputs


def _must_refuse(
    config: EngineConfig, state: EngineState, corrupted: WorkerCall, call: Callable[[Call], Result]
) -> EngineState:
    """Show the worker a corrupted call; a release that refuses it is no longer of use."""
    refusal = call(corrupted)
    refused = isinstance(refusal, Refusal) and looks(config.profile, refusal.clause)
    require(refused, "ENV-TAMPER-1", "the worker does not look at that")
    assert isinstance(refusal, Refusal)  # for the type checker; ``require`` has raised
    lasting = "WORK-REFUSE-3" if isinstance(corrupted, ProcessOutput) else "WORK-REFUSE-2"
    return _with_problem(state, refusal) if spoils(config.profile, lasting) else state


def _with_problem(state: EngineState, refusal: Refusal) -> EngineState:
    return state._replace(problem=Problem(refusal.clause, refusal.message))


def _parts(
    state: EngineState, step: Step, sampled: dict[str, int], invalid: frozenset[str]
) -> tuple[Part, ...]:
    """What the model runner reports of a step."""
    return tuple(_part(state, entry, step.generation, sampled, invalid) for entry in step.entries)


def _part(
    state: EngineState, entry: Entry, generation: int, sampled: dict[str, int], invalid: frozenset[str]
) -> Part:
    """What the model runner reports of an entry; the rows are those of the positions really computed."""
    known = dict(state.worker.requests).get(entry.request_id)
    cursor = known.capture_cursor if known is not None else -1
    start = entry.token_start if cursor < 0 else min(entry.token_start, cursor)
    rows = step_rows(entry, start, generation)
    if entry.request_id in invalid:
        rows = on_invalid_kv(rows)
    tokens = sampled.get(entry.request_id, 0)
    return Part(entry.request_id, entry.reported_start, rows, tokens, num_rejected(entry, sampled))


def _compared(state: EngineState, outputs: Outputs, right: dict[str, RequestOutput]) -> EngineState:
    """Report rows that are not those behind the request's KV, or not of its own tokens; none that the engine drops."""
    for request_id, output in outputs:
        wanted, request = right.get(request_id), state.request(request_id)
        skipped = output.failed or wanted is None or output.token_start != wanted.token_start
        if skipped or wanted is None or request is None or request.drops_output:
            continue
        for row, due in zip(output.rows, wanted.rows, strict=False):
            if (row.position, row.generation, row.text) != (due.position, due.generation, due.text):
                return state._replace(
                    problem=Problem("ROW-EXACT-1", f"{request_id} got {row}, due was {due}")
                )
            own = text_at(request.tokens, row.position)
            if row.text != own:
                problem = f"{request_id} got a row of text {row.text} for position {row.position} of {own}"
                return state._replace(problem=Problem("ROW-EXACT-2", problem))
    return state
