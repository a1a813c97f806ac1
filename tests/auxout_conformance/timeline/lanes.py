"""What one event changed in each lane, in words; read off the states before and after, so new events need nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from auxout_spec import scenario as scenarios
from auxout_spec.calls import (
    WORKER_CALLS,
    BuildConnectorMeta,
    Call,
    Exchange,
    RequestFinished,
    TakeOutput,
    Unpack,
)
from auxout_spec.engine import EngineState, Event
from auxout_spec.engine.state import EngineRequest
from auxout_spec.values import BlockHash, Metadata, Refusal, Row, Rows, Tokens
from auxout_spec.worker import WorkerRequest, WorkerState

from ..judge import describe_call
from ..judge.render import RowRange, row_ranges
from .model import Line


class Change(NamedTuple):
    """One event as it went."""

    event: Event
    before: EngineState
    after: EngineState
    exchanges: tuple[Exchange, ...]
    places: Mapping[BlockHash, int]
    """The place of every hash so far in the lists that hold it: a hash covers its prefix, so it has one place."""


def title(event: Event) -> str:
    """An event in words: its verb and its subject."""
    verb, subject = next(iter(scenarios.event_to_json(event).items()))
    name = event._fields[0]
    if isinstance(subject, bool):
        usual = subject == event._field_defaults.get(name)
        subject = "" if usual else name if subject else "off"
    return f"{verb} {_value(subject)}".rstrip()


def details(event: Event) -> str:
    """The fields of an event that are not what they usually are."""
    fields = list(scenarios.event_to_json(event).items())[1:]
    return ", ".join(field if value is True else f"{field} {_value(value)}" for field, value in fields)


def engine(change: Change) -> Iterator[Line]:
    """What the engine decided: who arrives, runs, gets tokens, waits and leaves."""
    before, after = change.before, change.after
    if details(change.event):
        yield Line(details(change.event), getattr(change.event, "request", ""))
    entries = [entry for step in after.in_flight[len(before.in_flight) :] for entry in step.entries]
    for entry in entries:
        request = before.request(entry.request_id)
        loaded = entry.token_start - entry.num_external_tokens
        if request is not None and not request.holds_kv and loaded:
            yield ranged("hits", entry.request_id, 0, loaded)
        if entry.num_external_tokens:
            yield ranged("loads", entry.request_id, loaded, entry.token_start)
        yield ranged("runs", entry.request_id, entry.token_start, entry.token_start + entry.num_tokens)
    for request in after.requests:
        yield from _request(before.request(request.request_id), request)
    for request in before.requests:
        if after.request(request.request_id) is None:
            yield Line(f"{request.request_id} leaves", request.request_id)
    if before.paused != after.paused:
        yield Line("paused" if after.paused else "runs again")
    if before.num_weight_updates != after.num_weight_updates:
        yield Line("new weights")
    kept = {block.block_hash for block in after.resident}
    gone = [block.name for block in before.resident if block.block_hash not in kept]
    if gone:
        yield Line(f"KV gone: {' '.join(gone)}")


def scheduler(change: Change) -> Iterator[Line]:
    """The calls to the scheduler connector; what they return travels or is taken."""
    for call, result in calls_of("scheduler", change.exchanges):
        request = getattr(getattr(call, "request", None), "request_id", "")
        yield Line(call_name(call), request, "call")
        if isinstance(result, Refusal):
            yield Line(f"refused, {result.clause}", request, "refused")
        elif isinstance(result, Rows):
            yield from _rows("", result.rows) or [Line("0 rows", request)]
        elif isinstance(result, Tokens):
            yield Line(f"{result.num_tokens} tokens", request)
        elif isinstance(call, TakeOutput):
            yield Line("None", request)
        elif isinstance(call, RequestFinished):
            queued = dict(change.after.connector.ended)
            if request in queued and request not in dict(change.before.connector.ended):
                yield Line(f"{request} ended, queued", request)
    if change.before.connector.generation != change.after.connector.generation:
        yield Line(f"generation {change.after.connector.generation}")


def calls_of(lane: str, exchanges: Iterable[Exchange]) -> list[Exchange]:
    """The calls that belong into the lane of the scheduler or of the worker."""
    return [each for each in exchanges if isinstance(each.call, WORKER_CALLS) is (lane != "scheduler")]


def call_name(call: Call) -> str:
    """A call on one line; what a step is about stands in the other lanes."""
    if hasattr(call, "request") or isinstance(call, Unpack):
        return describe_call(call)
    return f"{describe_call(call).partition('(')[0]}()"


def channel(change: Change) -> Iterator[Line]:
    """What travels: metadata down to the worker, its rows up to the scheduler."""
    for call, result in change.exchanges:
        if isinstance(call, BuildConnectorMeta) and isinstance(result, Metadata):
            yield from _metadata(result, change.places)
    seen: set[str] = set()
    for call in (exchange.call for exchange in change.exchanges):
        if isinstance(call, TakeOutput) and call.outputs is not None:
            for request_id, output in call.outputs:
                if request_id not in seen:
                    yield from _rows("↑", output.rows) or [Line(f"↑ {request_id} 0 rows", request_id)]
                    seen.add(request_id)


def worker(change: Change) -> Iterator[Line]:
    """What the worker keeps of each request: keys, captured and emitted rows, blocks that wait for a key."""
    before, after, problem = change.before.worker, change.after.worker, change.after.problem
    for call, result in calls_of("worker", change.exchanges):
        yield Line(call_name(call), tone="call")
        if isinstance(result, Refusal) and problem is None:
            yield Line(f"refused, {result.clause}", tone="refused")
    if problem is not None:
        yield Line(f"refused, {problem.clause}", tone="refused")
        yield Line(problem.message)
        return
    if before.generation != after.generation:
        yield Line(f"generation {after.generation}")
    kept, starts = dict(before.requests), _landed_starts(change)
    for request_id, request in after.requests:
        start = starts.get(request_id, 0)
        yield from _worker_request(request_id, kept.get(request_id), request, change.places, start)
    for request_id in kept:
        if request_id not in dict(after.requests):
            yield Line(f"{request_id} torn down", request_id)


def store(change: Change) -> Iterator[Line]:
    """Objects that were written and evicted, and how many are left."""
    before, after = dict(change.before.worker.store.objects), dict(change.after.worker.store.objects)
    for sign, these, those in (("+", after, before), ("-", before, after)):
        for key, rows in sorted(these.items(), key=lambda item: item[1]):
            if key not in those:
                yield from _rows(sign, rows)
    counts = [_counts(state.worker) for state in (change.before, change.after)]
    if counts[0] != counts[1]:
        objects, keys = counts[1]
        yield Line(f"{_counted(objects, 'object')}, {_counted(keys, 'key')} held")


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def ranged(what: str, request_id: str, start: int, end: int) -> Line:
    """A line about a range of a request's positions."""
    return Line(f"{what} {RowRange(request_id, start, end)}".lstrip(), request_id, span=(start, end))


