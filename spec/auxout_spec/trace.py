"""Traces: connector calls and their results as JSON lines.

One line is one ``Exchange``. Recorders write it, ``auxout trace check`` reads it, and foreign targets are driven
with it across a process boundary, so nothing is ever unpickled that a foreign process wrote. Hashes are
hexadecimal; a row is ``[request, position, generation, computation, text]``, the text left out when empty.
"""

from __future__ import annotations

from typing import Any

from .calls import (
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
    Unpack,
    WorkerCall,
)
from .values import (
    Hashes,
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
from .worker import Part

Json = Any


def call_to_json(call: Call) -> dict[str, Json]:
    """A call as a JSON object; ``call`` holds the method's name."""
    if isinstance(call, BuildConnectorMeta):
        views = [_view_to_json(view) for view in call.requests]
        return {"call": "build_connector_meta", "scheduled": dict(call.scheduled), "requests": views}
    if isinstance(call, TakeOutput):
        outputs = None if call.outputs is None else _outputs_to_json(call.outputs)
        return {"call": "take_output", "request": _view_to_json(call.request), "outputs": outputs}
    if isinstance(call, RequestFinished):
        request = _view_to_json(call.request)
        return {"call": "request_finished", "request": request, "preempted": call.preempted}
    if isinstance(call, Reset):
        return {"call": "reset"}
    if isinstance(call, Unpack):
        return {"call": "unpack", "data": call.data.hex(), "item_size": call.item_size}
    return _worker_call_to_json(call)


def _worker_call_to_json(call: WorkerCall) -> dict[str, Json]:
    if isinstance(call, BeginStep):
        return {"call": "begin_step", "metadata": result_to_json(call.metadata)}
    if isinstance(call, PrepareOutput):
        return {"call": "prepare_output", "batch": [list(part) for part in call.batch]}
    if isinstance(call, ProcessOutput):
        parts = [{**part._asdict(), "rows": [_row_to_json(row) for row in part.rows]} for part in call.parts]
        return {"call": "process_output", "step": call.step, "parts": parts}
    return {"call": "close"}


def call_from_json(data: dict[str, Json]) -> Call:
    """A call from its JSON object.

    Raises:
        KeyError, TypeError, ValueError: the object is not a call.
    """
    name = data["call"]
    if name == "build_connector_meta":
        views = tuple(_view_from_json(view) for view in data["requests"])
        return BuildConnectorMeta(tuple(data["scheduled"].items()), views)
    if name == "take_output":
        outputs = None if data["outputs"] is None else _outputs_from_json(data["outputs"])
        return TakeOutput(_view_from_json(data["request"]), outputs)
    if name == "request_finished":
        return RequestFinished(_view_from_json(data["request"]), data["preempted"])
    if name == "reset":
        return Reset()
    if name == "unpack":
        return Unpack(bytes.fromhex(data["data"]), data["item_size"])
    return _worker_call_from_json(name, data)


def _worker_call_from_json(name: str, data: dict[str, Json]) -> WorkerCall:
    if name == "begin_step":
        return BeginStep(_metadata_from_json(data["metadata"]))
    if name == "prepare_output":
        return PrepareOutput(tuple((request, start, count) for request, start, count in data["batch"]))
    if name == "process_output":
        return ProcessOutput(tuple(map(_part_from_json, data["parts"])), data["step"])
    if name == "close":
        return Close()
    raise ValueError(f"unknown call {name!r}")


def result_to_json(result: Result) -> Json:
    """A result as JSON; None stays null."""
    if isinstance(result, Metadata):
        return {
            "generation": result.generation,
            "requests": dict(result.requests),
            "block_hashes": _hashes_to_json(result.block_hashes),
            "finished_requests": list(result.finished_requests),
            "finished_block_hashes": _hashes_to_json(result.finished_block_hashes),
            "replaced_block_hashes": _hashes_to_json(result.replaced_block_hashes),
        }
    if isinstance(result, Rows):
        return {"rows": [_row_to_json(row) for row in result.rows]}
    if isinstance(result, StepOutput):
        return {"outputs": _outputs_to_json(result.outputs)}
    if isinstance(result, Hashes):
        return {"hashes": [block_hash.hex() for block_hash in result.hashes]}
    if isinstance(result, Refusal):
        return {"refused": result.clause, "message": result.message}
    return None


def result_from_json(data: Json) -> Result:
    """A result from its JSON form.

    Raises:
        KeyError, TypeError, ValueError: the object is not a result.
    """
    if data is None:
        return None
    if "generation" in data:
        return _metadata_from_json(data)
    if "rows" in data:
        return Rows(tuple(Row(*row) for row in data["rows"]))
    if "outputs" in data:
        return StepOutput(_outputs_from_json(data["outputs"]))
    if "hashes" in data:
        return Hashes(tuple(bytes.fromhex(text) for text in data["hashes"]))
    return Refusal(data["refused"], data["message"])


def exchange_to_json(exchange: Exchange) -> dict[str, Json]:
    """One line of a trace."""
    return {**call_to_json(exchange.call), "result": result_to_json(exchange.result)}


def exchange_from_json(data: dict[str, Json]) -> Exchange:
    """One line of a trace, read back."""
    return Exchange(call_from_json(data), result_from_json(data["result"]))


def _view_to_json(view: RequestView) -> dict[str, Json]:
    fields = view._asdict()
    fields["block_hashes"] = [block_hash.hex() for block_hash in view.block_hashes]
    return fields


def _view_from_json(data: dict[str, Json]) -> RequestView:
    hashes = tuple(bytes.fromhex(text) for text in data["block_hashes"])
    fields: dict[str, Json] = {**data, "block_hashes": hashes}
    return RequestView(**fields)


def _part_from_json(data: dict[str, Json]) -> Part:
    fields: dict[str, Json] = {**data, "rows": tuple(Row(*row) for row in data["rows"])}
    return Part(**fields)


def _metadata_from_json(data: dict[str, Json]) -> Metadata:
    return Metadata(
        data["generation"],
        tuple(data["requests"].items()),
        _hashes_from_json(data["block_hashes"]),
        tuple(data["finished_requests"]),
        _hashes_from_json(data["finished_block_hashes"]),
        _hashes_from_json(data.get("replaced_block_hashes", {})),
    )


def _row_to_json(row: Row) -> list[Json]:
    return list(row if row.text else row[:-1])


def _outputs_to_json(outputs: Outputs) -> dict[str, Json]:
    return {request_id: _output_to_json(output) for request_id, output in outputs}


def _output_to_json(output: RequestOutput) -> dict[str, Json]:
    fields = {"token_start": output.token_start, "rows": [_row_to_json(row) for row in output.rows]}
    return {**fields, "failed": True} if output.failed else fields


def _outputs_from_json(data: dict[str, Json]) -> Outputs:
    return tuple((request_id, _output_from_json(output)) for request_id, output in data.items())


def _output_from_json(data: dict[str, Json]) -> RequestOutput:
    return RequestOutput(
        data["token_start"], tuple(Row(*row) for row in data["rows"]), data.get("failed", False)
    )


def _hashes_to_json(hashes: tuple[tuple[str, tuple[bytes, ...]], ...]) -> dict[str, Json]:
    return {request_id: [block_hash.hex() for block_hash in items] for request_id, items in hashes}


def _hashes_from_json(data: dict[str, Json]) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    return tuple(
        (request_id, tuple(bytes.fromhex(text) for text in items)) for request_id, items in data.items()
    )
