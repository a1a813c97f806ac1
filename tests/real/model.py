"""A model whose every token and row says where it comes from, in the place of vLLM's model runner.

A token is the number of its text and its position, so that the token after it is known: ``token + 1``. A draft is
right or it is not, without changing what is accepted. A row is a digest of all tokens up to its position and of the
number of weight updates: a row of another request, position, prefix or generation has other values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .released import NUM_EXPERTS, NUM_LAYERS, TOP_K

TEXT = 1 << 12
"""Positions of one text."""
WRONG = 1 << 40
"""Added to a token to make it a wrong one."""


def tokens_of(text: int, start: int, end: int) -> list[int]:
    """Tokens of a text, by position."""
    return [text * TEXT + position for position in range(start, end)]


def prefixes(tokens: Sequence[int]) -> Iterator[int]:
    """For each position a number that stands for all tokens up to it."""
    seen = 0
    for token in tokens:
        seen = hash((seen, token))
        yield seen


@lru_cache(maxsize=1 << 16)
def row(prefix: int, num_weight_updates: int) -> bytes:
    """The row after a prefix."""
    data = prefix.to_bytes(8, "little", signed=True) + num_weight_updates.to_bytes(4, "little")
    digest = blake2b(data, digest_size=NUM_LAYERS * TOP_K).digest()
    return bytes(value % NUM_EXPERTS for value in digest)


def as_rows(data: Sequence[bytes]) -> Any:
    """Rows as an array of shape (n, layers, top k)."""
    return np.frombuffer(b"".join(data), np.uint8).reshape(len(data), NUM_LAYERS, TOP_K)


class Executed(NamedTuple):
    """A step that ran and whose output was not consumed yet."""

    request_ids: list[str]
    sampled: list[list[int]]
    num_weight_updates: int
    pending: Any
    """The worker connector's, None for a step without requests."""


class _Known:
    """What the runner keeps of a request between its steps."""

    def __init__(self, tokens: list[int], num_computed: int) -> None:
        self.tokens, self.num_computed = tokens, num_computed
        self.drafts: list[int] = []


class Runner:
    """Runs steps as the model runner does, and calls the worker connector where it does.

    Args:
        num_drafts: draft tokens proposed after each sampled one.
        seed: of the drafts that are wrong.
    """

    def __init__(self, num_drafts: int, seed: int) -> None:
        import torch

        class Router(torch.nn.Module):
            """What the capture source of an MoE layer looks like."""

            def __init__(self, layer_id: int) -> None:
                super().__init__()
                self.layer_id, self.capture_fn = layer_id, None

        self.model = torch.nn.ModuleList(Router(layer) for layer in range(NUM_LAYERS))
        self.connector: Any = None
        self.rows: Any = None
        """Those of the step that runs."""
        self.num_weight_updates = 0
        self._num_drafts, self._random = num_drafts, Random(seed)
        self._known: dict[str, _Known] = {}
        self._torch = torch

    def execute(self, scheduler_output: Any) -> Executed:
        """Run one step: metadata first, then the forward pass, then the snapshot."""
        self._update(scheduler_output)
        self.connector.begin_step(scheduler_output.aux_output_connector_metadata)
        scheduled = scheduler_output.num_scheduled_tokens
        if not scheduled:
            return Executed([], [], self.num_weight_updates, None)
        drafts = scheduler_output.scheduled_spec_decode_tokens
        rows, sampled, num_rejected, starts = [], [], [], []
        for request_id, num_tokens in scheduled.items():
            starts.append(self._scheduled_start(scheduler_output, request_id))
            part = self._forward(self._known[request_id], num_tokens, len(drafts.get(request_id, ())))
            rows += part[0]
            sampled.append(part[1])
            num_rejected.append(part[2])
        self.rows = as_rows(rows)
        self._capture(self.rows)
        batch = SimpleNamespace(
            req_ids=list(scheduled),
            num_computed_tokens_np=np.array(starts, np.int32),
            query_start_loc_np=np.cumsum([0, *scheduled.values()], dtype=np.int32),
        )
        pending = self.connector.prepare_output(batch)
        counts = np.array([len(tokens) for tokens in sampled], np.int32)
        pending.enqueue_cpu_copy(counts, np.array(num_rejected, np.int32))
        return Executed(list(scheduled), sampled, self.num_weight_updates, pending)

    def proposed(self, request_ids: Sequence[str]) -> dict[str, list[int]]:
        """The drafts that follow each request's last token, for a scheduler that places them itself."""
        return {name: list(self._known[name].drafts) for name in request_ids if name in self._known}

    def _update(self, scheduler_output: Any) -> None:
        for request_id in scheduler_output.finished_req_ids | scheduler_output.preempted_req_ids:
            self._known.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._known[new.req_id] = _Known(list(new.prefill_token_ids), new.num_computed_tokens)

    def _scheduled_start(self, scheduler_output: Any, request_id: str) -> int:
        """Where the scheduler believes that the request's step starts: drafts in flight counted as accepted."""
        cached = scheduler_output.scheduled_cached_reqs
        if request_id in cached.req_ids:
            return cached.num_computed_tokens[cached.req_ids.index(request_id)]
        return self._known[request_id].num_computed

    def _forward(self, known: _Known, num_tokens: int, num_drafts: int) -> tuple[list[bytes], list[int], int]:
        """A request's rows, its sampled tokens and how many of its drafts were rejected."""
        start, end = known.num_computed, known.num_computed + num_tokens - num_drafts
        proposed = [*known.drafts, *[WRONG] * num_drafts][:num_drafts]
        inputs = known.tokens[:end] + proposed
        rows = [row(prefix, self.num_weight_updates) for prefix in list(prefixes(inputs))[start:]]
        if end < len(known.tokens):
            known.num_computed = end
            return rows, [], 0
        accepted = 0
        while accepted < num_drafts and proposed[accepted] == known.tokens[-1] + 1 + accepted:
            accepted += 1
        last = known.tokens[-1]
        sampled = [last + 1 + n for n in range(accepted + 1)]
        known.tokens += sampled
        known.num_computed = end + accepted
        known.drafts = self._draft(known.tokens[-1])
        return rows, sampled, num_drafts - accepted

    def _draft(self, last: int) -> list[int]:
        drafts = [last + 1 + n for n in range(self._num_drafts)]
        return [token if self._random.random() < 0.6 else token + WRONG for token in drafts]

    def _capture(self, rows: Any) -> None:
        from vllm.forward_context import override_forward_context

        ids = self._torch.from_numpy(rows.astype(np.int64))
        with override_forward_context(SimpleNamespace(dp_metadata=None, batch_descriptor=None)):
            for layer, router in enumerate(self.model):
                router.capture_fn(ids[:, layer])