def _rows(what: str, rows: tuple[Row, ...]) -> list[Line]:
    """A line for each range of some rows."""
    return [
        Line(f"{what} {each}".lstrip(), each.request, span=(each.start, each.end))
        for each in row_ranges(rows)
    ]


def _request(before: EngineRequest | None, after: EngineRequest) -> Iterator[Line]:
    name = after.request_id
    if before is not None and before.num_tokens != after.num_tokens:
        yield Line(f"{name} has {_counted(after.num_tokens, 'token')}", name)
    if before is not None and before.status != after.status and after.status not in ("waiting", "running"):
        words = {
            "waiting_for_chunk": "waits for its next chunk",
            "waiting_for_kv": "waits for its KV to be loaded",
            "lost": "is in no queue any more",
        }
        yield Line(f"{name} {words.get(after.status, after.status.replace('_', ' '))}", name)
    if before is not None and len(after.queue) > len(before.queue):
        yield Line(f"{name} queues the chunk" if after.queue[-1] else f"{name} closes later", name)


def _metadata(metadata: Metadata, places: Mapping[BlockHash, int]) -> Iterator[Line]:
    yield Line(f"↓ generation {metadata.generation}")
    for request_id, start in metadata.requests:
        yield Line(f"↓ {request_id} emits from {start}", request_id)
    for request_id, hashes in metadata.block_hashes:
        yield Line(f"↓ {request_id} {_hashes(hashes, places)}", request_id)
    for request_id in metadata.finished_requests:
        yield Line(f"↓ {request_id} ended", request_id)
    for request_id, hashes in metadata.finished_block_hashes:
        yield Line(f"↓ {request_id} ended with {_hashes(hashes, places)}", request_id)
    for request_id, hashes in metadata.replaced_block_hashes:
        yield Line(f"↓ {request_id} now has {_hashes(hashes, places)}", request_id)
    for what, held in (
        ("retain", metadata.retained_block_hashes),
        ("release", metadata.released_block_hashes),
    ):
        if held:
            yield Line(f"↓ {what} {_hashes(held, places)}")


def _hashes(hashes: Iterable[BlockHash], places: Mapping[BlockHash, int]) -> str:
    """Hashes by their places, runs of them as ``#0..#4``; ``#?`` is one that no request ever had."""
    found = [places.get(each, -1) for each in hashes]
    if len(found) > 2 and found == list(range(found[0], found[0] + len(found))) and found[0] >= 0:
        return f"#{found[0]}..#{found[-1]}"
    return " ".join("#?" if place < 0 else f"#{place}" for place in found)


def _landed_starts(change: Change) -> dict[str, int]:
    """Where the parts of the step that landed began."""
    before, after = change.before.in_flight, change.after.in_flight
    if len(after) >= len(before) or not before:
        return {}
    return {entry.request_id: entry.token_start for entry in before[0].entries}


def _worker_request(
    name: str,
    before: WorkerRequest | None,
    after: WorkerRequest,
    places: Mapping[BlockHash, int],
    start: int,
) -> Iterator[Line]:
    was = before or WorkerRequest(after.emit_cursor)
    if before is None:
        yield Line(f"{name} starts, emits from {after.emit_cursor}", name)
    if len(after.keys) > len(was.keys):
        yield Line(f"{name} keys {_hashes(after.keys[len(was.keys) :], places)}", name)
    if after.capture_cursor != was.capture_cursor:
        first = was.capture_cursor if was.capture_cursor >= 0 else start
        yield ranged("captured", name, first, after.capture_cursor)
    if after.emit_cursor != was.emit_cursor:
        yield ranged("emitted", name, was.emit_cursor, after.emit_cursor)
    if after.pending and after.pending != was.pending:
        yield from _rows("without key", tuple(row for _, block in after.pending for row in block))
    if after.finished and not was.finished:
        yield Line(f"{name} ended, {after.num_in_flight} in flight", name)


def _counts(state: WorkerState) -> tuple[int, int]:
    return len(state.store.objects), len(state.store.references)
