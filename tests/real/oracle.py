"""Compares every row that the engine is given with the row that the request's tokens call for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .model import as_rows, prefixes, row


class Delivered(NamedTuple):
    """What one ``take_output`` returned."""

    request_id: str
    token_start: int
    num_rows: int
    num_wrong: int
    due: int
    """Where the rows had to start."""


class Oracle:
    """A scheduler connector that checks what another one returns.

    It knows the answer from the request's tokens at that moment and from the weights the step ran with, and never
    asks the worker.
    """

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self._due: dict[str, int] = {}
        self.num_weight_updates = 0
        """Those before the step whose output is taken."""
        self.delivered: list[Delivered] = []

    def take_output(self, request: Any, output: Mapping[str, Any] | None) -> Any:
        """``take_output`` of the connector, checked."""
        rows = self._connector.take_output(request, output)
        if rows is not None:
            self._check(request, rows)
        return rows

    def expect(self, request_id: str, start: int) -> None:
        """A request or a turn is due its rows from this position."""
        self._due[request_id] = start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def _check(self, request: Any, rows: Any) -> None:
        end = request.num_tokens - 1
        start = end - len(rows)
        seen = list(prefixes(request.all_token_ids[:end]))
        right = as_rows([row(prefix, self.num_weight_updates) for prefix in seen[start:]])
        wrong = len(rows)
        if rows.shape == right.shape and rows.dtype == right.dtype:
            wrong = int((rows != right).any(axis=(1, 2)).sum())
        name = request.request_id
        self.delivered.append(Delivered(name, start, len(rows), wrong, self._due[name]))
        self._due[name] = end
