"""Stand-ins for the few vLLM modules around the connector package, so that its worker loads without vLLM.

Only names that the worker imports are here, each doing what the worker needs on one CPU rank. They are put into
``sys.modules`` of the process that runs the target, never of the judge's.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
CAPTURER = f"{FUSED_MOE}.routed_experts_capturer"


def install() -> None:
    """Register the stand-ins; modules that exist already stay."""
    group = SimpleNamespace(is_first_rank=True, world_size=1, all_gather=lambda tensor, dim: tensor)
    nobody = SimpleNamespace(dp_metadata=None, batch_descriptor=None)
    _module("vllm.config", VllmConfig=object)
    _module("vllm.logger", init_logger=lambda name: __import__("logging").getLogger(name))
    _module("vllm.platforms", current_platform=SimpleNamespace(device_type="cpu"))
    _module("vllm.forward_context", get_forward_context=lambda: nobody)
    _module("vllm.distributed.parallel_state", get_tp_group=lambda: group)
    _module(
        "vllm.v1.core.kv_cache_utils",
        resolve_kv_cache_block_sizes=_block_sizes,
        maybe_convert_block_hash=lambda block_hash: block_hash,
    )
    _module(CAPTURER, RoutedExpertsCapturer=Capturer, bind_routed_experts_capturer=bind)


class Capturer:
    """A capture buffer on the CPU: one row a token, one column a layer."""

    def __init__(self, max_num_batched_tokens: int, vllm_config: Any) -> None:
        import torch

        model = vllm_config.model_config
        self.shape_per_token = (model.get_total_num_hidden_layers(), model.get_num_experts_per_tok())
        self.output_dtype_name = "uint8" if model.get_num_experts() <= 256 else "uint16"
        self._dtype = getattr(torch, self.output_dtype_name)
        self.device_buffer = torch.zeros((max_num_batched_tokens, *self.shape_per_token), dtype=torch.int32)

    def capture(self, layer_id: int, topk_ids: Any) -> None:
        """Store what one layer's router chose for this step's tokens."""
        self.device_buffer[: len(topk_ids), layer_id] = topk_ids

    def snapshot_routing_data(self, num_tokens: int) -> Any:
        """A copy of the step's rows in the row dtype."""
        return self.device_buffer[:num_tokens].to(self._dtype)


def bind(model: Any, capturer: Any) -> None:
    """Let every router of the model call the capturer."""
    for module in model.modules():
        if hasattr(module, "layer_id"):
            module.capture_fn = partial(capturer.capture, module.layer_id)


def _block_sizes(kv_cache_config: Any, vllm_config: Any) -> tuple[int, int]:
    """Scheduler and hash block size; equal here."""
    return vllm_config.cache_config.block_size, vllm_config.cache_config.block_size


def _module(name: str, **names: Any) -> None:
    """A module with some names, below empty parents."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        if parent not in sys.modules:
            package = ModuleType(parent)
            package.__path__ = []
            sys.modules[parent] = package
    if name not in sys.modules:
        module = ModuleType(name)
        module.__dict__.update(names)
        sys.modules[name] = module
