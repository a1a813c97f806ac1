"""Twenty engine events on the scheduler of the vLLM on the path: prints, as JSON, the connector calls of each in order.

``auxout drift`` runs it with an older and a newer vLLM and compares. The scheduler and its connector are real; there
is no worker, so that ``take_output`` is noted and not made. Beside the calls of the connector those of the KV cache
manager are noted which look up, allocate and free, since it matters what comes before what.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from . import released
from .released import Setting

SETTING = Setting(num_blocks=24, max_num_seqs=4, max_num_batched_tokens=16)
LANDMARKS = ("get_computed_blocks", "allocate_slots", "free")
FIRST_TOKEN = 100


class Noted:
    """A connector whose calls are noted.

    Args:
        note: told each call.
    """

    def __init__(self, connector: Any, note: Callable[[str], None]) -> None:
        self._connector, self._note = connector, note

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connector, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            self._note(f"{name}({shown(args, more)})")
            # Its rows come from a worker, and there is none.
            return None if name == "take_output" else found(*args, **more)

        return call


def shown(args: tuple[Any, ...], more: dict[str, Any]) -> str:
    """What of some arguments says which call it is: requests by their ids, numbers, what a step schedules."""
    words: list[str] = []
    for name, value in [*(("", each) for each in args), *more.items()]:
        if hasattr(value, "request_id"):
            words.append(value.request_id)
        elif hasattr(value, "num_scheduled_tokens"):
            words.append(str(value.num_scheduled_tokens).replace("'", ""))
        elif isinstance(value, int) and not isinstance(value, bool):
            words.append(f"{name}={value}" if name else str(value))
    return ", ".join(words)


class Engine:
    """A scheduler without a worker: what was scheduled is computed, and each decoding request samples a token."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.scheduler = released.scheduler(SETTING, released.vllm_config(SETTING))
        self.scheduler.aux_output_connector = Noted(self.scheduler.aux_output_connector, self.calls.append)
        for name in LANDMARKS:
            self._mark(self.scheduler.kv_cache_manager, name)

    def _mark(self, manager: Any, name: str) -> None:
        made = getattr(manager, name)

        def call(request: Any, *args: Any, **more: Any) -> Any:
            self.calls.append(f"KV {name}({request.request_id})")
            return made(request, *args, **more)

        setattr(manager, name, call)

    def add(self, name: str, num_tokens: int, max_tokens: int = 2, *, session: bool = False) -> None:
        """A request whose text all requests share, or a session's next input."""
        tokens = [FIRST_TOKEN + position for position in range(num_tokens)]
        self.scheduler.add_request(released.request(name, tokens, max_tokens=max_tokens, session=session))

    def step(self) -> None:
        """Schedule, and take in what was computed."""
        from vllm.v1.outputs import ModelRunnerOutput

        output = self.scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        sampled = [[7] if each.num_computed_tokens >= each.num_tokens else [] for each in requests]
        index = {name: number for number, name in enumerate(names)}
        result = ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=sampled)
        self.scheduler.update_from_output(output, result)

    def abort(self, name: str) -> None:
        """A client goes away."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset(self) -> None:
        """Preempt every request and forget the prefix cache."""
        from vllm.v1.core.sched.interface import PauseState

        self.scheduler.set_pause_state(PauseState.PAUSED_ALL)  # 0.31 asks for it
        self.scheduler.reset_prefix_cache(reset_running_requests=True)
        self.scheduler.set_pause_state(PauseState.UNPAUSED)


EVENTS: tuple[tuple[str, Callable[[Engine], None]], ...] = (
    ("add A, 9 tokens", lambda engine: engine.add("A", 9, 3)),
    ("step", Engine.step),
    ("step", Engine.step),
    ("add B, 13 tokens that begin as A's", lambda engine: engine.add("B", 13)),
    ("step", Engine.step),
    ("step", Engine.step),
    ("add C, 40 tokens in chunks", lambda engine: engine.add("C", 40)),
    ("step", Engine.step),
    ("abort C", lambda engine: engine.abort("C")),
    ("step", Engine.step),
    ("add session D, 5 tokens", lambda engine: engine.add("D", 5, session=True)),
    ("step", Engine.step),
    ("step", Engine.step),
    ("D's next input, 4 tokens", lambda engine: engine.add("D", 4, session=True)),
    ("step", Engine.step),
    ("abort D", lambda engine: engine.abort("D")),
    ("add E, 6 tokens", lambda engine: engine.add("E", 6, 3)),
    ("step", Engine.step),
    ("reset with E running", Engine.reset),
    ("step", Engine.step),
)


def main() -> int:
    """Play the events."""
    engine, told = Engine(), list[tuple[str, list[str]]]()
    for name, play in EVENTS:
        engine.calls.clear()
        play(engine)
        told.append((name, list(engine.calls)))
    json.dump({"version": released.version(), "events": told}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
