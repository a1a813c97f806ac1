"""What happened so far in one scenario, as far as it explains a wrong answer.

The spec's state says what is right; naming the clause behind a wrong answer also needs the past: was this
event delivered before, was it dropped by a reset, had a refused call come first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from auxout_spec.calls import (
    BeginStep,
    BuildConnectorMeta,
    Call,
    Halves,
    ProcessOutput,
    RequestFinished,
    Reset,
    TakeOutput,
)
from auxout_spec.retention import KvCache
from auxout_spec.scheduler import SchedulerState
from auxout_spec.store import Block, Key
from auxout_spec.values import BlockHash, Metadata, Refusal, RequestView, Result, Row, StepOutput


def failed_in(state: Halves) -> set[str]:
    """The requests that have failed and not ended, where requests do."""
    return {*state.scheduler.failed, *(name for name, kept in state.worker.requests if kept.failed)}


ATOMICITY_OF: dict[type, str] = {
    BuildConnectorMeta: "SCHED-REFUSE-3",
    RequestFinished: "SCHED-REFUSE-4",
    TakeOutput: "SCHED-REFUSE-5",
    BeginStep: "WORK-REFUSE-2",
    ProcessOutput: "WORK-REFUSE-3",
}
"""The clause that says: this call, refused, changes nothing."""
ATOMICITY = frozenset(ATOMICITY_OF.values())


@dataclass
class Ledger:
    """The past of one scenario, by the right answers."""

    activated: set[str] = field(default_factory=set)
    """Ids that were ever active."""
    delivered: set[str] = field(default_factory=set)
    """Ids whose terminal event was delivered and that are not active again."""
    dropped: set[str] = field(default_factory=set)
    """Ids whose terminal event a reset dropped, not active again since."""
    reset_while_active: set[str] = field(default_factory=set)
    """Ids that were active when a reset came, not active again since."""
    preempted: set[str] = field(default_factory=set)
    """Ids whose last end was a preemption."""
    emit_starts: dict[str, int] = field(default_factory=dict)
    """The last emit start of each id."""
    views: dict[str, RequestView] = field(default_factory=dict)
    """Each request as the connector last saw it."""
    refused: str = ""
    """The clause on atomicity that the last refused call of the scheduler connector puts at stake."""
    worker_refused: str = ""
    """The same for the worker."""
    rejected: set[Row] = field(default_factory=set)
    """Rows of rejected drafts."""
    block_size: int = 1
    """Tokens per hash block, where there is a worker."""
    reattached: set[str] = field(default_factory=set)
    """Requests that had a step which started beyond what was accepted."""
    failed: set[str] = field(default_factory=set)
    """Ids that ever failed, where requests do."""
    replaced: bool = False
    """Whether a request's hashes were replaced after they were sent."""
    resets_since_metadata: int = 0
    cache: KvCache | None = None
    """What the scheduler connector was built with; the fields below are kept only with one."""
    capacity: int = 0
    """Objects that the worker's store was built for; 0: there is none."""
    worker_generation: int = 0
    """The worker's before the call that is looked at."""
    unscheduled: set[BlockHash] = field(default_factory=set)
    """Hashes of requests that ended since the last metadata and were not active."""
    unmarked: set[BlockHash] = field(default_factory=set)
    """Names of blocks whose load a request no longer waits for."""
    stored: dict[Key, Block] = field(default_factory=dict)
    overwritten: set[Row] = field(default_factory=set)
    """Rows that were stored and replaced."""

    def record(self, call: Call, before: Halves, right: Result) -> None:
        """Add one exchange."""
        self.failed |= failed_in(before)
        if self.cache is not None:
            self._record_kept(call, before)
        if isinstance(right, StepOutput):
            self.failed |= {name for name, output in right.outputs if output.failed}
        if isinstance(right, Refusal):
            self._record_refusal(ATOMICITY_OF.get(type(call), ""))
        elif isinstance(call, BuildConnectorMeta) and isinstance(right, Metadata):
            self._record_metadata(call, before.scheduler, right)
        elif isinstance(call, ProcessOutput):
            self.record_parts(call, before)
        elif isinstance(call, RequestFinished):
            self.views[call.request.request_id] = call.request
            (self.preempted.add if call.preempted else self.preempted.discard)(call.request.request_id)
        elif isinstance(call, Reset):
            self._record_reset(before.scheduler)

    def _record_kept(self, call: Call, before: Halves) -> None:
        """Remember what explains wrong answers about rows for resident KV."""
        scheduled: set[str] = set()
        if isinstance(call, BuildConnectorMeta):
            scheduled = {name for name, _ in call.scheduled}
            self.unscheduled = set()
        elif isinstance(call, RequestFinished):
            scheduled = {call.request.request_id}
            if call.request.request_id not in dict(before.scheduler.active):
                self.unscheduled.update(call.request.block_hashes)
        elif isinstance(call, BeginStep):
            self.worker_generation = max(call.metadata.generation, before.worker.generation)
        for name, blocks in before.scheduler.kept.loading:
            if name in scheduled:
                self.unmarked.update(blocks)
        for key, rows in before.worker.store.objects:
            if self.stored.get(key, rows) != rows:
                self.overwritten |= set(self.stored[key])
            self.stored[key] = rows

    def lets_go(self, metadata: Metadata) -> bool:
        """Whether metadata begins a generation and releases hashes of the one before."""
        return metadata.generation > self.worker_generation and bool(metadata.released_block_hashes)

    def known_hashes(self, request_id: str) -> tuple[BlockHash, ...]:
        """The hashes that an ended request's event may bring, with those sent before."""
        view = self.views[request_id]
        if self.cache is None:
            return view.block_hashes
        return view.block_hashes[: view.num_computed_tokens // self.cache.hash_block_size]

    def _record_refusal(self, clause: str) -> None:
        if clause.startswith("WORK"):
            self.worker_refused = clause
        else:
            self.refused = clause or self.refused

    def record_parts(self, call: ProcessOutput, before: Halves) -> None:
        """Remember what a step's report says of drafts."""
        known = dict(before.worker.requests)
        for part in call.parts:
            self.rejected |= set(part.rows[len(part.rows) - part.num_rejected :])
            request = known.get(part.request_id)
            if request is not None and part.token_start > request.capture_cursor >= 0:
                self.reattached.add(part.request_id)

    def _record_metadata(self, call: BuildConnectorMeta, before: SchedulerState, right: Metadata) -> None:
        self.views.update((view.request_id, view) for view in call.requests)
        self.delivered |= set(right.finished_requests)
        self.replaced |= bool(right.replaced_block_hashes)
        for request_id, start in right.requests:
            self.emit_starts[request_id] = start
            if request_id not in dict(before.active):
                self.activated.add(request_id)
                for past in (self.delivered, self.dropped, self.reset_while_active):
                    past.discard(request_id)
        self.resets_since_metadata = 0

    def _record_reset(self, before: SchedulerState) -> None:
        self.reset_while_active |= {request_id for request_id, _ in before.active}
        self.dropped |= {request_id for request_id, _ in before.ended}
        self.resets_since_metadata += 1
