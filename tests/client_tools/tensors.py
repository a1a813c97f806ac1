"""Conversations played with ``auxout.client.torch``: ``auxout client-check client_tools.tensors:play``."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from auxout.client import Schema, Trajectory, conversation, versions
from auxout.client import torch as tensors

Json = dict[str, Any]


def play(asked: Json) -> Json:
    """The same as ``auxout.client.conversation.play``; every function that torch has is torch's."""
    with mock.patch.multiple(conversation, decode=tensors.decode, _arranged=_arranged):
        return conversation.play(asked)


def _arranged(samples: list[Trajectory], schema: Schema, result: Json) -> Json:
    answer: Json = {}
    if result["as"] == "pad":
        placed = tensors.pad(samples, result.get("length"), result.get("side", "right"))
    elif result["as"] == "pack":
        dtype = getattr(torch, result["dtype"]) if "dtype" in result else None
        placed = tensors.pack(samples, dtype=dtype, align=result.get("align", 1))
        answer["offsets"] = placed.offsets.tolist()
    else:
        placed = tensors.to_tensor(samples[-1], result.get("length"), missing=result.get("missing", "mask"))
    rows, mask = placed.rows, placed.mask
    layers = result.get("layers", "all")
    if layers != "all":
        rows = tensors.moe_rows(rows, schema) if layers == "moe" else tensors.for_stage(rows, schema, layers)
    if "shard" in result:
        part = result["shard"]
        rows, mask = (tensors.shard(each, part["rank"], part["size"], part["how"]) for each in (rows, mask))
    dtype = str(rows.dtype).removeprefix("torch.")
    spans = [list(span) for span in versions(samples[-1])]
    return answer | {"rows": rows.tolist(), "mask": mask.tolist(), "dtype": dtype, "versions": spans}
