"""The spec's engine in lockstep with a real one: is what the scheduler does an action that the model has?

Each action of the real engine is given to ``auxout_spec.engine.step``. It must be possible there, and it must make
the same connector calls: same requests, counts, hash lists and numbers of rows. What does not fit is a fault of the
model, or a finding.
"""

from __future__ import annotations

import json
from typing import Any

from auxout_spec import trace
from auxout_spec.calls import BuildConnectorMeta, Call, Exchange, RequestFinished, Reset, TakeOutput
from auxout_spec.engine import EngineConfig, Event, Evict, Impossible, Launch, initial, step
from auxout_spec.profiles import PROFILES
from auxout_spec.values import Metadata, RequestView, Rows

_SCHEDULER_CALLS = (BuildConnectorMeta, TakeOutput, RequestFinished, Reset)


class Divergence(AssertionError):
    """The real engine did what the model cannot do, or the model does something else."""


class Mirror:
    """Follows one engine.

    Args:
        profile: protocol version of the engine.
        depth: steps it may have in flight.
        removed_guards: restrictions of the model to do without.
    """

    def __init__(
        self, profile: str, block_size: int, depth: int, removed_guards: frozenset[str] = frozenset()
    ) -> None:
        self._config = EngineConfig(PROFILES[profile], block_size, depth, removed_guards)
        self.state = initial()
        self.num_events = 0
        self._real: dict[bytes, bytes] = {}
        """Block hash of the model -> the real one."""

    def follow(self, event: Event, lines: list[str]) -> None:
        """Take in one action and the calls that the real engine made with it.

        Raises:
            Divergence: they do not fit the model.
        """
        self.num_events += 1
        if isinstance(event, Launch):
            event = self._without_kept(event)
        try:
            self.state, due = step(self._config, self.state, event)
        except Impossible as error:
            raise Divergence(f"event {self.num_events}, {event}: {error}") from None
        made = [trace.exchange_from_json(json.loads(line)) for line in lines]
        made = [exchange for exchange in made if isinstance(exchange.call, _SCHEDULER_CALLS)]
        calls, expected = [_name(e) for e in made], [_name(e) for e in due]
        if calls != expected:
            raise Divergence(f"event {self.num_events}, {event}: calls {calls}, in the model {expected}")
        for exchange, model in zip(made, due, strict=True):
            self._compare(event, exchange, model)

    def evict(self, resident: set[bytes]) -> None:
        """Take over which blocks the real KV cache still has, by their real hashes."""
        gone = {block.name for block in self.state.resident if self._real[block.block_hash] not in resident}
        for name in gone:
            try:
                self.follow(Evict(name), [])
            except Divergence as error:
                raise Divergence(f"the KV cache lost a block: {error}") from None

    def _without_kept(self, event: Launch) -> Launch:
        """A request that holds KV is not admitted: what it starts from is no hit."""
        waiting = {r.request_id for r in self.state.requests if r.status != "running" and not r.holds_kv}
        return event._replace(hits=tuple(hit for hit in event.hits if hit[0] in waiting))

    def _compare(self, event: Event, made: Exchange, model: Exchange) -> None:
        for view, due in zip(_views(made.call), _views(model.call), strict=True):
            seen, right = self._comparable(view, due)
            if seen != right:
                raise Divergence(f"event {self.num_events}, {event}: request {seen}, in the model {right}")
        got, right = _positions(made.result), _positions(model.result)
        if got != right:
            raise Divergence(f"event {self.num_events}, {event}: result {got}, in the model {right}")

    def _comparable(self, view: RequestView, due: RequestView) -> tuple[Any, Any]:
        """Both views with the model's hashes replaced by the real ones they stand for."""
        pairs = zip(due.block_hashes, view.block_hashes, strict=False)
        known = tuple(self._real.setdefault(model, real) for model, real in pairs)
        hashes = known + due.block_hashes[len(known) :]
        # Recordings do not tell what is computed: connectors up to profile 0.32 do not read it.
        return view, due._replace(block_hashes=hashes, num_computed_tokens=view.num_computed_tokens)


def _name(exchange: Exchange) -> Any:
    """A call without what it shows of requests."""
    call: Call = exchange.call
    if isinstance(call, BuildConnectorMeta):
        return "build_connector_meta", call.scheduled
    if isinstance(call, TakeOutput | RequestFinished):
        return type(call).__name__, call.request.request_id, getattr(call, "preempted", None)
    return type(call).__name__


def _views(call: Call) -> list[RequestView]:
    if isinstance(call, BuildConnectorMeta):
        return sorted(call.requests, key=lambda view: view.request_id)
    return [call.request] if isinstance(call, TakeOutput | RequestFinished) else []


def _positions(result: Any) -> Any:
    """A result as far as model and reality can agree: rows by number, of metadata all but the hashes' values."""
    if isinstance(result, Rows):
        return len(result.rows)
    if isinstance(result, Metadata):
        hashes = [
            {name: len(items) for name, items in part}
            for part in (result.block_hashes, result.finished_block_hashes)
        ]
        return result.generation, result.requests, hashes, result.finished_requests
    return result
