"""A drop-in for ``vllm.distributed.aux_output_connector.worker``: capture, copy and the core, put together.

The router of every MoE layer calls ``RoutedExpertsCapturer.capture`` inside the forward pass. After it
``prepare_output`` takes a snapshot (``_snapshots``), its copy to the host runs beside the next steps, and
``process_output`` hands the rows to the core (``core``), on the thread that consumes the step's output. Every tensor-
parallel rank captures; the first one owns store and outputs.

Importing this module needs neither torch nor vLLM.
"""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _foreign, routed_experts
from ._options import announce, errors_mode, logger, self_checks
from ._snapshots import snapshots_of
from .core import Usage, WorkerCore
from .routed_experts import Batch
from .store import ArenaStore, BackgroundStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ._options import Errors
    from ._snapshots import Snapshots
    from ._steps import PendingStep
    from ._wire import AuxOutputConnectorMetadata, AuxRequestOutput


class RoutedExpertsCapturer:
    """The capture buffer of one rank. Its hook may be part of a captured graph.

    The hook writes to fixed memory, with shapes that follow from the padded batch alone, and waits for nothing: the
    counts of a data-parallel batch are in host memory.
    """

    def __init__(self, max_num_batched_tokens: int, vllm_config: Any, device: str | None = None) -> None:
        """Allocate the buffer.

        Args:
            max_num_batched_tokens: most tokens of one step, padding included.
            vllm_config: vLLM's configuration; the model's layers, experts and top k are read.
            device: where the model runs; None: where the platform says.

        Raises:
            ValueError: the model has no routed experts, or too many.
        """
        torch = _foreign.torch()
        model = vllm_config.model_config
        self.num_experts: int = model.get_num_experts()
        self.shape_per_token: tuple[int, int] = (
            model.get_total_num_hidden_layers(),
            model.get_num_experts_per_tok(),
        )
        if min(self.shape_per_token) < 1:
            raise ValueError(f"a model with rows of shape {self.shape_per_token} has no routed experts")
        self.output_dtype_name = routed_experts.row_dtype(self.num_experts)
        self.output_dtype = getattr(torch, self.output_dtype_name)
        # Wide enough for what routers return, padding's -1 included; narrowed when padding is cut.
        self.device_buffer = torch.zeros(
            (max_num_batched_tokens, *self.shape_per_token),
            dtype=torch.int32,
            device=device or _foreign.device_type(),
        )
        parallel = vllm_config.parallel_config
        self.dp_rank: int = parallel.data_parallel_rank
        self.tp_size: int = parallel.tensor_parallel_size

    def capture(self, layer_id: int, topk_ids: Any) -> None:
        """Store what the router of one layer chose for this rank's tokens.

        Args:
            layer_id: global layer.
            topk_ids: ``(num_tokens, top_k)`` logical ids, in any of the layouts of ``routed_experts.locate``.

        Raises:
            IndexError: no such layer.
            ValueError: ids of another shape, or of more tokens than the buffer has.
        """
        metadata = _foreign.dp_metadata()
        batch = Batch()
        if metadata is not None:
            counts = metadata.num_tokens_across_dp_cpu.tolist()
            shards = getattr(metadata, "local_sizes", None)
            batch = Batch(counts, self.dp_rank, self.tp_size, shards)
        self.store(layer_id, topk_ids, batch)

    def snapshot_routing_data(self, num_tokens: int) -> Any:
        """A copy of the first rows, ``(num_tokens, num_layers, top_k)`` in ``output_dtype``, on the same device."""
        return self.device_buffer[:num_tokens].to(self.output_dtype)

    def store(self, layer_id: int, topk_ids: Any, batch: Batch, offset: int = 0) -> None:
        """``capture`` with the batch given.

        Args:
            offset: tokens of the step before those of this micro-batch.
        """
        routed_experts.require_layer(layer_id, self.shape_per_token[0])
        rows = routed_experts.locate(len(topk_ids), batch)
        if rows.gather:
            topk_ids = _foreign.tp_group().all_gather(topk_ids, dim=0)
        ids = routed_experts.logical_ids(topk_ids[rows.start : rows.stop], self.shape_per_token[1])
        end = offset + len(ids)
        if end > len(self.device_buffer):
            raise ValueError(f"ids of {end} tokens do not fit a capture buffer of {len(self.device_buffer)}")
        self.device_buffer[offset:end, layer_id] = ids


