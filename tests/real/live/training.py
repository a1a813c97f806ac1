"""The other end: a checkpoint for the engine, and the same model in transformers, whose routers take given ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 200


EMBEDDINGS = "model.embed_tokens.weight"


def checkpoints(folder: Path) -> dict[str, Path]:
    """Folders that vLLM reads: ``old``, and ``new``, which differs in its embeddings and so in all that follows.

    A Qwen3-MoE of three layers, the second one dense, with random weights.
    """
    model = _model(0)
    found = {name: folder / name for name in ("old", "new")}
    model.save_pretrained(found["old"])
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(_model(1).model.embed_tokens.weight)
    model.save_pretrained(found["new"])
    return found


def _model(seed: int) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        mlp_only_layers=[1],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=512,
        # Weights of the usual size would choose much the same experts for every token.
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    return Qwen3MoeForCausalLM(config)


class Replaying(nn.Module):
    """A router that takes the ids that it is given, if there are any, and tells those that it took."""

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router = router
        self.given: torch.Tensor | None = None
        self.taken: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, scores, ids = self.router(hidden)
        if self.given is not None:
            ids = self.given
            chosen = functional.softmax(logits, dtype=torch.float, dim=-1).gather(-1, ids)
            scores = (chosen / chosen.sum(-1, keepdim=True)).to(logits.dtype)
        self.taken = ids
        return logits, scores, ids


class Trainer:
    """The model of a checkpoint, in double precision."""

    def __init__(self, folder: Path) -> None:
        from transformers import Qwen3MoeForCausalLM

        self._model: Any = Qwen3MoeForCausalLM.from_pretrained(
            folder, dtype=torch.float64, experts_implementation="eager"
        )
        self.config = self._model.config
        self._routers: list[Replaying] = []
        for layer in self._model.model.layers:
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate = Replaying(layer.mlp.gate)
                self._routers.append(layer.mlp.gate)

    def routing(self, tokens: Sequence[int]) -> torch.Tensor:
        """The experts that it chooses itself for all tokens but the last, (tokens - 1, layers with a router, slots)."""
        with torch.no_grad():
            self._logits(tokens, None)
        return torch.stack([router.taken for router in self._routers if router.taken is not None], 1)

    def step(self, tokens: Sequence[int], routing: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Loss of the next token, and the gradient of every parameter."""
        self._model.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self._logits(tokens, routing), torch.tensor(tokens[1:]))
        loss.backward()
        gradients = [parameter.grad for parameter in self._model.parameters()]
        return [loss.detach(), *(torch.zeros(1) if each is None else each.clone() for each in gradients)]

    def _logits(self, tokens: Sequence[int], routing: torch.Tensor | None) -> torch.Tensor:
        for number, router in enumerate(self._routers):
            router.given = None if routing is None else routing[:, number]
        return self._model(torch.tensor([tokens[:-1]]), use_cache=False).logits[0]
