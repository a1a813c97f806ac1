"""Faults between scheduler and worker: what a runner, a scheduler or a wire may do wrong.

Each is one that a worker or a scheduler connector can notice. What it cannot notice (hashes that are lost, a start that
is off by one where drafts may have been rejected) is left out: no connector returns right rows then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

UNKNOWN = "of-no-request"
"""An id that no request has."""


class Faulty:
    """A worker connector that is told wrong things, and whose outputs are damaged on their way.

    What is wrong depends on the seed and on the steps, not on the connector.

    Args:
        connector: the one that does the work.
        rate: chance of a fault in each of the four calls of a step.
    """

    def __init__(self, connector: Any, seed: int, rate: float) -> None:
        self._connector, self._random, self._rate = connector, Random(seed), rate
        self.counts: Counter[str] = Counter()
        """Faults by kind."""
        self._emit_starts: dict[str, int] = {}
        self._turned: set[str] = set()
        """Sessions of whose next turn this step is the first: their emit start has gone back."""

    def begin_step(self, metadata: Any) -> None:
        """With metadata that may be wrong."""
        ids, requests = list(metadata.requests), dict(metadata.requests.items())
        self._turned = {name for name, start in requests.items() if start < self._emit_starts.get(name, 0)}
        self._emit_starts |= requests
        if self.occurs() and ids:
            metadata = self._spoil(_METADATA)(metadata, self._random.choice(ids))
        self._connector.begin_step(metadata)

    def prepare_output(self, batch: Any) -> Any:
        """For a batch that may be wrong; what its step returns may be, too."""
        if self.occurs():
            self._spoil_batch(batch)
        pending = self._connector.prepare_output(batch)
        return None if pending is None else _FaultyStep(pending, self, list(batch.req_ids))

    def occurs(self) -> bool:
        """Whether there is a fault in this call."""
        return self._random.random() < self._rate

    def one_of(self, count: int) -> int:
        """An index at random."""
        return self._random.randrange(count)

    def _spoil_batch(self, batch: Any) -> None:
        """Let something be wrong with a batch that a worker can notice.

        Where a session's next turn starts, which goes back itself, nobody but the scheduler knows.
        """
        kind, place = self._random.choice(list(_BATCH)), self._random.randrange(len(batch.req_ids))
        if kind == "start goes back" and batch.req_ids[place] in self._turned:
            return
        self.counts[kind] += 1
        _BATCH[kind](batch, place)

    def _spoil(self, kinds: dict[str, Callable[[Any, Any], Any]]) -> Callable[[Any, Any], Any]:
        kind = self._random.choice(list(kinds))
        self.counts[kind] += 1
        return kinds[kind]

    def damaged(self, outputs: Any, request_ids: list[str]) -> Any:
        """The outputs of a step, of which some do not arrive."""
        name, kind = self._random.choice(request_ids), self._random.choice(["missing", "cut", "all missing"])
        if kind == "all missing":
            self.counts[kind] += 1
            return None
        if name not in outputs:
            return outputs
        part, others = outputs[name], dict(outputs.items())
        if kind == "missing":
            del others[name]
        elif len(part.rows):
            others[name] = type(part)(part.token_start, part.rows[:-1])
        self.counts[kind] += 1
        return others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)


class _FaultyStep:
    """A step in flight whose counts and output may be wrong."""

    def __init__(self, pending: Any, owner: Faulty, request_ids: list[str]) -> None:
        self._pending, self._owner, self._ids = pending, owner, request_ids

    def enqueue_cpu_copy(self, num_sampled: Any, num_rejected: Any) -> None:
        """With more drafts rejected than there are tokens, or fewer than none."""
        owner = self._owner
        if owner.occurs():
            num_rejected[owner.one_of(len(num_rejected))] = (-1, 1000)[owner.one_of(2)]
            owner.counts["wrong count"] += 1
        self._pending.enqueue_cpu_copy(num_sampled, num_rejected)

    def process_output(self) -> Any:
        """What arrives of the output."""
        outputs, owner = self._pending.process_output(), self._owner
        return owner.damaged(outputs, self._ids) if owner.occurs() else outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pending, name)


def _changed(metadata: Any, **fields: Any) -> Any:
    """Metadata with other fields, as the class of the one who made it."""
    names = ("generation", "requests", "block_hashes", "finished_requests", *_OURS)
    kept = {name: getattr(metadata, name) for name in names if hasattr(metadata, name)}
    return type(metadata)(**{**kept, **fields})


_OURS = ("finished_block_hashes", "replaced_block_hashes")
"""Fields that only our metadata has."""


def _of_the_past(metadata: Any, name: str) -> Any:
    return _changed(metadata, generation=metadata.generation - 1)


def _ends_as_it_runs(metadata: Any, name: str) -> Any:
    return _changed(metadata, finished_requests=(*metadata.finished_requests, name))


def _ends_unknown(metadata: Any, name: str) -> Any:
    return _changed(metadata, finished_requests=(*metadata.finished_requests, UNKNOWN))


def _hashes_unknown(metadata: Any, name: str) -> Any:
    from auxout import PackedBlockHashes

    hashes = {**dict(metadata.block_hashes.items()), UNKNOWN: PackedBlockHashes(bytes(32), 32)}
    return _changed(metadata, block_hashes=hashes)


def _hashes_torn(metadata: Any, name: str) -> Any:
    from auxout import PackedBlockHashes

    hashes = {**dict(metadata.block_hashes.items()), name: PackedBlockHashes(bytes(31), 32)}
    return _changed(metadata, block_hashes=hashes)


def _emit_ahead(metadata: Any, name: str) -> Any:
    requests = dict(metadata.requests.items())
    return _changed(metadata, requests={**requests, name: requests[name] + 100})


def _not_named(metadata: Any, name: str) -> Any:
    requests = dict(metadata.requests.items())
    del requests[name]
    return _changed(metadata, requests=requests)


def _start_back(batch: Any, place: int) -> None:
    batch.num_computed_tokens_np[place] = max(0, batch.num_computed_tokens_np[place] - 3)


def _start_ahead(batch: Any, place: int) -> None:
    batch.num_computed_tokens_np[place] += 1001


def _of_another(batch: Any, place: int) -> None:
    batch.req_ids = [*batch.req_ids[:place], UNKNOWN, *batch.req_ids[place + 1 :]]


_METADATA: dict[str, Callable[[Any, Any], Any]] = {
    "generation of the past": _of_the_past,
    "runs and ends": _ends_as_it_runs,
    "unknown request ends": _ends_unknown,
    "hashes of an unknown request": _hashes_unknown,
    "torn hashes": _hashes_torn,
    "emit start ahead": _emit_ahead,
    "not named": _not_named,
}
_BATCH: dict[str, Callable[[Any, Any], Any]] = {
    "start goes back": _start_back,
    "start goes ahead": _start_ahead,
    "rows of an unknown request": _of_another,
}
