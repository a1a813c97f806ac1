"""Objects of the engine's shape: what a connector under judgement is called with.

They offer the attributes that the 0.31.0 API page touches and no others, as a real engine does: counts are
properties, hash lists grow in place, and the same request object is passed from call to call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from auxout_spec.calls import BuildConnectorMeta
from auxout_spec.representation import PLAIN, Image, Representation, steps_of
from auxout_spec.values import BlockHash, Metadata, Outputs, RequestView, Row

UNKNOWN_ROW = Row("<no such row>", -1, -1, -1)
LATER_ROW = Row("<a later forward pass>", -1, -1, -1)
"""What the next forward pass leaves where a step's rows were."""
MOST_AT_A_TIME = 32
"""Requests that are compared after a call."""
IDLE = "idle"
"""Begins the names of requests that are never scheduled."""
_BOUNDARIES = (0, 1, 127, 128, 254, 255, 256, 257, 32767, 32768, 65534, 65535)
"""Expert ids at which types end; half of the ids begin with one of them, or with the last."""


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

    @property
    def num_computed_tokens(self) -> int:
        return self._view.num_computed_tokens

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
    def of(cls, metadata: Metadata, representation: Representation = PLAIN) -> StepMetadata:
        """The object that says what the spec's value says."""
        entries = metadata.block_hashes
        if representation.order == "reversed":
            entries = entries[::-1]
        return cls(
            metadata.generation,
            dict(metadata.requests),
            _packed(entries),
            metadata.finished_requests,
            _packed(metadata.finished_block_hashes),
            _packed(metadata.replaced_block_hashes),
        )


def _packed(entries: tuple[tuple[str, tuple[BlockHash, ...]], ...]) -> dict[str, PackedHashes]:
    return {
        name: PackedHashes(b"".join(hashes), len(hashes[0]) if hashes else 32) for name, hashes in entries
    }


class StepOutputs:
    """A worker's outputs of one step, as a connector is given them for one request after the other."""

    def __init__(self, said: Outputs | None, given: dict[str, Any] | None) -> None:
        self.said, self.given = said, given
        entries = dict((given or {}).items())
        self._copies = {name: (each.token_start, each.rows.copy()) for name, each in entries.items()}
        self._names = list(self._copies)
        self._next = 0

    def changed(self, name: str) -> bool:
        """Whether a connector changed them: the entry that it was asked for, or one of a few others, in turn."""
        if self.given is None:
            return False
        same = list(self.given) == self._names
        turn = self._names[self._next : self._next + MOST_AT_A_TIME]
        self._next = (self._next + len(turn)) % max(len(self._names), 1)
        return not (same and all(self._is_same(each) for each in {name, *turn}))

    def forget(self, name: str) -> None:
        """The engine wrote into an entry's rows."""
        self._copies.pop(name, None)

    def _is_same(self, name: str) -> bool:
        if name not in self._copies:
            return True
        assert self.given is not None  # it has copies
        entry, (start, rows) = self.given[name], self._copies[name]
        return entry.token_start == start and np.array_equal(entry.rows, rows)


class Requests:
    """The engine's request objects; an id that ended gets a new object when it comes back.

    Args:
        image: what their ids and hashes look like.
        representation: which others the engine knows, and in which order it lists them.
    """

    def __init__(self, image: Image | None = None, representation: Representation = PLAIN) -> None:
        self._image, self._representation = image or Image(representation), representation
        self._objects: dict[str, EngineRequest] = {}
        self._is_changed, self._next = False, 0
        self._idle = [self._idle_request(number) for number in range(representation.idle)]

    def get(self, view: RequestView) -> EngineRequest:
        """The object of a request, brought up to date."""
        view = self._concrete(view)
        found = self._objects.get(view.request_id)
        if found is None:
            found = self._objects[view.request_id] = EngineRequest(view)
        else:
            # Brought up to date it would be whole again.
            self._is_changed |= not found.unchanged()
            found.update(view)
        return found

    def changed(self) -> bool:
        """Whether a connector changed a request; of many requests some are looked at, and others the next time."""
        known = [*self._objects.values(), *self._idle]
        turn = known[self._next : self._next + MOST_AT_A_TIME]
        self._next = (self._next + len(turn)) % max(len(known), 1)
        return self._is_changed or not all(request.unchanged() for request in turn)

    def forget(self, view: RequestView) -> None:
        """The request left the engine."""
        self._objects.pop(self._image.request_id(view.request_id), None)

    def step(self, call: BuildConnectorMeta) -> tuple[Any, dict[str, EngineRequest]]:
        """The scheduler output and the request table of one step."""
        scheduled = {self._image.request_id(name): count for name, count in call.scheduled}
        known = [*map(self.get, call.requests), *self._idle]
        if self._representation.order == "reversed":
            known.reverse()
        return SimpleNamespace(num_scheduled_tokens=scheduled), {each.request_id: each for each in known}

    def _concrete(self, view: RequestView) -> RequestView:
        hashes = tuple(map(self._image.block_hash, view.block_hashes))
        return view._replace(request_id=self._image.request_id(view.request_id), block_hashes=hashes)

    def _idle_request(self, number: int) -> EngineRequest:
        """A request that waits, with hashes of its own."""
        hashes = tuple(f"{IDLE} {number:09} {block:017}".encode() for block in range(2))
        return EngineRequest(self._concrete(RequestView(f"{IDLE} {number}", 9, 9, 0, 0, hashes)))


