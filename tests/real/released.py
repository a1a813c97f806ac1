"""The parts of the vLLM on the path that take part: configuration, scheduler, requests, worker connector.

Nothing of vLLM is edited. Three settings make it start where there is no GPU: the target device is the CPU, the V2
model runner is on (it decides how resumed requests are sent), and Triton, of which only the presence is asked, is
said to be there.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

NUM_LAYERS = 3
NUM_EXPERTS = 128
TOP_K = 4
BLOCK_SIZE = 4
MAX_MODEL_LEN = 1024

_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
}
_MODEL = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "dtype": "float32",
    "hidden_size": 64,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_MODEL_LEN,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": NUM_LAYERS,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
"""A configuration only: the model that is run is ``model.py``."""


class Setting(NamedTuple):
    """How the engine is set up."""

    asynchronous: bool = False
    """``AsyncScheduler`` with two steps in flight, else ``Scheduler`` with one."""
    num_drafts: int = 0
    """Draft tokens after each decoded token."""
    num_blocks: int = 96
    """KV blocks; one of them is vLLM's null block."""
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 56
    max_objects: int | None = None
    """Blocks of rows that the worker's store holds; by default as many as there are KV blocks."""
    block_size: int = BLOCK_SIZE

    @property
    def depth(self) -> int:
        """Steps that may be in flight."""
        return 2 if self.asynchronous else 1


@cache
def version() -> str:
    """The release on the path, for example ``0.31.0``."""
    os.environ.update(_ENVIRONMENT)
    import vllm

    return vllm.__version__


def profile() -> str:
    """The protocol version of the release."""
    return version().rpartition(".")[0]


@cache
def _model_config() -> Any:
    import vllm.config.vllm
    from vllm.config import ModelConfig
    from vllm.v1.core.kv_cache_utils import init_none_hash

    vllm.config.vllm.HAS_TRITON = True
    init_none_hash(_hash_function())
    folder = tempfile.mkdtemp(prefix="auxout-model-")
    Path(folder, "config.json").write_text(json.dumps(_MODEL))
    return ModelConfig(
        model=folder, skip_tokenizer_init=True, max_model_len=MAX_MODEL_LEN, dtype="float32", seed=0
    )


def _hash_function() -> Any:
    from vllm.utils.hashing import sha256_cbor

    return sha256_cbor


def vllm_config(setting: Setting) -> Any:
    """vLLM's configuration with routed experts returned."""
    version()
    from vllm.config import CacheConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
    from vllm.config.aux_output import AuxOutputConfig

    block_bytes = setting.block_size * NUM_LAYERS * TOP_K
    max_bytes = None if setting.max_objects is None else setting.max_objects * block_bytes
    cache_config = CacheConfig(block_size=setting.block_size, enable_prefix_caching=True)
    cache_config.num_gpu_blocks = setting.num_blocks
    config = VllmConfig(
        model_config=_model_config(),
        cache_config=cache_config,
        scheduler_config=SchedulerConfig(
            is_encoder_decoder=False,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=setting.max_num_batched_tokens,
            max_num_seqs=setting.max_num_seqs,
        ),
        aux_output_config=AuxOutputConfig(enable_return_routed_experts=True, max_bytes=max_bytes),
    )
    # The CPU platform turns the one off, and 0.31 refuses the other with the V2 runner; the scheduler knows neither.
    config.scheduler_config.async_scheduling = setting.asynchronous
    if setting.num_drafts:
        config.speculative_config = SpeculativeConfig(
            method="ngram", num_speculative_tokens=setting.num_drafts, prompt_lookup_max=2
        )
    return config


def kv_cache_config(setting: Setting) -> Any:
    """One group of full attention."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=setting.block_size, num_kv_heads=2, head_size=16, dtype=torch.float32)
    group = KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)
    return KVCacheConfig(num_blocks=setting.num_blocks, kv_cache_tensors=[], kv_cache_groups=[group])


def scheduler(setting: Setting, config: Any) -> Any:
    """vLLM's scheduler, with whatever connector is bound in its module."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    make = AsyncScheduler if setting.asynchronous else Scheduler
    return make(
        vllm_config=config,
        kv_cache_config=kv_cache_config(setting),
        structured_output_manager=StructuredOutputManager(config),
        block_size=setting.block_size,
        hash_block_size=setting.block_size,
    )


def worker_connector(setting: Setting, config: Any, model: Any) -> Any:
    """vLLM's worker connector, or whatever is bound in its place."""
    from vllm.distributed.aux_output_connector.worker import get_aux_output_connector

    _join_group(config)
    return get_aux_output_connector(model, config, kv_cache_config(setting))


@cache
def _joined() -> list[bool]:
    return []


def _join_group(config: Any) -> None:
    """A tensor-parallel group of this process alone."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

    if _joined():
        return
    _joined().append(True)
    store = Path(tempfile.mkdtemp(prefix="auxout-group-"), "store").as_uri()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, store, 0, "gloo")
        initialize_model_parallel(1, 1)


@cache
def _block_hasher(block_size: int) -> Any:
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    return get_request_block_hasher(block_size, _hash_function())


def request(
    request_id: str,
    tokens: list[int],
    start: int = 0,
    max_tokens: int = 2,
    stop_tokens: list[int] | None = None,
    session: bool = False,
    block_size: int = BLOCK_SIZE,
) -> Any:
    """vLLM's request with a prompt of these tokens; of a session also one of its chunks."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    sampling = SamplingParams(
        max_tokens=max_tokens, routed_experts_prompt_start=start, stop_token_ids=stop_tokens
    )
    return Request(
        request_id, tokens, sampling, None, block_hasher=_block_hasher(block_size), resumable=session
    )
