"""One way to drive every worker: the runner-independent core, and vLLM's torch connector.

A driver is built for one engine (``Sizes``) and offers the worker's life: a step begins, its rows are prepared,
later it is processed. Rows are numpy arrays ``(total, num_layers, top_k)`` of ``ROW_DTYPE``; whatever was handed
over is overwritten as soon as it was prepared, as the next forward pass overwrites a capture buffer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np

from auxout_spec.profiles import PER_REQUEST

from ..objects import NUM_EXPERTS, ROW_DTYPE, ROW_SHAPE, later_rows
from ..observation import Usage

MAX_BATCH = 8
"""Requests in one step."""
MAX_TOKENS = 256
"""Rows in one step."""


class Sizes(NamedTuple):
    """What a worker is built for."""

    block_size: int
    """Tokens per hash block."""
    capacity: int
    """Objects that the store may hold."""
    depth: int
    """Steps that may be in flight."""


class Driver(Protocol):
    """A worker under judgement."""

    def begin_step(self, metadata: Any) -> None: ...

    def prepare(
        self,
        request_ids: Sequence[str],
        starts: Sequence[int],
        bounds: Sequence[int],
        rows: np.ndarray[Any, Any],
    ) -> Any:
        """The step in flight. ``rows`` is worthless afterwards."""
        ...

    def process(
        self, pending: Any, num_sampled: Sequence[int], num_rejected: Sequence[int]
    ) -> Mapping[str, Any]: ...

    def usage(self) -> Usage | None:
        """What the worker holds; None if it cannot tell."""
        ...

    def close(self) -> None: ...


MakeDriver = Callable[[str, Sizes], Driver]
"""Profile name and sizes -> a fresh worker."""


def signature(factory: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a factory, as far as they can be told."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}


def errors_of(profile: str, factory: Any, name: str) -> dict[str, Any]:
    """What a profile's variant, in which requests fail, asks of a factory.

    Raises:
        TypeError: the factory does not take it.
    """
    if not profile.endswith(PER_REQUEST):
        return {}
    if "errors" not in signature(factory):
        raise TypeError(f"{name} takes no errors= argument, so it is not judged under {profile}")
    return {"errors": "request"}


class CoreDriver:
    """Drives a ``WorkerCore``: numpy in, numpy out."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def begin_step(self, metadata: Any) -> None:
        self._core.begin_step(metadata)

    def prepare(
        self,
        request_ids: Sequence[str],
        starts: Sequence[int],
        bounds: Sequence[int],
        rows: np.ndarray[Any, Any],
    ) -> Any:
        pending = self._core.prepare_output(list(request_ids), np.array(starts), np.array(bounds), rows)
        rows[...] = later_rows(len(rows))
        return pending

    def process(
        self, pending: Any, num_sampled: Sequence[int], num_rejected: Sequence[int]
    ) -> Mapping[str, Any]:
        return self._core.process_output(pending, np.array(num_sampled), np.array(num_rejected))

    def usage(self) -> Usage | None:
        tell = getattr(self._core, "usage", None)
        return None if tell is None else Usage(*map(int, tell()))

    def close(self) -> None:
        self._core.close()


def core_maker(factory: Callable[..., Any]) -> MakeDriver:
    """Workers made by a ``WorkerCore`` class, or by a function with its parameters."""
    takes_profile = "profile" in inspect.signature(factory).parameters

    def make(profile: str, sizes: Sizes) -> Driver:
        more: dict[str, Any] = errors_of(profile, factory, "the worker")
        if takes_profile and profile:
            more["profile"] = profile.removesuffix(PER_REQUEST)
        core = factory(
            block_size=sizes.block_size,
            shape_per_token=ROW_SHAPE,
            dtype=ROW_DTYPE.name,
            max_objects=sizes.capacity,
            max_num_seqs=MAX_BATCH,
            max_in_flight=sizes.depth,
            **more,
        )
        return CoreDriver(core)

    return make


