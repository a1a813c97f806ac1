"""Traces: connector calls and their results as JSON lines.

One line is one ``Exchange``. Recorders write it, ``auxout trace check`` reads it, and foreign targets are driven
with it across a process boundary, so nothing is ever unpickled that a foreign process wrote. Hashes are
hexadecimal; a row is ``[request, position, generation, computation, text]``, the text left out when empty.
"""

from __future__ import annotations

from typing import Any

from . import reading
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
from .duties import CacheReset, Discarded, Note
from .reading import Malformed
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


def call_from_json(data: Json) -> Call:
    """A call from its JSON object.

    Raises:
        Malformed: the object is not a call.
    """
    fields = reading.table(data, "a call")
    name = reading.text(fields.get("call"), "call")
    if name not in _FIELDS:
        raise Malformed(f"unknown call {reading.shown(name)}")
    fields = reading.record(fields, name, ("call", *_FIELDS[name]))
    if name == "build_connector_meta":
        scheduled = _counts(fields["scheduled"], "scheduled")
        return BuildConnectorMeta(scheduled, tuple(map(_view, reading.array(fields["requests"], "requests"))))
    if name == "take_output":
        outputs = None if fields["outputs"] is None else _outputs(fields["outputs"])
        return TakeOutput(_view(fields["request"]), outputs)
    if name == "request_finished":
        return RequestFinished(_view(fields["request"]), reading.boolean(fields["preempted"], "preempted"))
    if name == "reset":
        return Reset()
    if name == "unpack":
        size = reading.integer(fields["item_size"], "item_size")
        return Unpack(reading.hexadecimal(fields["data"], "data"), size)
    return _worker_call(name, fields)


_FIELDS: dict[str, tuple[str, ...]] = {
    "build_connector_meta": ("scheduled", "requests"),
    "take_output": ("request", "outputs"),
    "request_finished": ("request", "preempted"),
    "reset": (),
    "unpack": ("data", "item_size"),
    "begin_step": ("metadata",),
    "prepare_output": ("batch",),
    "process_output": ("step", "parts"),
    "close": (),
}
"""The calls, and the fields of each."""


