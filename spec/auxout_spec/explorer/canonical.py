"""One value for every state: what has no order is sorted, and names can be exchanged.

Sorting is only sound where the order has no effect. The order in which requests arrive, end and are scheduled
reaches the worker, and there the age of the store's objects; so in a model whose store may evict, it stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from ..engine.state import EngineState, Step, Text, append, block_hash, prefix
from ..store import StoreState
from ..values import BlockHash, RequestId

T = TypeVar("T")


def canonical(engine: EngineState, ordered: bool) -> EngineState:
    """The state with everything sorted that has no order.

    Args:
        ordered: the order of arrivals, ends and objects means something.
    """
    resident, activations = in_order(engine.resident), in_order(engine.activations)
    connector = engine.connector._replace(active=in_order(engine.connector.active))
    if ordered:
        return engine._replace(connector=connector, resident=resident, activations=activations)
    worker = engine.worker
    return engine._replace(
        connector=connector._replace(ended=in_order(connector.ended)),
        requests=in_order(engine.requests),
        in_flight=tuple(Step(step.generation, in_order(step.entries)) for step in engine.in_flight),
        activations=activations,
        resident=resident,
        worker=worker._replace(
            in_flight=tuple(in_order(names) for names in worker.in_flight),
            store=StoreState(in_order(worker.store.objects), worker.store.references),
        ),
    )


def in_order(items: tuple[T, ...]) -> tuple[T, ...]:
    """A tuple sorted; most have one element or none."""
    return items if len(items) < 2 else tuple(sorted(cast("Any", items)))


class Names:
    """Exchanges request ids, and with them texts, hashes and block names, in any value of a state.

    A hash is renamed by naming its tokens anew, so the tokens of every hash must have been seen first.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: dict[BlockHash, Text] = {}
        self.learned: set[tuple[Text, int]] = set()

    def learn(self, engine: EngineState) -> None:
        """Remember the tokens behind the hashes that a state's requests have or will have."""
        for request in engine.requests:
            final = request.num_prompt_tokens + request.max_tokens
            if (request.tokens, final) in self.learned:
                continue
            self.learned.add((request.tokens, final))
            tokens = append(request.tokens, request.tokens[-1][0], final - request.num_tokens)
            for end in range(self.block_size, final + 1, self.block_size):
                block = prefix(tokens, end)
                self.tokens[block_hash(block)] = block

    def renamed(self, value: Any, names: Mapping[RequestId, RequestId]) -> Any:
        """The value with every name exchanged; ids that ``names`` lacks stay."""
        if isinstance(value, str):
            text = value.rstrip("'0123456789:")
            return names.get(text, text) + value[len(text) :]
        if isinstance(value, bytes):
            return self._renamed_hash(value, names) if value else value
        if isinstance(value, frozenset):
            return frozenset(names.get(name, name) for name in cast("frozenset[str]", value))
        if not isinstance(value, tuple):
            return value
        parts = [self.renamed(part, names) for part in cast("tuple[Any, ...]", value)]
        make = getattr(cast("Any", value), "_make", tuple)
        return make(parts)

    def _renamed_hash(self, value: BlockHash, names: Mapping[RequestId, RequestId]) -> BlockHash:
        tokens: Text = self.renamed(self.tokens[value], names)
        self.tokens[block_hash(tokens)] = tokens
        return block_hash(tokens)

    def renamed_engine(self, engine: EngineState, names: Mapping[RequestId, RequestId]) -> EngineState:
        """A whole state under other names, in canonical form."""
        self.learn(engine)
        other: EngineState = self.renamed(engine, names)
        worker = other.worker
        store = worker.store._replace(references=tuple(sorted(worker.store.references)))
        other = other._replace(
            worker=worker._replace(requests=tuple(sorted(worker.requests)), store=store),
        )
        return canonical(other, ordered=False)
