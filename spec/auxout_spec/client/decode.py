"""From an engine's payload to rows: nothing is guessed, and nothing that does not fit is made to fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .kernel import num_rows_due
from .values import Payload, Refused, Row, Rows, Schema

Level = Literal["capture", "ids"]


def decode(payload: Payload | None, schema: Schema, start: int, num_tokens: int) -> Rows | Refused:
    """The rows that a call returned (CLIENT-DECODE).

    Args:
        payload: None where the engine returned nothing.
        start: position of the first row, as the call asked for it.
        num_tokens: tokens of the call, prompt and output.
    """
    due = num_rows_due(num_tokens, start) if start >= 0 else -1
    if due < 0:
        return Refused("CLIENT-DECODE-2", f"rows from {start} on of {num_tokens} tokens")
    if payload is None:
        if due:
            return Refused("CLIENT-DECODE-6", f"{due} rows are due and none came", (start, start + due))
        return Rows((), start)
    refused = _check_shape(payload, schema, due) or _check_values(payload, schema)
    return refused or Rows(tuple(_rows(payload.values, schema)), start)


def _check_shape(payload: Payload, schema: Schema, due: int) -> Refused | None:
    width = schema.num_layers * schema.top_k
    count = payload.shape[0] if payload.shape else 0
    if payload.flat:
        if len(payload.shape) != 1 or count % width:
            return Refused("CLIENT-DECODE-3", f"a buffer of {payload.shape} ids is no whole number of rows")
        count //= width
    elif count and payload.shape[1:] != (schema.num_layers, schema.top_k):
        return Refused("CLIENT-DECODE-3", f"rows of {payload.shape[1:]}")
    if count != due:
        return Refused("CLIENT-DECODE-1", f"{count} rows, {due} are due")
    return None


def _check_values(payload: Payload, schema: Schema) -> Refused | None:
    for value in payload.values:
        if not isinstance(value, int) or not 0 <= value <= schema.max_value:
            return Refused("CLIENT-DECODE-4", f"{value} is no id of a row's dtype")
    return None


def _rows(values: tuple[int | float, ...], schema: Schema) -> Iterator[Row]:
    width = schema.num_layers * schema.top_k
    for first in range(0, len(values), width):
        layers = range(first, first + width, schema.top_k)
        yield tuple(tuple(int(v) for v in values[at : at + schema.top_k]) for at in layers)


def validate(rows: Rows, schema: Schema, level: Level) -> Refused | None:
    """What cannot be right in rows, if anything (CLIENT-IDS).

    Args:
        level: ``capture`` looks for layers that were never captured, ``ids`` at every id as well.
    """
    if level == "capture":
        return _not_captured(rows, schema)
    checks = _too_large, _not_captured, _repeated, _not_dense
    return next(filter(None, (check(rows, schema) for check in checks)), None)


def _too_large(rows: Rows, schema: Schema) -> Refused | None:
    for position, row in enumerate(rows.rows, rows.start):
        if max(map(max, row)) >= schema.num_experts:
            message = f"an id beyond the {schema.num_experts} experts"
            return Refused("CLIENT-IDS-1", message, (position, position + 1))
    return None


def _not_captured(rows: Rows, schema: Schema) -> Refused | None:
    for layer in schema.moe_layers if rows.rows and schema.top_k > 1 else ():
        if not any(any(row[layer]) for row in rows.rows):
            return Refused("CLIENT-IDS-4", f"layer {layer} is zero in every row", (rows.start, rows.end))
    return None


def _repeated(rows: Rows, schema: Schema) -> Refused | None:
    for position, row in enumerate(rows.rows, rows.start):
        if any(len(set(row[layer])) < schema.top_k for layer in schema.moe_layers):
            return Refused("CLIENT-IDS-2", "an expert twice in one layer", (position, position + 1))
    return None


def _not_dense(rows: Rows, schema: Schema) -> Refused | None:
    dense = set(range(schema.num_layers)) - set(schema.moe_layers)
    for position, row in enumerate(rows.rows, rows.start):
        if any(any(row[layer]) for layer in dense):
            return Refused("CLIENT-IDS-3", "an id in a layer without a router", (position, position + 1))
    return None
