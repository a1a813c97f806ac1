"""Records the calls of a scheduler connector and of a worker inside a running engine as a trace (JSON lines).

Wrap the connectors where the engine makes them; both write into one file if they live in one process::

    trace = Trace(open("trace.ndjson", "w"), "0.32", block_size=16, max_objects=4096)
    scheduler.aux_output_connector = Recorder(scheduler.aux_output_connector, trace)
    runner.aux_output_connector = WorkerRecorder(runner.aux_output_connector, trace, rows)

Each call is written with its arguments as they were and with what came back; exceptions are recorded and raised
again. What the engine does besides can be noted: ``trace.cache_reset(succeeded)`` where it resets its prefix cache,
``trace.discarded(ids)`` where KV failed to load. Rows are recorded as digests of their values, which is all that
checking a trace needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TextIO

import numpy as np

from auxout_spec import trace
from auxout_spec.calls import (
    BeginStep,
    BuildConnectorMeta,
    Call,
    Close,
    Exchange,
    PrepareOutput,
    ProcessOutput,
    RequestFinished,
    Reset,
    TakeOutput,
)
from auxout_spec.duties import CacheReset, Discarded
from auxout_spec.values import (
    Metadata,
    Outputs,
    Refusal,
    RequestOutput,
    RequestView,
    Result,
    Row,
    Rows,
    StepOutput,
)
from auxout_spec.worker import Part

from .session import read_metadata

FORMAT = "trace/1"


class Trace:
    """A file that recorders write to.

    Args:
        file: where the lines go; flushed after each, so that a crash keeps what led to it.
        profile: noted for whoever checks the trace.
        block_size: tokens per hash block; needed where a worker is recorded.
        max_objects: blocks that the worker's store may hold; needed where a worker is recorded.
    """

    def __init__(self, file: TextIO, profile: str = "", block_size: int = 0, max_objects: int = 0) -> None:
        self._file = file
        sizes = {"block_size": block_size, "max_objects": max_objects} if block_size else {}
        self.write({"auxout": FORMAT, "profile": profile, **sizes})

    def write(self, data: dict[str, Any]) -> None:
        """Write one line."""
        self._file.write(json.dumps(data) + "\n")
        self._file.flush()

    def cache_reset(self, succeeded: bool) -> None:
        """Note that the engine reset its prefix cache, or that it could not."""
        self.write(trace.note_to_json(CacheReset(succeeded)))

    def discarded(self, request_ids: Iterable[str]) -> None:
        """Note that the engine discards what is in flight of some requests, because their KV failed to load."""
        self.write(trace.note_to_json(Discarded(tuple(request_ids))))

    def recorded(self, call: Call, action: Callable[[], Any], read: Callable[[Any], Result]) -> Any:
        """Do something and write the call that it is with what came back."""
        try:
            returned = action()
        except Exception as error:
            refusal = Refusal("", f"{type(error).__name__}: {error}")
            self.write(trace.exchange_to_json(Exchange(call, refusal)))
            raise
        self.write(trace.exchange_to_json(Exchange(call, read(returned))))
        return returned


class Recorder:
    """A scheduler connector that writes down what another one is asked and answers."""

    def __init__(self, connector: Any, trace: Trace) -> None:
        self._connector, self._trace = connector, trace

    def build_connector_meta(self, scheduler_output: Any, requests: Mapping[str, Any]) -> Any:
        """``build_connector_meta`` of the connector, recorded."""
        scheduled = tuple(scheduler_output.num_scheduled_tokens.items())
        call = BuildConnectorMeta(scheduled, tuple(map(view_of, requests.values())))
        return self._trace.recorded(
            call, lambda: self._connector.build_connector_meta(scheduler_output, requests), _metadata
        )

    def take_output(self, request: Any, output: Mapping[str, Any] | None) -> Any:
        """``take_output`` of the connector, recorded."""
        call = TakeOutput(view_of(request), outputs_of(output))
        return self._trace.recorded(
            call,
            lambda: self._connector.take_output(request, output),
            lambda rows: None if rows is None else Rows(rows_of(rows)),
        )

    def request_finished(self, request: Any) -> None:
        """``request_finished`` of the connector, recorded."""
        view = view_of(request)
        call = RequestFinished(view, preempted=not view.finished)
        self._trace.recorded(call, lambda: self._connector.request_finished(request), lambda _: None)

    def reset(self) -> None:
        """``reset`` of the connector, recorded."""
        self._trace.recorded(Reset(), self._connector.reset, lambda _: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)


class WorkerRecorder:
    """A worker connector that writes down what another one is asked and answers.

    It takes a worker with vLLM's interface, whose steps in flight process themselves.

    Args:
        rows: the rows that the last forward pass computed, ``(num_tokens, num_layers, top_k)`` for a number of
            tokens, as the worker is to return them. They are read when a step is prepared.
    """

    def __init__(self, connector: Any, trace: Trace, rows: Callable[[int], Any]) -> None:
        self._connector, self._trace, self._rows = connector, trace, rows
        self._in_flight: list[RecordedStep] = []

    def begin_step(self, metadata: Any) -> None:
        """``begin_step`` of the worker, recorded; a step without metadata is not one of the protocol."""
        read = None if metadata is None else _metadata(metadata)
        if isinstance(read, Metadata):
            self._trace.recorded(
                BeginStep(read), lambda: self._connector.begin_step(metadata), lambda _: None
            )
        else:
            self._connector.begin_step(metadata)

    def prepare_output(self, input_batch: Any) -> Any:
        """``prepare_output`` of the worker, recorded; None if the step has no output."""
        names = list(input_batch.req_ids)
        bounds = [int(bound) for bound in input_batch.query_start_loc_np[: len(names) + 1]]
        starts = [int(start) for start in input_batch.num_computed_tokens_np[: len(names)]]
        rows = rows_of(self._rows(bounds[-1]))
        pending = self._connector.prepare_output(input_batch)
        if pending is None:
            return None
        counts = [end - start for start, end in pairwise(bounds)]
        self._trace.recorded(
            PrepareOutput(tuple(zip(names, starts, counts, strict=True))), lambda: None, lambda _: None
        )
        parts = tuple(
            Part(name, start, rows[first:end], 0, 0)
            for name, start, (first, end) in zip(names, starts, pairwise(bounds), strict=True)
        )
        step = RecordedStep(pending, parts, self._process)
        self._in_flight.append(step)
        return step

    def _process(self, step: RecordedStep) -> Any:
        call = ProcessOutput(step.parts(), self._in_flight.index(step))
        returned = self._trace.recorded(call, step.pending.process_output, _step_output)
        self._in_flight.remove(step)
        return returned

    def close(self) -> None:
        """``close`` of the worker, recorded."""
        self._in_flight.clear()
        self._trace.recorded(Close(), self._connector.close, lambda _: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)


class RecordedStep:
    """A step in flight of a recorded worker."""

    def __init__(self, pending: Any, parts: tuple[Part, ...], process: Callable[[RecordedStep], Any]) -> None:
        self.pending, self._parts, self._process = pending, parts, process
        self._counts: tuple[Any, Any] = ((), ())

    def enqueue_cpu_copy(self, num_sampled: Any, num_rejected: Any) -> Any:
        """``enqueue_cpu_copy`` of the step; the counts are read when it is processed."""
        self._counts = num_sampled, num_rejected
        return self.pending.enqueue_cpu_copy(num_sampled, num_rejected)

    def parts(self) -> tuple[Part, ...]:
        """The step as the model runner reports it."""
        counts = zip(self._parts, *self._counts, strict=False)
        return tuple(
            part._replace(num_sampled=int(sampled), num_rejected=int(rejected))
            for part, sampled, rejected in counts
        )

    def process_output(self) -> Any:
        """``process_output`` of the step, recorded."""
        return self._process(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pending, name)


def view_of(request: Any) -> RequestView:
    """What the protocol reads of an engine's request."""
    params = request.sampling_params
    return RequestView(
        request.request_id,
        int(request.num_tokens),
        int(request.num_prompt_tokens),
        int(request.num_output_tokens),
        0 if params is None else int(params.routed_experts_prompt_start),
        tuple(request.block_hashes),
        bool(request.is_finished()),
    )


def outputs_of(output: Mapping[str, Any] | None) -> Outputs | None:
    """A step's worker output, its rows as digests."""
    if output is None:
        return None
    return tuple(
        (name, RequestOutput(int(part.token_start), rows_of(part.rows))) for name, part in output.items()
    )


def rows_of(rows: Any) -> tuple[Row, ...]:
    """Rows as digests of their dtype and values; which positions they are of only the spec can tell."""
    return tuple(
        Row(blake2b(row.dtype.str.encode() + row.tobytes(), digest_size=8).hexdigest(), 0, 0, 0)
        for row in np.asarray(rows)
    )


def _step_output(returned: Any) -> StepOutput:
    return StepOutput(outputs_of(returned) or ())


def _metadata(returned: Any) -> Metadata | Refusal:
    read = read_metadata(returned)
    return read if isinstance(read, Metadata) else Refusal("", read.text)
