"""From an engine's answers to a training step: three turns with a tool, an abort, a resume under new weights.

Rows are captured token by token, encoded as engines do, decoded, joined, laid out and replayed: loss and every gradient
are those of the routing that the weights of each row choose, to the last bit, and other ones where rows are one off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from auxout.client import Trajectory, decode, shard, versions
from auxout.client import torch as tensors
from client_tools.moe import ENCODINGS, Model, generate, training_step

SIZES = [pytest.param(16, id="uint8"), pytest.param(300, id="uint16")]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """These models are too small for several threads, which would wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Weights(NamedTuple):
    """A model before and after an update."""

    old: Model
    new: Model

    def routing(self, conversation: Trajectory) -> torch.Tensor:
        """The experts of all tokens but the last, each chosen by the weights that its row is said to be of."""
        tokens = torch.tensor(conversation.tokens[:-1].tolist())
        with torch.no_grad():
            chosen = {"old": self.old(tokens)[1], "new": self.new(tokens)[1]}
        spans = versions(conversation)
        return torch.cat([chosen[str(span.version)][span.start : span.end] for span in spans])


def weights(num_experts: int) -> Weights:
    return Weights(Model(num_experts, seed=1), Model(num_experts, seed=2))


def converse(both: Weights, encoding: str, keep: Any, seed: int = 0) -> Trajectory:
    """The conversation as an agent loop has it."""
    source, encode = ENCODINGS[encoding]
    conversation = Trajectory(both.old.schema, request=f"chat-{seed}")

    def call(version: str, new: Sequence[int], num_output: int, start: int, call_keep: Any = "equal") -> None:
        prompt = [*conversation.tokens.tolist(), *new]
        model = both.old if version == "old" else both.new
        answer = generate(model, prompt, num_output, start=start, seed=seed)
        num_tokens = len(prompt) + len(answer.output)
        payload = encode(answer.rows)
        rows = decode(payload, both.old.schema, source=source, start=start, num_tokens=num_tokens)
        conversation.add_call(prompt, answer.output, rows, version=version, keep=call_keep)

    call("old", [1, 2, 3 + seed], 6, start=0)
    # The tool answers; the last token's row comes with the second turn, which also repeats two rows.
    call("old", [40, 41], 3, start=6)
    # That was an abort: the turn goes on under new weights, whose engine computes the prefix again.
    call("new", [], 5, start=0, call_keep=keep)
    # Again a tool's answer, and the third turn. It asks for what it needs only.
    call("new", [50, 51, 52], 6, start=len(conversation.tokens) - 1)
    return conversation


def replayed(conversation: Trajectory) -> torch.Tensor:
    """What the routers of a trainer take, of all tokens but the last."""
    rows, mask = tensors.to_tensor(conversation, missing="refuse", pin=True)
    return tensors.router_targets(tensors.moe_rows(rows, conversation.schema), mask)[:-1]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("num_experts", SIZES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_replay_equals_the_models_own_routing(encoding: str, num_experts: int) -> None:
    both = weights(num_experts)
    conversation = converse(both, encoding, "last")
    assert [span[0] for span in versions(conversation)] == ["new"]
    tokens = conversation.tokens.tolist()
    own = training_step(both.new, tokens)
    routing = replayed(conversation)
    assert same(training_step(both.new, tokens, routing), own)
    loss, *gradients = own
    assert loss > 0
    assert all(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("num_experts", SIZES)
def test_a_token_keeps_the_experts_that_it_was_sampled_with(num_experts: int) -> None:
    both = weights(num_experts)
    conversation = converse(both, "vllm over HTTP", "first")
    assert [tuple(span) for span in versions(conversation)] == [("old", 0, 13), ("new", 13, 27)]
    tokens = conversation.tokens.tolist()
    wanted = both.routing(conversation)
    step = training_step(both.new, tokens, replayed(conversation))
    assert same(step, training_step(both.new, tokens, wanted))
    # The weights did change: the routing of the new ones alone is another, and so is its step.
    assert not same(step, training_step(both.new, tokens))


@pytest.mark.parametrize("num_experts", SIZES)
@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("by", [1, -1])
def test_rows_that_are_shifted_by_one_are_another_training_step(num_experts: int, keep: str, by: int) -> None:
    both = weights(num_experts)
    conversation = converse(both, "vllm", keep)
    tokens, routing = conversation.tokens.tolist(), replayed(conversation)
    right = training_step(both.new, tokens, routing)
    wrong = training_step(both.new, tokens, routing.roll(by, 0))
    assert not torch.equal(right[0], wrong[0])
    differing = [not torch.equal(a, b) for a, b in zip(right[1:], wrong[1:], strict=True)]
    assert all(differing)


@pytest.mark.parametrize("position", [0, 8, 12, 13, 26])
def test_one_row_that_is_its_neighbours_is_noticed(position: int) -> None:
    both = weights(300)
    conversation = converse(both, "vllm", "first")
    tokens, routing = conversation.tokens.tolist(), replayed(conversation)
    right = training_step(both.new, tokens, routing)
    routing[position] = routing[position - 1]
    assert not same(training_step(both.new, tokens, routing), right)


@pytest.mark.parametrize("num_experts", SIZES)
def test_a_packed_batch_is_the_same_training_step(num_experts: int) -> None:
    both = weights(num_experts)
    batch = [converse(both, "sglang", "first", seed) for seed in range(3)]
    packed = tensors.pack(batch, align=8, pin=True).to("cpu")
    targets = tensors.router_targets(tensors.moe_rows(packed.rows, both.new.schema), packed.mask)
    ends = zip(packed.offsets.tolist(), [len(each.tokens) - 1 for each in batch], strict=False)
    for (first, length), conversation in zip(ends, batch, strict=True):
        tokens = conversation.tokens.tolist()
        step = training_step(both.new, tokens, targets[first : first + length])
        assert same(step, training_step(both.new, tokens, both.routing(conversation)))


@pytest.mark.parametrize("how", ["contiguous", "zigzag"])
def test_padded_and_sharded_rows_put_together_are_the_same_training_step(how: Any) -> None:
    both = weights(16)
    conversation = converse(both, "nemo", "first")
    padded = tensors.pad([conversation], 32, "left")
    targets = tensors.router_targets(tensors.moe_rows(padded.rows, both.new.schema), padded.mask)
    parts = torch.cat([tensors.shard(targets, rank, 4, how, dim=1) for rank in range(4)], 1)
    everywhere = np.arange(32)
    places = np.concatenate([shard(everywhere, rank, 4, how) for rank in range(4)])
    whole = parts[0, torch.from_numpy(places.argsort())]
    tokens = conversation.tokens.tolist()
    wanted = training_step(both.new, tokens, both.routing(conversation))
    assert same(training_step(both.new, tokens, whole[32 - len(tokens) : -1]), wanted)


def test_rows_come_token_by_token() -> None:
    """Control: the engine's rows of a prefix are those of one forward over all tokens."""
    model = Model(300, seed=1)
    answer = generate(model, [1, 2, 3], 9, start=2, seed=0)
    tokens = torch.tensor([1, 2, 3, *answer.output])
    with torch.no_grad():
        whole = model(tokens[:-1])[1][2:]
    assert answer.rows.shape == (9, 4, 2)
    assert answer.rows[:, (0, 2, 3)].tolist() == whole.tolist()
    assert not answer.rows[:, 1].any()
