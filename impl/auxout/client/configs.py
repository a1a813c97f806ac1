"""Which layers of a Hugging Face model have a router, and over how many experts: one row for each model type.

Only what the table names is known. A configuration of another type is refused instead of guessed at, since a router
taken for another layer's replays the wrong experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .errors import ShapeError

Rule = Callable[["Config", int], bool]
"""Whether a layer has a router."""


class Config:
    """Attributes of a configuration, an object or a dictionary."""

    def __init__(self, config: Any) -> None:
        self._config: Any = config

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute; ``default`` where it is absent or None."""
        config = self._config
        found = config.get(name) if hasattr(config, "get") else getattr(config, name, None)
        return default if found is None else found

    def count(self, name: str) -> int:
        """An attribute that must be there and a number.

        Raises:
            ShapeError: it is not.
        """
        found = self.get(name)
        if type(found) is not int:
            raise ShapeError(f"the configuration's {name} is {found!r}, which is no number")
        return found


def _every(config: Config, layer: int) -> bool:
    return True


def _sparse_step(config: Config, layer: int) -> bool:
    dense = config.get("mlp_only_layers", ())
    return layer not in dense and (layer + 1) % config.get("decoder_sparse_step", 1) == 0


def _after_dense(config: Config, layer: int) -> bool:
    first = config.count("first_k_dense_replace")
    return layer >= first and layer % config.get("moe_layer_freq", 1) == 0


def _after_num_dense(config: Config, layer: int) -> bool:
    return layer >= config.count("num_dense_layers")


def _listed_kind(config: Config, layer: int) -> bool:
    return config.get("mlp_layer_types")[layer] == "sparse"


def _listed(config: Config, layer: int) -> bool:
    return layer in config.get("moe_layers")


def _interval(config: Config, layer: int) -> bool:
    last = config.get("moe_layer_end_index", -1)
    within = config.count("moe_layer_start_index") <= layer and (last == -1 or layer <= last)
    return within and (layer + 1) % config.get("moe_layer_interval", 1) == 0


def _period(config: Config, layer: int) -> bool:
    return layer % config.count("expert_layer_period") == config.count("expert_layer_offset")


class _Kind(NamedTuple):
    """How the configurations of a model type name what a schema needs."""

    num_experts: str
    has_router: Rule = _every
    top_k: str = "num_experts_per_tok"
    needs: str = ""
    """A list that the rule reads, which must be there."""


_LOCAL = _Kind("num_local_experts")
_NUM = _Kind("num_experts")
_QWEN = _Kind("num_experts", _sparse_step)
_DEEPSEEK = _Kind("n_routed_experts", _after_dense)
_SPARSE_LIST = _Kind("n_routed_experts", _listed_kind, needs="mlp_layer_types")

KINDS: dict[str, _Kind] = {
    "mixtral": _LOCAL,
    "phimoe": _LOCAL,
    "gpt_oss": _LOCAL,
    "minimax": _LOCAL,
    "minimax_m2": _LOCAL,
    "granitemoe": _LOCAL,
    "olmoe": _NUM,
    "flex_olmo": _NUM,
    "qwen3_5_moe_text": _NUM,
    "qwen2_moe": _QWEN,
    "qwen3_moe": _QWEN,
    "qwen3_next": _QWEN,
    "qwen3_vl_moe_text": _QWEN,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "dots1": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "glm4v_moe_text": _DEEPSEEK,
    "deepseek_v32": _SPARSE_LIST,
    "glm4_moe_lite": _SPARSE_LIST,
    "exaone_moe": _Kind("num_experts", _listed_kind, needs="mlp_layer_types"),
    "lfm2_moe": _Kind("num_experts", _after_num_dense),
    "afmoe": _Kind("num_experts", _after_num_dense),
    "ernie4_5_moe": _Kind("moe_num_experts", _interval, top_k="moe_k"),
    "llama4_text": _Kind("num_local_experts", _listed, needs="moe_layers"),
    "jamba": _Kind("num_experts", _period),
}
"""``model_type`` -> how to read its configuration."""


def describe(config: Any) -> tuple[int, int, int, tuple[int, ...]]:
    """``num_layers``, ``top_k``, ``num_experts`` and ``moe_layers`` of a configuration.

    Args:
        config: an object or a dictionary; of a multimodal model, the part ``text_config`` counts.

    Raises:
        ShapeError: its model type is not in the table, or it lacks what the table names.
    """
    read = Config(config)
    model_type = read.get("model_type")
    kind = KINDS.get(model_type)
    if kind is None:
        if (text := read.get("text_config")) is not None:
            return describe(text)
        raise ShapeError(
            f"the routers of model type {model_type!r} are not known here; build a Schema by hand"
        )
    if kind.needs and not read.get(kind.needs):
        raise ShapeError(f"the configuration of model type {model_type} has no {kind.needs}")
    num_layers = read.count("num_hidden_layers")
    moe_layers = tuple(layer for layer in range(num_layers) if kind.has_router(read, layer))
    if not moe_layers:
        raise ShapeError(f"no layer of this {model_type} has a router")
    return num_layers, read.count(kind.top_k), read.count(kind.num_experts), moe_layers
