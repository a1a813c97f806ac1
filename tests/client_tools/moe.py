"""A small mixture of experts whose routers take the ids that they are given, and an engine that samples from it.

Attention, a dense layer between those with routers, and double precision, so that what two models compute differs by
their routing only.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from auxout.client import Schema

WIDTH, HEADS, VOCABULARY = 16, 2, 60
NUM_LAYERS, MOE_LAYERS, TOP_K = 4, (0, 2, 3), 2


class Experts(nn.Module):
    """A router and its experts."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, num_experts, bias=False)
        self.up = nn.Parameter(torch.randn(num_experts, WIDTH, WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(num_experts, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The output, and the ids that were chosen or given, both of (tokens, ...)."""
        scores = self.router(hidden).softmax(-1)
        ids = scores.topk(TOP_K).indices if ids is None else ids
        weights = scores.gather(-1, ids)
        weights = weights / weights.sum(-1, keepdim=True)
        inner = functional.silu(torch.einsum("tkij,tj->tki", self.up[ids], hidden))
        return torch.einsum("tk,tkij,tkj->ti", weights, self.down[ids], inner), ids


class Layer(nn.Module):
    """Causal attention, then experts or one dense map."""

    def __init__(self, num_experts: int | None) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=False)
        self.feed = nn.Linear(WIDTH, WIDTH) if num_experts is None else Experts(num_experts)

    def forward(
        self, hidden: torch.Tensor, ids: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        future = torch.ones(len(hidden), len(hidden), dtype=torch.bool).triu(1)
        normed = functional.layer_norm(hidden, (WIDTH,))
        hidden = hidden + self.attention(normed, normed, normed, attn_mask=future, need_weights=False)[0]
        normed = functional.layer_norm(hidden, (WIDTH,))
        if isinstance(self.feed, Experts):
            out, ids = self.feed(normed, ids)
            return hidden + out, ids
        return hidden + self.feed(normed).tanh(), None


class Model(nn.Module):
    """Tokens to logits.

    Args:
        num_experts: of each layer with a router; beyond 256 its rows are uint16.
        seed: of the weights.
    """

    def __init__(self, num_experts: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.schema = Schema(NUM_LAYERS, TOP_K, num_experts, MOE_LAYERS)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            Layer(num_experts if number in MOE_LAYERS else None) for number in range(NUM_LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.double()

    def forward(
        self, tokens: torch.Tensor, routing: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and the experts of each token.

        Args:
            tokens: (tokens,).
            routing: (tokens, layers with a router, TOP_K), what the routers take; None: they choose.
        """
        hidden, chosen = self.embedding(tokens), list[torch.Tensor]()
        for number, layer in enumerate(self.layers):
            given = None if routing is None or number not in MOE_LAYERS else routing[:, len(chosen)]
            hidden, ids = layer(hidden, given)
            chosen += [] if ids is None else [ids]
        return self.head(hidden), torch.stack(chosen, 1)


def training_step(
    model: Model, tokens: Sequence[int], routing: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Loss of the next token, and the gradient of every parameter, under the routing of all tokens but the last."""
    given = torch.tensor(tokens)
    model.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(given[:-1], routing)[0], given[1:])
    loss.backward()
    return [loss.detach(), *(_gradient(parameter) for parameter in model.parameters())]


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


class Answer(NamedTuple):
    """What the engine returns of one call."""

    output: list[int]
    rows: np.ndarray
    """(tokens - 1 - start, NUM_LAYERS, TOP_K), zeros in the dense layer."""


def generate(model: Model, prompt: Sequence[int], num_output: int, *, start: int, seed: int) -> Answer:
    """Sample token by token: the prompt's rows come of one forward, each later one of its own.

    The last token is sampled and not forwarded.
    """
    randomness = torch.Generator().manual_seed(seed)
    tokens, rows = list(prompt), list[torch.Tensor]()
    with torch.no_grad():
        for _ in range(num_output):
            logits, chosen = model(torch.tensor(tokens))
            rows += chosen[len(rows) :]
            tokens.append(int(torch.multinomial(logits[-1].softmax(-1), 1, generator=randomness)))
    placed = np.zeros((len(rows), *model.schema.row_shape), model.schema.dtype)
    placed[:, MOE_LAYERS] = torch.stack(rows).numpy()
    return Answer(tokens[len(prompt) :], placed[start:])


def _as_npy(rows: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, rows)
    return base64.b64encode(file.getvalue()).decode()


def _text(rows: np.ndarray, dtype: str) -> str:
    return base64.b64encode(rows.astype(dtype).tobytes()).decode()


ENCODINGS: dict[str, tuple[Any, Callable[[np.ndarray], Any]]] = {
    "vllm over HTTP": ("vllm", _as_npy),
    "vllm": ("vllm", lambda rows: rows),
    "sglang": ("sglang", lambda rows: _text(rows, "<i4")),
    "mapping": (
        "mapping",
        lambda rows: {"data": _text(rows, "<i2"), "shape": list(rows.shape), "dtype": "int16"},
    ),
    "nemo": ("nemo", lambda rows: f"nrlre1:int32:{'x'.join(map(str, rows.shape))}:{_text(rows, '<i4')}"),
    "lists": ("lists", lambda rows: rows.tolist()),
}
"""What a source is called by ``decode``, and how an engine encodes its rows."""
