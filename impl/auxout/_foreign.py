"""torch and vLLM, imported where they are used and untyped: neither is needed to import this package.

vLLM's names are looked up under the paths of vLLM 0.31 and 0.32.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def torch() -> Any:
    """The ``torch`` module."""
    return import_module("torch")


def tp_group() -> Any:
    """This rank's tensor-parallel group."""
    return import_module("vllm.distributed.parallel_state").get_tp_group()


def dp_metadata() -> Any:
    """Token counts of the data-parallel ranks in the current forward pass; None without data parallelism."""
    return import_module("vllm.forward_context").get_forward_context().dp_metadata


def device_type() -> str:
    """Where models run: ``"cuda"``, ``"cpu"``."""
    return import_module("vllm.platforms").current_platform.device_type


def bind_capturer(model: Any, capturer: Any) -> None:
    """Let the routers of a model call ``capturer.capture``."""
    path = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
    import_module(path).bind_routed_experts_capturer(model, capturer)


def block_sizes(kv_cache_config: Any, vllm_config: Any) -> tuple[int, int]:
    """Tokens per scheduler block and per hash block."""
    return import_module("vllm.v1.core.kv_cache_utils").resolve_kv_cache_block_sizes(
        kv_cache_config, vllm_config
    )
