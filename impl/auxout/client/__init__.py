"""Rows on their way from an engine's answer into a trainer's tensor, without losing one.

    schema = Schema.from_config(model_config)
    conversation = Trajectory(schema)
    rows = decode(answer, schema, source="vllm", start=0, num_tokens=len(prompt) + len(output))
    conversation.add_call(prompt, output, rows, version="step-7")
    batch = pack([conversation])

A row belongs to one position of a token sequence and holds the expert ids, (num_layers, top_k), that the routers chose
there. A call of n tokens has n - 1 - start rows: the last token was never forwarded. Nothing is padded, cut, widened or
dropped without being asked for; what does not fit raises a ``RowsError``.
"""

from .decode import Source, decode, encode
from .errors import (
    ConflictError,
    CountError,
    DtypeError,
    GapError,
    IdError,
    MissingError,
    PayloadError,
    RowsError,
    ShapeError,
    StartError,
    VersionError,
)
from .layout import Packed, Placed, for_stage, moe_rows, pack, pad, places, shard, to_array
from .rows import Rows, splice, validate
from .schema import Schema
from .trajectory import Span, Trajectory, Version, versions

__all__ = [
    "ConflictError",
    "CountError",
    "DtypeError",
    "GapError",
    "IdError",
    "MissingError",
    "Packed",
    "PayloadError",
    "Placed",
    "Rows",
    "RowsError",
    "Schema",
    "ShapeError",
    "Source",
    "Span",
    "StartError",
    "Trajectory",
    "Version",
    "VersionError",
    "decode",
    "encode",
    "for_stage",
    "moe_rows",
    "pack",
    "pad",
    "places",
    "shard",
    "splice",
    "to_array",
    "validate",
    "versions",
]
