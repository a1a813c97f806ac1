"""The connectors that take part, and what shows that they keep nothing once everything has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from . import released

SCHEDULER = "vllm.v1.core.sched.scheduler.AuxOutputSchedulerConnector"
WORKER = "vllm.distributed.aux_output_connector.worker.AuxOutputWorkerConnector"


class Pair(NamedTuple):
    """A scheduler connector and a worker connector, each under the name that vLLM has for it."""

    scheduler: str | None = None
    """The module of the scheduler connector; None: vLLM's."""
    worker: str | None = None
    """The module of the worker connector; None: vLLM's."""
    errors: str | None = None
    """What becomes of an inconsistency, in both of ours."""


PAIRS = {
    "original": Pair(),
    "impl": Pair("auxout.connector", "auxout.worker"),
    "impl per request": Pair("auxout.connector", "auxout.worker", "request"),
    "impl's scheduler connector": Pair("auxout.connector"),
    "reference": Pair("auxout_reference.connector"),
}


@contextmanager
def bound(pair: Pair, spoil: Callable[[Any], Any] | None = None) -> Iterator[None]:
    """Engines that are made meanwhile have this pair, its worker connector passed through ``spoil`` if given."""
    released.version()
    scheduler = _named(SCHEDULER)
    worker = _named(WORKER)
    if pair.scheduler:
        scheduler = import_module(pair.scheduler).AuxOutputSchedulerConnector
    if pair.worker:
        worker = import_module(pair.worker).AuxOutputWorkerConnector
    if pair.errors:
        scheduler, worker = partial(scheduler, errors=pair.errors), partial(worker, errors=pair.errors)
    made = worker if spoil is None else lambda **given: spoil(worker(**given))
    with patch(SCHEDULER, scheduler), patch(WORKER, made):
        yield


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


_SCHEDULER_STATE = ("_sent_hash_counts", "_finished_requests", "_num_sent", "_active", "_ended")
"""What the scheduler connectors call the requests that run and the events that wait."""


def leftovers(scheduler: Any, worker: Any) -> dict[str, int]:
    """What a drained pair still holds of requests; empty if nothing."""
    held = {name: len(getattr(scheduler, name)) for name in _SCHEDULER_STATE if hasattr(scheduler, name)}
    assert held, "no scheduler connector whose state is known"
    if hasattr(worker, "usage"):
        usage = worker.usage()._asdict()
        # Objects stay for later hits; nobody refers to them.
        usage.pop("objects")
        held |= usage
    else:
        worker._store._queue.join()
        held["requests"] = len(worker._requests)
        held["steps in flight"] = len(worker._pending_outputs)
        held["references"] = len(worker._store._store._references)
        held["tails"] = len(worker._buffer._requests)
        held["blocks without key"] = len(worker._buffer._owned_slots)
    return {name: count for name, count in held.items() if count}


class Spoiled:
    """A worker connector that returns wrong rows in two of a hundred steps.

    Args:
        connector: the one that does the work.
        kind: ``value``: one number differs; ``shifted``: each row is that of the position before; ``swapped``: two
            requests have each other's rows; ``missing``: the last row is not there, which the scheduler connector
            refuses.
    """

    KINDS = ("value", "shifted", "swapped")

    def __init__(self, connector: Any, kind: str) -> None:
        self._connector, self._kind, self._random = connector, kind, Random(7)
        self.num_spoiled = 0

    def prepare_output(self, batch: Any) -> Any:
        """A step whose output may be spoiled."""
        return _Spoiling(self._connector.prepare_output(batch), self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def spoil(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """The outputs of a step, in two of a hundred wrong."""
        names = [name for name, part in outputs.items() if len(part.rows)]
        if self._random.random() >= 0.02 or not names:
            return outputs
        first, *others = self._random.sample(names, k=len(names))
        part, rows = outputs[first], np.array(outputs[first].rows)
        if self._kind == "value":
            rows[-1, 0, 0] ^= 1
        elif self._kind == "shifted":
            rows = np.concatenate((rows[:1] ^ 1, rows[:-1]))
        elif self._kind == "missing":
            rows = rows[:-1]
        else:
            same = [name for name in others if len(outputs[name].rows) == len(rows)]
            if not same:
                return outputs
            rows = outputs[same[0]].rows
        self.num_spoiled += 1
        return {**dict(outputs.items()), first: type(part)(part.token_start, rows)}


class _Spoiling:
    """A step in flight whose output passes through ``Spoiled.spoil``."""

    def __init__(self, pending: Any, owner: Spoiled) -> None:
        self._pending, self._owner = pending, owner

    def process_output(self) -> dict[str, Any]:
        return self._owner.spoil(self._pending.process_output())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pending, name)
