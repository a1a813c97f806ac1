"""The merge functions of other frameworks as ``auxout client-check`` wants them, run from their wheels.

``python tests/client_tools/frameworks.py`` fetches the wheels, judges each and writes the table in docs/client.md. What
is fed to a function is what its framework would feed: an engine's rows from the start that the framework asks for. A
case that a framework never gets into raises ``NotImplementedError`` and is not judged.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from client_tools.lifting import lift

Json = dict[str, Any]
Job = Callable[[], Any]
"""A framework's own work on calls that are prepared: what it returns has the rows."""
VERL, AREAL, SKYRL, VERIFIERS = "verl==0.9.1", "areal==1.0.4", "skyrl==0.3.0", "verifiers==0.4.1.dev86"


class Call(NamedTuple):
    """One call of a conversation."""

    prompt: list[int]
    output: list[int]
    start: int
    rows: np.ndarray
    """(rows, num_layers, top_k), as vLLM returns them."""
    new: list[int]
    """Tokens of the prompt that no call before had."""


def calls_of(conversation: Json, keeps: tuple[str, ...] = ("first",)) -> list[Call]:
    """The calls of a conversation of one sample and nothing else, wanted as an array."""
    if len(conversation["samples"]) > 1 or set(conversation.get("result", {"as": "array"})) != {"as"}:
        raise NotImplementedError("one conversation at a time, as it is")
    if conversation.get("result", {}).get("as", "array") != "array":
        raise NotImplementedError("no batches")
    schema = conversation["schema"]
    known: list[int] = []
    calls: list[Call] = []
    for step in conversation["samples"][0]:
        call = step.get("call")
        if call is None or "parts" in call or "payload" in call or "validate" in call:
            raise NotImplementedError("only calls with rows")
        if call.get("keep", "first") not in keeps or call["rows"] is None:
            raise NotImplementedError("another policy, or a call without rows")
        if isinstance(call.get("version"), list):
            raise NotImplementedError("rows carry no versions")
        if call["prompt"][: len(known)] != known:
            raise NotImplementedError("it builds its prompts from the tokens that it has")
        dtype = np.uint8 if schema["num_experts"] <= 256 else np.uint16
        try:
            rows = np.array(call["rows"], dtype)
        except ValueError:
            raise NotImplementedError("an engine returns arrays") from None
        prompt, output = call["prompt"], call["output"]
        calls.append(Call(prompt, output, call["start"], rows, prompt[len(known) :]))
        known = prompt + output
    return calls


def whole(calls: list[Call]) -> list[Call]:
    """Calls of a framework that always asks for all rows."""
    if any(call.start for call in calls):
        raise NotImplementedError("it never asks for a start")
    return calls


def resumed(calls: list[Call]) -> list[Call]:
    """Calls of one rollout that was interrupted: each begins with the tokens so far."""
    if any(call.new for call in calls[1:]):
        raise NotImplementedError("turns are joined elsewhere")
    return calls


async def _no_sleep(seconds: float) -> None:
    """A stand-in for waiting."""


# verl: FullyAsyncLLMServerClient.generate joins a partial rollout, AgentLoopOutput.as_dict aligns it.


class _VerlServer:
    """Its client's base class, which would ask a server."""

    def __init__(self, outputs: list[Any]) -> None:
        self.config, self._outputs = SimpleNamespace(), iter(outputs)

    async def generate(self, **asked: Any) -> Any:
        return next(self._outputs)


def _token_output(**fields: Any) -> SimpleNamespace:
    absent = {"routed_experts": None, "num_preempted": None, "stop_reason": None, "extra_fields": {}}
    return SimpleNamespace(**{**absent, "log_probs": None, **fields})


def verl(conversation: Json) -> Json:
    return {"rows": verl_job(resumed(whole(calls_of(conversation))))()}


def verl_job(calls: list[Call]) -> Job:
    import torch

    names = {
        "LLMServerClient": _VerlServer,
        "normalize_token_ids": list,
        "TokenOutput": _token_output,
        "asyncio": SimpleNamespace(sleep=_no_sleep),
        "rollout_trace_op": lambda function: function,
        "np": np,
    }
    client = lift(VERL, "verl/workers/rollout/llm_server.py", "FullyAsyncLLMServerClient", names)
    as_dict = lift(
        VERL, "verl/experimental/agent_loop/agent_loop.py", "AgentLoopOutput.as_dict", {"torch": torch}
    )
    prompt = calls[0].prompt

    def job() -> Any:
        outputs = [
            _token_output(token_ids=call.output, routed_experts=call.rows, stop_reason="aborted")
            for call in calls
        ]
        outputs[-1].stop_reason = "completed"
        server = client.__new__(client)
        _VerlServer.__init__(server, outputs)
        merged = asyncio.run(server.generate("r", prompt_ids=prompt, sampling_params={}))
        fields = {
            "prompt_ids": prompt,
            "response_ids": merged.token_ids,
            "response_mask": [1] * len(merged.token_ids),
            "routed_experts": merged.routed_experts,
        }
        loop = SimpleNamespace(model_dump=lambda **options: dict(fields), extra_fields={})
        return as_dict(loop)["routed_experts"]

    return job


