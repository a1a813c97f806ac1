"""Drives a scheduler connector, a worker, or both: turns calls into real ones, results into the spec's values.

A session is one pair of connectors from their construction on. It watches what no result shows: whether inputs were
changed, whether metadata changes after it was returned, whether it survives pickling. With both halves it is the
way between them: the worker begins its steps with what the scheduler connector built, and that gets what the worker
returned.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from auxout_spec.calls import (
    WORKER_CALLS,
    BeginStep,
    BuildConnectorMeta,
    Call,
    Close,
    PrepareOutput,
    RequestFinished,
    SchedulerCall,
    TakeOutput,
    Unpack,
    WorkerCall,
)
from auxout_spec.calls import Reset as ResetCall
from auxout_spec.reading import MAX_INTEGER
from auxout_spec.values import Hashes, Metadata, Outputs, Rows, StepOutput

from .objects import ROW_DTYPE, ROW_SHAPE, Requests, RowCodec, StepMetadata
from .observation import Observation, Odd, Raised
from .targets.adapter import Adapter
from .targets.drivers import Sizes
from .worker_session import Notes, WorkerHalf

STORE_REFUSALS = (AssertionError, ValueError, RuntimeError)
"""By which a worker may refuse a call; a store that fails raises RuntimeError (WORK-REFUSE-1)."""


class Session:
    """The connectors under judgement.

    Args:
        sizes: what the worker is built for; None: it takes no part.
    """

    def __init__(self, adapter: Adapter, profile: str, sizes: Sizes | None = None) -> None:
        self._adapter, self._profile, self._sizes = adapter, profile, sizes
        self._start()

    def _start(self) -> None:
        """Fresh connectors."""
        adapter, profile = self._adapter, self._profile
        self._connector: Any = adapter.scheduler(profile) if adapter.scheduler else None
        self._requests = Requests()
        self._rows = RowCodec()
        self._delivered: list[tuple[Any, Metadata]] = []
        """Metadata objects returned so far, with what they said then."""
        self._worker: WorkerHalf | None = None
        if adapter.worker is not None and self._sizes is not None:
            self._worker = WorkerHalf(adapter.worker(profile, self._sizes), self._rows)

    def close(self) -> None:
        """Give the worker's threads and memory back."""
        if self._worker is not None:
            caught(self._worker.close)

    def call(self, call: Call) -> Observation:
        """Make one call; never raises what the target raises."""
        if isinstance(call, WORKER_CALLS):
            return self._call_worker(call)
        return self._call_scheduler(call)

    def _call_worker(self, call: WorkerCall) -> Observation:
        if self._worker is None:
            raise RuntimeError("the target has no worker")
        notes: Notes = []
        worker = self._worker
        if isinstance(call, Close):
            outcome = caught(worker.close_twice, STORE_REFUSALS)
            self._start()
            return Observation(outcome)
        if isinstance(call, BeginStep):
            metadata = self._metadata_for_worker(call.metadata)
            outcome = caught(lambda: worker.begin_step(metadata), STORE_REFUSALS)
        elif isinstance(call, PrepareOutput):
            outcome = caught(lambda: worker.prepare_output(call), STORE_REFUSALS)
        else:
            outcome = caught(lambda: worker.process_output(call, notes), STORE_REFUSALS)
        worker.recheck_returned(notes)
        usage = caught(worker.usage)
        return Observation(outcome, tuple(notes), None if isinstance(usage, Raised) else usage)

    def _metadata_for_worker(self, metadata: Metadata) -> Any:
        """What the scheduler connector built, if that is what the worker is to get, as it arrives."""
        for returned, said in reversed(self._delivered):
            if said == metadata:
                return pickle.loads(pickle.dumps(returned, protocol=5))
        return StepMetadata.of(metadata)

    def _outputs_for_scheduler(self, outputs: Outputs | None) -> Any:
        """What the worker returned, if that is what the scheduler connector is to get, as it arrives."""
        returned = self._worker.returned if self._worker is not None else None
        if returned is not None and outputs is not None and returned[1] == StepOutput(outputs):
            return pickle.loads(pickle.dumps(returned[0], protocol=5))
        return self._rows.outputs(outputs)

    def _call_scheduler(self, call: SchedulerCall) -> Observation:
        if self._connector is None:
            raise RuntimeError("the target has no scheduler connector")
        notes: Notes = []
        traits: list[str] = []
        if isinstance(call, BuildConnectorMeta):
            outcome = caught(lambda: self._build(call, notes, traits))
        elif isinstance(call, TakeOutput):
            outcome = caught(lambda: self._take(call, notes, traits))
        elif isinstance(call, RequestFinished):
            outcome = caught(lambda: self._finish(call, notes))
        elif isinstance(call, ResetCall):
            outcome = caught(lambda: _nothing(self._connector.reset(), "reset"))
        else:
            outcome = caught(lambda: self._unpack(call))
        if not isinstance(outcome, Raised):
            self._recheck_delivered(notes)
        return Observation(outcome, tuple(notes), traits=tuple(traits))

    def _build(self, call: BuildConnectorMeta, notes: Notes, traits: list[str]) -> Metadata | Odd:
        output, requests = self._requests.step(call)
        table = dict(requests)
        try:
            returned = self._connector.build_connector_meta(output, requests)
        finally:
            kept = list(output.num_scheduled_tokens.items()) == list(call.scheduled)
            same_table = list(requests.items()) == list(table.items())
            if not (kept and same_table and all(request.unchanged() for request in table.values())):
                notes.append(("SCHED-META-5", "the scheduler output or a request was changed"))
        metadata = read_metadata(returned)
        if isinstance(metadata, Metadata):
            self._delivered.append((returned, metadata))
            _check_pickle(returned, metadata, notes)
            traits += _field_types(returned)
        return metadata

    def _take(self, call: TakeOutput, notes: Notes, traits: list[str]) -> Rows | Odd | None:
        request = self._requests.get(call.request)
        outputs = self._outputs_for_scheduler(call.outputs)
        before = copy.deepcopy(outputs)
        given = (outputs or {}).get(call.request.request_id)
        try:
            rows = self._connector.take_output(request, outputs)
        finally:
            if not _same_outputs(outputs, before) or not request.unchanged():
                notes.append(("SCHED-TAKE-10", "the worker's output or the request was changed"))
        if rows is None:
            return None
        if not isinstance(rows, np.ndarray):
            return Odd(f"take_output returned {type(rows).__name__}, not a numpy array or None")
        if rows.shape[1:] != ROW_SHAPE or rows.dtype != ROW_DTYPE:
            notes.append(
                (
                    "SCHED-TAKE-9",
                    f"rows are {rows.dtype}{list(rows.shape)}, the worker gave {ROW_DTYPE}[n, 2, 2]",
                )
            )
        if given is not None and rows.size:
            how = "a view" if np.shares_memory(rows, given.rows) else "a copy"
            traits.append(f"{how} of the worker's rows")
        return Rows(self._rows.decode(rows) if rows.ndim else ())

    def _finish(self, call: RequestFinished, notes: Notes) -> Odd | None:
        request = self._requests.get(call.request)
        outcome = _nothing(self._connector.request_finished(request), "request_finished")
        if not request.unchanged():
            notes.append(("SCHED-META-5", "request_finished changed the request"))
        if call.request.finished:
            self._requests.forget(call.request.request_id)
        return outcome

    def _unpack(self, call: Unpack) -> Hashes | Odd:
        assert self._adapter.packed_block_hashes is not None  # it comes with the scheduler connector
        items = list(self._adapter.packed_block_hashes(call.data, call.item_size))
        if not all(isinstance(item, bytes) for item in items):
            return Odd("a packed value iterates to something that is not bytes")
        return Hashes(tuple(items))

    def _recheck_delivered(self, notes: Notes) -> None:
        """Notice metadata that changed after it was returned; only the latest few can still be in flight."""
        self._delivered = self._delivered[-4:]
        for returned, said in self._delivered:
            if caught(lambda returned=returned: read_metadata(returned)) != said:
                notes.append(("SCHED-META-6", "metadata that was already returned says something else now"))


