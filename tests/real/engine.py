"""A small engine core: vLLM's scheduler, a model runner that computes digests, and the connectors between them.

It does what ``vllm.v1.engine.core`` does with a scheduler, one action at a time, so that a workload or a scenario
decides what happens. Every delivered row is compared with the one that its tokens and its generation call for.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from auxout_conformance.recording import Recorder, Trace, WorkerRecorder
from auxout_spec.engine import Abort, Add, Chunk, End, Event, Land, Launch, Pause, Preempt, Reset

from . import released
from .model import Executed, Runner, tokens_of
from .oracle import Oracle
from .released import Setting


class _InFlight(NamedTuple):
    scheduler_output: Any
    executed: Executed


class Tape(io.StringIO):
    """A trace kept in memory until someone takes what is new."""

    def take(self) -> list[str]:
        """The lines since the last call."""
        lines = self.getvalue().splitlines()
        self.seek(0)
        self.truncate()
        return lines


class Engine:
    """One engine from start to end.

    Args:
        setting: scheduler, sizes, drafts.
        on_event: told of every action, as an event of the spec's engine, with the connector calls it made.
        record: whether the calls are recorded; ``on_event`` needs it.
    """

    def __init__(
        self,
        setting: Setting,
        seed: int = 0,
        on_event: Callable[[Event, list[str]], None] | None = None,
        record: bool = True,
    ) -> None:
        config = released.vllm_config(setting)
        self.setting = setting
        self.scheduler = released.scheduler(setting, config)
        self.runner = Runner(setting.num_drafts, seed)
        self.worker = released.worker_connector(setting, config, self.runner.model)
        self.connector = self.scheduler.aux_output_connector
        self._tape = Tape()
        self.runner.connector, scheduler_connector = self.worker, self.connector
        if record:
            max_objects = setting.max_objects or setting.num_blocks
            trace = Trace(self._tape, released.profile(), setting.block_size, max_objects)
            self.runner.connector = WorkerRecorder(
                self.worker, trace, lambda num_rows: self.runner.rows[:num_rows]
            )
            scheduler_connector = Recorder(self.connector, trace)
        self.oracle = self.scheduler.aux_output_connector = Oracle(scheduler_connector)
        self.in_flight: deque[_InFlight] = deque()
        self.counts: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        """How often each id's last output, or a turn's, was delivered."""
        self._on_event = on_event or (lambda event, lines: None)
        self.trace = self._tape.take()

    def add(self, event: Add, text: int, stop: int | None = None) -> None:
        """A request arrives; ``stop``: it ends after so many output tokens, before its maximum."""
        stops = None if stop is None else tokens_of(text, event.prompt + stop - 1, event.prompt + stop)
        prompt = tokens_of(text, 0, event.prompt)
        self.submit(event.request, prompt, event.start, event.max_tokens, stops, event.session)
        self._tell(event)

    def chunk(self, event: Chunk, text: int) -> None:
        """A session's next input; its tokens are those of another text, from wherever the turn will begin."""
        tokens = tokens_of(text, 0, event.tokens)
        self.submit(event.request, tokens, event.start, event.max_tokens, session=True)
        self._tell(event)

    def submit(
        self,
        request_id: str,
        tokens: list[int],
        start: int = 0,
        max_tokens: int = 2,
        stops: list[int] | None = None,
        session: bool = False,
    ) -> None:
        """A request with any prompt, or a session's next input. Not told to ``on_event``."""
        if request_id not in self.scheduler.requests:
            self.oracle.expect(request_id, min(start, len(tokens)), session)
        size = self.setting.block_size
        self.scheduler.add_request(
            released.request(request_id, tokens, start, max_tokens, stops, session, size)
        )

    def end(self, event: End) -> None:
        """A session's client closes it."""
        self.scheduler.add_request(released.request(event.request, tokens_of(0, 0, 1)))
        self._tell(event)

    def abort(self, request_id: str) -> None:
        """A client cancels a request."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self._tell(Abort(request_id))

    def pause(self, on: bool) -> None:
        """Stop scheduling and keep the requests, or go on."""
        from vllm.v1.core.sched.interface import PauseState

        self.scheduler.set_pause_state(PauseState.PAUSED_ALL if on else PauseState.UNPAUSED)
        self._tell(Pause(on))

    def reset(self, running: bool = False) -> bool:
        """Reset the prefix cache; a success comes with a weight update. False: it failed."""
        try:
            done = self.scheduler.reset_prefix_cache(reset_running_requests=running)
        except RuntimeError:
            self._tell(Reset(running=running))
            raise
        self.runner.num_weight_updates += done
        self._tell(Reset(running=running, weights=done))
        return done

    def launch(self) -> int:
        """Schedule a step and run it; returns its tokens."""
        by_reset = set(self.scheduler.reset_preempted_req_ids)
        output = self.scheduler.schedule()
        self.counts["preemptions"] += len(output.preempted_req_ids - by_reset)
        lines = self._tape.take()
        self.trace += lines
        # vLLM preempts while it schedules; in the spec's engine that comes before the step.
        for n, line in enumerate(lines[:-1]):
            preempted = output.preempted_req_ids
            name = next(name for name in preempted if f'"request_id": "{name}"' in line)
            self._on_event(Preempt(name), lines[n : n + 1])
        self._on_event(self._launched(output), lines[-1:])
        try:
            executed = self.runner.execute(output)
        finally:
            self.trace += self._tape.take()
        self._wait()
        if output.num_scheduled_tokens:
            self.in_flight.append(_InFlight(output, executed))
        self.counts["steps"] += 1
        self.counts["actions"] += 1
        return output.total_num_scheduled_tokens

    def land(self) -> None:
        """Consume the oldest step's output."""
        from vllm.v1.outputs import ModelRunnerOutput

        output, executed = self.in_flight.popleft()
        sampled = {
            name: len(tokens)
            for name, tokens in zip(executed.request_ids, executed.sampled, strict=True)
            if tokens
        }
        result = ModelRunnerOutput(
            req_ids=executed.request_ids,
            req_id_to_index={name: n for n, name in enumerate(executed.request_ids)},
            sampled_token_ids=executed.sampled,
            aux_output_connector_output=executed.pending.process_output(),
        )
        self._wait()
        self.oracle.num_weight_updates = executed.num_weight_updates
        emitted = self.scheduler.update_from_output(output, result)
        stopped: dict[str, int] = {}
        for part in (part for outputs in emitted.values() for part in outputs.outputs):
            if part.finish_reason is not None:
                self.ends[part.request_id] += 1
                if part.stop_reason is not None:
                    stopped[part.request_id] = len(part.new_token_ids)
        self._count_drafts(output, sampled)
        if not self.setting.asynchronous and self.setting.num_drafts:
            self._place_drafts(executed.request_ids)
        self._tell(Land(tuple(sampled.items()), tuple(stopped.items())))

    def resident(self) -> set[bytes]:
        """Hashes of the blocks that the KV cache can hit."""
        from vllm.v1.core.kv_cache_utils import get_block_hash

        cached = self.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
        return {bytes(get_block_hash(key)) for key in cached._cache}

    def _launched(self, output: Any) -> Launch:
        drafts = ((name, len(tokens)) for name, tokens in output.scheduled_spec_decode_tokens.items())
        hits = []
        for new in output.scheduled_new_reqs:
            hits.append((new.req_id, new.num_computed_tokens))
            if not self.scheduler.requests[new.req_id].resumable:
                self.counts["hit tokens"] += new.num_computed_tokens
        return Launch(tuple(output.num_scheduled_tokens.items()), tuple(drafts), tuple(hits))

    def _count_drafts(self, output: Any, sampled: dict[str, int]) -> None:
        for name, drafts in output.scheduled_spec_decode_tokens.items():
            self.counts["accepted drafts"] += sampled[name] - 1
            self.counts["rejected drafts"] += len(drafts) - sampled[name] + 1

    def _place_drafts(self, request_ids: list[str]) -> None:
        from vllm.v1.outputs import DraftTokenIds

        drafts = self.runner.proposed(request_ids)
        self.scheduler.update_draft_token_ids(DraftTokenIds(list(drafts), list(drafts.values())))

    def close(self) -> None:
        """Let go of the worker's store."""
        self.worker.close()

    def _wait(self) -> None:
        """Until the released worker's writer thread has caught up, so that runs are the same each time."""
        store = getattr(self.worker, "_store", None)
        if store is not None:
            store._queue.join()

    def _tell(self, event: Event) -> None:
        self.counts["actions"] += 1
        lines = self._tape.take()
        self.trace += lines
        self._on_event(event, lines)
