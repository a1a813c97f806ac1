"""Objects of the engine's shape: what a connector under judgement is called with.

They offer the attributes that the 0.31.0 API page touches and no others, as a real engine does: counts are
properties, hash lists grow in place, and the same request object is passed from call to call.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from auxout_spec.calls import BuildConnectorMeta
from auxout_spec.values import Outputs, RequestView, Row

ROW_SHAPE = (2, 2)
"""``(num_layers, top_k)`` of the rows that the suite makes."""
ROW_DTYPE = np.dtype(np.uint16)
UNKNOWN_ROW = Row("<no such row>", -1, -1, -1)


class EngineRequest:
    """A request as the connector sees it: the attributes of vLLM's ``Request`` that the protocol uses."""

    def __init__(self, view: RequestView) -> None:
        self.request_id = view.request_id
        self.block_hashes: list[bytes] = []
        self.sampling_params = SimpleNamespace(routed_experts_prompt_start=view.prompt_start)
        self.update(view)

    def update(self, view: RequestView) -> None:
        """Become what ``view`` says, in place."""
        self._view = view
        self.num_prompt_tokens = view.num_prompt_tokens
        if self.sampling_params.routed_experts_prompt_start != view.prompt_start:
            # A session's next turn brings sampling parameters of its own.
            self.sampling_params = SimpleNamespace(routed_experts_prompt_start=view.prompt_start)
        hashes = list(view.block_hashes)
        if self.block_hashes != hashes:
            del self.block_hashes[len(hashes) :]
            self.block_hashes[:] = hashes

    @property
    def num_tokens(self) -> int:
        return self._view.num_tokens

    @property
    def num_output_tokens(self) -> int:
        return self._view.num_output_tokens

    def is_finished(self) -> bool:
        return self._view.finished

    def unchanged(self) -> bool:
        """Whether a connector left the request alone."""
        return (
            self.block_hashes == list(self._view.block_hashes)
            and self.request_id == self._view.request_id
            and self.num_prompt_tokens == self._view.num_prompt_tokens
            and self.sampling_params.routed_experts_prompt_start == self._view.prompt_start
        )


@dataclass
class RequestOutput:
    """A worker's output for one request: the shape of ``AuxRequestOutput``."""

    token_start: int
    rows: np.ndarray[Any, Any]
    """``(num_rows, num_layers, top_k)``."""


class Requests:
    """The engine's request objects; an id that ended gets a new object when it comes back."""

    def __init__(self) -> None:
        self._objects: dict[str, EngineRequest] = {}

    def get(self, view: RequestView) -> EngineRequest:
        """The object of a request, brought up to date."""
        found = self._objects.get(view.request_id)
        if found is None:
            found = self._objects[view.request_id] = EngineRequest(view)
        else:
            found.update(view)
        return found

    def forget(self, request_id: str) -> None:
        """The request left the engine."""
        self._objects.pop(request_id, None)

    def step(self, call: BuildConnectorMeta) -> tuple[Any, dict[str, EngineRequest]]:
        """The scheduler output and the request table of one step."""
        output = SimpleNamespace(num_scheduled_tokens=dict(call.scheduled))
        return output, {view.request_id: self.get(view) for view in call.requests}


class RowCodec:
    """Turns the spec's row values into arrays of expert ids and back; one array value per row value."""

    def __init__(self) -> None:
        self._codes: dict[Row, int] = {}
        self._rows: list[Row] = []

    def outputs(self, outputs: Outputs | None) -> dict[str, RequestOutput] | None:
        """A step's worker output as the engine hands it over."""
        if outputs is None:
            return None
        return {
            request_id: RequestOutput(output.token_start, self.encode(output.rows))
            for request_id, output in outputs
        }

    def encode(self, rows: tuple[Row, ...]) -> np.ndarray[Any, Any]:
        """An array ``(len(rows), 2, 2)`` of uint16 expert ids above 255, so a narrowed copy shows."""
        array = np.empty((len(rows), *ROW_SHAPE), ROW_DTYPE)
        for index, row in enumerate(rows):
            code = self._codes.setdefault(row, len(self._codes))
            if code == len(self._rows):
                self._rows.append(row)
            array[index] = ((256 + code % 256, 512 + code // 256), (1024, 1024 + code % 7))
        return array

    def decode(self, array: np.ndarray[Any, Any]) -> tuple[Row, ...]:
        """The row values in an array; what the suite never made is ``UNKNOWN_ROW``."""
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            return (UNKNOWN_ROW,) * len(array)
        return tuple(self._decode_one(row) for row in array)

    def _decode_one(self, row: np.ndarray[Any, Any]) -> Row:
        if row.shape != ROW_SHAPE:
            return UNKNOWN_ROW
        code = int(row[0, 0]) - 256 + 256 * (int(row[0, 1]) - 512)
        known = 0 <= code < len(self._rows) and np.array_equal(row, self.encode((self._rows[code],))[0])
        return self._rows[code] if known else UNKNOWN_ROW
