"""vLLM's engine in the two ways that users have it: ``LLM`` in this process, and the OpenAI-compatible server.

Triton has no driver here: its kernels run in its own interpreter, and an empty ``CUDA_VISIBLE_DEVICES`` tells vLLM not
to look for a device.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from .. import pairs

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TRITON_INTERPRET": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
}
# Triton looks at it when it is imported, which transformers may do before an engine is made.
os.environ["TRITON_INTERPRET"] = ENVIRONMENT["TRITON_INTERPRET"]
SETTINGS = {
    "block_size": 32,
    "dtype": "float32",
    "enable_return_routed_experts": True,
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "num_gpu_blocks_override": 32,
    "skip_tokenizer_init": True,
    "worker_extension_cls": "real.live.updating.Updating",
}
SECONDS = 240
"""For the server to be there, and for one answer."""


class Answer(NamedTuple):
    """What an engine returns of one call."""

    output: list[int]
    payload: Any
    """The rows as they came."""


class Engine(Protocol):
    """Calls with rows, of weights that can be changed."""

    def call(self, prompt: Sequence[int], num_output: int, start: int) -> Answer:
        """Sample some tokens."""
        ...

    def aborted(self, prompt: Sequence[int], start: int) -> Answer:
        """Begin to sample many tokens and end that after some."""
        ...

    def update(self, checkpoint: Path) -> None:
        """Take the weights of another checkpoint; nothing that was computed before is used again."""
        ...


class Offline:
    """``vllm.LLM``. What it is told to abort brings no rows, since nobody is left to take them."""

    def __init__(self, checkpoint: Path) -> None:
        from vllm import LLM

        self._llm: Any = LLM(model=str(checkpoint), **SETTINGS)

    def call(self, prompt: Sequence[int], num_output: int, start: int) -> Answer:
        [done] = self._llm.generate(
            [{"prompt_token_ids": list(prompt)}], _sampling(num_output, start), use_tqdm=False
        )
        return Answer(list(done.outputs[0].token_ids), done.outputs[0].routed_experts)

    def aborted(self, prompt: Sequence[int], start: int) -> Answer:
        engine = self._llm.llm_engine
        engine.add_request("aborted", {"prompt_token_ids": list(prompt)}, _sampling(100, start))
        output: list[int] = []
        while len(output) < 5:
            output = [token for each in engine.step() for token in each.outputs[0].token_ids]
        engine.abort_request(["aborted"])
        assert engine.step() == []
        return Answer(output, None)

    def update(self, checkpoint: Path) -> None:
        self._llm.collective_rpc("take_embeddings", args=(str(checkpoint),))
        assert self._llm.reset_prefix_cache()


def _sampling(num_output: int, start: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=num_output, ignore_eos=True, detokenize=False, seed=0, routed_experts_prompt_start=start
    )


class Server:
    """The server as a process of its own; what a pause aborts is answered with the rows that there are."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], model: str) -> None:
        self._address, self._process, self._model = f"http://127.0.0.1:{port}", process, model

    def call(self, prompt: Sequence[int], num_output: int, start: int) -> Answer:
        return self._answer(prompt, num_output, start, "length")

    def aborted(self, prompt: Sequence[int], start: int) -> Answer:
        before = self._num_generated()
        with ThreadPoolExecutor(1) as beside:
            answer = beside.submit(self._answer, prompt, 400, start, "abort")
            self._until(lambda: self._num_generated() >= before + 5)
            self.post("/pause?mode=abort")
            return answer.result(SECONDS)

    def update(self, checkpoint: Path) -> None:
        self.post("/collective_rpc", {"method": "take_embeddings", "args": [str(checkpoint)]})
        self.post("/reset_prefix_cache")
        self.post("/resume")

    def wait(self) -> None:
        """Until it answers.

        Raises:
            RuntimeError: it ended, or took too long.
        """

        def answers() -> bool:
            try:
                return self._get("/health") == ""
            except OSError:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the server ended with {self._process.returncode}") from None
                return False

        self._until(answers)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What it answers to a request."""
        data = json.dumps(body or {}).encode()
        asked = urllib.request.Request(
            self._address + path, data, headers={"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path} was refused: {error.read().decode()[:500]}") from None
        return json.loads(text) if text else None

    def _answer(self, prompt: Sequence[int], num_output: int, start: int, reason: str) -> Answer:
        asked = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": num_output,
            "ignore_eos": True,
            "detokenize": False,
            "return_token_ids": True,
            "seed": 0,
            "routed_experts_prompt_start": start,
        }
        [choice] = self.post("/v1/completions", asked)["choices"]
        assert choice["finish_reason"] == reason
        return Answer(choice["token_ids"], choice["routed_experts"])

    def _num_generated(self) -> int:
        counted = re.search(
            r"^vllm:generation_tokens_total\{.*\} (\S+)$", self._get("/metrics"), re.MULTILINE
        )
        return int(float(counted[1])) if counted else 0

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._address + path, timeout=SECONDS) as answer:
            return answer.read().decode()

    def _until(self, holds: Callable[[], bool]) -> None:
        given_up = time.monotonic() + SECONDS
        while not holds():
            if time.monotonic() > given_up:
                raise RuntimeError(f"the server took over {SECONDS} s")
            time.sleep(0.02)


@contextmanager
def offline(checkpoint: Path, connectors: str) -> Iterator[Engine]:
    """An ``LLM`` with the connectors of ``pairs.PAIRS`` of this name."""
    os.environ.update(ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    with pairs.bound(pairs.PAIRS[connectors]):
        yield Offline(checkpoint)


@contextmanager
def server(checkpoint: Path, connectors: str, log: Path) -> Iterator[Engine]:
    """A server with vLLM's connectors (``original``), or with those of the plugin's setting ``AUXOUT``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
        for name, value in SETTINGS.items()
    ]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options]
    command += ["--model", str(checkpoint), "--host", "127.0.0.1", "--port", str(port)]
    chosen = {} if connectors == "original" else {"AUXOUT": connectors}
    environment = {**os.environ, **ENVIRONMENT, **chosen, "VLLM_SERVER_DEV_MODE": "1"}
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        made = Server(port, process, str(checkpoint))
        made.wait()
        yield made
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
