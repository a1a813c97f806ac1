"""Records the calls of a scheduler connector inside a running engine as a trace (JSON lines).

Wrap the connector where the engine makes it::

    scheduler.aux_output_connector = Recorder(scheduler.aux_output_connector, open("trace.ndjson", "w"))

Each call is written with its arguments as they were and with what came back; exceptions are recorded and raised
again. Rows are recorded as digests of their values, which is all that checking a trace needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, TextIO

from auxout_spec import trace
from auxout_spec.calls import BuildConnectorMeta, Call, Exchange, RequestFinished, Reset, TakeOutput
from auxout_spec.values import Metadata, Outputs, Refusal, RequestOutput, RequestView, Result, Row, Rows

from .session import read_metadata

FORMAT = "trace/1"


class Recorder:
    """A scheduler connector that writes down what another one is asked and answers.

    Args:
        connector: the connector that does the work.
        file: where the lines go; flushed after each, so that a crash keeps what led to it.
        profile: noted in the header for whoever checks the trace.
    """

    def __init__(self, connector: Any, file: TextIO, profile: str = "") -> None:
        self._connector, self._file = connector, file
        self._write({"auxout": FORMAT, "profile": profile})

    def build_connector_meta(self, scheduler_output: Any, requests: Mapping[str, Any]) -> Any:
        """``build_connector_meta`` of the connector, recorded."""
        scheduled = tuple(scheduler_output.num_scheduled_tokens.items())
        call = BuildConnectorMeta(scheduled, tuple(map(view_of, requests.values())))
        return self._recorded(
            call, lambda: self._connector.build_connector_meta(scheduler_output, requests), _metadata
        )

    def take_output(self, request: Any, output: Mapping[str, Any] | None) -> Any:
        """``take_output`` of the connector, recorded."""
        call = TakeOutput(view_of(request), outputs_of(output))
        start = (
            0
            if output is None or request.request_id not in output
            else output[request.request_id].token_start
        )
        return self._recorded(
            call,
            lambda: self._connector.take_output(request, output),
            lambda rows: None if rows is None else Rows(rows_of(start, rows)),
        )

    def request_finished(self, request: Any) -> None:
        """``request_finished`` of the connector, recorded."""
        view = view_of(request)
        call = RequestFinished(view, preempted=not view.finished)
        self._recorded(call, lambda: self._connector.request_finished(request), lambda _: None)

    def reset(self) -> None:
        """``reset`` of the connector, recorded."""
        self._recorded(Reset(), self._connector.reset, lambda _: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def _recorded(self, call: Call, action: Callable[[], Any], read: Callable[[Any], Result]) -> Any:
        try:
            returned = action()
        except Exception as error:
            refusal = Refusal("", f"{type(error).__name__}: {error}")
            self._write(trace.exchange_to_json(Exchange(call, refusal)))
            raise
        self._write(trace.exchange_to_json(Exchange(call, read(returned))))
        return returned

    def _write(self, data: dict[str, Any]) -> None:
        self._file.write(json.dumps(data) + "\n")
        self._file.flush()


def view_of(request: Any) -> RequestView:
    """What the protocol reads of an engine's request."""
    params = request.sampling_params
    return RequestView(
        request.request_id,
        request.num_tokens,
        request.num_prompt_tokens,
        request.num_output_tokens,
        0 if params is None else params.routed_experts_prompt_start,
        tuple(request.block_hashes),
        bool(request.is_finished()),
    )


def outputs_of(output: Mapping[str, Any] | None) -> Outputs | None:
    """A step's worker output, its rows as digests."""
    if output is None:
        return None
    return tuple(
        (name, RequestOutput(int(part.token_start), rows_of(int(part.token_start), part.rows)))
        for name, part in output.items()
    )


def rows_of(token_start: int, rows: Any) -> tuple[Row, ...]:
    """Rows as the positions they claim and digests of their dtype and values."""
    return tuple(
        Row(blake2b(row.dtype.str.encode() + row.tobytes(), digest_size=8).hexdigest(), token_start + n, 0, 0)
        for n, row in enumerate(rows)
    )


def _metadata(returned: Any) -> Metadata | Refusal:
    read = read_metadata(returned)
    return read if isinstance(read, Metadata) else Refusal("", read.text)