# AReaL: InfBridge.agenerate joins a resumed request, SGLangBackend.parse_generation_response decodes.


def areal(conversation: Json) -> Json:
    calls = resumed(whole(calls_of(conversation)))
    rows, schema = areal_job(calls)(), conversation["schema"]
    if rows.shape[1] == schema["num_layers"] * schema["top_k"]:
        rows = rows.reshape(len(rows), schema["num_layers"], schema["top_k"])
    return {"rows": _with_last(rows, calls)}


def areal_job(calls: list[Call]) -> Job:
    parse = lift(
        AREAL,
        "areal/engine/sglang_remote.py",
        "SGLangBackend.parse_generation_response",
        {"np": np, "pybase64": base64, "HttpGenerationResult": SimpleNamespace},
    )
    agenerate = lift(
        AREAL,
        "areal/experimental/inference_service/inf_bridge.py",
        "InfBridge.agenerate",
        {
            "asyncio": SimpleNamespace(sleep=_no_sleep),
            "np": np,
            "time": time,
            "cast": cast,
            "logger": logging,
            "_StopReason": str,
        },
    )
    answers = [sglang_answer(call, call is not calls[-1]) for call in calls]
    sys.modules.setdefault("areal.api.io_struct", cast("Any", SimpleNamespace(ModelResponse=SimpleNamespace)))

    async def is_paused() -> bool:
        return False

    def job() -> Any:
        waiting = iter(answers)

        async def send(request: object) -> Json:
            return next(waiting)

        backend = SimpleNamespace(
            build_generation_request=lambda *a, **k: None,
            get_generation_max_new_tokens=lambda request: 1 << 20,
            patch_generation_request=lambda *a: None,
            parse_generation_response=lambda data: parse(None, data),
        )
        bridge = SimpleNamespace(
            backend=backend,
            max_resubmit_retries=len(calls),
            pause_state=SimpleNamespace(is_paused=is_paused),
            _send_request=send,
            _version=0,
        )
        gconfig = SimpleNamespace(n_samples=1)
        request = SimpleNamespace(gconfig=gconfig, input_ids=calls[0].prompt, tokenizer=None)
        return asyncio.run(agenerate(bridge, request)).routed_experts

    return job


def sglang_answer(call: Call, aborted: bool) -> Json:
    text = base64.b64encode(call.rows.astype("<i4").tobytes()).decode()
    meta = {
        "finish_reason": {"type": "abort" if aborted else "stop"},
        "routed_experts": text,
        "prompt_tokens": len(call.prompt),
        "completion_tokens": len(call.output),
        "output_token_logprobs": [(0.0, token) for token in call.output],
    }
    return {"meta_info": meta}


def _with_last(rows: np.ndarray, calls: list[Call]) -> np.ndarray:
    """Rows of all tokens but the last, which such a framework leaves to its trainer, in as many places as tokens."""
    num_tokens = len(calls[-1].prompt) + len(calls[-1].output)
    return np.concatenate([rows, rows[:1] * 0]) if len(rows) == num_tokens - 1 else rows


# SkyRL: the agent loop takes the last turn's rows, convert_prompts_responses_to_batch_tensors pads them.


def skyrl(conversation: Json) -> Json:
    calls = whole(calls_of(conversation, ("first", "last")))
    if any(not call.new for call in calls):
        raise NotImplementedError("it does not resume a call")
    return {"rows": skyrl_job(calls)()}


