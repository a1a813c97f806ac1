"""The worker connector's core: from the rows of each step to the outputs of its requests, and nothing else.

It knows no runner, no device and no thread. Before a forward pass it takes in what the scheduler connector sent
(``begin_step``), after it a snapshot of the step's rows (``prepare_output``), and once the step's samples are
known it stores the rows and returns what each request is due (``process_output``). Steps are processed in launch
order, while later ones may be in flight.

Every call works on a copy of the state that replaces the old one at the end: that is all there is to refusals
that change nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .capture import Request, accepted_rows, captured, emitted, first_of_each, published
from .connector import AuxOutputConnectorMetadata, AuxRequestOutput
from .errors import ProtocolViolation
from .profiles import LATEST, profile_named
from .retention import held_by_scheduler
from .state import PendingStep, State
from .store import BlockStore, Key

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

    Counts = Sequence[int] | NDArray[Any]

_logger = logging.getLogger(__name__)
_BOTH = "it runs and ends in one step"
_NEVER_BEGAN = "it is in a step and never began"
_Rows = dict[str, "NDArray[Any]"]
"""Request -> rows."""
_Objects = list[tuple[str, Key, "NDArray[Any]"]]
"""Whose block, its key and its rows."""


class Usage(NamedTuple):
    """What the worker holds; all zero but ``objects`` when no request lives and no step is in flight."""

    requests: int
    steps_in_flight: int
    references: int
    """Sum of the store's reference counts."""
    objects: int
    """Blocks in the store."""
    buffered_rows: int
    """Rows of incomplete blocks and of blocks without a key, outside the store."""