class PendingAuxOutput:
    """One step's rows on their way to the host.

    Attributes:
        connector: that prepared it.
        num_sampled: ``(batch,)``, sampled tokens of each request; None before ``enqueue_cpu_copy``.
        num_rejected: ``(batch,)``, rejected drafts; likewise.
    """

    def __init__(self, connector: AuxOutputWorkerConnector, step: PendingStep, snapshot: Any) -> None:
        """Made by ``AuxOutputWorkerConnector.prepare_output``."""
        self.connector = connector
        self.num_sampled: NDArray[Any] | None = None
        self.num_rejected: NDArray[Any] | None = None
        self.step = step
        self.snapshot = snapshot
        """None when the step is processed: its memory may be that of another step then."""

    @property
    def request_ids(self) -> list[str]:
        """The batch, in order."""
        return list(self.step.roster.ids)

    @property
    def token_starts(self) -> NDArray[Any]:
        """``(batch,)``, first position of each request as it was scheduled."""
        return self.step.starts

    @property
    def query_start_loc(self) -> NDArray[Any]:
        """``(batch + 1,)``, where each request's rows begin; the last is their number."""
        return self.step.bounds

    @property
    def routed_experts_gpu(self) -> Any:
        """The snapshot's tensor, ``(total, num_layers, top_k)``, on the model's device; None when it is processed."""
        return None if self.snapshot is None else self.connector.snapshots.tensor(self.snapshot)

    @property
    def routed_experts(self) -> NDArray[Any] | None:
        """Its rows on the host, waiting for the copy; None before ``enqueue_cpu_copy`` and when it is processed."""
        if self.snapshot is None or self.num_sampled is None:
            return None
        return self.connector.snapshots.rows(self.snapshot)

    @property
    def counts(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """``num_sampled`` and ``num_rejected``.

        Raises:
            RuntimeError: the copy was not enqueued.
        """
        if self.num_sampled is None or self.num_rejected is None:
            raise RuntimeError("enqueue_cpu_copy comes before process_output")
        return self.num_sampled, self.num_rejected

    def enqueue_cpu_copy(self, num_sampled: NDArray[Any], num_rejected: NDArray[Any]) -> None:
        """Start the copy to the host; returns at once.

        Args:
            num_sampled: ``(batch,)``, in host memory, and possibly still being written: read in ``process_output``.
            num_rejected: likewise.
        """
        self.num_sampled, self.num_rejected = num_sampled, num_rejected
        self.connector.snapshots.start_copy(self.snapshot)

    def process_output(self) -> Mapping[str, AuxRequestOutput]:
        """Wait for the copy, store the step's rows and return what its requests are due; see ``WorkerCore``."""
        return self.connector.process_output(self)


class AuxOutputWorkerConnector:
    """The worker's side of the protocol: begin a step, snapshot its rows, process them, in launch order."""

    def __init__(
        self,
        *,
        vllm_config: Any,
        model: Any,
        kv_cache_config: Any,
        errors: Errors | None = None,
        self_check: bool | None = None,
        background: bool = False,
    ) -> None:
        """Bind the capture hooks; on the first tensor-parallel rank, build the store.

        Args:
            vllm_config: vLLM's configuration.
            model: the target model, never a draft model.
            kv_cache_config: its number of KV blocks is the default number of blocks of rows.
            errors: see ``WorkerCore``; None: what the environment variable ``AUXOUT_ERRORS`` says.
            self_check: look at every step's rows for what cannot be right, and log it. Waits for the device. None: what
                the environment variable ``AUXOUT_SELF_CHECK`` says.
            background: let a writer thread change the store; not with ``errors="request"``.

        Raises:
            ValueError: the model has no routed experts, ``max_bytes`` is less than one block of rows, or an option or
                its environment variable has another value than it may have.
        """
        errors, self_check = errors_mode(errors), self_checks(self_check)
        if background and errors == "request":
            raise ValueError(
                "a store that writes in the background refuses too late to fail one request alone"
            )
        scheduler = vllm_config.scheduler_config
        depth: int = vllm_config.max_concurrent_batches
        self._capturer = capturer = RoutedExpertsCapturer(scheduler.max_num_batched_tokens, vllm_config)
        _foreign.bind_capturer(model, capturer)
        self.faults: Counter[str] = Counter()
        """What ``self_check`` found."""
        self._checked_layers = _routed_layers(model) if self_check else ()
        self._has_metadata = False
        self._lock = Lock()  # processing runs on another thread than the forward pass
        self._core: WorkerCore | None = None
        self.snapshots: Snapshots = snapshots_of(capturer.device_buffer, capturer.output_dtype, depth)
        if not _foreign.tp_group().is_first_rank:
            return
        scheduler_block, hash_block = _foreign.block_sizes(kv_cache_config, vllm_config)
        dtype = np.dtype(capturer.output_dtype_name)
        block_shape = (hash_block, *capturer.shape_per_token)
        max_bytes: int | None = vllm_config.aux_output_config.max_bytes
        max_objects: int = kv_cache_config.num_blocks * (scheduler_block // hash_block)
        if max_bytes is not None:
            max_objects = max_bytes // (dtype.itemsize * int(np.prod(block_shape)))
            if max_objects < 1:
                raise ValueError(f"aux_output_config.max_bytes={max_bytes} is less than one block of rows")
        step_blocks = -(-scheduler.max_num_batched_tokens // hash_block)
        store = ArenaStore(
            max_objects=max_objects,
            block_shape=block_shape,
            dtype=dtype,
            num_spare=depth * step_blocks + 2 * scheduler.max_num_seqs,
        )
        self._core = WorkerCore(
            block_size=hash_block,
            shape_per_token=capturer.shape_per_token,
            dtype=dtype,
            max_objects=max_objects,
            max_num_seqs=scheduler.max_num_seqs,
            max_in_flight=depth,
            errors=errors,
            store=BackgroundStore(store, max_pending=2 * scheduler.max_num_seqs) if background else store,
        )
        announce(
            type(self), f"errors={errors}", f"self_check={int(self_check)}", f"max_objects={max_objects}"
        )

    def begin_step(self, metadata: AuxOutputConnectorMetadata | None) -> None:
        """Take in one step's metadata, before its forward pass; see ``WorkerCore.begin_step``."""
        if self._core is not None:
            with self._lock:
                self._core.begin_step(metadata)
        self._has_metadata = metadata is not None

    def prepare_output(self, input_batch: Any) -> PendingAuxOutput | None:
        """Take a snapshot of the step's rows, on the compute stream and without waiting.

        Args:
            input_batch: the runner's batch, in order: ``req_ids``, ``query_start_loc_np`` and
                ``num_computed_tokens_np``, which may be longer than the batch.

        Returns:
            None on a rank that returns nothing, and for a step without metadata.

        Raises:
            ProtocolViolation: WORK-STEP-1, WORK-STEP-2.
        """
        if self._core is None or not self._has_metadata:
            return None
        request_ids = input_batch.req_ids
        bounds = input_batch.query_start_loc_np[: len(request_ids) + 1]
        num_tokens = int(bounds[-1])
        with self._lock:
            starts = input_batch.num_computed_tokens_np[: len(request_ids)]
            step = self._core.launch(request_ids, starts, bounds, num_tokens)
            step.owned = self.snapshots.owned
            snapshot = self.snapshots.take(num_tokens)
        if self._checked_layers:
            self._check(num_tokens)
        return PendingAuxOutput(self, step, snapshot)

    def process_output(self, pending: PendingAuxOutput) -> Mapping[str, AuxRequestOutput]:
        """``pending.process_output()``."""
        num_sampled, num_rejected = pending.counts
        pending.step.rows = self.snapshots.rows(pending.snapshot)
        with self._lock:
            assert self._core is not None
            outputs = self._core.process_output(pending.step, num_sampled, num_rejected)
            self.snapshots.release(pending.snapshot)
            pending.snapshot = None
        return outputs

    @property
    def failures(self) -> Counter[str]:
        """Requests that failed, by clause (``errors="request"``); none on a rank that returns nothing."""
        return Counter() if self._core is None else self._core.failures

    def usage(self) -> Usage:
        """What the worker holds; nothing on a rank that returns nothing."""
        with self._lock:
            return Usage(0, 0, 0, 0, 0) if self._core is None else self._core.usage()

    def close(self) -> None:
        """Drop everything, steps in flight included. Closing again does nothing."""
        with self._lock:
            if self._core is not None:
                self._core.close()

    def _check(self, num_tokens: int) -> None:
        rows = self._capturer.device_buffer[:num_tokens].cpu().numpy()
        for fault in routed_experts.faults(rows, self._capturer.num_experts, self._checked_layers):
            self.faults[fault] += 1
            logger.error("routed experts: %s", fault)


def get_aux_output_connector(model: Any, vllm_config: Any, kv_cache_config: Any) -> AuxOutputWorkerConnector:
    """The connector as vLLM builds it."""
    return AuxOutputWorkerConnector(vllm_config=vllm_config, model=model, kv_cache_config=kv_cache_config)


def _routed_layers(model: Any) -> tuple[int, ...]:
    """Layers whose routers are captured: modules that know their layer and have a router or a hook."""
    modules = [each for each in model.modules() if hasattr(each, "layer_id")]
    return tuple(sorted({m.layer_id for m in modules if hasattr(m, "capture_fn") or hasattr(m, "router")}))
