"""One way to drive every worker: the runner-independent core, and vLLM's torch connector.

A driver is built for one engine (``Sizes``) and offers the worker's life: a step begins, its rows are prepared,
later it is processed. Rows are numpy arrays ``(total, num_layers, top_k)`` of the representation's type; they are
overwritten as soon as they were prepared, as the next forward pass overwrites a capture buffer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np

from auxout_spec.profiles import PER_REQUEST
from auxout_spec.representation import PLAIN, Representation

from ..objects import RowCodec
from ..observation import Usage

WORKER_PARAMETERS = ("vllm_config", "model", "kv_cache_config")
"""What vLLM's worker connector is built with."""
OVERWRITTEN = "<overwritten>"
"""What stands where an id was in a list that is used again."""


class Sizes(NamedTuple):
    """What a worker is built for."""

    block_size: int
    """Tokens per hash block."""
    capacity: int
    """Objects that the store may hold."""
    depth: int
    """Steps that may be in flight."""
    requests: int = 8
    """Requests in one step."""
    tokens: int = 256
    """Rows in one step."""


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

    def changed(self) -> str:
        """What of the runner's the last call changed; empty if nothing."""
        ...

    def usage(self) -> Usage | None:
        """What the worker holds; None if it cannot tell."""
        ...

    def close(self) -> None: ...


class MakeDriver(Protocol):
    """Makes a fresh worker."""

    def __call__(self, profile: str, sizes: Sizes, representation: Representation = PLAIN) -> Driver: ...


