"""How far the plays of a judgement went: the least and the most of each quantity that a connector saw."""

from __future__ import annotations

from collections.abc import Iterable

from auxout_spec.calls import BuildConnectorMeta, Exchange, ProcessOutput
from auxout_spec.engine import EngineConfig, EngineState
from auxout_spec.representation import PLAIN, Image
from auxout_spec.values import Metadata

QUANTITIES = {
    "step_requests": "requests a step",
    "known_requests": "known",
    "step_rows": "rows a step",
    "steps_in_flight": "steps in flight",
    "block_size": "tokens a block",
    "request_tokens": "tokens a request",
    "entry_hashes": "new hashes an entry",
    "hash_bytes": "bytes a hash",
    "id_characters": "characters an id",
    "generation": "generations",
    "metadata": "metadata a connector",
    "row_layers": "layers",
    "row_ids": "ids a layer",
    "experts": "experts",
}
"""Name -> what it counts, in the order of a report."""
Bounds = dict[str, tuple[int, int]]
"""Name -> the least and the most that was shown."""


class Covered:
    """The bounds of some plays."""

    def __init__(self) -> None:
        self.bounds: Bounds = {}
        self._image, self._looks = Image(PLAIN), PLAIN
        self._num_metadata = 0

    def add(self, config: EngineConfig, state: EngineState, exchanges: Iterable[Exchange]) -> None:
        """Count what an event showed; ``state`` is that after it."""
        looks = config.representation
        if self._looks != looks:
            self._image, self._looks = Image(looks), looks
        self._count("block_size", config.block_size)
        self._count("hash_bytes", looks.hash_size)
        self._count("row_layers", looks.layers)
        self._count("row_ids", looks.top_k)
        self._count("experts", looks.experts)
        self._count("steps_in_flight", len(state.in_flight))
        for call, result in exchanges:
            if isinstance(call, BuildConnectorMeta):
                self._count_step(call, result if isinstance(result, Metadata) else None)
            elif isinstance(call, ProcessOutput):
                self._count("step_rows", sum(len(part.rows) for part in call.parts))

    def merge(self, bounds: Bounds) -> None:
        """Add what other plays covered."""
        for name, (least, most) in bounds.items():
            self._count(name, least)
            self._count(name, most)

    def _count_step(self, call: BuildConnectorMeta, metadata: Metadata | None) -> None:
        self._count("step_requests", len(call.scheduled))
        self._count("known_requests", len(call.requests) + self._looks.idle)
        for view in call.requests:
            self._count("request_tokens", view.num_tokens)
            self._count("id_characters", len(self._image.request_id(view.request_id)))
        if metadata is None:
            return
        self._num_metadata += 1
        self._count("metadata", self._num_metadata)
        self._count("generation", metadata.generation + self._looks.generation)
        for _, hashes in metadata.block_hashes:
            self._count("entry_hashes", len(hashes))

    def _count(self, name: str, number: int) -> None:
        least, most = self.bounds.get(name, (number, number))
        self.bounds[name] = min(least, number), max(most, number)


def in_words(bounds: Bounds) -> str:
    """The bounds on one line."""
    said = (f"{_span(*bounds[name])} {words}" for name, words in QUANTITIES.items() if name in bounds)
    return ", ".join(said)


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
