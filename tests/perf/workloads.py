"""What the benchmark times: engine states of realistic shape.

Requests have the shape of vLLM's: token counts are properties over lists, hash lists grow in place, sampling
parameters are an object behind an attribute. All implementations of a comparison work on the same requests,
because how a population lies in memory makes a difference of up to ten per cent. Every workload advances its
requests outside the timed part, and goes over them before each timed action, so that whichever comes first does
not pay for the others' cache misses.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import count
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


class Round(NamedTuple):
    """What to time, one action for each module; ``prepare`` runs untimed before each of them."""

    actions: Sequence[Callable[[], Any]]
    prepare: Callable[[], None]


Workload = Callable[[Sequence[Any]], Iterator[Round]]
"""Modules with the connector's names, or makers of workers -> an endless series of rounds."""


class Fleet:
    """Decoding requests whose blocks fill in turn, and a connector of each module that knows them."""

    def __init__(self, modules: Sequence[ModuleType], num_requests: int) -> None:
        self.requests = {
            name: Request(name, 64 + i % BLOCK_SIZE) for i, name in enumerate(map(_name, range(num_requests)))
        }
        self.connectors = [module.AuxOutputSchedulerConnector() for module in modules]
        for request in self.requests.values():
            request.append()
        self.build(self.requests)

    def build(self, scheduled: Iterable[str]) -> list[Any]:
        """One step's metadata of each connector."""
        return [action() for action in self.builds(scheduled)]

    def builds(self, scheduled: Iterable[str]) -> list[Callable[[], Any]]:
        output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(scheduled, 1))
        return [
            lambda build=each.build_connector_meta: build(output, self.requests) for each in self.connectors
        ]

    def advance(self, scheduled: Iterable[str]) -> Callable[[], None]:
        """One more token for each; returns what goes over them again."""
        moved = [self.requests[name] for name in scheduled]
        for request in moved:
            request.append()

        def look() -> None:
            for request in moved:
                request.hash_full_blocks()
                len(request._output_token_ids)

        return look


def decode(num_requests: int, share: float = 1.0, read: bool = False) -> Workload:
    """Decode steps: every scheduled request has a new token, one in 16 a new hash.

    Args:
        share: the share of the requests that a step schedules; the others keep their tokens.
        read: whether the metadata is also read, as the released worker does.
    """

    def rounds(modules: Sequence[ModuleType]) -> Iterator[Round]:
        fleet = Fleet(modules, num_requests)
        names = list(fleet.requests)
        size = max(int(num_requests * share), 1)
        positions: list[dict[str, int]] = [{} for _ in modules]
        for step in count():
            start = step * size % num_requests
            scheduled = (names + names)[start : start + size]
            look = fleet.advance(scheduled)
            builds = fleet.builds(scheduled)
            if read:
                builds = [
                    lambda build=build, known=known: begin_step(build(), known)
                    for build, known in zip(builds, positions, strict=True)
                ]
            yield Round(builds, look)

    return rounds


def turnover(num_requests: int) -> Workload:
    """Decode steps in each of which one request ends and another starts."""

    def rounds(modules: Sequence[ModuleType]) -> Iterator[Round]:
        fleet = Fleet(modules, num_requests)
        for serial in count(num_requests):
            oldest = next(iter(fleet.requests))
            for connector in fleet.connectors:
                connector.request_finished(fleet.requests[oldest])
            del fleet.requests[oldest]
            name = _name(serial)
            fleet.requests[name] = Request(name, 64 + serial % BLOCK_SIZE)
            look = fleet.advance(fleet.requests)
            yield Round(fleet.builds(fleet.requests), look)

    return rounds


def prefill(num_requests: int, num_hashes: int) -> Workload:
    """A step that starts requests with long prompts: all their hashes are sent."""

    def rounds(modules: Sequence[ModuleType]) -> Iterator[Round]:
        requests = {f"p{i}": Request(f"p{i}", num_hashes * BLOCK_SIZE) for i in range(num_requests)}
        output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(requests, num_hashes * BLOCK_SIZE))
        while True:
            connectors = [module.AuxOutputSchedulerConnector() for module in modules]
            yield Round(
                [lambda build=each.build_connector_meta: build(output, requests) for each in connectors],
                lambda: _look_at_hashes(requests.values()),
            )

    return rounds


