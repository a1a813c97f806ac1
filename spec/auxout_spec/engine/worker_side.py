"""The other half of the system: what the worker connector makes of a step, beside the engine that runs it.

With ``EngineConfig.limits`` the engine is driven through the spec's worker and store, and what they return is
compared with what is right; a refusal or a wrong row is a ``Problem`` that ends the run. Without it, a right worker
is assumed, which is all that judging a scheduler connector needs.
"""

from __future__ import annotations

from .. import worker
from ..values import Metadata, Outputs, Refusal, RequestOutput
from ..worker import Part
from .rows import activation_of, on_invalid_kv, step_rows, text_at
from .state import EngineConfig, EngineState, Entry, Problem


def begin_step(
    config: EngineConfig, state: EngineState, metadata: Metadata, entries: tuple[Entry, ...]
) -> EngineState:
    """The worker takes in the metadata; its step is in flight as soon as its forward pass ran."""
    if config.limits is None:
        return state
    after, refusal = worker.begin_step(config.limits, state.worker, metadata)
    if refusal is not None:
        return state._replace(problem=Problem(refusal.clause, refusal.message))
    if entries:
        after = worker.prepare_output(after, tuple(entry.request_id for entry in entries))
    return state._replace(worker=after)


def process_output(
    config: EngineConfig,
    state: EngineState,
    sampled: dict[str, int],
    right: Outputs,
    invalid: frozenset[str] = frozenset(),
) -> tuple[EngineState, Outputs]:
    """The oldest step's output as the worker returns it, compared with the right one.

    Args:
        sampled: tokens that the model runner returned for each request that sampled.
        invalid: requests that were computed on KV that failed to load; the worker is not told.
    """
    if config.limits is None:
        return state, right
    flying = state.in_flight[0]
    parts = tuple(_part(state, entry, flying.generation, sampled, invalid) for entry in flying.entries)
    after, outputs = worker.process_output(config.limits, state.worker, parts)
    if isinstance(outputs, Refusal):
        return state._replace(problem=Problem(outputs.clause, outputs.message)), right
    state = state._replace(worker=after)
    return _compared(state, outputs, dict(right)), outputs


def _part(
    state: EngineState, entry: Entry, generation: int, sampled: dict[str, int], invalid: frozenset[str]
) -> Part:
    """What the model runner reports of an entry; the rows are those of the positions really computed."""
    known = dict(state.worker.requests).get(entry.request_id)
    cursor = known.capture_cursor if known is not None else -1
    start = entry.token_start if cursor < 0 else min(entry.token_start, cursor)
    request = state.request(entry.request_id)
    tokens = sampled.get(entry.request_id, 0)
    rejected = entry.num_drafts - (tokens - 1) if tokens else 0
    owner = request or activation_of(state, entry.request_id, entry.activation)
    rows = step_rows(owner.tokens, entry, start, generation)
    if entry.request_id in invalid:
        rows = on_invalid_kv(rows)
    return Part(entry.request_id, entry.token_start, rows, tokens, rejected)


def _compared(state: EngineState, outputs: Outputs, right: dict[str, RequestOutput]) -> EngineState:
    """Report rows that are not those behind the request's KV, or not of its own tokens."""
    for request_id, output in outputs:
        wanted, request = right.get(request_id), state.request(request_id)
        if wanted is None or request is None or output.token_start != wanted.token_start:
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
