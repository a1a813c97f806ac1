"""What the benchmark times: engine states of realistic shape, one population per implementation.

Requests have the shape of vLLM's: token counts are properties over lists, hash lists grow in place, sampling
parameters are an object behind an attribute. Every workload advances its requests outside the timed part.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from hashlib import sha256
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

BLOCK_SIZE = 16
ROW = (48, 8)
"""(layers, top_k) of a row, one byte an id."""


class Request:
    """A request with the attributes of vLLM's that the connectors read."""

    def __init__(self, name: str, num_prompt_tokens: int) -> None:
        self.request_id = name
        self.num_prompt_tokens = num_prompt_tokens
        self._all_token_ids = [0] * num_prompt_tokens
        self._output_token_ids: list[int] = []
        self.sampling_params = SimpleNamespace(routed_experts_prompt_start=0)
        self.finished = False
        self.block_hashes: list[bytes] = []
        self.hash_full_blocks()

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self._output_token_ids)

    def is_finished(self) -> bool:
        return self.finished

    def append(self) -> None:
        """One more sampled token."""
        self._all_token_ids.append(0)
        self._output_token_ids.append(0)
        self.hash_full_blocks()

    def hash_full_blocks(self) -> None:
        while len(self.block_hashes) < len(self._all_token_ids) // BLOCK_SIZE:
            name = f"{self.request_id}/{len(self.block_hashes)}"
            self.block_hashes.append(sha256(name.encode()).digest())


class Timed(NamedTuple):
    """One round: what to time. ``finish`` runs untimed afterwards."""

    action: Callable[[], Any]
    finish: Callable[[Any], None] = lambda result: None


Workload = Callable[[ModuleType], Iterator[Timed]]
"""A module with the connector's names -> an endless series of rounds."""


def decode(num_requests: int, share: float = 1.0) -> Workload:
    """Decode steps: every scheduled request has a new token, one in 16 a new hash.

    Args:
        share: the share of the requests that a step schedules; the others keep their tokens.
    """

    def rounds(module: ModuleType) -> Iterator[Timed]:
        connector, requests = _running(module, num_requests)
        names = list(requests)
        step = 0
        while True:
            count = max(int(num_requests * share), 1)
            start = step * count % num_requests
            scheduled = (names + names)[start : start + count]
            for name in scheduled:
                requests[name].append()
            output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(scheduled, 1))
            yield Timed(lambda output=output: connector.build_connector_meta(output, requests))
            step += 1

    return rounds


def prefill(num_requests: int, num_hashes: int) -> Workload:
    """A step that starts requests with long prompts: all their hashes are sent."""

    def rounds(module: ModuleType) -> Iterator[Timed]:
        requests = {f"p{i}": Request(f"p{i}", num_hashes * BLOCK_SIZE) for i in range(num_requests)}
        output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(requests, num_hashes * BLOCK_SIZE))
        while True:
            connector = module.AuxOutputSchedulerConnector()
            yield Timed(lambda connector=connector: connector.build_connector_meta(output, requests))

    return rounds


def take_output(num_requests: int) -> Workload:
    """Taking one decode row for each request of a step."""

    def rounds(module: ModuleType) -> Iterator[Timed]:
        connector, requests = _running(module, num_requests)
        rows = np.zeros((1, *ROW), np.uint8)
        while True:
            for request in requests.values():
                request.append()
            worker_output = {
                name: module.AuxRequestOutput(request.num_tokens - 2, rows)
                for name, request in requests.items()
            }
            taken = list(requests.values())

            def action(taken: list[Request] = taken, worker_output: Any = worker_output) -> None:
                for request in taken:
                    connector.take_output(request, worker_output)

            yield Timed(action)

    return rounds


def request_finished(num_requests: int, num_tokens: int) -> Workload:
    """Ending requests of which no hash was sent but the first half."""

    def rounds(module: ModuleType) -> Iterator[Timed]:
        half = num_tokens // 2 // BLOCK_SIZE
        requests = {f"f{i}": Request(f"f{i}", num_tokens) for i in range(num_requests)}
        whole = {name: list(request.block_hashes) for name, request in requests.items()}
        output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(requests, num_tokens))
        while True:
            connector = module.AuxOutputSchedulerConnector()
            for name, request in requests.items():
                request.block_hashes[:] = whole[name][:half]
            connector.build_connector_meta(output, requests)
            for name, request in requests.items():
                request.block_hashes[:] = whole[name]
            ending = list(requests.values())

            def action(connector: Any = connector, ending: list[Request] = ending) -> None:
                for request in ending:
                    connector.request_finished(request)

            yield Timed(action)

    return rounds


def dumps(num_requests: int) -> Workload:
    """Pickling a decode step's metadata."""
    return _pickled(num_requests, lambda metadata: lambda: pickle.dumps(metadata, protocol=5))


def loads(num_requests: int) -> Workload:
    """Unpickling it, and reading it as a worker does."""

    def action(metadata: Any) -> Callable[[], Any]:
        data = pickle.dumps(metadata, protocol=5)

        def read() -> int:
            arrived = pickle.loads(data)
            found = arrived.requests.keys() & arrived.finished_requests
            total = sum(start for _, start in arrived.requests.items())
            return total + len(found) + sum(len(list(packed)) for _, packed in arrived.block_hashes.items())

        return read

    return _pickled(num_requests, action)


def pickled_size(module: ModuleType, num_requests: int) -> int:
    """Bytes of a decode step's pickled metadata."""
    rounds = decode(num_requests)(module)
    sizes = [len(pickle.dumps(next(rounds).action(), protocol=5)) for _ in range(BLOCK_SIZE)]
    return int(np.median(sizes))


def _pickled(num_requests: int, make: Callable[[Any], Callable[[], Any]]) -> Workload:
    def rounds(module: ModuleType) -> Iterator[Timed]:
        for timed in decode(num_requests)(module):
            yield Timed(make(timed.action()))

    return rounds


def _running(module: ModuleType, num_requests: int) -> tuple[Any, dict[str, Request]]:
    """A connector with decoding requests whose blocks fill in turn."""
    requests = {f"req-{i:06d}": Request(f"req-{i:06d}", 64 + i % BLOCK_SIZE) for i in range(num_requests)}
    for request in requests.values():
        request.append()
    connector = module.AuxOutputSchedulerConnector()
    connector.build_connector_meta(
        SimpleNamespace(num_scheduled_tokens=dict.fromkeys(requests, 64)), requests
    )
    return connector, requests
