"""A conversation with vLLM's real engine ends in a training step: three turns with a tool, an abort, new weights.

Every row is compared with what the same weights choose in transformers, and the loss and every gradient of the replay
with those of the model's own routing. ``LLM`` and the OpenAI-compatible server, each with vLLM's connectors and ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from auxout.client import Schema, Trajectory, decode, validate, versions
from auxout.client import torch as tensors

from . import engines, training
from .engines import Answer, Engine
from .training import Trainer

# The warnings of vLLM and torch are theirs.
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.filterwarnings("default")]


class Call(NamedTuple):
    """One call of the conversation, as the agent loop made it."""

    prompt: list[int]
    start: int
    answer: Answer
    version: str


class Recorded(NamedTuple):
    """The conversation, and the two models that it was sampled from."""

    calls: list[Call]
    trainers: dict[str, Trainer]

    @property
    def schema(self) -> Schema:
        return Schema.from_config(self.trainers["old"].config)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return training.checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(
    scope="module",
    params=[(kind, connectors) for kind in ("LLM", "server") for connectors in ("original", "impl")],
    ids=" with ".join,
)
def recorded(
    request: pytest.FixtureRequest, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Recorded:
    kind, connectors = request.param
    trainers = {name: Trainer(folder) for name, folder in checkpoints.items()}
    log = tmp_path_factory.mktemp("log") / "server.log"
    opened = (
        engines.offline(checkpoints["old"], connectors)
        if kind == "LLM"
        else engines.server(checkpoints["old"], connectors, log)
    )
    with opened as engine:
        calls = converse(engine, checkpoints["new"])
    if kind == "server":
        # The plugin tells in the log of the engine's process whose connectors are bound.
        assert ("auxout" in log.read_text()) == (connectors == "impl")
    return Recorded(calls, trainers)


def converse(engine: Engine, new_weights: Path) -> list[Call]:
    """Three turns; the second is aborted and goes on under new weights."""
    calls: list[Call] = []
    tokens: list[int] = []

    def call(version: str, new: Sequence[int], num_output: int | None, start: int) -> None:
        prompt = [*tokens, *new]
        answer = (
            engine.aborted(prompt, start) if num_output is None else engine.call(prompt, num_output, start)
        )
        calls.append(Call(prompt, start, answer, version))
        tokens[:] = [*prompt, *answer.output]

    call("old", range(1, 31), 12, start=0)
    # The tool answers. All rows again: those of a full block come from the cache.
    call("old", [150, 151, 152], None, start=0)
    engine.update(new_weights)
    call("new", [], 8, start=0)
    call("new", [160, 161], 10, start=len(tokens) - 1)
    return calls


def joined(recorded: Recorded, keep: Any) -> Trajectory:
    """The conversation as ``auxout.client`` has it; what an abort left without rows is sent as a prompt again."""
    conversation = Trajectory(recorded.schema)
    for call in recorded.calls:
        num_tokens = len(call.prompt) + len(call.answer.output)
        if call.answer.payload is None and call.answer.output:
            continue
        rows = decode(
            call.answer.payload, recorded.schema, source="vllm", start=call.start, num_tokens=num_tokens
        )
        validate(rows)
        resumed = call.version == "new" and call.start == 0
        conversation.add_call(
            call.prompt,
            call.answer.output,
            rows,
            version=call.version,
            keep=keep if resumed else "equal",
        )
    return conversation


def replayed(conversation: Trajectory) -> torch.Tensor:
    rows, mask = tensors.to_tensor(conversation, missing="refuse")
    return tensors.router_targets(tensors.moe_rows(rows, conversation.schema), mask)[:-1]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-8) for a, b in zip(one, other, strict=True))


def own_routing(recorded: Recorded, conversation: Trajectory) -> torch.Tensor:
    """What the weights that each row is of choose, in transformers."""
    tokens = conversation.tokens.tolist()
    chosen = {name: trainer.routing(tokens) for name, trainer in recorded.trainers.items()}
    return torch.cat([chosen[str(span.version)][span.start : span.end] for span in versions(conversation)])


@pytest.mark.parametrize("keep", ["first", "last"])
def test_every_row_is_what_its_weights_choose(recorded: Recorded, keep: str) -> None:
    conversation = joined(recorded, keep)
    assert len(conversation.tokens) >= 65
    assert conversation.known == (0, len(conversation.tokens) - 1)
    wanted = own_routing(recorded, conversation).sort(-1).values
    assert torch.equal(replayed(conversation).sort(-1).values, wanted)
    names = [span.version for span in versions(conversation)]
    assert names == (["new"] if keep == "last" else ["old", "new"])


def test_replay_equals_the_models_own_routing(recorded: Recorded) -> None:
    conversation = joined(recorded, "last")
    tokens, trainer = conversation.tokens.tolist(), recorded.trainers["new"]
    own = trainer.step(tokens)
    assert all(gradient.any() for gradient in own)
    assert same(trainer.step(tokens, replayed(conversation)), own)


def test_a_token_keeps_the_experts_that_it_was_sampled_with(recorded: Recorded) -> None:
    conversation = joined(recorded, "first")
    tokens, trainer = conversation.tokens.tolist(), recorded.trainers["new"]
    step = trainer.step(tokens, replayed(conversation))
    assert same(step, trainer.step(tokens, own_routing(recorded, conversation)))
    assert not same(step[:1], trainer.step(tokens)[:1])


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("by", [1, -1])
def test_rows_that_are_shifted_by_one_are_another_training_step(
    recorded: Recorded, keep: str, by: int
) -> None:
    conversation = joined(recorded, keep)
    tokens, trainer, routing = conversation.tokens.tolist(), recorded.trainers["new"], replayed(conversation)
    right, wrong = trainer.step(tokens, routing), trainer.step(tokens, routing.roll(by, 0))
    assert not any(same([a], [b]) for a, b in zip(right, wrong, strict=True))


def test_an_abort_leaves_tokens_with_or_without_rows(
    recorded: Recorded, request: pytest.FixtureRequest
) -> None:
    [aborted] = [call for call in recorded.calls if call.version == "old" and call.prompt[-1] == 152]
    assert len(aborted.answer.output) >= 5
    assert (aborted.answer.payload is None) == ("[LLM" in request.node.name)