def skyrl_job(calls: list[Call]) -> Job:
    import torch

    generator = "skyrl/train/generators/skyrl_gym_generator.py"
    update = lift(
        SKYRL, generator, "SkyRLGymGenerator._update_agent_loop_state_with_multiturn_chat_template", {}
    )
    turn_output = lift(SKYRL, generator, "TurnOutput", {"dataclass": dataclass})
    convert = lift(
        SKYRL,
        "skyrl/train/dataset/preprocess.py",
        "convert_prompts_responses_to_batch_tensors",
        {"torch": torch, "logger": logging, "_verify_inputs": lambda *inputs: None},
    )
    itself = SimpleNamespace(
        generator_cfg=SimpleNamespace(step_wise_trajectories=False),
        _update_chat_history=lambda history, *turn: history,
    )
    prompt, lists = calls[0].prompt, [call.rows.tolist() for call in calls]

    def job() -> Any:
        state = SimpleNamespace(
            chat_history=[],
            input_ids=list(prompt),
            loss_mask=[],
            rollout_logprobs=None,
            rollout_expert_indices=[],
            response_end_idx=None,
        )
        for call, later, rows in zip(calls, [*calls[1:], None], lists, strict=True):
            turn = turn_output(
                output="",
                output_ids=call.output,
                output_logprobs=None,
                new_obs=[],
                obs_ids=later.new if later else [],
                rollout_expert_indices=rows,
                reward=None,
            )
            state = update(itself, state, turn)
        response = state.input_ids[len(prompt) :]
        zeros = [[0.0] * len(response)]
        indices = [state.rollout_expert_indices]
        padded = SimpleNamespace(pad_token_id=0)
        return convert(padded, [prompt], [response], zeros, zeros, None, indices)[-1][0]

    return job


# verifiers: rows belong to the nodes of a tree; a branch joins those of its nodes.


def verifiers(conversation: Json) -> Json:
    calls = calls_of(conversation)
    for call in calls:
        if call.start != max(len(call.prompt) - len(call.new) - 1, 0) or not call.new:
            raise NotImplementedError(
                "it asks for rows from the last token of the turn before, and does not resume"
            )
    rows = verifiers_job(calls)()
    if rows is None:
        # The branch has no routing at all, which its trainer sees.
        raise ValueError("the branch reports no routing")
    return {"rows": rows}


def verifiers_job(calls: list[Call]) -> Job:
    graph = "verifiers/v1/graph.py"
    replace = lift(VERIFIERS, graph, "_replace_placeholder_routing_row", {"np": np})
    names = {"np": np, "binascii": binascii, "_replace_placeholder_routing_row": replace}
    attribute = lift(VERIFIERS, graph, "_attribute_routed_experts", names)
    joined = lift(VERIFIERS, "verifiers/v1/trace.py", "Branch.routed_experts", {"np": np})
    payloads = [verifiers_payload(call) for call in calls]

    def job() -> Any:
        trace = SimpleNamespace(nodes=[])
        for call, payload in zip(calls, payloads, strict=True):
            prefix = list(range(len(trace.nodes)))
            trace.nodes += [
                SimpleNamespace(token_ids=tokens, sampled=sampled, routed_experts=None)
                for tokens, sampled in ((call.new, False), (call.output, True))
            ]
            path_len = len(call.prompt) - len(call.new)
            attribute(trace, prefix, [len(prefix), len(prefix) + 1], path_len, payload)
        return joined(SimpleNamespace(nodes=trace.nodes))

    return job


def verifiers_payload(call: Call) -> Json:
    """The rows of a call as its renderer sends them."""
    return {
        "data": base64.b64encode(call.rows.tobytes()).decode(),
        "dtype": call.rows.dtype.name,
        "shape": call.rows.shape,
        "start": call.start,
    }


FRAMEWORKS: dict[str, Callable[[Json], Json]] = {VERL: verl, AREAL: areal, SKYRL: skyrl, VERIFIERS: verifiers}


def table() -> str:
    """Every case that any of them gets into, and what it shows."""
    from auxout_conformance import client

    checked = {
        name: client.check(f"client_tools.frameworks:{each.__name__}") for name, each in FRAMEWORKS.items()
    }
    ours = client.check("auxout.client.conversation:play")
    words = {"holds": "right", "violated": "**wrong**", "not offered": ""}
    lines = [f"| case | {' | '.join(checked)} | auxout |", "|" + " --- |" * (len(checked) + 2)]
    for number, result in enumerate(ours.results):
        statuses = [words[each.results[number].status] for each in checked.values()]
        if any(statuses):
            lines.append(f"| `{result.case.name}` | {' | '.join(statuses)} | {words[result.status]} |")
    return "\n".join(lines)


def write_measured(name: str, made: str) -> None:
    """Put a table between its marks in docs/client.md."""
    page = Path(__file__).parents[2] / "docs" / "client.md"
    head, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- measured: {name} -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    page.write_text(f"{head}{begin}\n{made}\n\n{end}{tail}", encoding="utf-8")


def main() -> int:
    """Measure, and write the table between its marks."""
    write_measured("frameworks", table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