def take_output(num_requests: int) -> Workload:
    """Taking one decode row for each request of a step."""

    def rounds(modules: Sequence[ModuleType]) -> Iterator[Round]:
        fleet = Fleet(modules, num_requests)
        rows = np.zeros((1, *ROW), np.uint8)
        taken = list(fleet.requests.values())

        def take_all(connector: Any, output: Any) -> None:
            for request in taken:
                connector.take_output(request, output)

        while True:
            look = fleet.advance(fleet.requests)
            actions: list[Callable[[], Any]] = []
            for module, connector in zip(modules, fleet.connectors, strict=True):
                output = {
                    each.request_id: module.AuxRequestOutput(each.num_tokens - 2, rows) for each in taken
                }
                actions.append(lambda connector=connector, output=output: take_all(connector, output))
            yield Round(actions, look)

    return rounds


def request_finished(num_requests: int, num_tokens: int, num_unsent: int) -> Workload:
    """Ending requests of which the last hashes were not sent."""

    def rounds(modules: Sequence[ModuleType]) -> Iterator[Round]:
        num_sent = num_tokens // BLOCK_SIZE - num_unsent
        requests = {f"f{i}": Request(f"f{i}", num_tokens) for i in range(num_requests)}
        whole = {name: list(request.block_hashes) for name, request in requests.items()}
        output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(requests, num_tokens))
        ending = list(requests.values())

        def end_all(connector: Any) -> None:
            for request in ending:
                connector.request_finished(request)

        while True:
            connectors = [module.AuxOutputSchedulerConnector() for module in modules]
            for request in ending:
                del request.block_hashes[num_sent:]
            for connector in connectors:
                connector.build_connector_meta(output, requests)
            for name, request in requests.items():
                request.block_hashes.extend(whole[name][num_sent:])
            yield Round(
                [lambda connector=each: end_all(connector) for each in connectors],
                lambda: _look_at_hashes(ending),
            )

    return rounds


def dumps(num_requests: int) -> Workload:
    """Pickling a decode step's metadata."""

    def rounds(modules: Sequence[ModuleType]) -> Iterator[Round]:
        fleet = Fleet(modules, num_requests)
        while True:
            look = fleet.advance(fleet.requests)
            made = fleet.build(fleet.requests)
            yield Round([lambda metadata=each: pickle.dumps(metadata, protocol=5) for each in made], look)

    return rounds


def loads(num_requests: int) -> Workload:
    """Unpickling it, and reading it as the released worker does."""

    def rounds(modules: Sequence[ModuleType]) -> Iterator[Round]:
        fleet = Fleet(modules, num_requests)
        positions: list[dict[str, int]] = [{} for _ in modules]
        while True:
            look = fleet.advance(fleet.requests)
            sent = [pickle.dumps(metadata, protocol=5) for metadata in fleet.build(fleet.requests)]
            yield Round(
                [
                    lambda data=data, known=known: begin_step(pickle.loads(data), known)
                    for data, known in zip(sent, positions, strict=True)
                ],
                look,
            )

    return rounds


def begin_step(metadata: Any, positions: dict[str, int]) -> None:
    """Read metadata as the released worker's ``begin_step`` does, and do little with it."""
    if metadata.requests.keys() & metadata.finished_requests:
        raise AssertionError("a request runs and ended")
    for request_id, start in metadata.requests.items():
        positions.setdefault(request_id, start)
    for request_id, block_hashes in metadata.block_hashes.items():
        positions[request_id] += len(list(block_hashes))
    for request_id in metadata.finished_requests:
        del positions[request_id]


def pickled_size(module: ModuleType, num_requests: int) -> int:
    """Bytes of a decode step's pickled metadata."""
    fleet = Fleet([module], num_requests)
    sizes: list[int] = []
    for _ in range(BLOCK_SIZE):
        fleet.advance(fleet.requests)
        sizes.append(len(pickle.dumps(fleet.build(fleet.requests)[0], protocol=5)))
    return int(np.median(sizes))


def _name(serial: int) -> str:
    return f"req-{serial:06d}"


def _look_at_hashes(requests: Iterable[Request]) -> None:
    for request in requests:
        max(map(len, request.block_hashes))
