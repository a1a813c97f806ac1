"""A fast drop-in for ``vllm.distributed.aux_output_connector.connector``.

Same names, same signatures, same results within the protocol; calls outside it are refused with the state
unchanged, where the original checks less. The costs below count requests and hashes; "active" requests are
those that were scheduled and have not ended.

How it is fast. In most steps nothing is new for most requests: their hash lists have the length they had. So the
connector lines up the active requests once (``_lineup``), from then on looks them up with one call, and compares
all lengths with those sent at once. The hashes themselves are compared only where a list grew, and before a
request's first output, which is where a session's next turn may have replaced some: those lists are sent whole
again. What depends on the ids of a batch alone is kept while no request ends. Metadata consists of columns, and is a
mapping only for those who look something up in it (``_wire``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ._emit import EMIT_STARTS, require_sampling
from ._engine import AsSent
from ._hashes import append, check_unsent, columns_of, pack_replaced, pack_unsent
from ._lineup import NOTHING_SENT, NUM_RECENT, Batch, Lineup, changed, collect, look_up
from ._options import announce, errors_mode
from ._outputs import RowSharing, StepOutputs, owned
from ._profiles import LATEST, checked
from ._wire import (
    NO_HASHES,
    AuxOutputConnectorMetadata,
    AuxRequestOutput,
    EmitStarts,
    NewHashes,
    PackedBlockHashes,
)
from .errors import ProtocolViolation, log_failure, misplaced

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ._engine import Request, SchedulerOutput
    from ._hashes import Replaced
    from ._lineup import Progress
    from ._options import Errors
    from ._outputs import Parts
    from ._wire import HashColumns


__all__ = [
    "AuxOutputConnectorMetadata",
    "AuxOutputSchedulerConnector",
    "AuxRequestOutput",
    "PackedBlockHashes",
]


class AuxOutputSchedulerConnector:
    """The scheduler's side of the protocol. Memory: O(1) per active request, and the undelivered events."""

    def __init__(self, *, profile: str = LATEST, errors: Errors | None = None) -> None:
        """Generation 0, nothing active.

        Args:
            profile: protocol version, ``"0.31"`` or ``"0.32"``; they differ in the emit start of a request
                whose prompt start lies beyond its prompt (SCHED-EMIT-3, -4).

            errors: ``"raise"`` refuses a call in which a request is inconsistent; ``"request"`` answers it, and fails
                that request alone: from then on ``take_output`` returns None for it, until it has ended. None: what
                the environment variable ``AUXOUT_ERRORS`` says, ``"raise"`` where it is not set.

        Raises:
            ValueError: an unknown ``profile`` or ``errors``, or the variable has another value than it may have.
        """
        self._emit_starts = EMIT_STARTS[checked(profile)]
        self._strict = (mode := errors_mode(errors)) == "raise"
        self.failures: Counter[str] = Counter()
        """Requests that failed, by the clause that was broken; FAIL-TELL-1 where the worker said so."""
        # Requests that have failed and not ended, and why.
        self._failed: dict[str, str] = {}
        self._generation = 0
        # How many hashes of each active request the worker has, and the last of them, b"" if none.
        self._sent: dict[str, tuple[int, bytes]] = {}
        # Tokens in the prompt of each active request when it started or was last scheduled without output; only where
        # requests fail.
        self._prompts: dict[str, int] = {}
        # Terminal events in order, each with its final hashes joined and the size of one, if any.
        self._ended: dict[str, tuple[bytes, int] | None] = {}
        # Only saves work: the active requests lined up, or None when that is to be done anew.
        self._lineup: Lineup | None = None
        self._sharing = RowSharing()
        announce(type(self), f"errors={mode}", f"profile {profile}")

    def build_connector_meta(
        self, scheduler_output: SchedulerOutput, requests: Mapping[str, Request]
    ) -> AuxOutputConnectorMetadata:
        """Make one step's message to the worker and take over what it says as sent.

        Where requests fail, one that is inconsistent is named with what was sent of it, and nothing more.

        O(active requests + new hashes). What depends on the ids alone is done again only for a batch that is
        not one of the latest, and after a request started or ended.

        Args:
            scheduler_output: the step.
            requests: all requests of the engine, by id.

        Raises:
            ProtocolViolation: SCHED-HASH-8, -10: a hash list shrank or mixes lengths; SCHED-META-1, SCHED-HASH-6: an
                id is not in ``requests``; SCHED-EMIT-1: no sampling parameters.
        """
        try:
            return self._build(scheduler_output, requests)
        except ProtocolViolation:
            if self._strict:
                raise
        return self._build_all_but_failing(scheduler_output, requests)

    def _build(
        self, scheduler_output: SchedulerOutput, requests: Mapping[str, Request]
    ) -> AuxOutputConnectorMetadata:
        """``build_connector_meta`` where it is refused for the first request that is inconsistent."""
        scheduled = scheduler_output.num_scheduled_tokens
        lineup, batch, starting = self._line_up(scheduled)
        everyone = lineup.everyone
        found = look_up(everyone, requests, scheduled)
        # Of the same batch object: it is all active requests, and they are looked up already.
        running = found if batch is everyone else batch.find(requests)
        if starting:
            require_sampling(starting, requests)
        new: HashColumns = [], [], []
        replaced: Replaced = {}
        progress: Progress = []
        if indices := changed(found, lineup.num_sent):
            collect(indices, lineup, found, new, replaced, progress)
        first: list[Request] = []
        starts = EmitStarts(batch.roster, self._emit_starts(running, first.append))
        for request in first:
            self._compare(request, replaced, progress)
        if not self._strict:
            first += [requests[name] for name in new[0] if not requests[name].num_output_tokens]
            self._tell_turns(first, replaced)
            # Nothing is refused from here on, so this is where the state may change.
            self._prompts.update((name, requests[name].num_prompt_tokens) for name in starting)
            self._prompts.update((request.request_id, request.num_prompt_tokens) for request in first)
        self._commit(lineup, batch, starting, progress)
        return self._deliver(starts, new, scheduled, replaced)

    def _build_all_but_failing(
        self, scheduler_output: SchedulerOutput, requests: Mapping[str, Request]
    ) -> AuxOutputConnectorMetadata:
        """``build_connector_meta`` after it was refused: requests that are to blame fail.

        Those with bad hashes are found at once; for any other the step is built once more, and the loop ends because
        each time one more request is replaced.
        """
        sound = dict(requests)
        for request_id, sent in self._sent.items():
            if request_id in requests:
                try:
                    check_unsent(request_id, requests[request_id].block_hashes, *sent)
                except ProtocolViolation as violation:
                    sound[request_id] = self._as_sent(violation, sound)
        while True:
            try:
                return self._build(scheduler_output, sound)
            except ProtocolViolation as violation:
                sound[str(violation.request_id)] = self._as_sent(violation, sound)

    def _as_sent(self, violation: ProtocolViolation, requests: Mapping[str, Request]) -> Request:
        """Fail the request that a step was refused for; one like it that has no hashes but those sent.

        Raises:
            ProtocolViolation: requests do not fail here, or there is nothing more to leave out.
        """
        request_id = str(violation.request_id)
        request = requests.get(request_id)
        if isinstance(request, AsSent):
            raise violation
        self._fail(violation)
        num_sent, last = self._sent.get(request_id, NOTHING_SENT)
        return AsSent(request_id, [last] * num_sent, request)

    def take_output(
        self, request: Request, output: Mapping[str, AuxRequestOutput] | None
    ) -> NDArray[Any] | None:
        """Cut what the worker returned for a request to its accepted tokens. O(1).

        Args:
            request: any request, active or not (SCHED-TAKE-12).
            output: the step's output by id, or None if the worker returned none.

        Returns:
            The rows ``[token_start, num_tokens - 1)``, copied where they would keep more memory than twice their size
            alive (``RowSharing``), writable, shape ``(n, num_layers, top_k)`` with n >= 0;
            None when that range ends before it starts and the request still runs (SCHED-TAKE-5), and for a
            request that has failed, in a worker that fails requests (``AuxRequestOutput.error``) or here.

        Raises:
            ProtocolViolation: SCHED-TAKE-1, -2: no output; SCHED-TAKE-6: it starts beyond the accepted tokens
                of a finished request; SCHED-TAKE-7: it ends before them.
        """
        request_id = request.request_id
        if type(output) is StepOutputs:
            # Of our worker's outputs without an object for each request.
            parts = output.parts
            part = (self._split(output) if parts is None else parts).get(request_id)
            if part is None:
                return self._take_nothing(request_id, output)
            token_start, token_end, rows = part
        else:
            found = None if output is None or request_id in self._failed else output.get(request_id)
            if found is None:
                return self._take_nothing(request_id, output)
            token_start, rows = found.token_start, found.rows
            token_end = token_start + len(rows)
            if token_start == token_end and getattr(found, "error", None) is not None:
                return self._take_nothing(request_id, output)
        accepted_end = request.num_tokens - 1
        if accepted_end == token_end:
            return rows
        if token_start <= accepted_end < token_end:
            return owned(rows[: accepted_end - token_start])  # _kernel.num_accepted_rows
        if accepted_end > token_end or request.is_finished():
            self._fail(misplaced(request_id, token_start, token_end, accepted_end))
        return None

    def request_finished(self, request: Request) -> None:
        """Queue the terminal event of a request that finished, was aborted or was preempted.

        O(hashes not yet sent). Does nothing when the request is not active.

        Raises:
            ProtocolViolation: SCHED-TERM-8, SCHED-HASH-10: its hash list shrank or mixes lengths.
        """
        request_id = request.request_id
        if request_id in self._sent:
            num_sent, last = self._sent[request_id]
            block_hashes = request.block_hashes
            unsent = len(block_hashes) - num_sent
            # Of a next turn that the worker was not told of, it would take them for those of dropped tokens.
            if not unsent or (self._prompts and unsent > 0 and self._is_untold_turn(request)):
                final = None
            elif (
                unsent == 1
                and num_sent
                and type(data := block_hashes[-1]) is bytes
                and len(data) == (size := len(last))
            ):
                # As pack_unsent does it, without the call.
                final = data, size
            else:
                final = self._pack_final(request, num_sent, last)
            self._ended[request_id] = final
            del self._sent[request_id]
            if self._prompts:
                self._prompts.pop(request_id, None)
            self._lineup = None
        if self._failed and request.is_finished():
            # One that was preempted runs again, and has failed as before.
            self._failed.pop(request_id, None)

    def _is_untold_turn(self, request: Request) -> bool:
        return not request.num_output_tokens and self._is_next_turn(request)

    def _pack_final(self, request: Request, num_sent: int, last: bytes) -> tuple[bytes, int] | None:
        """The hashes that an ended request was not sent, or none if it fails for them."""
        request_id = request.request_id
        try:
            return pack_unsent(request_id, request.block_hashes, num_sent, last, "SCHED-TERM-8")
        except ProtocolViolation as violation:
            self._fail(violation)
            return None

    def _split(self, output: StepOutputs) -> Parts:
        """The parts of a step's output, without those of requests that had failed before it is taken. O(n)."""
        parts = self._sharing.split(output)
        for request_id in self._failed:
            parts.pop(request_id, None)
        return parts

    def _take_nothing(self, request_id: str, output: Mapping[str, AuxRequestOutput] | None) -> None:
        """Refuse that a request has no rows in an output, unless it has failed, or fails now."""
        error = None if output is None else getattr(output.get(request_id), "error", None)
        if request_id in self._failed:
            return
        if error is not None:
            self._failed[request_id] = error
            self.failures["FAIL-TELL-1"] += 1
            return
        clause = "SCHED-TAKE-1" if output is None else "SCHED-TAKE-2"
        self._fail(ProtocolViolation(clause, request_id, "the worker returned no output for it"))

    def _fail(self, violation: ProtocolViolation) -> None:
        """Raise, or let only the request fail that the violation is about."""
        if self._strict or violation.request_id is None:
            raise violation
        if violation.request_id not in self._failed:
            self._failed[violation.request_id] = str(violation)
            self.failures[violation.clause] += 1
            log_failure(violation)

    def reset(self) -> None:
        """Start the next generation; forget active requests and undelivered events. O(1) and what is freed.

        Requests that have failed run on, and have failed as before.
        """
        self._generation += 1
        self._sent = {}
        self._prompts = {}
        self._ended = {}
        self._lineup = None

    def _compare(self, request: Request, replaced: Replaced, progress: Progress) -> None:
        """Notice that hashes of a request without output were replaced, where its list has the old length.

        O(1), and O(active requests) where it is so.

        Only a session's next turn replaces hashes, and this is how it comes, so that decode steps need not look.
        """
        request_id, block_hashes = request.request_id, request.block_hashes
        num_sent, last = self._sent.get(request_id, NOTHING_SENT)
        if num_sent and num_sent == len(block_hashes) and block_hashes[-1] != last:
            pack_replaced(replaced, request_id, block_hashes, num_sent)
            index = list(self._sent).index(request_id)
            progress.append((index, request_id, (num_sent, block_hashes[-1])))

    def _tell_turns(self, requests: Iterable[Request], replaced: Replaced) -> None:
        """Send the whole lists of sessions' next turns, which drop tokens (FAIL-TURN-1). O(requests)."""
        for request in requests:
            request_id, hashes = request.request_id, request.block_hashes
            if request_id not in replaced and hashes and self._is_next_turn(request):
                replaced[request_id] = pack_unsent(request_id, hashes, 0, b"")

    def _is_next_turn(self, request: Request) -> bool:
        """Whether an active request without output has another prompt than before."""
        prompt = request.num_prompt_tokens
        return self._prompts.get(request.request_id, prompt) != prompt and not isinstance(request, AsSent)

    def _line_up(self, scheduled: Mapping[str, int]) -> tuple[Lineup, Batch, Sequence[str]]:
        """The active and the starting requests, the batch, and those that start.

        A comparison of ids if the batch is one of the latest and no request ended since; else O(active +
        scheduled requests).
        """
        ids = tuple(scheduled)
        lineup, active = self._lineup, self._sent
        if lineup is not None:
            for batch in lineup.recent:
                if batch.names == ids:
                    return lineup, batch, ()
        names = tuple(active) if lineup is None else lineup.everyone.names
        starting: Sequence[str] = ()
        if ids[: len(names)] == names:  # the common order: all that run, then those that start
            starting = ids[len(names) :]
        elif not scheduled.keys() <= active.keys():
            starting = [name for name in ids if name not in active]
        if lineup is None or starting:
            sent = [*active.values(), *[NOTHING_SENT] * len(starting)]
            num_sent, last = [num for num, _ in sent], [newest for _, newest in sent]
            recent = [] if lineup is None else lineup.recent
            lineup = Lineup((*names, *starting), num_sent, last, recent)
        return lineup, lineup.everyone if lineup.everyone.names == ids else Batch(ids), starting

    def _commit(
        self,
        lineup: Lineup,
        batch: Batch,
        starting: Sequence[str],
        progress: Progress,
    ) -> None:
        """Count requests as active and hashes as sent. O(both)."""
        active = self._sent
        for name in starting:
            active[name] = NOTHING_SENT
        num_sent, last = lineup.num_sent, lineup.last
        for index, name, sent in progress:
            active[name] = sent
            num_sent[index], last[index] = sent
        if batch not in lineup.recent:
            lineup.recent = [batch, *lineup.recent[: NUM_RECENT - 1]]
        self._lineup = lineup

    def _deliver(
        self, starts: EmitStarts, new: HashColumns, scheduled: Mapping[str, int], replaced: Replaced
    ) -> AuxOutputConnectorMetadata:
        """Add the terminal events and empty their queue. O(events)."""
        again = NewHashes(*columns_of(replaced)) if replaced else NO_HASHES
        if not self._ended:
            return AuxOutputConnectorMetadata(self._generation, starts, NewHashes(*new), (), NO_HASHES, again)
        ended, self._ended = self._ended, {}
        apart: HashColumns = [], [], []
        for request_id, final in ended.items():
            if final is not None:
                # If it runs again, its entry belongs to the activation that starts (SCHED-RESTART-2, -3).
                append(apart if request_id in scheduled else new, request_id, final)
        return AuxOutputConnectorMetadata(
            self._generation, starts, NewHashes(*new), tuple(ended), NewHashes(*apart), again
        )

    def _check(self) -> None:
        """Prove the invariants, for tests. O(active requests).

        Raises:
            RuntimeError: one does not hold.
        """
        active = self._sent
        _require(self._ended.keys().isdisjoint(active), "a request is active and ended")
        for name, (num_sent, last) in active.items():
            _require(num_sent >= 0, f"{name} has a negative count")
            _require((num_sent == 0) == (last == b""), f"{name}: count and last hash do not agree")
        lineup = self._lineup
        if lineup is not None:
            lined_up = list(zip(lineup.num_sent, lineup.last, strict=True))
            same = lineup.everyone.names == tuple(active) and lined_up == list(active.values())
            _require(same, "the lineup is not the active requests")
            for batch in lineup.recent:
                _require(active.keys() >= set(batch.names), "a request of a recent batch is not active")


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise RuntimeError(f"invariant broken: {sentence}")
