"""The scheduler connector: tells the worker connector what each step needs, and cuts what comes back.

A request is *active* from the first step that schedules it until its terminal event. While it is active the
worker is owed every block hash of it, in order and once. Finishing, aborting and preempting a request queue
one terminal event with the hashes still owed; the next metadata delivers the queue. A reset starts the next
generation with nothing active and nothing queued.

Every method first finds out what it would do, which is where it may refuse, and only then changes anything:
that is all there is to atomic refusals (SCHED-REFUSE-3, -4, -5).
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from .engine import AsSent, as_computed
from .errors import ProtocolViolation
from .profiles import LATEST, profile_named
from .retention import Retention

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from .engine import ComputedRequest, Request, SchedulerOutput

_logger = logging.getLogger(__name__)


@dataclass
class PackedBlockHashes:
    """Block hashes of one request as they travel: joined, with the length of each.

    Attributes:
        data: the hashes, one after the other.
        item_size: length of one hash in bytes.
    """

    data: bytes
    item_size: int

    def __iter__(self) -> Iterator[bytes]:
        """The hashes in order (WIRE-HASH-1, -4).

        Checked here and not when constructed, because unpickling does not construct and this is where a
        wrong length would become a wrong key.

        Raises:
            ProtocolViolation: item size not positive (WIRE-HASH-2), or not a divisor of the length of
                ``data`` (WIRE-HASH-3).
        """
        if self.item_size <= 0:
            raise ProtocolViolation("WIRE-HASH-2", None, f"item size {self.item_size} is not positive")
        if len(self.data) % self.item_size:
            what = f"{len(self.data)} bytes are not a multiple of the item size {self.item_size}"
            raise ProtocolViolation("WIRE-HASH-3", None, what)
        starts = range(0, len(self.data), self.item_size)
        return iter([self.data[start : start + self.item_size] for start in starts])


def _no_hashes() -> dict[str, PackedBlockHashes]:
    return {}


@dataclass
class AuxOutputConnectorMetadata:
    """One step's message from the scheduler connector to the worker connector.

    Attributes:
        generation: namespace of every hash in it; rows never cross generations.
        requests: scheduled request -> emit start (a token position), in batch order.
        block_hashes: request -> hashes that are new to the worker; requests without any have no entry.
        finished_requests: requests that ended since the last metadata, in that order.
        finished_block_hashes: final hashes of ended requests whose id runs again in this very step, where
            the entry in ``block_hashes`` belongs to the activation that starts (SCHED-RESTART-3).
        replaced_block_hashes: all hashes of a request of which hashes that were sent have been replaced; a worker
            that knows the field leaves the request's entry in ``block_hashes`` aside (SCHED-HASH-12, WORK-KEYS-2).
        retained_block_hashes, released_block_hashes: hashes of the generation before this message that the scheduler
            starts and stops holding, in the order queued; None for none (WIRE-META-2).
    """

    generation: int
    requests: Mapping[str, int]
    block_hashes: Mapping[str, PackedBlockHashes]
    finished_requests: tuple[str, ...]
    retained_block_hashes: PackedBlockHashes | None = None
    released_block_hashes: PackedBlockHashes | None = None
    finished_block_hashes: Mapping[str, PackedBlockHashes] = field(default_factory=_no_hashes)
    replaced_block_hashes: Mapping[str, PackedBlockHashes] = field(default_factory=_no_hashes)


@dataclass
class AuxRequestOutput:
    """What the worker returned for one request of one step.

    Attributes:
        token_start: position of the first row.
        rows: ``(num_rows, num_layers, top_k)`` logical expert ids, ``uint8`` or ``uint16``.
        error: why the request failed in a worker that fails requests and not the engine; then without rows.
    """

    token_start: int
    rows: NDArray[Any]
    error: str | None = None


class Sent(NamedTuple):
    """How much of an active request's hash list the worker has."""

    num_hashes: int
    last: bytes
    """The last hash sent; empty when none was."""


NOTHING_SENT = Sent(0, b"")


