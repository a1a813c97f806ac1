"""Schemas from configurations: objects with the documented attributes, and those of transformers where installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from auxout.client import Schema, ShapeError
from auxout.client.configs import KINDS

EXAMPLES: dict[str, tuple[dict[str, Any], Schema]] = {
    "mixtral": ({"num_local_experts": 8, "num_experts_per_tok": 2}, Schema(6, 2, 8)),
    "olmoe": ({"num_experts": 64, "num_experts_per_tok": 8}, Schema(6, 8, 64)),
    "qwen3_moe": (
        {"num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
        Schema(6, 8, 128, (1, 5)),
    ),
    "qwen2_moe": ({"num_experts": 60, "num_experts_per_tok": 4}, Schema(6, 4, 60)),
    "deepseek_v3": (
        {"n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3},
        Schema(6, 8, 256, (3, 4, 5)),
    ),
    "deepseek_v2": (
        {"n_routed_experts": 64, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 2},
        Schema(6, 6, 64, (2, 4)),
    ),
    "glm4_moe_lite": (
        {"n_routed_experts": 64, "num_experts_per_tok": 4, "mlp_layer_types": ["dense"] + ["sparse"] * 5},
        Schema(6, 4, 64, (1, 2, 3, 4, 5)),
    ),
    "lfm2_moe": (
        {"num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2},
        Schema(6, 4, 32, (2, 3, 4, 5)),
    ),
    "ernie4_5_moe": (
        {"moe_num_experts": 64, "moe_k": 6, "moe_layer_start_index": 1, "moe_layer_end_index": 4},
        Schema(6, 6, 64, (1, 2, 3, 4)),
    ),
    "llama4_text": (
        {"num_local_experts": 16, "num_experts_per_tok": 1, "moe_layers": [1, 3, 5]},
        Schema(6, 1, 16, (1, 3, 5)),
    ),
    "jamba": (
        {"num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1},
        Schema(6, 2, 16, (1, 3, 5)),
    ),
}


@pytest.mark.parametrize("model_type", EXAMPLES)
def test_each_rule_reads_objects_dictionaries_and_multimodal_models(model_type: str) -> None:
    fields, schema = EXAMPLES[model_type]
    fields = {"model_type": model_type, "num_hidden_layers": 6, **fields}
    assert Schema.from_config(fields) == schema
    assert Schema.from_config(SimpleNamespace(**fields)) == schema
    assert Schema.from_config({"model_type": "seeing", "text_config": fields}) == schema


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "llama", "num_hidden_layers": 6}, "not known here"),
        ({}, "model type None"),
        (
            {"model_type": "mixtral", "num_hidden_layers": 6, "num_experts_per_tok": 2},
            "num_local_experts is None",
        ),
        ({"model_type": "mixtral", "num_hidden_layers": "6"}, "num_hidden_layers is '6'"),
        ({"model_type": "glm4_moe_lite", "num_hidden_layers": 6}, "has no mlp_layer_types"),
        ({"model_type": "qwen3_moe", "num_hidden_layers": 2, "mlp_only_layers": [0, 1]}, "no layer"),
    ],
)
def test_what_is_not_known_is_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ShapeError, match=problem):
        Schema.from_config(config)


@pytest.mark.parametrize("model_type", KINDS)
def test_the_defaults_of_transformers_are_read(model_type: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    required = {} if model_type != "dots1" else {"n_routed_experts": 128, "num_experts_per_tok": 6}
    required |= {} if model_type != "deepseek_v2" else {"num_experts_per_tok": 6}
    config = transformers.AutoConfig.for_model(model_type, **required)
    schema = Schema.from_config(config)
    assert schema.num_layers == config.num_hidden_layers
    assert schema.top_k == config.num_experts_per_tok
