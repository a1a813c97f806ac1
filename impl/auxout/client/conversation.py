"""Conversations as JSON, played with this package: the cases of ``auxout client-check``, or what a user recorded.

The format is explained in docs/client-cases.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .decode import decode
from .errors import RowsError
from .layout import Packed, Placed, for_stage, moe_rows, pack, pad, shard, to_array
from .rows import Rows, splice, validate
from .schema import Schema
from .trajectory import Trajectory, versions

Json = dict[str, Any]


def play(conversation: Json) -> Json:
    """What a trainer gets of a conversation.

    Returns:
        ``rows`` (nested lists), ``mask``, ``dtype``; ``offsets`` of a packed batch; ``versions`` of the last sample as
        (version, start, end). Or ``error``, ``clause`` and ``positions`` of the error that was raised.
    """
    schema = Schema(**conversation["schema"])
    samples: list[Trajectory] = []
    try:
        for steps in conversation["samples"]:
            sample = Trajectory(schema)
            for step in steps:
                sample = _after(sample, step, samples)
            samples.append(sample)
        return _arranged(samples, schema, {"as": "array", **conversation.get("result", {})})
    except RowsError as error:
        positions = error.positions and list(error.positions)
        return {"error": type(error).__name__, "clause": error.clause, "positions": positions}


def _after(sample: Trajectory, step: Json, samples: list[Trajectory]) -> Trajectory:
    """The conversation after one step: the same object, or a branch of another one."""
    if "branch" in step:
        of: int = step["branch"]["of"]
        return samples[of].branch(step["branch"]["at"])
    if "model" in step:
        return Trajectory(Schema(**step["model"]))
    if "truncate" in step:
        sample.truncate(step["truncate"])
    elif "attempt" in step:
        try:
            _add(sample, step["attempt"])
        except RowsError:
            return sample
    else:
        _add(sample, step["call"])
    return sample


def _add(sample: Trajectory, call: Json) -> None:
    rows = _rows_of_call(call, sample.schema)
    version, keep = call.get("version"), call.get("keep", "first")
    sample.add_call(call["prompt"], call["output"], rows, version=version, keep=keep)


def _rows_of_call(call: Json, schema: Schema) -> Rows | None:
    num_tokens = len(call["prompt"]) + len(call["output"])
    if "parts" in call:
        first, second = (_decoded(part, schema, part["num_tokens"]) for part in call["parts"])
        return splice(first, second)
    if "payload" not in call and call["rows"] is None:
        return None
    rows = _decoded(call, schema, num_tokens)
    if "validate" in call:
        validate(rows, call["validate"])
    return rows


def _decoded(part: Json, schema: Schema, num_tokens: int) -> Rows:
    encoded: Json = part.get("payload") or {"source": "lists", "value": part["rows"]}
    source, value = encoded["source"], encoded["value"]
    return decode(value, schema, source=source, start=part["start"], num_tokens=num_tokens)


def _arranged(samples: list[Trajectory], schema: Schema, result: Json) -> Json:
    """The rows as the result asks for them."""
    answer: Json = {}
    placed: Placed | Packed
    if result["as"] == "pad":
        placed = pad(samples, result.get("length"), result.get("side", "right"))
    elif result["as"] == "pack":
        placed = pack(samples, dtype=result.get("dtype"), align=result.get("align", 1))
    else:
        placed = to_array(samples[-1], result.get("length"), missing=result.get("missing", "mask"))
    if isinstance(placed, Packed):
        answer["offsets"] = placed.offsets.tolist()
    layers = result.get("layers", "all")
    rows, mask = placed.rows, placed.mask
    if layers != "all":
        rows = moe_rows(rows, schema) if layers == "moe" else for_stage(rows, schema, layers)
    if "shard" in result:
        part = result["shard"]
        rows, mask = (shard(each, part["rank"], part["size"], part["how"]) for each in (rows, mask))
    spans = [list(span) for span in versions(samples[-1])]
    dtype = str(np.dtype(rows.dtype))
    return answer | {"rows": rows.tolist(), "mask": mask.tolist(), "dtype": dtype, "versions": spans}
