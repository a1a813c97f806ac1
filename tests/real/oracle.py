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
    again: bool
    """They are a session's, and start with rows that it was given in an earlier turn (docs/findings.md)."""

    skipped: bool
    """The request asks for rows from ``token_start`` on only, as a session's later turn may."""

    @property
    def misplaced(self) -> bool:
        """Whether a client that appends them has rows at wrong positions."""
        return self.token_start != self.due and not self.again and not self.skipped


class Life:
    """One request, from its arrival to its end."""

    def __init__(self, request_id: str, due: int, session: bool) -> None:
        self.request_id, self.due, self.session = request_id, due, session
        self.short = False
        """Whether an output came with fewer rows than accepted tokens call for."""
        self.num_after = 0
        """Rows that were delivered after that."""


class Oracle:
    """A scheduler connector that checks what another one returns.

    It knows the answer from the request's tokens at that moment and from the weights the step ran with, and never
    asks the worker.
    """

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self._lives: dict[str, Life] = {}
        self.num_weight_updates = 0
        """Those before the step whose output is taken."""
        self.delivered: list[Delivered] = []
        self.short: list[Life] = []
        """Requests that were not given all rows of an output."""

    def take_output(self, request: Any, output: Mapping[str, Any] | None) -> Any:
        """``take_output`` of the connector, checked."""
        rows = self._connector.take_output(request, output)
        life = self._lives[request.request_id]
        if rows is not None:
            self._check(life, request, rows)
        if life.due < request.num_tokens - 1 and not life.short:
            life.short = True
            self.short.append(life)
        return rows

    def expect(self, request_id: str, start: int, session: bool = False) -> None:
        """A request that arrives is due its rows from this position."""
        self._lives[request_id] = Life(request_id, start, session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def _check(self, life: Life, request: Any, rows: Any) -> None:
        end = request.num_tokens - 1
        start = end - len(rows)
        seen = list(prefixes(request.all_token_ids[:end]))
        right = as_rows([row(prefix, self.num_weight_updates) for prefix in seen[start:]])
        wrong = len(rows)
        if rows.shape == right.shape and rows.dtype == right.dtype:
            wrong = int((rows != right).any(axis=(1, 2)).sum())
        again = life.session and start < life.due and not life.short
        asked = request.sampling_params.routed_experts_prompt_start
        skipped = start == asked > life.due and life.session and not life.short
        self.delivered.append(Delivered(life.request_id, start, len(rows), wrong, life.due, again, skipped))
        if life.short:
            life.num_after += len(rows)
        else:
            life.due = end
