"""Worker connectors to be timed: the released one and ours, each in vLLM's shape and fed with ready-made rows.

Rows come as torch tensors in the row type, as the snapshot of a capture buffer would: capture itself is the model's
time, and the same for both.
"""

from __future__ import annotations

import importlib
import mmap
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

import auxout.connector
import auxout.worker
from auxout_conformance.targets import loading

_CAPTURER = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
MAX_IN_FLIGHT = 2


class Shape(NamedTuple):
    """Rows and blocks of a model."""

    num_layers: int
    top_k: int
    dtype: str = "uint8"
    block_size: int = 16

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.num_layers * self.top_k * np.dtype(self.dtype).itemsize


class Snapshot:
    """Stands in for the capture buffer of either side: the rows of the next step, ready."""

    owned = True

    def __init__(self, shape: Shape) -> None:
        self.shape_per_token = (shape.num_layers, shape.top_k)
        self.output_dtype_name = shape.dtype
        self.next: Any = None

    def take(self, num_tokens: int) -> Any:
        return self.next[:num_tokens]

    snapshot_routing_data = take

    def start_copy(self, snapshot: Any) -> None:
        """There is no device."""

    def rows(self, snapshot: Any) -> Any:
        return snapshot.numpy()

    def release(self, snapshot: Any) -> None:
        """Its memory is its own."""


class Worker:
    """One side: a worker connector, its scheduler connector, and one call for each half of a step."""

    def __init__(
        self, module: ModuleType, connector: Any, snapshot: Snapshot, settle: Callable[[], None]
    ) -> None:
        self.module = module
        self.scheduler = module.AuxOutputSchedulerConnector()
        self.connector = connector
        self.snapshot = snapshot
        self.settle = settle
        """Wait for what the call left to another thread."""

    def begin(self, metadata: Any) -> None:
        self.connector.begin_step(metadata)

    def prepare(self, batch: Any, rows: Any, num_sampled: Any, num_rejected: Any) -> Any:
        """A step's snapshot and copy; the step in flight."""
        self.snapshot.next = rows
        pending = self.connector.prepare_output(batch)
        pending.enqueue_cpu_copy(num_sampled, num_rejected)
        return pending

    def run(self, batch: Any, rows: Any, num_sampled: Any, num_rejected: Any) -> Any:
        """A step's snapshot, copy and processing."""
        return self.prepare(batch, rows, num_sampled, num_rejected).process_output()

    def close(self) -> None:
        self.connector.close()


MakeWorker = Callable[[Shape, int, int], Worker]
"""Shape, requests in a step, blocks that the store holds -> a worker."""


def batch(names: Sequence[str], starts: Any, counts: Any) -> Any:
    """The runner's batch."""
    return SimpleNamespace(
        req_ids=list(names),
        query_start_loc_np=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        num_computed_tokens_np=np.asarray(starts, np.int32),
    )


def released(folder: Path) -> MakeWorker:
    """The released worker, loaded with stand-ins for the modules around it."""
    connector = loading.load_connector_module(folder)
    _install_stand_ins()
    worker = importlib.import_module(f"{loading.PACKAGE}.worker")

    def make(shape: Shape, num_seqs: int, num_blocks: int) -> Worker:
        snapshot = Snapshot(shape)
        vars(worker)["RoutedExpertsCapturer"] = lambda **_: snapshot
        made = worker.AuxOutputWorkerConnector(
            vllm_config=_config(shape, num_seqs),
            model=None,
            kv_cache_config=SimpleNamespace(num_blocks=num_blocks),
        )
        _provide(np.frombuffer(made._store._store._arena, np.uint8))
        return Worker(connector, made, snapshot, made._store._queue.join)

    return make


def ours() -> MakeWorker:
    """Our worker, around the same stand-ins: make the released one first."""

    def make(shape: Shape, num_seqs: int, num_blocks: int) -> Worker:
        made = auxout.worker.AuxOutputWorkerConnector(
            vllm_config=_config(shape, num_seqs),
            model=None,
            kv_cache_config=SimpleNamespace(num_blocks=num_blocks),
        )
        made.snapshots = snapshot = Snapshot(shape)
        assert made._core is not None
        _provide(made._core._store.blocks.reshape(-1).view(np.uint8))
        return Worker(auxout.connector, made, snapshot, lambda: None)

    return make


def _provide(memory: Any) -> None:
    """Let the system provide memory that is else provided when it is first written: a server has long written it."""
    memory[:: mmap.PAGESIZE] = 0


def rows(shape: Shape, num_tokens: int) -> Any:
    """Rows of some ids."""
    generator = torch.Generator().manual_seed(num_tokens)
    ids = torch.randint(0, 128, (num_tokens, shape.num_layers, shape.top_k), generator=generator)
    return ids.to(getattr(torch, shape.dtype))


def _config(shape: Shape, num_seqs: int) -> Any:
    model = SimpleNamespace(
        get_total_num_hidden_layers=lambda: shape.num_layers,
        get_num_experts=lambda: 256 if shape.dtype == "uint8" else 512,
        get_num_experts_per_tok=lambda: shape.top_k,
    )
    return SimpleNamespace(
        model_config=model,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=16384, max_num_seqs=num_seqs),
        parallel_config=SimpleNamespace(data_parallel_rank=0, tensor_parallel_size=1),
        aux_output_config=SimpleNamespace(max_bytes=None),
        cache_config=SimpleNamespace(block_size=shape.block_size),
        max_concurrent_batches=MAX_IN_FLIGHT,
    )


def _install_stand_ins() -> None:
    group = SimpleNamespace(is_first_rank=True)
    names: dict[str, dict[str, Any]] = {
        "vllm.config": {"VllmConfig": object},
        "vllm.platforms": {"current_platform": SimpleNamespace(device_type="cpu")},
        "vllm.distributed.parallel_state": {"get_tp_group": lambda: group},
        _CAPTURER: {
            "RoutedExpertsCapturer": object,
            "bind_routed_experts_capturer": lambda model, capturer: None,
        },
        "vllm.v1.core.kv_cache_utils": {
            "resolve_kv_cache_block_sizes": lambda kv, config: (config.cache_config.block_size,) * 2
        },
    }
    for name, content in names.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
            module.__path__ = getattr(module, "__path__", [])
        sys.modules[name].__dict__.update(content)