class Buffers:
    """The runner's arrays of a step: new ones for each step, or always the same ones, overwritten in between."""

    def __init__(self, representation: Representation) -> None:
        self._reused = representation.buffers == "reused"
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._ids: list[str] = []
        self._given: list[tuple[str, Any, Any]] = []
        """What the call in progress was given: a name, the thing and a copy of it."""
        self.changed = ""
        """What the last call changed, by name."""

    def ids(self, request_ids: Sequence[str]) -> list[str]:
        """The batch's ids."""
        given = self._ids if self._reused else []
        given[:] = request_ids
        self._given.append(("the ids of the batch", given, list(given)))
        return given

    def numbers(self, name: str, values: Sequence[int], dtype: str = "int64") -> np.ndarray[Any, Any]:
        """One of the batch's arrays."""
        fresh = given = np.array(values, dtype)
        if self._reused:
            kept = self._arrays.get(name)
            if kept is None or len(kept) < len(fresh):
                kept = self._arrays[name] = np.empty(max(len(fresh), 64), dtype)
            given = kept[: len(fresh)]
            given[:] = fresh
        return self.watch(name, given)

    def rows(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The capture buffer."""
        return self.watch("the captured rows", rows)

    def watch(self, name: str, given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An array that the call in progress may only read."""
        self._given.append((name, given, given.copy()))
        return given

    def overwrite(self) -> None:
        """The call that got them is over."""
        self.changed = ", ".join(name for name, given, copy in self._given if not np.array_equal(given, copy))
        self._given.clear()
        self._ids[:] = [OVERWRITTEN] * len(self._ids)
        for kept in self._arrays.values():
            kept[:] = -1


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

    def __init__(self, core: Any, representation: Representation) -> None:
        self._core, self._buffers = core, Buffers(representation)
        self._rows = RowCodec(representation)

    def begin_step(self, metadata: Any) -> None:
        self._core.begin_step(metadata)

    def prepare(
        self,
        request_ids: Sequence[str],
        starts: Sequence[int],
        bounds: Sequence[int],
        rows: np.ndarray[Any, Any],
    ) -> Any:
        made = self._buffers
        try:
            return self._core.prepare_output(
                made.ids(request_ids),
                made.numbers("starts", starts),
                made.numbers("bounds", bounds),
                made.rows(rows),
            )
        finally:
            made.overwrite()
            rows[...] = self._rows.later(len(rows))

    def process(
        self, pending: Any, num_sampled: Sequence[int], num_rejected: Sequence[int]
    ) -> Mapping[str, Any]:
        made = self._buffers
        try:
            return self._core.process_output(
                pending, made.numbers("sampled", num_sampled), made.numbers("rejected", num_rejected)
            )
        finally:
            made.overwrite()

    def changed(self) -> str:
        return self._buffers.changed

    def usage(self) -> Usage | None:
        tell = getattr(self._core, "usage", None)
        return None if tell is None else Usage(*map(int, tell()))

    def close(self) -> None:
        self._core.close()


def core_maker(factory: Callable[..., Any]) -> MakeDriver:
    """Workers made by a ``WorkerCore`` class, or by a function with its parameters."""
    takes_profile = "profile" in inspect.signature(factory).parameters

    def make(profile: str, sizes: Sizes, representation: Representation = PLAIN) -> Driver:
        more: dict[str, Any] = errors_of(profile, factory, "the worker")
        if takes_profile and profile:
            more["profile"] = profile.removesuffix(PER_REQUEST)
        rows = RowCodec(representation)
        core = factory(
            block_size=sizes.block_size,
            shape_per_token=rows.shape,
            dtype=rows.dtype.name,
            max_objects=sizes.capacity,
            max_num_seqs=sizes.requests,
            max_in_flight=sizes.depth,
            **more,
        )
        return CoreDriver(core, representation)

    return make


class ConnectorDriver:
    """Drives an ``AuxOutputWorkerConnector`` on the CPU, through a model that is nothing but its routers."""

    def __init__(
        self,
        factory: Callable[..., Any],
        sizes: Sizes,
        representation: Representation,
        more: Mapping[str, Any],
    ) -> None:
        import torch

        self._torch, self._sizes = torch, sizes
        self._model = _routers(torch, representation.layers)
        self._rows, self._buffers = RowCodec(representation), Buffers(representation)
        given = (_config(sizes, representation), self._model, SimpleNamespace(num_blocks=sizes.capacity))
        self._connector = factory(**dict(zip(WORKER_PARAMETERS, given, strict=True)), **more)

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
        padding, made = self._sizes.requests - len(request_ids), self._buffers
        batch = SimpleNamespace(
            req_ids=made.ids(request_ids),
            num_reqs=len(request_ids),
            query_start_loc_np=made.numbers("bounds", [*bounds, *[bounds[-1]] * padding], "int32"),
            num_computed_tokens_np=made.numbers("starts", starts, "int32"),
        )
        try:
            pending = self._connector.prepare_output(batch)
            # As in the runner: the copy is enqueued at once, and the counts arrive while it is under way.
            counts = tuple(np.zeros(len(request_ids), np.int32) for _ in range(2))
            pending.enqueue_cpu_copy(*counts)
        finally:
            made.overwrite()
            self._forward(self._rows.later(self._sizes.tokens))
        return pending, counts

    def _forward(self, rows: np.ndarray[Any, Any]) -> None:
        for layer, router in enumerate(self._model.children()):
            router.capture_fn(self._torch.from_numpy(rows[:, layer].astype(np.int32)))

    def process(
        self, pending: Any, num_sampled: Sequence[int], num_rejected: Sequence[int]
    ) -> Mapping[str, Any]:
        step, counts = pending
        counts[0][:], counts[1][:] = num_sampled, num_rejected
        for name, given in zip(("sampled", "rejected"), counts, strict=True):
            self._buffers.watch(name, given)
        try:
            return step.process_output()
        finally:
            self._buffers.overwrite()

    def changed(self) -> str:
        return self._buffers.changed

    def usage(self) -> Usage | None:
        tell = getattr(self._connector, "usage", None)
        return Usage(*map(int, tell())) if tell is not None else released_usage(self._connector)

    def close(self) -> None:
        self._connector.close()


def connector_maker(factory: Callable[..., Any]) -> MakeDriver:
    """Workers of a class with vLLM's constructor."""

    def make(profile: str, sizes: Sizes, representation: Representation = PLAIN) -> Driver:
        more = errors_of(profile, factory, "the worker connector")
        return ConnectorDriver(factory, sizes, representation, more)

    return make


def released_usage(connector: Any) -> Usage | None:
    """What a worker of vLLM holds: it has no method for that, so its fields are read."""
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
            # Until 0.32 every object is in the order of age, since 0.33 those alone that may go.
            len(getattr(store, "_slots", store._lru)),
            waiting + int(sum(tail.length for tail in buffer._requests.values())),
        )
    except AttributeError:
        return None


def _routers(torch: Any, num_layers: int) -> Any:
    """A model with one capture source a layer."""

    class Router(torch.nn.Module):
        def __init__(self, layer_id: int) -> None:
            super().__init__()
            self.layer_id, self.capture_fn = layer_id, None

    return torch.nn.Sequential(*(Router(layer) for layer in range(num_layers)))


def _config(sizes: Sizes, representation: Representation) -> Any:
    """The fields of vLLM's configuration that a worker connector reads."""
    layers, top_k, experts = representation.layers, representation.top_k, representation.experts
    object_bytes = sizes.block_size * layers * top_k * RowCodec(representation).dtype.itemsize
    model = SimpleNamespace(
        get_total_num_hidden_layers=lambda: layers,
        get_num_experts=lambda: experts,
        get_num_experts_per_tok=lambda: top_k,
        hf_text_config=SimpleNamespace(model_type="routers"),
    )
    return SimpleNamespace(
        model_config=model,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=sizes.tokens, max_num_seqs=sizes.requests),
        parallel_config=SimpleNamespace(data_parallel_rank=0, tensor_parallel_size=1),
        aux_output_config=SimpleNamespace(max_bytes=sizes.capacity * object_bytes),
        cache_config=SimpleNamespace(block_size=sizes.block_size),
        max_concurrent_batches=sizes.depth,
    )