class RowValues:
    """Different rows of one format, as many as are asked for; always the same ones.

    Ids cover the range: in each layer there is a first one, often where a type ends, and the others follow in equal
    steps, so that none comes twice.
    """

    def __init__(self, layers: int, top_k: int, experts: int) -> None:
        self.shape = layers, top_k
        """``(num_layers, top_k)`` of a row."""
        self.dtype = np.dtype(np.uint8 if experts <= 256 else np.uint16)
        self._experts, self._steps = experts, np.array(steps_of(experts))
        self._firsts = np.array([*(each for each in _BOUNDARIES if each < experts), experts - 1])
        self._random = np.random.default_rng(experts)
        self._rows = np.empty((0, layers, top_k), self.dtype)
        self._numbers: dict[bytes, int] = {}

    def take(self, codes: Sequence[int]) -> np.ndarray[Any, Any]:
        """The rows of some numbers, in an array of their own."""
        while max(codes, default=0) >= len(self._rows):
            self._grow()
        return self._rows[np.array(codes, np.intp)]

    def number(self, row: np.ndarray[Any, Any]) -> int | None:
        """The number of a row; None if there is no such row yet."""
        return self._numbers.get(row.tobytes())

    def _grow(self) -> None:
        """Draw as many rows again as there are."""
        fresh: list[np.ndarray[Any, Any]] = []
        for row in self._drawn(max(len(self._rows), 64)):
            if self._numbers.setdefault(row.tobytes(), len(self._rows) + len(fresh)) >= len(self._rows) + len(
                fresh
            ):
                fresh.append(row)
        if not fresh:
            raise RuntimeError(f"rows {self.shape} of {self._experts} experts are not different enough")
        self._rows = np.concatenate([self._rows, *(row[None] for row in fresh)])

    def _drawn(self, count: int) -> np.ndarray[Any, Any]:
        layers, top_k = self.shape
        first = self._random.integers(0, self._experts, (count, layers))
        at_end = self._random.integers(0, 2, first.shape, dtype=bool)
        first[at_end] = self._random.choice(self._firsts, at_end.sum())
        step = self._random.choice(self._steps, first.shape)
        ids = first[..., None] + step[..., None] * np.arange(top_k)
        return (ids % self._experts).astype(self.dtype)


_values = lru_cache(maxsize=16)(RowValues)


class RowCodec:
    """Turns the spec's row values into arrays of expert ids and back; one array value per row value.

    Rows of a forward pass are ``reserve``d when it runs. Which positions they were computed for depends on
    drafts that the steps before it may still lose, so their values are given afterwards, with ``bind``.

    Args:
        representation: layers, expert ids of a layer, and experts.
    """

    def __init__(self, representation: Representation = PLAIN) -> None:
        self._values = _values(representation.layers, representation.top_k, representation.experts)
        self.shape, self.dtype = self._values.shape, self._values.dtype
        self._codes: dict[Row, int] = {}
        self._rows: list[Row] = [LATER_ROW]

    def reserve(self, count: int) -> tuple[int, np.ndarray[Any, Any]]:
        """Arrays for ``count`` rows of which nothing is known yet, and the number of the first."""
        first = len(self._rows)
        self._rows += [LATER_ROW] * count
        return first, self._values.take(range(first, first + count))

    def bind(self, first: int, rows: Sequence[Row]) -> None:
        """Say what the reserved rows from number ``first`` on are; what was said of them before is void."""
        for code, row in enumerate(rows, first):
            self._rows[code] = row
            self._codes[row] = code

    def later(self, count: int) -> np.ndarray[Any, Any]:
        """What a later forward pass leaves in the capture buffer: rows that decode to ``LATER_ROW``."""
        return self._values.take([0] * count)

    def outputs(self, outputs: Outputs | None, image: Image) -> dict[str, RequestOutput] | None:
        """A step's worker output as the engine hands it over."""
        if outputs is None:
            return None
        return {
            image.request_id(name): RequestOutput(
                output.token_start, self.encode(output.rows), "it failed" if output.failed else None
            )
            for name, output in outputs
        }

    def overwrite(self, array: np.ndarray[Any, Any]) -> None:
        """Write other rows into an array of rows, where that is possible."""
        if array.flags.writeable and array.shape[1:] == self.shape:
            array[...] = self.later(len(array))

    def fits(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether an array has the shape and the type of rows."""
        return array.shape[1:] == self.shape and array.dtype == self.dtype

    def __str__(self) -> str:
        """Shape and type, for messages."""
        return f"{self.dtype}[n, {self.shape[0]}, {self.shape[1]}]"

    def encode(self, rows: tuple[Row, ...]) -> np.ndarray[Any, Any]:
        """An array ``(len(rows), num_layers, top_k)`` of expert ids."""
        for row in rows:
            if row not in self._codes or self._rows[self._codes[row]] != row:
                self._codes[row] = len(self._rows)
                self._rows.append(row)
        return self._values.take([self._codes[row] for row in rows])

    def decode(self, array: np.ndarray[Any, Any]) -> tuple[Row, ...]:
        """The row values in an array; what the suite never made is ``UNKNOWN_ROW``."""
        if array.shape[1:] != self.shape or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            return (UNKNOWN_ROW,) * len(array)
        with np.errstate(invalid="ignore"):
            narrow = array.astype(self.dtype)
        exact = (narrow == array).all(axis=(1, 2))
        return tuple(
            self._row(self._values.number(row)) if is_exact else UNKNOWN_ROW
            for row, is_exact in zip(narrow, exact, strict=True)
        )

    def _row(self, code: int | None) -> Row:
        return self._rows[code] if code is not None and code < len(self._rows) else UNKNOWN_ROW
