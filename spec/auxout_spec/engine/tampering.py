"""Corrupted inputs: what the connector sees when something else in the system is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..calls import Batch, Call, ProcessOutput
from ..scheduler import NOTHING_SENT
from ..values import Metadata, Outputs, RequestOutput, RequestView, Result
from ..worker import Part
from .events import Tamper, TamperKind
from .guards import require
from .state import EngineConfig, EngineState, Entry

HASH_KINDS = ("shrink_hashes", "mix_lengths")
METADATA_KINDS: tuple[TamperKind, ...] = (
    "old_generation", "new_generation", "run_and_end", "late_start", "unknown_end", "unknown_hashes",
    "unknown_batch",
)  # fmt: skip
REPORT_KINDS: tuple[TamperKind, ...] = ("reject_more", "other_step")
NOBODY = "nobody"
"""An id that no request has."""


def tamper(
    config: EngineConfig, state: EngineState, event: Tamper, call: Callable[[Call], Result]
) -> EngineState:
    """Remember the corruption for the next event."""
    request = state.request(event.request)
    require(request is not None, "ENV-FORM-1", f"there is no request {event.request}")
    if event.kind in HASH_KINDS and request is not None:
        sent = dict(state.connector.active).get(event.request, NOTHING_SENT).num_hashes
        have = len(request.block_hashes)
        # A hash that was sent is not looked at again, and the only one has no other to differ from.
        unseen = event.kind == "mix_lengths" and (event.amount < sent or have == 1)
        require(not unseen, "ENV-TAMPER-1", f"nobody compares the length of that hash of {event.request}")
        require(
            0 <= event.amount < have, "ENV-TAMPER-1", f"{event.request} has no such block hash {event.amount}"
        )
    for_worker = event.kind in METADATA_KINDS or event.kind in REPORT_KINDS
    taken = config.profile.fails_requests and for_worker
    require(
        not taken,
        "ENV-TAMPER-1",
        f"where requests fail, a worker takes in what is wrong with {event.request}",
    )
    return state._replace(tampered=(*state.tampered, event))


def tampered_view(state: EngineState, view: RequestView) -> RequestView:
    """A request with its hash list corrupted."""
    for event in state.tampered:
        if event.request == view.request_id and event.kind in HASH_KINDS:
            hashes, at = view.block_hashes, event.amount
            doubled = (*hashes[:at], *(each * 2 for each in hashes[at : at + 1]), *hashes[at + 1 :])
            view = view._replace(block_hashes=hashes[:at] if event.kind == "shrink_hashes" else doubled)
    return view


def tampered_outputs(state: EngineState, outputs: Outputs) -> Outputs | None:
    """A step's worker output, corrupted."""
    by_request = dict(outputs)
    for event in state.tampered:
        if event.kind == "no_output":
            return None
        output = by_request.get(event.request)
        if event.kind == "no_entry":
            by_request.pop(event.request, None)
        elif output is not None and event.kind == "cut_rows":
            kept = max(len(output.rows) - event.amount, 0)
            by_request[event.request] = RequestOutput(output.token_start, output.rows[:kept])
        elif output is not None and event.kind == "shift_start":
            by_request[event.request] = output._replace(token_start=output.token_start + event.amount)
    return tuple(by_request.items())


def tampered_batches(state: EngineState, batch: Batch) -> Iterator[Batch]:
    """A step's batch with each corruption that is meant for the worker."""
    for kind, _, _ in state.tampered:
        if kind == "unknown_batch":
            yield (*batch, (NOBODY, 0, 1))


def tampered_entries(state: EngineState, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """A step's entries with what its batch skips."""
    for kind, request_id, amount in state.tampered:
        if kind == "skip_ahead":
            here = any(entry.request_id == request_id for entry in entries)
            seen = here and amount > 0 and captured_whole(state, request_id)
            require(seen, "ENV-TAMPER-1", f"the worker does not notice what is skipped of {request_id}")
            entries = tuple(
                entry._replace(skipped=amount) if entry.request_id == request_id else entry
                for entry in entries
            )
    return entries


def captured_whole(state: EngineState, request_id: str) -> bool:
    """Whether a request has rows, nothing in flight, and no rejected draft since: its next row is behind the last."""
    known = dict(state.worker.requests).get(request_id)
    forgotten = state.worker.generation != state.connector.generation
    if known is None or forgotten or known.finished or known.num_in_flight:
        return False
    return known.scheduled_cursor <= known.capture_cursor


def tampered_metadata(state: EngineState, metadata: Metadata) -> Iterator[Metadata]:
    """A step's metadata with each corruption that is meant for the worker."""
    for kind, request_id, amount in state.tampered:
        if kind == "old_generation" and amount > 0:
            yield metadata._replace(generation=metadata.generation - amount)
        elif kind == "new_generation" and amount > 0:
            yield metadata._replace(generation=metadata.generation + amount)
        elif kind == "run_and_end" and request_id in dict(metadata.requests):
            yield metadata._replace(finished_requests=(*metadata.finished_requests, request_id))
        elif kind == "late_start":
            starts = ((name, start + amount * (name == request_id)) for name, start in metadata.requests)
            yield metadata._replace(requests=tuple(starts))
        elif kind == "unknown_end":
            yield metadata._replace(finished_requests=(*metadata.finished_requests, NOBODY))
        elif kind == "unknown_hashes":
            yield metadata._replace(block_hashes=(*metadata.block_hashes, (NOBODY, (bytes(32),))))


def tampered_reports(state: EngineState, flying: Sequence[tuple[Part, ...]]) -> Iterator[ProcessOutput]:
    """Corrupted reports of the oldest step, given the sound ones of all steps in flight."""
    for kind, request_id, amount in state.tampered:
        if kind == "reject_more" and amount > 0:
            parts = (
                part._replace(num_rejected=len(part.rows) + amount) if part.request_id == request_id else part
                for part in flying[0]
            )
            yield ProcessOutput(tuple(parts))
        elif kind == "other_step" and len(flying) > 1:
            yield ProcessOutput(flying[1], 1)