def _worker_call(name: str, fields: dict[str, Json]) -> WorkerCall:
    if name == "begin_step":
        return BeginStep(_metadata(fields["metadata"]))
    if name == "prepare_output":
        return PrepareOutput(tuple(map(_batched, reading.array(fields["batch"], "batch"))))
    if name == "process_output":
        parts = tuple(map(_part, reading.array(fields["parts"], "parts")))
        return ProcessOutput(parts, reading.integer(fields["step"], "step", 0))
    return Close()


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
        Malformed: the object is not a result.
    """
    if data is None:
        return None
    fields = reading.table(data, "a result")
    if "generation" in fields:
        return _metadata(fields)
    if "rows" in fields:
        return Rows(_rows(reading.record(fields, "rows", ("rows",))["rows"]))
    if "outputs" in fields:
        return StepOutput(_outputs(reading.record(fields, "outputs", ("outputs",))["outputs"]))
    if "hashes" in fields:
        return Hashes(_hash_list(reading.record(fields, "hashes", ("hashes",))["hashes"]))
    fields = reading.record(fields, "a result", ("refused", "message"))
    return Refusal(reading.text(fields["refused"], "refused"), reading.text(fields["message"], "message"))


def exchange_to_json(exchange: Exchange) -> dict[str, Json]:
    """One line of a trace."""
    return {**call_to_json(exchange.call), "result": result_to_json(exchange.result)}


def exchange_from_json(data: Json) -> Exchange:
    """One line of a trace, read back; raises ``Malformed`` as ``call_from_json`` does."""
    fields = dict(reading.table(data, "a call"))
    if "result" not in fields:
        raise Malformed("a call lacks its result")
    result = fields.pop("result")
    return Exchange(call_from_json(fields), result_from_json(result))


def note_to_json(note: Note) -> dict[str, Json]:
    """A line of a trace that no connector is called with; ``note`` says what the engine did."""
    if isinstance(note, CacheReset):
        return {"note": "reset", "succeeded": note.succeeded}
    return {"note": "discarded", "requests": list(note.requests)}


def entry_from_json(data: Json) -> Exchange | Note:
    """Any line of a trace; raises ``Malformed`` as ``call_from_json`` does."""
    fields = reading.table(data, "a line of a trace")
    if "note" not in fields:
        return exchange_from_json(fields)
    if fields["note"] == "reset":
        fields = reading.record(fields, "a reset", ("note", "succeeded"))
        return CacheReset(reading.boolean(fields["succeeded"], "succeeded"))
    if fields["note"] == "discarded":
        fields = reading.record(fields, "what is discarded", ("note", "requests"))
        names = reading.array(fields["requests"], "requests")
        return Discarded(tuple(reading.text(name, "a request") for name in names))
    raise Malformed(f"unknown note {reading.shown(fields['note'])}")


def _view_to_json(view: RequestView) -> dict[str, Json]:
    fields = view._asdict()
    fields["block_hashes"] = [block_hash.hex() for block_hash in view.block_hashes]
    return fields


def _view(data: Json) -> RequestView:
    *written, computed = RequestView._fields
    fields = reading.record(data, "a request", written, (computed,))
    counts = ("num_tokens", "num_prompt_tokens", "num_output_tokens", "prompt_start")
    return RequestView(
        reading.text(fields["request_id"], "request_id"),
        *(reading.integer(fields[name], name, 0) for name in counts),
        block_hashes=_hash_list(fields["block_hashes"]),
        finished=reading.boolean(fields["finished"], "finished"),
        num_computed_tokens=reading.integer(fields.get(computed, 0), computed, 0),
    )


def _batched(data: Json) -> tuple[str, int, int]:
    part = reading.array(data, "a part of a batch")
    if len(part) != 3:
        raise Malformed("a part of a batch is a request, its first position and its number of tokens")
    name, start, count = part
    return (
        reading.text(name, "a request of the batch"),
        reading.integer(start, "its first position", 0),
        reading.integer(count, "its number of tokens", 0),
    )


def _part(data: Json) -> Part:
    fields = reading.record(data, "a part of a step", Part._fields)
    return Part(
        reading.text(fields["request_id"], "request_id"),
        reading.integer(fields["token_start"], "token_start", 0),
        _rows(fields["rows"]),
        reading.integer(fields["num_sampled"], "num_sampled", 0),
        reading.integer(fields["num_rejected"], "num_rejected"),
    )


def _metadata(data: Json) -> Metadata:
    *written, replaced = Metadata._fields
    fields = reading.record(data, "metadata", written, (replaced,))
    finished = reading.array(fields["finished_requests"], "finished_requests")
    return Metadata(
        reading.integer(fields["generation"], "generation"),
        _counts(fields["requests"], "requests"),
        _hashes(fields["block_hashes"], "block_hashes"),
        tuple(reading.text(name, "a finished request") for name in finished),
        _hashes(fields["finished_block_hashes"], "finished_block_hashes"),
        _hashes(fields.get(replaced, {}), replaced),
    )


def _counts(data: Json, what: str) -> tuple[tuple[str, int], ...]:
    pairs = reading.table(data, what).items()
    return tuple((name, reading.integer(count, f"{what} of {name[:40]}")) for name, count in pairs)


def _rows(data: Json) -> tuple[Row, ...]:
    return tuple(map(_row, reading.array(data, "rows")))


def _row(data: Json) -> Row:
    fields = reading.array(data, "a row")
    if len(fields) not in (4, 5):
        raise Malformed("a row is a request, a position, a generation, a computation and at most a text")
    position, generation, computation = (reading.integer(field, "a number of a row") for field in fields[1:4])
    request, text = (reading.text(field, "a text of a row") for field in (fields[0], (*fields, "")[4]))
    return Row(request, position, generation, computation, text)


def _row_to_json(row: Row) -> list[Json]:
    return list(row if row.text else row[:-1])


def _outputs_to_json(outputs: Outputs) -> dict[str, Json]:
    return {request_id: _output_to_json(output) for request_id, output in outputs}


def _output_to_json(output: RequestOutput) -> dict[str, Json]:
    fields = {"token_start": output.token_start, "rows": [_row_to_json(row) for row in output.rows]}
    return {**fields, "failed": True} if output.failed else fields


def _outputs(data: Json) -> Outputs:
    return tuple((name, _output(output)) for name, output in reading.table(data, "outputs").items())


def _output(data: Json) -> RequestOutput:
    fields = reading.record(data, "an output", ("token_start", "rows"), ("failed",))
    failed = reading.boolean(fields.get("failed", False), "failed")
    return RequestOutput(reading.integer(fields["token_start"], "token_start"), _rows(fields["rows"]), failed)


def _hashes_to_json(hashes: tuple[tuple[str, tuple[bytes, ...]], ...]) -> dict[str, Json]:
    return {request_id: [block_hash.hex() for block_hash in items] for request_id, items in hashes}


def _hashes(data: Json, what: str) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    return tuple((name, _hash_list(hashes)) for name, hashes in reading.table(data, what).items())


def _hash_list(data: Json) -> tuple[bytes, ...]:
    return tuple(reading.hexadecimal(digits, "a hash") for digits in reading.array(data, "hashes"))