class AuxOutputSchedulerConnector:
    """The scheduler's half of the auxiliary-output protocol; owns neither rows nor stores."""

    def __init__(
        self,
        kv_cache_manager: Any = None,
        kv_connector: Any = None,
        *,
        profile: str = LATEST,
        errors: Literal["raise", "request"] = "raise",
    ) -> None:
        """Start in generation 0 with no request active.

        Args:
            kv_cache_manager, kv_connector: the engine's; needed and read from profile 0.33 on.
            profile: the protocol version to follow (``profiles``).
            errors: ``"raise"`` refuses a call in which a request is inconsistent; ``"request"`` answers it and fails
                that request alone: ``take_output`` returns None for it until it has ended.

        Raises:
            ValueError: no such profile, no KV cache where it needs one, or an unknown ``errors``.
        """
        if errors not in {"raise", "request"}:
            raise ValueError(f"errors is 'raise' or 'request', not {errors!r}")
        self._profile = profile_named(profile)
        self._retention: Retention | None = None
        if self._profile.reads_kv_cache:
            if kv_cache_manager is None:
                raise ValueError(f"a connector of profile {profile} is built with the KV cache manager")
            self._retention = Retention(kv_cache_manager, kv_connector)
        self._errors = errors
        # Requests that have failed and not ended.
        self._failed: set[str] = set()
        self.failures: Counter[str] = Counter()
        """Requests that failed, by the clause that was broken; FAIL-TELL-1 where the worker said so."""
        self._generation = 0
        self._active: dict[str, Sent] = {}
        # Tokens in the prompt of each active request when it started or was last named without output; only where
        # requests fail.
        self._prompts: dict[str, int] = {}
        # Ended requests with their final hashes, in the order of the terminal events.
        self._ended: dict[str, list[bytes]] = {}

    def build_connector_meta(
        self, scheduler_output: SchedulerOutput, requests: Mapping[str, Request]
    ) -> AuxOutputConnectorMetadata:
        """Describe one step to the worker: who runs, which hashes are new, who ended.

        Requests of the step become active; all active ones contribute what is new, because an asynchronously
        settled token can complete a block after the step was scheduled (SCHED-HASH-6).

        Args:
            scheduler_output: the step; its ``num_scheduled_tokens`` names the requests in order.
            requests: every request the engine knows, by id.

        Raises:
            ProtocolViolation: a hash list shrank or mixes lengths (SCHED-HASH-8, -10), a request is missing
                (SCHED-META-1, SCHED-HASH-6) or has no sampling parameters (SCHED-EMIT-1).
        """
        requests = self._as_computed(scheduler_output.num_scheduled_tokens, requests)
        while True:
            try:
                metadata = self._build(scheduler_output, requests)
            except ProtocolViolation as violation:
                request_id = str(violation.request_id)
                self._fail_alone(violation, requests)
                requests = {**requests, request_id: self._as_sent(request_id, requests.get(request_id))}
            else:
                self._remember_prompts(requests, metadata)
                return metadata

    def _as_computed(
        self, scheduled: Mapping[str, int], requests: Mapping[str, Request]
    ) -> Mapping[str, Request]:
        """The requests without hashes of blocks that are not computed, except those sent (SCHED-HASH-1, -3)."""
        if self._retention is None:
            return requests
        sent = {request_id: each.num_hashes for request_id, each in self._active.items()}
        return as_computed(scheduled, requests, sent, self._retention.hash_block_size)

    def _build(
        self, scheduler_output: SchedulerOutput, requests: Mapping[str, Request]
    ) -> AuxOutputConnectorMetadata:
        """``build_connector_meta`` where it is refused for the first request that is inconsistent."""
        emit_starts: dict[str, int] = {}
        new_hashes: dict[str, list[bytes]] = {}
        replaced: dict[str, list[bytes]] = {}
        for request_id in scheduler_output.num_scheduled_tokens:
            request = _look_up(requests, request_id, "SCHED-META-1")
            sent = self._active.get(request_id, NOTHING_SENT)
            again = self._is_next_turn(request) or _is_replaced(request, sent, scheduled=True)
            new_hashes[request_id] = _unsent_hashes(request_id, request, sent, again=again)
            if again:
                replaced[request_id] = list(request.block_hashes)
            emit_starts[request_id] = self._emit_start(request_id, request)
        for request_id, sent in self._active.items():
            if request_id not in emit_starts:
                request = _look_up(requests, request_id, "SCHED-HASH-6")
                again = self._is_next_turn(request, sent) or _is_replaced(request, sent)
                new_hashes[request_id] = _unsent_hashes(request_id, request, sent, again=again)
                if again:
                    replaced[request_id] = list(request.block_hashes)
        metadata = self._metadata(emit_starts, new_hashes, replaced)
        self._active = {
            request_id: _advanced(self._active.get(request_id, NOTHING_SENT), hashes)
            for request_id, hashes in new_hashes.items()
        } | {request_id: _advanced(NOTHING_SENT, hashes) for request_id, hashes in replaced.items()}
        self._ended = {}
        return metadata

    def take_output(
        self, request: Request, output: Mapping[str, AuxRequestOutput] | None
    ) -> NDArray[Any] | None:
        """The rows of a request's accepted tokens out of what the worker returned for it.

        A request of ``n`` tokens has rows for ``[0, n-1)``: the last sampled token was not forwarded yet. So
        the result is rows ``[token_start, n-1)``; rows behind belong to tokens that a stop rule removed.

        Args:
            request: the request, active or not: output in flight outlives a preemption (SCHED-TAKE-12).
            output: the step's worker output by request id; None when the step had none.

        Returns:
            ``(num_accepted, num_layers, top_k)``, a view, possibly of no row (SCHED-TAKE-4); None when the
            output starts beyond the accepted tokens of a request that runs (SCHED-TAKE-5), or when rows lack
            because the request failed in a worker that fails requests (``AuxRequestOutput.error``).

        Raises:
            ProtocolViolation: no output for the request (SCHED-TAKE-1, -2), a finished request's output
                starts beyond its accepted tokens (SCHED-TAKE-6), or rows are missing (SCHED-TAKE-7).
        """
        request_id = request.request_id
        told = None if output is None else getattr(output.get(request_id), "error", None)
        if told is not None and request_id not in self._failed:
            self._failed.add(request_id)
            self.failures["FAIL-TELL-1"] += 1
        if request_id in self._failed:
            return None
        try:
            return self._take(request, output)
        except ProtocolViolation as violation:
            self._fail(violation)
            return None

    def _take(self, request: Request, output: Mapping[str, AuxRequestOutput] | None) -> NDArray[Any] | None:
        """``take_output`` of a request that has not failed."""
        request_id = request.request_id
        if output is None:
            raise ProtocolViolation("SCHED-TAKE-1", request_id, "the worker returned no output for the step")
        if request_id not in output:
            raise ProtocolViolation("SCHED-TAKE-2", request_id, "the worker's output lacks the request")
        found = output[request_id]
        start, rows = found.token_start, found.rows
        accepted_end = request.num_tokens - 1
        if accepted_end < start:
            if request.is_finished():
                what = f"{_span(found)} start beyond the accepted end {accepted_end} of a finished request"
                raise ProtocolViolation("SCHED-TAKE-6", request_id, what)
            return None
        if accepted_end - start > len(rows):
            what = f"{_span(found)} end before the accepted end {accepted_end}"
            raise ProtocolViolation("SCHED-TAKE-7", request_id, what)
        return rows[: accepted_end - start]

    def request_finished(self, request: Request) -> None:
        """Queue the terminal event of a request that finished, was aborted or was preempted.

        Nothing happens when the request is not active (SCHED-TERM-3, -4).

        Args:
            request: the request as it ends; its unsent hashes travel with the event (SCHED-TERM-5).

        Raises:
            ProtocolViolation: its hash list shrank or mixes lengths (SCHED-TERM-8, SCHED-HASH-10).
        """
        sent = self._active.get(request.request_id, NOTHING_SENT)
        shown = self._as_computed({}, {request.request_id: request})[request.request_id]
        is_untold = self._is_next_turn(shown, sent)
        try:
            # Hashes of a turn of which the worker was not told it would take for those of dropped tokens.
            self._finish(self._as_sent(request.request_id, shown) if is_untold else shown)
        except ProtocolViolation as violation:
            self._fail(violation)
            del self._active[request.request_id]
            self._ended[request.request_id] = []
        self._prompts.pop(request.request_id, None)
        if request.is_finished():
            # One that was preempted runs again, and has failed as before.
            self._failed.discard(request.request_id)
        if self._retention is not None:
            self._retention.ended(cast("ComputedRequest", request))

    def max_cache_hit(self, request: Request) -> int:
        """Up to how many tokens, from the first, a request may start from KV: those whose rows are known.

        Not without effect: blocks that are looked up stay longest (SCHED-RELEASE-4). From profile 0.33 on.
        """
        return self._kept().max_cache_hit(request)

    def cap_external_hit(self, request: Request, num_local: int, num_external: int) -> int:
        """How many of the tokens found elsewhere, behind a local hit, are loaded: all or none (SCHED-HIT-3)."""
        return self._kept().cap_external_hit(request, num_local, num_external)

    def request_loading(self, request: Request, num_tokens: int) -> None:
        """The KV of the request's first tokens is being loaded; their rows stay until it is scheduled."""
        self._kept().is_loading(request, num_tokens)

    def _kept(self) -> Retention:
        if self._retention is None:
            raise RuntimeError(f"profile {self._profile.name} does not bound hits")
        return self._retention

    def _finish(self, request: Request) -> None:
        """``request_finished`` where it is refused for a request that is inconsistent."""
        request_id = request.request_id
        if request_id not in self._active:
            return
        sent = self._active[request_id]
        final = _unsent_hashes(request_id, request, sent, shrunk_clause="SCHED-TERM-8")
        del self._active[request_id]
        self._ended[request_id] = final

    def reset(self) -> None:
        """Start the next generation after a prefix-cache reset; nothing is active or queued (SCHED-RESET).

        Requests that have failed run on, and have failed as before.
        """
        self._generation += 1
        self._active = {}
        self._prompts = {}
        self._ended = {}
        if self._retention is not None:
            self._retention.reset()

    def _fail(self, violation: ProtocolViolation) -> None:
        """Raise, or let only the request fail that the violation is about."""
        if self._errors == "raise":
            raise violation
        request_id = str(violation.request_id)
        if request_id not in self._failed:
            self._failed.add(request_id)
            self.failures[violation.clause] += 1
            _logger.error("%s", violation)

    def _fail_alone(self, violation: ProtocolViolation, requests: Mapping[str, Request]) -> None:
        """Fail the request that a step was refused for; raise if there is nothing more of it to leave out."""
        if isinstance(requests.get(str(violation.request_id)), AsSent):
            raise violation
        self._fail(violation)

    def _as_sent(self, request_id: str, request: Request | None) -> Request:
        """A request like it, with no hashes but as many as were sent."""
        sent = self._active.get(request_id, NOTHING_SENT)
        return AsSent(request_id, [sent.last] * sent.num_hashes, request)

    def _remember_prompts(
        self, requests: Mapping[str, Request], metadata: AuxOutputConnectorMetadata
    ) -> None:
        """Take over the prompts of what metadata names, so that a session's next turn is told from the one before."""
        if self._errors == "raise":
            return
        for request_id in {*metadata.requests, *metadata.block_hashes} & self._active.keys():
            request = requests[request_id]
            if request_id not in self._prompts or request.num_output_tokens == 0:
                self._prompts[request_id] = request.num_prompt_tokens

    def _is_next_turn(self, request: Request, sent: Sent | None = None) -> bool:
        """Whether an active request is a session's next turn, of which the worker was not told (FAIL-TURN-1).

        Args:
            sent: it is not scheduled, so it is named only with hashes behind these.
        """
        if self._errors == "raise" or isinstance(request, AsSent):
            return False
        if sent is not None and len(request.block_hashes) <= sent.num_hashes:
            return False
        prompt = self._prompts.get(request.request_id, request.num_prompt_tokens)
        return prompt != request.num_prompt_tokens and request.num_output_tokens == 0

    def _emit_start(self, request_id: str, request: Request) -> int:
        """First position whose row the worker has to emit, were the request to start now (SCHED-EMIT)."""
        if request.sampling_params is None:
            raise ProtocolViolation("SCHED-EMIT-1", request_id, "no sampling parameters, so no prompt start")
        prompt_start = request.sampling_params.routed_experts_prompt_start
        if self._profile.clamps_prompt_start:
            prompt_start = min(prompt_start, request.num_prompt_tokens)
        # With output tokens everything before the last sampled token was emitted already.
        emitted = 0 if request.num_output_tokens == 0 else request.num_tokens - 1
        return max(prompt_start, emitted)

    def _metadata(
        self,
        emit_starts: dict[str, int],
        new_hashes: dict[str, list[bytes]],
        replaced: dict[str, list[bytes]],
    ) -> AuxOutputConnectorMetadata:
        """Put the message together; an id that ended and starts again keeps both entries apart."""
        ended = self._ended
        restarted = {request_id: ended[request_id] for request_id in ended if request_id in emit_starts}
        gone = {request_id: ended[request_id] for request_id in ended if request_id not in emit_starts}
        return AuxOutputConnectorMetadata(
            self._generation,
            emit_starts,
            _pack({**new_hashes, **gone}),
            tuple(ended),
            *self._told(emit_starts),
            finished_block_hashes=_pack(restarted),
            replaced_block_hashes=_pack(replaced),
        )

    def _told(self, scheduled: Iterable[str]) -> Iterator[PackedBlockHashes | None]:
        """Hashes that the scheduler retains and releases; the loads of scheduled requests are done."""
        if self._retention is None:
            return iter((None, None))
        told = self._retention.take(scheduled)
        return (PackedBlockHashes(b"".join(each), len(each[0])) if each else None for each in told)