class ConnectorDriver:
    """Drives an ``AuxOutputWorkerConnector`` on the CPU, through a model that is nothing but its routers."""

    def __init__(self, factory: Callable[..., Any], sizes: Sizes, more: Mapping[str, Any]) -> None:
        import torch

        self._torch = torch
        self._model = _routers(torch)
        self._connector = factory(
            vllm_config=_config(sizes),
            model=self._model,
            kv_cache_config=SimpleNamespace(num_blocks=sizes.capacity),
            **more,
        )

    def begin_step(self, metadata: Any) -> None:
        self._connector.begin_step(metadata)

    def prepare(
        self,
        request_ids: Sequence[str],
        starts: Sequence[int],
        bounds: Sequence[int],
        rows: np.ndarray[Any, Any],
    ) -> Any:
        self._forward(rows)
        padding = MAX_BATCH - len(request_ids)
        batch = SimpleNamespace(
            req_ids=list(request_ids),
            num_reqs=len(request_ids),
            query_start_loc_np=np.array([*bounds, *[bounds[-1]] * padding], np.int32),
            num_computed_tokens_np=np.array(starts, np.int32),
        )
        pending = self._connector.prepare_output(batch)
        # As in the runner: the copy is enqueued at once, and the counts arrive while it is under way.
        counts = tuple(np.zeros(len(request_ids), np.int32) for _ in range(2))
        pending.enqueue_cpu_copy(*counts)
        self._forward(later_rows(MAX_TOKENS))
        return pending, counts

    def _forward(self, rows: np.ndarray[Any, Any]) -> None:
        for layer, router in enumerate(self._model.children()):
            router.capture_fn(self._torch.from_numpy(rows[:, layer].astype(np.int32)))

    def process(
        self, pending: Any, num_sampled: Sequence[int], num_rejected: Sequence[int]
    ) -> Mapping[str, Any]:
        step, counts = pending
        counts[0][:], counts[1][:] = num_sampled, num_rejected
        return step.process_output()

    def usage(self) -> Usage | None:
        tell = getattr(self._connector, "usage", None)
        return Usage(*map(int, tell())) if tell is not None else released_usage(self._connector)

    def close(self) -> None:
        self._connector.close()


def connector_maker(factory: Callable[..., Any]) -> MakeDriver:
    """Workers of a class with vLLM's constructor."""
    return lambda profile, sizes: ConnectorDriver(
        factory, sizes, errors_of(profile, factory, "the worker connector")
    )


def released_usage(connector: Any) -> Usage | None:
    """What a worker of vLLM 0.31 or 0.32 holds: it has no method for that, so its fields are read."""
    try:
        writer, buffer = connector._store, connector._buffer
        if writer is None:
            return Usage(0, 0, 0, 0, 0)
        writer._queue.join()
        store, requests = writer._store, connector._requests.values()
        waiting = sum(len(rows) for request in requests for _, rows in request.pending_blocks)
        return Usage(
            len(requests),
            len(connector._pending_outputs),
            sum(store._references.values()),
            len(store._lru),
            waiting + int(sum(tail.length for tail in buffer._requests.values())),
        )
    except AttributeError:
        return None


def _routers(torch: Any) -> Any:
    """A model with one capture source a layer."""

    class Router(torch.nn.Module):
        def __init__(self, layer_id: int) -> None:
            super().__init__()
            self.layer_id, self.capture_fn = layer_id, None

    return torch.nn.Sequential(*(Router(layer) for layer in range(ROW_SHAPE[0])))


def _config(sizes: Sizes) -> Any:
    """The fields of vLLM's configuration that a worker connector reads."""
    object_bytes = sizes.block_size * ROW_SHAPE[0] * ROW_SHAPE[1] * ROW_DTYPE.itemsize
    model = SimpleNamespace(
        get_total_num_hidden_layers=lambda: ROW_SHAPE[0],
        get_num_experts=lambda: NUM_EXPERTS,
        get_num_experts_per_tok=lambda: ROW_SHAPE[1],
        hf_text_config=SimpleNamespace(model_type="routers"),
    )
    return SimpleNamespace(
        model_config=model,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=MAX_TOKENS, max_num_seqs=MAX_BATCH),
        parallel_config=SimpleNamespace(data_parallel_rank=0, tensor_parallel_size=1),
        aux_output_config=SimpleNamespace(max_bytes=sizes.capacity * object_bytes),
        cache_config=SimpleNamespace(block_size=sizes.block_size),
        max_concurrent_batches=sizes.depth,
    )