def read_metadata(returned: Any) -> Metadata | Odd:
    """A metadata object in the spec's values, or what is wrong with its shape.

    Entries of ``block_hashes`` that iterate to nothing are kept: they are not the same as no entry.
    """
    try:
        generation, requests = returned.generation, dict(returned.requests.items())
        finished = tuple(returned.finished_requests)
        packed = dict(returned.block_hashes.items())
        packed_apart = dict(getattr(returned, "finished_block_hashes", {}).items())
        packed_again = dict(getattr(returned, "replaced_block_hashes", {}).items())
    except (AttributeError, TypeError, ValueError) as error:
        return Odd(f"the metadata has not the fields of AuxOutputConnectorMetadata: {error}")
    ints = [generation, *requests.values()]
    if not all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in ints):
        return Odd("generation and emit starts must be whole numbers")
    if any(abs(int(value)) > MAX_INTEGER for value in ints):
        return Odd("generation or an emit start is larger than any counter")
    if not all(
        isinstance(name, str) for name in (*requests, *packed, *packed_apart, *packed_again, *finished)
    ):
        return Odd("requests are named by something that is not text")
    hashes, apart, again = map(_read_hashes, (packed, packed_apart, packed_again))
    if not all(isinstance(item, bytes) for _, items in (*hashes, *apart, *again) for item in items):
        return Odd("block hashes iterate to something that is not bytes")
    starts = tuple((request_id, int(start)) for request_id, start in requests.items())
    return Metadata(int(generation), starts, hashes, finished, apart, again)


def _read_hashes(entries: dict[str, Any]) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    return tuple((request_id, tuple(packed)) for request_id, packed in entries.items())


def _check_pickle(returned: Any, said: Metadata, notes: Notes) -> None:
    """The worker may live in another process: what arrives must say the same (WIRE-META-1)."""
    arrived = caught(lambda: read_metadata(pickle.loads(pickle.dumps(returned, protocol=5))))
    if arrived != said:
        notes.append(("WIRE-META-1", f"after pickling the metadata reads {arrived}"))


def _field_types(returned: Any) -> list[str]:
    """The types of a metadata's containers."""
    names = ("requests", "block_hashes", "finished_requests")
    return [f"{name} in a {type(getattr(returned, name)).__name__}" for name in names]


def _same_outputs(outputs: Any, before: Any) -> bool:
    if outputs is None or before is None:
        return outputs is before
    return set(outputs) == set(before) and all(
        outputs[name].token_start == before[name].token_start
        and np.array_equal(outputs[name].rows, before[name].rows)
        for name in before
    )


def _nothing(returned: Any, method: str) -> Odd | None:
    return None if returned is None else Odd(f"{method} returned {type(returned).__name__}, not None")


def caught(
    action: Callable[[], Any], refusals: tuple[type[Exception], ...] = (AssertionError, ValueError)
) -> Any:
    """What an action returns, or what it raises as an observation."""
    try:
        return action()
    except Exception as error:
        return Raised(type(error).__name__, str(error), isinstance(error, refusals))