class WorkerCore:
    """One worker's requests and rows; single-threaded."""

    def __init__(
        self,
        *,
        block_size: int,
        shape_per_token: tuple[int, int],
        dtype: DTypeLike,
        max_objects: int,
        max_num_seqs: int = 256,
        max_in_flight: int = 2,
        errors: Literal["raise", "request"] = "raise",
        profile: str = LATEST,
    ) -> None:
        """Start in generation 0 with nothing stored.

        Args:
            block_size: tokens per hash block.
            shape_per_token: ``(num_layers, top_k)`` of a row.
            dtype: of an expert id: ``uint8`` for at most 256 experts, else ``uint16``.
            max_objects: blocks that the store may hold, at least 1.
            max_num_seqs: requests in one step; faster workers size their buffers by it.
            max_in_flight: steps that may be in flight.
            errors: ``"raise"`` refuses what is inconsistent; ``"request"`` fails only the request that it is
                about: its output says so (``AuxRequestOutput.error``) and it keeps nothing from then on.
            profile: protocol version (``profiles``).

        Raises:
            ValueError: a size is below 1, or an unknown ``errors`` or ``profile``.
        """
        sizes = block_size, *shape_per_token, max_objects, max_num_seqs, max_in_flight
        if min(sizes) < 1:
            raise ValueError(f"block_size, shape_per_token and the limits are at least 1, not {sizes}")
        if errors not in {"raise", "request"}:
            raise ValueError(f"errors is 'raise' or 'request', not {errors!r}")
        self._profile = profile_named(profile)
        self._block_size = block_size
        self._no_rows = np.empty((0, *shape_per_token), dtype)
        self._max_in_flight = max_in_flight
        self._errors = errors
        self._closed = False
        self._state = State(0, {}, (), BlockStore(max_objects, self._profile.store_grows))
        # Requests of void steps that are known to have failed.
        self._told: set[str] = set()
        self.failures: Counter[str] = Counter()
        """Requests that failed, by clause (``errors="request"``)."""

    def begin_step(self, metadata: AuxOutputConnectorMetadata | None) -> None:
        """Take in one step's metadata, before its forward pass.

        Args:
            metadata: None for a step without auxiliary output.

        Raises:
            ProtocolViolation: WORK-BEGIN-1 to -5; STORE-PUT-3: waiting blocks that got a key do not fit.
        """
        self._require_open()
        if metadata is None:
            return
        state = self._state.copy()
        held, state.release = held_by_scheduler(state.generation, metadata)
        both = sorted(metadata.requests.keys() & set(metadata.finished_requests))
        if both and self._errors == "raise":
            raise ProtocolViolation("WORK-BEGIN-1", both[0], _BOTH)
        self._enter(state, metadata)
        for request_id in both:
            self._fail(state, ProtocolViolation("WORK-BEGIN-1", request_id, _BOTH))
        self._require_known(state, metadata)
        for request_id, emit_start in metadata.requests.items():
            self._start(state, request_id, emit_start)
        retain = [*held, *self._take_hashes(state, metadata)]
        for request_id in state.requests.keys() & set(metadata.finished_requests) - set(both):
            state.requests[request_id] = replace(state.requests[request_id], finished=True)
        objects = self._take_ready(state, sorted(state.requests))
        state.drop_ended(metadata.finished_requests)
        self._write(state, objects, retain)
        self._state = state

    def prepare_output(
        self,
        request_ids: Sequence[str],
        token_starts: Counts,
        query_start_loc: Counts,
        rows: NDArray[Any],
    ) -> PendingStep:
        """Take a snapshot of one step's rows, after its forward pass; the step is in flight from then on.

        Args:
            request_ids: the batch, in order.
            token_starts: ``(batch,)``, the first position of each request as it was scheduled.
            query_start_loc: ``(batch + 1,)``, where each request's rows begin in ``rows``; the last is their
                number.
            rows: ``(total, num_layers, top_k)``; may be overwritten when this returns.

        Raises:
            ProtocolViolation: WORK-STEP-1: as many steps as may be are in flight, or a batch that is not one;
                WORK-STEP-2: a request that never began.
        """
        self._require_open()
        self._require_step(request_ids, token_starts, query_start_loc, rows)
        state = self._state.copy()
        unknown = frozenset(request_ids) - state.requests.keys()
        for request_id in request_ids:
            if request_id in unknown:
                self._fail(state, ProtocolViolation("WORK-STEP-2", request_id, _NEVER_BEGAN))
            else:
                request = state.requests[request_id]
                state.requests[request_id] = replace(request, num_in_flight=request.num_in_flight + 1)
        bounds = [int(bound) for bound in query_start_loc]
        starts = tuple(int(start) for start in token_starts)
        parts = tuple(np.array(rows[start:end]) for start, end in pairwise(bounds))
        pending = PendingStep(tuple(request_ids), starts, parts, unknown, state.generation)
        state.in_flight = (*state.in_flight, pending)
        self._state = state
        return pending

    def process_output(
        self,
        pending: PendingStep,
        num_sampled: Counts,
        num_rejected: Counts,
    ) -> dict[str, AuxRequestOutput]:
        """Store the oldest step's rows, then return what its requests are due.

        All of the step is stored before anything is returned, since a request may read what another has just
        written (WORK-PUBLISH-1).

        Args:
            pending: the oldest step in flight.
            num_sampled: ``(batch,)``, tokens sampled for each request; 0 in the middle of a prompt.
            num_rejected: ``(batch,)``, rejected drafts at the end of each request's rows.

        Returns:
            Rows from the emit cursor on, of each request that sampled (WORK-EMIT-1).

        Raises:
            ProtocolViolation: WORK-STEP-1: another step is the oldest; WORK-CAPTURE-2 to -5, WORK-EMIT-3: the
                rows do not continue what is there; STORE-PUT-3, STORE-READ-1: the store cannot hold or lacks
                blocks.
        """
        self._require_open()
        state = self._state.copy()
        if not state.in_flight or state.in_flight[0] is not pending:
            raise ProtocolViolation("WORK-STEP-1", None, "the step is not the oldest in flight")
        if not len(num_sampled) == len(num_rejected) == len(pending.request_ids):
            raise ProtocolViolation("WORK-STEP-1", None, "samples are not those of the step's batch")
        if pending.generation < state.generation:
            outputs = self._void(state, pending)
            self._state = state
            return outputs
        stale = self._take_stale(state, pending)
        accepted = self._capture(state, pending, num_rejected, stale)
        landed = [request_id for request_id in pending.request_ids if request_id not in stale]
        self._write(state, self._take_ready(state, landed))
        outputs = self._emit(state, pending, num_sampled, accepted, stale)
        self._land(state)
        self._state = state
        return outputs

    def usage(self) -> Usage:
        """What is held at the moment."""
        requests = self._state.requests.values()
        return Usage(
            len(requests),
            len(self._state.in_flight),
            sum(self._state.store.references.values()),
            len(self._state.store.objects),
            sum(len(each.tail) + sum(len(rows) for _, rows in each.pending) for each in requests),
        )

    def close(self) -> None:
        """Drop everything, steps in flight included; every later call is refused, except closing again."""
        self._closed = True
        self._state = State(
            self._state.generation,
            {},
            (),
            BlockStore(self._state.store.max_objects, self._profile.store_grows),
        )

    def _require_open(self) -> None:
        """Refuse calls to a closed worker."""
        if self._closed:
            raise ProtocolViolation("WORK-STEP-1", None, "the worker is closed")

    def _require_step(
        self,
        request_ids: Sequence[str],
        token_starts: Counts,
        query_start_loc: Counts,
        rows: NDArray[Any],
    ) -> None:
        """Refuse a batch whose parts do not fit together, and one step too many (WORK-STEP-1)."""
        bounds = [int(bound) for bound in query_start_loc]
        right_type = rows.dtype == self._no_rows.dtype and rows.shape[1:] == self._no_rows.shape[1:]
        wrong = {
            "too many steps are in flight": len(self._state.in_flight) >= self._max_in_flight,
            "a request is in the batch twice": len(set(request_ids)) < len(request_ids),
            "as many starts as requests are needed": len(token_starts) != len(request_ids),
            "boundaries are one more than requests": len(bounds) != len(request_ids) + 1,
            "boundaries begin with 0 and end with the rows": [*bounds[:1], *bounds[-1:]] != [0, len(rows)],
            "a start is negative": min(token_starts, default=0) < 0,
            f"rows are {rows.dtype} {rows.shape[1:]}": not right_type,
        }
        for what, is_so in wrong.items():
            if is_so:
                raise ProtocolViolation("WORK-STEP-1", None, what)

    def _fail(self, state: State, violation: ProtocolViolation) -> None:
        """Raise, or let only the request fail that the violation is about: it gives up what it holds."""
        if self._errors == "raise":
            raise violation
        request_id = str(violation.request_id)
        request = state.requests.get(request_id)
        if request is None or request.error is None:
            self._count(violation)
        if request is not None and request.error is None:
            state.drop(request_id)
            state.requests[request_id] = request.failed(str(violation))

    def _count(self, violation: ProtocolViolation) -> None:
        """Tell that a request failed."""
        self.failures[violation.clause] += 1
        _logger.error("%s", violation)

    def _enter(self, state: State, metadata: AuxOutputConnectorMetadata) -> None:
        """Begin the metadata's generation, and the requests that start with it.

        A new generation drops every request, so it needs an empty pipeline; none goes back (WORK-BEGIN-2, -3). Where
        requests fail, steps in flight become void instead, and requests that an old generation's metadata names fail.
        """
        generation = metadata.generation
        if generation > state.generation:
            if state.in_flight and self._errors == "raise":
                what = f"generation {generation} begins with {len(state.in_flight)} steps in flight"
                raise ProtocolViolation("WORK-BEGIN-3", None, what)
            if state.in_flight:
                self._told.update(name for name, each in state.requests.items() if each.error is not None)
            for request_id in list(state.requests):
                state.drop(request_id)
            state.generation = generation
        for request_id, emit_start in metadata.requests.items():
            state.requests.setdefault(request_id, Request(emit_start, self._no_rows))
        if generation < state.generation:
            what = f"generation {generation} follows {state.generation}"
            if self._errors == "raise":
                raise ProtocolViolation("WORK-BEGIN-2", None, what)
            named = (*metadata.requests, *metadata.block_hashes, *_replaced(metadata))
            for request_id in dict.fromkeys(named):
                if request_id in state.requests:
                    self._fail(state, ProtocolViolation("WORK-BEGIN-2", request_id, what))

    def _require_known(self, state: State, metadata: AuxOutputConnectorMetadata) -> None:
        """Hashes and terminal events are of requests that run or live (WORK-BEGIN-5)."""
        running = {*state.requests, *metadata.requests}
        named = (*metadata.block_hashes, *_replaced(metadata), *metadata.finished_requests)
        for request_id in dict.fromkeys(named):
            if request_id not in running:
                what = "it gets hashes or ends and never began"
                self._fail(state, ProtocolViolation("WORK-BEGIN-5", request_id, what))

    def _start(self, state: State, request_id: str, emit_start: int) -> None:
        """Of a settled request that runs on the emit start is compared (WORK-BEGIN-4).

        Where requests fail, one that runs again while a step of its earlier activation is in flight does too.
        """
        request = state.requests[request_id]
        if request.finished and self._errors == "request":
            what = "it runs again while a step of it from before is in flight"
            self._fail(state, ProtocolViolation("WORK-BEGIN-1", request_id, what))
        elif request.error is None and not request.num_in_flight and emit_start > request.emit_cursor:
            what = f"emit start {emit_start} is beyond the emit cursor {request.emit_cursor}"
            self._fail(state, ProtocolViolation("WORK-BEGIN-4", request_id, what))
        # It runs on: that one of its name ended before is no longer told from it.
        if state.requests[request_id].error is not None:
            state.requests[request_id] = replace(state.requests[request_id], finished=False)

    def _take_hashes(self, state: State, metadata: AuxOutputConnectorMetadata) -> list[Key]:
        """Give requests their new keys; those to retain."""
        retain: list[Key] = []
        replaced = _replaced(metadata)
        for request_id, block_hashes in {**metadata.block_hashes, **replaced}.items():
            retain += self._take_keys(state, request_id, block_hashes, anew=request_id in replaced)
        return retain

    def _take_keys(
        self, state: State, request_id: str, block_hashes: Iterable[bytes], anew: bool
    ) -> list[Key]:
        """Append a request's new hashes to its keys, or take them in their place; the new ones (WORK-KEYS-1, -2)."""
        request = state.requests.get(request_id)
        if request is None or request.error is not None:
            return []
        keys = [(state.generation, block_hash) for block_hash in block_hashes]
        pairs = zip(request.keys, keys, strict=False)
        kept = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))) if anew else len(request.keys)
        state.release += request.keys[kept:][::-1]
        added = keys[kept:] if anew else keys
        request = replace(request, keys=(*request.keys[:kept], *added))
        if anew:
            request = replace(request, turned=True, num_stale=request.num_in_flight)
        state.requests[request_id] = request
        return added

    def _take_stale(self, state: State, pending: PendingStep) -> set[str]:
        """Those of the step's requests whose tokens were replaced since it was prepared (WORK-KEYS-2)."""
        known = (each for each in pending.request_ids if each not in pending.unknown)
        stale = {request_id for request_id in known if state.requests[request_id].num_stale}
        for request_id in stale:
            request = state.requests[request_id]
            state.requests[request_id] = replace(request, num_stale=request.num_stale - 1)
        return stale

    def _capture(self, state: State, pending: PendingStep, rejected: Counts, stale: Container[str]) -> _Rows:
        """Append the step's accepted rows, but those of ``stale`` requests, to its requests; these rows by request."""
        accepted: _Rows = {}
        parts = zip(pending.request_ids, pending.token_starts, pending.rows, rejected, strict=True)
        for request_id, start, rows, num_rejected in parts:
            gone = request_id in pending.unknown or request_id in stale
            if gone or state.requests[request_id].error is not None:
                continue
            request = state.requests[request_id]
            try:
                new = accepted_rows(request_id, rows, int(num_rejected))
                after = captured(request_id, request, start, len(rows), new, self._block_size)
            except ProtocolViolation as violation:
                self._fail(state, violation)
            else:
                state.requests[request_id], accepted[request_id] = after, new
        return accepted

    def _take_ready(self, state: State, request_ids: Iterable[str]) -> _Objects:
        """Take the blocks whose key has arrived out of the requests, in this order (WORK-PUBLISH-1)."""
        objects: _Objects = []
        for request_id in request_ids:
            if request_id in state.requests:
                state.requests[request_id], ready = published(state.requests[request_id])
                objects += [(request_id, key, rows) for key, rows in ready]
        # A store that grows would take the last of several blocks under one key; the first is meant.
        return first_of_each(objects) if self._profile.store_grows else objects

    def _write(self, state: State, objects: _Objects, retain: Sequence[Key] = ()) -> None:
        """Write blocks and move references in one batch of the store.

        Where it does not fit and requests may fail, the last one with blocks in it fails, until it fits.
        """
        while True:
            try:
                state.store.put([(key, rows) for _, key, rows in objects], retain, state.release)
            except ProtocolViolation as violation:
                if not objects:
                    raise
                last = objects[-1][0]
                self._fail(state, ProtocolViolation(violation.clause, last, violation.what))
                objects = [each for each in objects if each[0] != last]
            else:
                state.release = ()
                return

    def _emit(
        self, state: State, pending: PendingStep, sampled: Counts, accepted: _Rows, stale: Container[str]
    ) -> dict[str, AuxRequestOutput]:
        """What the step's requests are due (WORK-EMIT-1); a failed one its error, whether it sampled or not."""
        outputs: dict[str, AuxRequestOutput] = {}
        for request_id, num_sampled in zip(pending.request_ids, sampled, strict=True):
            if request_id in stale:
                continue
            if request_id in pending.unknown:
                error = ProtocolViolation("WORK-STEP-2", request_id, _NEVER_BEGAN)
                outputs[request_id] = AuxRequestOutput(0, self._no_rows, str(error))
                continue
            request = state.requests[request_id]
            if request.error is None and num_sampled > 0 and request.emit_cursor <= request.capture_cursor:
                try:
                    rows = self._emitted(state, request_id, accepted[request_id])
                except ProtocolViolation as violation:
                    self._fail(state, violation)
                else:
                    outputs[request_id] = AuxRequestOutput(request.emit_cursor, np.array(rows))
                    state.requests[request_id] = replace(request, emit_cursor=request.capture_cursor)
            if (error := state.requests[request_id].error) is not None:
                outputs[request_id] = AuxRequestOutput(request.emit_cursor, self._no_rows, error)
        return outputs

    def _void(self, state: State, pending: PendingStep) -> dict[str, AuxRequestOutput]:
        """Land a step whose requests a new generation has dropped: none gets rows of it."""
        state.in_flight = state.in_flight[1:]
        what = f"its step was in flight when generation {state.generation} began"
        errors = {name: ProtocolViolation("WORK-BEGIN-3", name, what) for name in pending.request_ids}
        for error in (error for name, error in errors.items() if name not in self._told):
            self._count(error)
        self._told.update(errors)
        if not any(step.generation < state.generation for step in state.in_flight):
            self._told.clear()
        return {name: AuxRequestOutput(0, self._no_rows, str(error)) for name, error in errors.items()}

    def _emitted(self, state: State, request_id: str, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows that a request is due; ``rows`` are those that the step computed."""
        request, unkeyed = state.requests[request_id], self._profile.reads_unkeyed
        return emitted(request_id, request, rows, state.store, self._block_size, unkeyed)

    def _land(self, state: State) -> None:
        """Take the oldest step out of flight; tear down who ended and has nothing left in flight (WORK-TEAR-1)."""
        landed, *later = state.in_flight
        state.in_flight = tuple(later)
        for request_id in landed.request_ids:
            if request_id not in landed.unknown:
                request = state.requests[request_id]
                state.requests[request_id] = replace(request, num_in_flight=request.num_in_flight - 1)
        state.drop_ended(landed.request_ids)
        state.store.put((), (), state.release)


def _replaced(metadata: AuxOutputConnectorMetadata) -> Mapping[str, Iterable[bytes]]:
    """The requests whose keys are taken anew; vLLM's own metadata knows none."""
    return getattr(metadata, "replaced_block_hashes", {})
