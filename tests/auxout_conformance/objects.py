"""Objects of the engine's shape: what a connector under judgement is called with.

They offer the attributes that the 0.31.0 API page touches and no others, as a real engine does: counts are
properties, hash lists grow in place, and the same request object is passed from call to call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from auxout_spec.calls import BuildConnectorMeta
from auxout_spec.values import BlockHash, Metadata, Outputs, RequestView, Row

ROW_SHAPE = (2, 2)
"""``(num_layers, top_k)`` of the rows that the suite makes."""
ROW_DTYPE = np.dtype(np.uint16)
NUM_EXPERTS = 2048
"""More than any id in a row; it makes the rows of a worker ``ROW_DTYPE``."""
UNKNOWN_ROW = Row("<no such row>", -1, -1, -1)
LATER_ROW = Row("<a later forward pass>", -1, -1, -1)
"""What the next forward pass leaves where a step's rows were."""


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
    error: str | None = None
    """Why the request failed, of a worker that fails requests."""


@dataclass
class PackedHashes:
    """Block hashes as they travel: the shape of ``PackedBlockHashes``."""

    data: bytes
    item_size: int

    def __iter__(self) -> Iterator[bytes]:
        return (self.data[at : at + self.item_size] for at in range(0, len(self.data), self.item_size))


@dataclass
class StepMetadata:
    """One step's metadata as it reaches a worker: the shape of ``AuxOutputConnectorMetadata``."""

    generation: int
    requests: dict[str, int]
    block_hashes: dict[str, PackedHashes]
    finished_requests: tuple[str, ...]
    finished_block_hashes: dict[str, PackedHashes]
    replaced_block_hashes: dict[str, PackedHashes]

    @classmethod
    def of(cls, metadata: Metadata) -> StepMetadata:
        """The object that says what the spec's value says."""
        return cls(
            metadata.generation,
            dict(metadata.requests),
            _packed(metadata.block_hashes),
            metadata.finished_requests,
            _packed(metadata.finished_block_hashes),
            _packed(metadata.replaced_block_hashes),
        )


def _packed(entries: tuple[tuple[str, tuple[BlockHash, ...]], ...]) -> dict[str, PackedHashes]:
    return {
        name: PackedHashes(b"".join(hashes), len(hashes[0]) if hashes else 32) for name, hashes in entries
    }


def later_rows(count: int) -> np.ndarray[Any, Any]:
    """What a later forward pass leaves in the capture buffer: rows that decode to ``LATER_ROW``."""
    return np.broadcast_to(np.array(((0, 1), (0, 1)), ROW_DTYPE), (count, *ROW_SHAPE))


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
    """Turns the spec's row values into arrays of expert ids and back; one array value per row value.

    Rows of a forward pass are ``reserve``d when it runs. Which positions they were computed for depends on
    drafts that the steps before it may still lose, so their values are given afterwards, with ``bind``.
    """

    def __init__(self) -> None:
        self._codes: dict[Row, int] = {}
        self._rows: list[Row] = []

    def reserve(self, count: int) -> tuple[int, np.ndarray[Any, Any]]:
        """Arrays for ``count`` rows of which nothing is known yet, and the number of the first."""
        first = len(self._rows)
        self._rows += [LATER_ROW] * count
        return first, np.array([_array(code) for code in range(first, first + count)], ROW_DTYPE)

    def bind(self, first: int, rows: Sequence[Row]) -> None:
        """Say what the reserved rows from number ``first`` on are."""
        for code, row in enumerate(rows, first):
            self._rows[code] = row
            self._codes.setdefault(row, code)

    def outputs(self, outputs: Outputs | None) -> dict[str, RequestOutput] | None:
        """A step's worker output as the engine hands it over."""
        if outputs is None:
            return None
        return {
            request_id: RequestOutput(
                output.token_start, self.encode(output.rows), "it failed" if output.failed else None
            )
            for request_id, output in outputs
        }

    def encode(self, rows: tuple[Row, ...]) -> np.ndarray[Any, Any]:
        """An array ``(len(rows), 2, 2)`` of uint16 expert ids above 255, so a narrowed copy shows."""
        array = np.empty((len(rows), *ROW_SHAPE), ROW_DTYPE)
        for index, row in enumerate(rows):
            code = self._codes.setdefault(row, len(self._rows))
            if code == len(self._rows):
                self._rows.append(row)
            array[index] = _array(code)
        return array

    def decode(self, array: np.ndarray[Any, Any]) -> tuple[Row, ...]:
        """The row values in an array; what the suite never made is ``UNKNOWN_ROW``."""
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            return (UNKNOWN_ROW,) * len(array)
        return tuple(self._decode_one(row) for row in array)

    def _decode_one(self, row: np.ndarray[Any, Any]) -> Row:
        if row.shape != ROW_SHAPE:
            return UNKNOWN_ROW
        if np.array_equal(row, later_rows(1)[0]):
            return LATER_ROW
        code = int(row[0, 0]) - 256 + 256 * (int(row[0, 1]) - 512)
        known = 0 <= code < len(self._rows) and np.array_equal(row, _array(code))
        return self._rows[code] if known else UNKNOWN_ROW


def _array(code: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Row number ``code``: ids above 255, distinct within a layer."""
    return ((256 + code % 256, 512 + code // 256), (1024, 1025 + code % 7))