def _span(output: AuxRequestOutput) -> str:
    """Which rows an output has."""
    return f"rows [{output.token_start}, {output.token_start + len(output.rows)})"


def _look_up(requests: Mapping[str, Request], request_id: str, clause: str) -> Request:
    """The engine's request, or a refusal when the engine no longer knows it."""
    if request_id not in requests:
        raise ProtocolViolation(clause, request_id, "the engine does not know the request")
    return requests[request_id]


def _is_replaced(request: Request, sent: Sent, scheduled: bool = False) -> bool:
    """Whether hashes that were sent no longer stand (SCHED-HASH-12).

    A hash covers its whole prefix, so a change anywhere in what was sent shows in the last one sent. Only a session's
    next turn replaces hashes, and it has no output when it is first scheduled: then it is looked at even if nothing is
    to be sent.
    """
    compare = scheduled and request.num_output_tokens == 0
    unsent = len(request.block_hashes) - sent.num_hashes
    compared = unsent > 0 or (compare and unsent == 0)
    return compared and sent.num_hashes > 0 and request.block_hashes[sent.num_hashes - 1] != sent.last


def _unsent_hashes(
    request_id: str, request: Request, sent: Sent, shrunk_clause: str = "SCHED-HASH-8", again: bool = False
) -> list[bytes]:
    """The hashes behind those that were sent; refused when there are fewer, or their lengths differ.

    Args:
        again: the whole list is sent too, so all of it must have one length.
    """
    hashes = request.block_hashes
    if len(hashes) < sent.num_hashes:
        what = f"hashes [0, {len(hashes)}), but [0, {sent.num_hashes}) were sent"
        raise ProtocolViolation(shrunk_clause, request_id, what)
    unsent = list(hashes[sent.num_hashes :])
    lengths = {len(block_hash) for block_hash in (hashes if again else unsent)}
    if sent.num_hashes > 0 and not again:
        lengths.add(len(sent.last))
    if len(lengths) > 1 or 0 in lengths:
        what = (
            f"hashes [{sent.num_hashes}, {len(hashes)}) are empty or of different lengths: {sorted(lengths)}"
        )
        raise ProtocolViolation("SCHED-HASH-10", request_id, what)
    return unsent


def _advanced(sent: Sent, hashes: list[bytes]) -> Sent:
    """What the worker has once ``hashes`` are sent too."""
    return Sent(sent.num_hashes + len(hashes), hashes[-1]) if hashes else sent


def _pack(hashes: dict[str, list[bytes]]) -> dict[str, PackedBlockHashes]:
    """Joined hashes per request; none, no entry (SCHED-HASH-5)."""
    return {
        request_id: PackedBlockHashes(b"".join(block_hashes), len(block_hashes[0]))
        for request_id, block_hashes in hashes.items()
        if block_hashes
    }
