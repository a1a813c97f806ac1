"""Conversations as JSON: calls with tokens and rows, and the array that a trainer wants of them.

Any merge can be tested with it, in any language; docs/client-cases.md explains the fields:

    {"schema": {"num_layers": 1, "top_k": 2, "num_experts": 8},
     "samples": [[{"call": {"prompt": [1, 2], "output": [3], "start": 0, "rows": [[[0, 1]], [[2, 3]]]}}]],
     "result": {"as": "array"}}
"""

from __future__ import annotations

from typing import Any, cast

from . import decode as reading
from . import layout, merge
from .encoding import CODES, unpack
from .layout import Packed, Placed
from .values import Refused, Row, Rows, Schema, Span, Trajectory

Json = dict[str, Any]


def play(conversation: Json) -> Json:
    """What a client makes of a conversation.

    Returns:
        ``rows`` (nested lists), ``mask``, ``dtype``; ``offsets`` of a packed batch; ``versions`` as
        (version, start, end) of the last sample. Or ``error``, with ``clause`` and ``positions``.
    """
    schema = schema_of(conversation["schema"])
    samples: list[Trajectory] = []
    for steps in conversation["samples"]:
        sample = _sample(Trajectory(schema), steps, samples)
        if isinstance(sample, Refused):
            return _refused(sample)
        samples.append(sample)
    result = {"as": "array", **conversation.get("result", {})}
    placed = _placed(samples, result)
    if isinstance(placed, Refused):
        return _refused(placed)
    answer = _arranged(placed, schema, result)
    if isinstance(answer, Refused):
        return _refused(answer)
    spans = merge.versions_of(samples[-1])
    return answer | {"dtype": _dtype(schema, result), "versions": [list(span) for span in spans]}


def schema_of(fields: Json) -> Schema:
    """A schema from its JSON; without ``moe_layers`` every layer has a router."""
    num_layers = fields["num_layers"]
    moe_layers = tuple(fields.get("moe_layers", range(num_layers)))
    return Schema(num_layers, fields["top_k"], fields["num_experts"], moe_layers)


def _refused(refused: Refused) -> Json:
    positions = refused.positions and list(refused.positions)
    return {"error": refused.error, "clause": refused.clause, "positions": positions}


def _sample(trajectory: Trajectory, steps: list[Json], samples: list[Trajectory]) -> Trajectory | Refused:
    for step in steps:
        after = _step(trajectory, step, samples)
        if isinstance(after, Refused):
            return after
        trajectory = after
    return trajectory


def _step(trajectory: Trajectory, step: Json, samples: list[Trajectory]) -> Trajectory | Refused:
    if "branch" in step:
        of: int = step["branch"]["of"]
        return merge.branch(samples[of], step["branch"]["at"])
    if "model" in step:
        return Trajectory(schema_of(step["model"]))
    if "truncate" in step:
        return merge.truncate(trajectory, step["truncate"])
    if "attempt" in step:
        after = _called(trajectory, step["attempt"])
        return trajectory if isinstance(after, Refused) else after
    return _called(trajectory, step["call"])


def _called(trajectory: Trajectory, call: Json) -> Trajectory | Refused:
    rows = _rows_of_call(call, trajectory.schema)
    if isinstance(rows, Refused):
        return rows
    told: Any = call.get("version")
    version = tuple(Span(*span) for span in cast("list[list[Any]]", told)) if isinstance(told, list) else told
    prompt, output = tuple(call["prompt"]), tuple(call["output"])
    return merge.add_call(trajectory, prompt, output, rows, version, call.get("keep", "first"))


def _rows_of_call(call: Json, schema: Schema) -> Rows | Refused | None:
    num_tokens = len(call["prompt"]) + len(call["output"])
    if "parts" in call:
        first, second = (_decoded(part, schema, part["num_tokens"]) for part in call["parts"])
        if isinstance(first, Refused):
            return first
        return second if isinstance(second, Refused) else merge.splice(first, second)
    if "payload" not in call and call["rows"] is None:
        return None
    rows = _decoded(call, schema, num_tokens)
    if not isinstance(rows, Refused) and "validate" in call:
        return reading.validate(rows, schema, call["validate"]) or rows
    return rows


def _decoded(part: Json, schema: Schema, num_tokens: int) -> Rows | Refused:
    start = part["start"]
    encoded: Json = part.get("payload") or {"source": "lists", "value": part["rows"]}
    value: Any = encoded["value"]
    if value is None or not 0 <= start < num_tokens:
        return reading.decode(None, schema, start, num_tokens)
    if isinstance(value, dict) and (told := cast("Json", value).get("start", start)) != start:
        return Refused("CLIENT-DECODE-2", f"the payload begins at {told}, not at {start}")
    payload = unpack(encoded["source"], value)
    if isinstance(payload, Refused):
        return payload
    return reading.decode(payload, schema, start, num_tokens)


def _placed(samples: list[Trajectory], result: Json) -> Placed | Packed | tuple[Placed, ...] | Refused:
    if result["as"] == "pad":
        return layout.pad(tuple(samples), result.get("length"), result.get("side", "right"))
    if result["as"] == "pack":
        largest = _largest(result["dtype"]) if "dtype" in result else None
        return layout.pack(tuple(samples), largest, result.get("align", 1))
    return layout.to_array(samples[-1], result.get("length"), result.get("missing", "mask"))


def _largest(dtype: str) -> int:
    bits = 8 * {"b": 1, "h": 2, "i": 4, "q": 8}[CODES[dtype].lower()]
    return 2**bits - 1 if dtype.startswith("u") else 2 ** (bits - 1) - 1


def _arranged(placed: Placed | Packed | tuple[Placed, ...], schema: Schema, result: Json) -> Json | Refused:
    """The places and layers that a rank holds, as JSON."""
    layers = _layers(schema, result)
    if isinstance(layers, Refused):
        return layers
    if isinstance(placed, (Placed, Packed)):
        places = _places(len(placed.rows), result)
        if isinstance(places, Refused):
            return places
        rows, mask = tuple(placed.rows[p] for p in places), [placed.mask[p] for p in places]
        answer: Json = {"rows": _lists(layout.only_layers(rows, layers)), "mask": mask}
        return answer | ({"offsets": list(placed.offsets)} if isinstance(placed, Packed) else {})
    batch = [layout.only_layers(each.rows, layers) for each in placed]
    return {"rows": [_lists(rows) for rows in batch], "mask": [list(each.mask) for each in placed]}


def _layers(schema: Schema, result: Json) -> tuple[int, ...] | Refused:
    asked = result.get("layers", "all")
    if asked == "all":
        return tuple(range(schema.num_layers))
    return schema.moe_layers if asked == "moe" else layout.stage_layers(schema, tuple(asked))


def _places(length: int, result: Json) -> tuple[int, ...] | Refused:
    if "shard" not in result:
        return tuple(range(length))
    shard = result["shard"]
    return layout.places_of(length, shard["rank"], shard["size"], shard["how"])


def _dtype(schema: Schema, result: Json) -> str:
    if "dtype" in result:
        return str(result["dtype"])
    if result.get("missing") == -1:
        return "int16" if schema.num_experts <= 32768 else "int32"
    return "uint8" if schema.max_value == 255 else "uint16"


def _lists(rows: tuple[Row, ...]) -> list[list[list[int]]]:
    return [[list(layer) for layer in row] for row in rows]
