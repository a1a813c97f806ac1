"""The clause registry: every rule of the protocol has an id, a level, profiles, one sentence and a source.

Refusals, cases, known findings, known-bad targets, failure messages and docs cite these ids. Ids are never reused;
where a later profile words a clause anew, ``_CHANGES`` has the sentence. Their first part is the component: SCHED is
the scheduler connector, WIRE what travels to the worker, WORK the worker connector, STORE its store, ROW what the
engine gets in the end, HIT what it takes up from elsewhere, CHAN the way between the two, FAIL what holds instead of
refusals where an inconsistent request fails alone, ENGINE the engine that calls them, CLIENT what is done with rows
after the engine returned them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from .profiles import PER_REQUEST, is_judged, since

Level = Literal["MUST", "SHOULD"]
ALL = since("0.31")
_FAILING = tuple(name + PER_REQUEST for name in ALL)


class Clause(NamedTuple):
    """One rule. ``source`` says where it comes from: the released API page, an engine fact, or a property."""

    id: str
    level: Level
    sentence: str
    source: str
    profiles: tuple[str, ...] = ALL

    @property
    def component(self) -> str:
        """``SCHED``, ``WIRE``, ``WORK``, ``STORE``, ``ROW``, ``FAIL``, ``HIT``, ``CHAN``, ``ENGINE`` or ``CLIENT``."""
        return self.id.split("-")[0]


_PAGE = "vLLM 0.31.0 API page, connector"
_ENGINE = "vLLM 0.31.0 v1/core/sched/scheduler.py"
_WORKER = "vLLM 0.31.0 worker connector"
_LAST = "the last token is sampled and never forwarded"
_SILENT = "a row is never lost or made up in silence"
_OWN = "a token is trained with the row of its own prefix"
_REPLAY = "a router that replays them takes each id once"
_NEXT = "vLLM 0.33.0 connector"

# One row per line: these are read as a table.
# fmt: off
_CLAUSES = (
    # What one step's metadata says about the requests that run.
    Clause("SCHED-META-1", "MUST", "The metadata names exactly the requests of num_scheduled_tokens.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-META-2", "MUST", "It names them in the order of num_scheduled_tokens.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-META-3", "MUST", "A step that schedules nothing still yields metadata with all updates and events that are due.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-META-4", "MUST", "It carries the current generation.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-META-5", "MUST", "Building it changes neither the scheduler output nor any request.", "the engine's objects are the engine's"),
    Clause("SCHED-META-6", "MUST", "Once returned, metadata is not changed by later calls or by later changes of the requests.", "asynchronous scheduling sends it while the next step is built"),
    Clause("SCHED-META-7", "MUST", "No call of a connector changes a request of the engine, neither the one that it is about nor another.", "the engine's objects are the engine's"),
    # Where the worker starts emitting.
    Clause("SCHED-EMIT-1", "MUST", "Without output tokens the emit start is the prompt start.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-EMIT-2", "MUST", "With output tokens the emit start is num_tokens - 1.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-EMIT-3", "MUST", "A prompt start beyond the prompt is kept as it is.", f"{_PAGE}.build_connector_meta", ("0.31",)),
    Clause("SCHED-EMIT-4", "MUST", "A prompt start beyond the prompt is cut to num_prompt_tokens.", "vLLM 0.32.0 connector.build_connector_meta", since("0.32")),
    Clause("SCHED-EMIT-5", "MUST", "The emit start follows the request as it is at this step: its counts and its prompt start, not those of an earlier step or turn.", f"{_ENGINE} _update_request_as_session"),
    # Which block hashes the worker gets.
    Clause("SCHED-HASH-1", "MUST", "The first metadata of an activation carries every hash the request has, from the first on.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-HASH-2", "MUST", "Within an activation no hash is sent twice.", f"{_PAGE}._pack_new_hashes"),
    Clause("SCHED-HASH-3", "MUST", "A metadata carries every hash of an active request that was not sent yet; none is skipped.", f"{_PAGE}._pack_new_hashes"),
    Clause("SCHED-HASH-4", "MUST", "Hashes are sent in the order of the request's list.", f"{_PAGE}._pack_new_hashes"),
    Clause("SCHED-HASH-5", "MUST", "A request without new hashes has no entry, not an empty one.", f"{_PAGE}._pack_new_hashes"),
    Clause("SCHED-HASH-6", "MUST", "An active request that is not scheduled gets a hash-only update when it has new hashes.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-HASH-7", "MUST", "A request that is not active contributes no hashes, whatever its list holds.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-HASH-8", "MUST", "A hash list shorter than what was sent is refused.", f"{_PAGE}._pack_new_hashes"),
    Clause("SCHED-HASH-9", "MUST", "That hashes which were sent have been replaced, as a session's next chunk does, refuses nothing: not its steps, not those of others, not its end.", "an engine goes on there, with right rows of all other requests", since("0.32")),
    Clause("SCHED-HASH-10", "MUST", "Hashes of different byte lengths, also from those sent before, or empty ones, are refused instead of packed; new hashes of a request may be checked by their total length alone, which misses only different lengths that balance exactly.", "a packed value has one item size"),
    Clause("SCHED-HASH-11", "MUST", "An activation after a preemption, or of an id used again, starts from the first hash.", f"{_PAGE}.request_finished"),
    Clause("SCHED-HASH-12", "MUST", "The first metadata that extends such a request's hashes, or that schedules it before its first output, carries its whole list in replaced_block_hashes, beside the entry that it has in block_hashes anyway.", "else rows are stored under the name of another token prefix", since("0.32")),
    # How a request ends.
    Clause("SCHED-TERM-1", "MUST", "Finishing or aborting an active request puts it among the finished requests of the next metadata.", f"{_PAGE}.request_finished"),
    Clause("SCHED-TERM-2", "MUST", "A terminal event is delivered once.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-TERM-3", "MUST", "A request that was never scheduled ends without a terminal event.", f"{_PAGE}.request_finished"),
    Clause("SCHED-TERM-4", "MUST", "Ending a request again before it was scheduled again adds no second event.", f"{_ENGINE} _preempt_request, finish_requests"),
    Clause("SCHED-TERM-5", "MUST", "The terminal event carries the hashes that were not sent yet, as they are when the request ends.", f"{_PAGE}.request_finished"),
    Clause("SCHED-TERM-6", "MUST", "Terminal events are delivered in the order in which the requests ended.", f"{_PAGE}.build_connector_meta"),
    Clause("SCHED-TERM-7", "MUST", "A preemption is a terminal event.", f"{_ENGINE} _preempt_request"),
    Clause("SCHED-TERM-8", "MUST", "Ending a request whose hash list is shorter than what was sent is refused.", f"{_PAGE}.request_finished"),
    Clause("SCHED-TERM-9", "MUST", "After its terminal event a request gets no further updates until it is scheduled again.", f"{_PAGE}.request_finished"),
    # An id that ended and runs again before the event was delivered.
    Clause("SCHED-RESTART-1", "MUST", "An id that ended and runs again before its event was delivered is among the finished and among the scheduled requests of that metadata; the end comes first.", "an aborted id is used again; requests preempted by a reset that fails resume at once"),
    Clause("SCHED-RESTART-2", "MUST", "Its hash entry is that of the activation that starts, from the first hash on.", "the worker's keys are a prefix of the request's hash list"),
    Clause("SCHED-RESTART-3", "MUST", "The final hashes of its activation that ended are delivered apart, in finished_block_hashes.", "completed blocks of the ended activation still need their keys"),
    # Prefix-cache resets.
    Clause("SCHED-RESET-1", "MUST", "Each reset raises the generation by one, and nothing else changes it.", f"{_PAGE}.reset"),
    Clause("SCHED-RESET-2", "MUST", "After a reset a request that is scheduled is sent from its first hash.", f"{_PAGE}.reset"),
    Clause("SCHED-RESET-3", "MUST", "A reset drops the terminal events that were not delivered.", f"{_PAGE}.reset"),
    Clause("SCHED-RESET-4", "MUST", "A request that was active before a reset contributes nothing until it is scheduled again; ending it queues no event.", f"{_PAGE}.reset"),
    # Which rows the scheduler keeps, for KV that stays in the cache.
    Clause("SCHED-RETAIN-1", "MUST", "When a request ends or is preempted, every computed block of it whose KV is cached and that is not retained is retained: all its hashes are in the next metadata, in the order of the prefix.", f"{_NEXT}.request_finished", since("0.33")),
    Clause("SCHED-RETAIN-2", "MUST", "A block that is retained is not retained again before it was released.", f"{_NEXT}.request_finished", since("0.33")),
    Clause("SCHED-RETAIN-3", "MUST", "Ending a request that was never scheduled retains too; it queues no terminal event.", f"{_NEXT}.request_finished", since("0.33")),
    Clause("SCHED-RETAIN-4", "MUST", "Blocks that the request has not computed are not retained, whatever the KV cache holds.", f"{_NEXT}.request_finished", since("0.33")),
    Clause("SCHED-RELEASE-1", "MUST", "Only retained blocks are released, each once.", f"{_NEXT}.request_finished", since("0.33")),
    Clause("SCHED-RELEASE-2", "MUST", "Except by a reset, no block is released whose KV is cached or is being loaded for a request.", f"{_NEXT}.request_finished", since("0.33")),
    Clause("SCHED-RELEASE-3", "MUST", "After an end no more blocks are retained than the KV cache has (twice as many with a KV connector), except those that may not be released.", f"{_NEXT}.request_finished", since("0.33")),
    Clause("SCHED-RELEASE-4", "MUST", "The oldest are released first; being looked up for a hit makes a block the youngest.", f"{_NEXT}.max_cache_hit", since("0.33")),
    Clause("SCHED-RELEASE-5", "MUST", "A reset releases all retained blocks.", f"{_NEXT}.reset", since("0.33")),
    Clause("SCHED-LOAD-1", "MUST", "A request's blocks count as being loaded from request_loading until it is scheduled, ends, or is marked anew.", f"{_NEXT}.request_loading", since("0.33")),
    Clause("SCHED-HIT-1", "MUST", "max_cache_hit is the length of the longest prefix of whole blocks whose rows are known, and at most the tokens less one.", f"{_NEXT}.max_cache_hit", since("0.33")),
    Clause("SCHED-HIT-2", "MUST", "A block's rows are known exactly when it is retained or its KV is cached.", f"{_NEXT}.max_cache_hit", since("0.33")),
    Clause("SCHED-HIT-3", "MUST", "What cap_external_hit lets through ends on a block and within max_cache_hit.", f"{_NEXT}.cap_external_hit", since("0.33")),
    Clause("SCHED-HIT-4", "MUST", "An external hit of 0 stays 0, and the result is never more than what was offered.", f"{_NEXT}.cap_external_hit", since("0.33")),
    # What the engine gets back.
    Clause("SCHED-TAKE-1", "MUST", "Taking the output of a step that returned none is refused.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-2", "MUST", "Taking the output of a request that the worker's output lacks is refused.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-3", "MUST", "The rows are exactly the first num_tokens - 1 - token_start ones.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-4", "MUST", "When no row is accepted yet the result is an empty array, not None.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-5", "MUST", "Output that starts beyond the accepted tokens of a running request is None.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-6", "MUST", "Output that starts beyond the accepted tokens of a finished request is refused.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-7", "MUST", "Fewer rows than accepted tokens are refused.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-8", "MUST", "Rows of tokens that a stop rule removed are cut.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-9", "MUST", "Values, dtype and row shape are those of the worker's output, also when no row is left.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-10", "MUST", "Taking changes nothing: neither the worker's output nor what later metadata says.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-11", "MUST", "The rows are those of the entry under the request's own id.", f"{_PAGE}.take_output"),
    Clause("SCHED-TAKE-12", "MUST", "A request preempted while its output was in flight still gets that output.", f"{_ENGINE} update_from_output"),
    Clause("SCHED-TAKE-13", "MUST", "Rows that were handed out are not changed by later calls.", "the engine collects the rows of a whole batch before it sends them"),
    # What is refused, and how.
    Clause("SCHED-ACCEPT-1", "MUST", "A call that the protocol allows is answered: it is not refused and does not fail otherwise.", "a refused call ends the engine"),
    Clause("SCHED-REFUSE-1", "MUST", "A refusal is an AssertionError or a ValueError, not whatever breaks first.", "callers of the original catch AssertionError"),
    Clause("SCHED-REFUSE-2", "SHOULD", "The message of a refusal names the request.", "an operator has to find the request"),
    Clause("SCHED-REFUSE-3", "MUST", "A refused build_connector_meta leaves the connector as it was.", "rejection is atomic"),
    Clause("SCHED-REFUSE-4", "MUST", "A refused request_finished leaves the connector as it was.", "rejection is atomic"),
    Clause("SCHED-REFUSE-5", "MUST", "A refused take_output leaves the connector as it was.", "rejection is atomic"),
    Clause("SCHED-REFUSE-6", "MUST", "Refusals work under python -O.", "rejection is atomic"),
    # Wire values.
    Clause("WIRE-HASH-1", "MUST", "A packed value iterates to its hashes, in order.", f"{_PAGE}.PackedBlockHashes"),
    Clause("WIRE-HASH-2", "MUST", "An item size that is not positive is refused.", "wrong lengths must not become wrong keys"),
    Clause("WIRE-HASH-3", "MUST", "Packed data that is not a multiple of the item size is refused.", "wrong lengths must not become wrong keys"),
    Clause("WIRE-HASH-4", "MUST", "Empty data iterates to nothing.", f"{_PAGE}.PackedBlockHashes"),
    Clause("WIRE-META-1", "MUST", "Metadata survives pickling: the worker process reads what the scheduler wrote.", f"{_ENGINE} schedule, executor message queue"),
    Clause("WIRE-META-2", "MUST", "Retained and released hashes are absent or not empty, of one length, in the order queued.", f"{_NEXT}.build_connector_meta", since("0.33")),
    # What the worker accepts before a step.
    Clause("WORK-BEGIN-1", "MUST", "No request both runs and ends in one step.", f"{_WORKER}.begin_step"),
    Clause("WORK-BEGIN-2", "MUST", "The generation never goes back.", f"{_WORKER}.begin_step"),
    Clause("WORK-BEGIN-3", "MUST", "A new generation begins with no step in flight.", f"{_WORKER}.begin_step"),
    Clause("WORK-BEGIN-4", "MUST", "The emit start of a known request with nothing in flight is not beyond its emit cursor.", f"{_WORKER}.begin_step"),
    Clause("WORK-BEGIN-5", "MUST", "Hashes and terminal events are of requests that run in the step or that the worker knows.", f"{_WORKER}.begin_step"),
    Clause("WORK-KEYS-1", "MUST", "The worker's keys of a live request are a prefix of its hash list.", "a key names the token prefix of its block"),
    Clause("WORK-KEYS-2", "MUST", "A request's entry in replaced_block_hashes is its keys from then on, and its entry in block_hashes is left aside: keys that it no longer has are released, new ones are retained; rows of steps in flight, and those from its next step's start on, are dropped, and from there rows are due again.", "SCHED-HASH-12", since("0.32")),
    Clause("WORK-RETAIN-1", "MUST", "Retained and released hashes are keys of the generation that the worker had before the message.", "vLLM 0.33.0 worker connector.begin_step", since("0.33")),
    Clause("WORK-RETAIN-2", "MUST", "One message is one operation of the store, which retains before it releases.", "vLLM 0.33.0 worker connector.begin_step", since("0.33")),
    # What it does with a step's rows.
    Clause("WORK-STEP-1", "MUST", "A prepared step is in flight until it is processed; steps are processed in launch order.", f"{_WORKER}.prepare_output"),
    Clause("WORK-STEP-2", "MUST", "A batch holds only requests that a step began with.", f"{_WORKER}.prepare_output"),
    Clause("WORK-STEP-3", "MUST", "A prepared step keeps the rows that were computed for it, whatever later forward passes compute.", f"{_WORKER}.prepare_output"),
    Clause("WORK-STEP-4", "MUST", "A prepared step keeps nothing of what the runner gave: ids, starts and boundaries may be overwritten once the call is over.", "a runner uses its arrays again"),
    Clause("WORK-STEP-5", "MUST", "A worker changes nothing that it is given: metadata, ids, starts, boundaries, captured rows and counts.", "the runner's objects are the runner's"),
    Clause("WORK-CAPTURE-1", "MUST", "Rows of rejected drafts are dropped.", f"{_WORKER}.process_output"),
    Clause("WORK-CAPTURE-2", "MUST", "Capture never goes back behind what was captured.", f"{_WORKER}.process_output"),
    Clause("WORK-CAPTURE-3", "MUST", "Capture skips only positions that an earlier step had scheduled; the rows attach at the capture cursor.", f"{_WORKER}.process_output"),
    Clause("WORK-CAPTURE-4", "MUST", "The first capture of an activation starts at a block boundary.", f"{_WORKER}.process_output"),
    Clause("WORK-CAPTURE-5", "MUST", "A request's part of a step has at least one row, and no more of them are rejected than it has.", f"{_WORKER}.process_output"),
    Clause("WORK-PUBLISH-1", "MUST", "A full block is published once its key is known, and waits until then; all of a step is published before anything is emitted.", f"{_WORKER}.process_output"),
    Clause("WORK-EMIT-1", "MUST", "A request that sampled is returned the rows from its emit cursor to the step's accepted end, each once.", f"{_WORKER}.process_output"),
    Clause("WORK-EMIT-2", "MUST", "Where the step computed every row that is returned they come from it; otherwise all of them come from stored blocks and the tail, where the first row stored under a key stays.", f"{_WORKER}.process_output"),
    Clause("WORK-EMIT-3", "MUST", "Rows to be returned are in the step, in the store or in the tail.", f"{_WORKER}.process_output"),
    Clause("WORK-EMIT-4", "MUST", "Returned rows have the dtype and the row shape of the capture.", f"{_WORKER}.process_output"),
    Clause("WORK-EMIT-5", "MUST", "Returned rows do not change afterwards.", "the engine may still hold them when the next step is processed"),
    Clause("WORK-EMIT-6", "MUST", "A step's output survives pickling: the engine's process reads what the worker returned.", f"{_ENGINE} executor message queue"),
    Clause("WORK-EMIT-7", "MUST", "Rows that were returned are the engine's: what it writes into them changes nothing that the worker keeps.", "an engine in the same process gets the arrays themselves"),
    Clause("WORK-TEAR-1", "MUST", "A request that ended is torn down when its last step in flight was processed, its keys released last first.", f"{_WORKER}.process_output"),
    Clause("WORK-TEAR-2", "MUST", "After its terminal event and its last step the worker keeps nothing of a request.", f"{_WORKER}.process_output"),
    Clause("WORK-CLOSE-1", "MUST", "The worker closes at any moment, steps in flight included, and closing it again does nothing.", f"{_WORKER}.close"),
    # How the worker refuses.
    Clause("WORK-ACCEPT-1", "MUST", "An allowed call of the worker is not refused, where no other clause is about it.", "what the engine may do, it may do"),
    Clause("WORK-REFUSE-1", "MUST", "A refusal is an AssertionError or a ValueError, or a RuntimeError where the store fails, not whatever breaks first.", "callers of the original catch these"),
    Clause("WORK-REFUSE-2", "MUST", "A refused begin_step leaves worker and store as they were.", "rejection is atomic"),
    Clause("WORK-REFUSE-3", "MUST", "A refused process_output leaves worker and store as they were.", "rejection is atomic"),
    Clause("WORK-REFUSE-4", "MUST", "The worker's refusals work under python -O.", "rejection is atomic"),
    # The store.
    Clause("STORE-PUT-1", "MUST", "An object is written once; writing its key again keeps the first rows.", "vLLM 0.31.0 store"),
    Clause("STORE-PUT-2", "MUST", "The store never holds more objects than it may.", "vLLM 0.31.0 store"),
    Clause("STORE-PUT-3", "MUST", "The oldest unreferenced objects make room, none of the batch; a batch that cannot fit leaves the store as it was.", "vLLM 0.31.0 store"),
    Clause("STORE-PUT-4", "MUST", "A key is released as often as it was retained, not more.", "vLLM 0.31.0 store"),
    Clause("STORE-PUT-5", "MUST", "A batch that is refused changes nothing.", "rejection is atomic", since("0.33")),
    Clause("STORE-GROW-1", "MUST", "A store full of objects that may not go grows and stays readable; it never fails for lack of room.", "vLLM 0.33.0 store", since("0.33")),
    Clause("STORE-GROW-2", "SHOULD", "It gives memory back when the objects that needed it are gone.", "a long run must not keep the memory of its worst moment", since("0.33")),
    Clause("STORE-REPLACE-1", "MUST", "Rows written for a key that is stored and unreferenced replace those stored.", "vLLM 0.33.0 store", since("0.33")),
    Clause("STORE-READ-1", "MUST", "Reading a block that is not stored fails; no other rows take its place.", "vLLM 0.31.0 store"),
    Clause("STORE-READ-2", "MUST", "Rows of another generation are never read.", "a weight update changes the rows of every token"),
    Clause("STORE-REF-1", "MUST", "The store's references are those of the requests that live in the worker.", "vLLM 0.31.0 store"),
    # What the engine gets in the end.
    Clause("ROW-EXACT-1", "MUST", "A row returned for a position is of a computation of the tokens behind the request's KV there, in the same generation.", "what a trainer replays"),
    Clause("ROW-EXACT-2", "MUST", "A row returned for a position is of a computation of the request's own token prefix.", "what a trainer replays"),
    # Where an inconsistent request fails and no call is refused: ``errors="request"``.
    Clause("FAIL-ALONE-1", "MUST", "Where one request is inconsistent, the call is answered and that request fails; every other request gets what it gets without it.", "an engine outlives one request", _FAILING),
    Clause("FAIL-TELL-1", "MUST", "Each output of a step that has a failed request says that it failed, without a row of it.", "an engine outlives one request", _FAILING),
    Clause("FAIL-LAST-1", "MUST", "From the first output on that fails it, take_output returns None for a request, through preemption, resets and turns, until it has ended.", "rows behind a gap are rows out of place", _FAILING),
    Clause("FAIL-AGAIN-1", "MUST", "When a failed request has ended, another one of its id is sound.", "an id used again is another request", _FAILING),
    Clause("FAIL-TURN-1", "MUST", "The first metadata that schedules a session's next turn, or has a hash of it, carries its whole list in replaced_block_hashes, if it has a hash; if it ends before, its event carries none: the tokens at its end are others than before.", "else rows of a token that was dropped are stored under the name of the one in its place", _FAILING),
    Clause("FAIL-FREE-1", "MUST", "A failed request holds no reference, no block and no row outside the store; when it ends nothing of it is left.", "requests that failed must not fill the store", _FAILING),
    Clause("ROW-RESIDENT-1", "MUST", "The rows of every block that a prefix hit can take up are readable.", "what the scheduler keeps rows for", since("0.33")),
    # How a hit on KV becomes one on rows; only the explorer asks.
    Clause("HIT-CUT-1", "SHOULD", "Of KV that is found elsewhere, the whole blocks whose rows are known are loaded; one whose rows are not known does not forfeit them.", "vLLM 0.33.0 connector, cap_external_hit"),
    # What a trace of both halves shows of the way between them.
    Clause("CHAN-META-1", "MUST", "The worker begins its steps with the metadata that the scheduler connector built, each once and in order.", f"{_ENGINE} schedule, executor message queue"),
    Clause("CHAN-OUT-1", "MUST", "The output taken for a request is what the worker returned for it in the step processed last.", f"{_ENGINE} update_from_output"),
    # What a trace shows of the engine that made the calls.
    Clause("ENGINE-TABLE-1", "MUST", "The engine shows build_connector_meta every request that it schedules and every one whose end it did not tell, each once.", f"{_ENGINE} schedule, self.requests"),
    Clause("ENGINE-END-1", "MUST", "The engine tells each end of a request once, with request_finished, before it forgets the request.", f"{_ENGINE} _free_request"),
    Clause("ENGINE-STEP-1", "MUST", "The engine runs a forward pass with exactly the requests that the step began with, each once, and lets each step begin with metadata of its own.", f"{_WORKER}.begin_step"),
    Clause("ENGINE-TAKE-1", "MUST", "The engine takes each output of a live request exactly once, before the next step is processed, unless its KV failed to load.", f"{_ENGINE} update_from_output"),
    Clause("ENGINE-RESET-1", "MUST", "The engine tells of a reset of its prefix cache once if it succeeded, before the next step is built, and not if it failed.", f"{_ENGINE} reset_prefix_cache"),
    Clause("ENGINE-CALL-1", "MUST", "The engine makes no call that the protocol forbids, so that nothing has to be refused.", "a refused call ends the engine"),
    # What a client reads from an engine's answer.
    Clause("CLIENT-DECODE-1", "MUST", "A call of n tokens whose rows start at s has exactly n - 1 - s rows; another number is refused.", _LAST),
    Clause("CLIENT-DECODE-2", "MUST", "A start that is negative, beyond the last token, or other than the one the payload names is refused.", _SILENT),
    Clause("CLIENT-DECODE-3", "MUST", "Rows of other layers or slots than the model's are refused, and so is a flat buffer that is no whole number of rows.", _SILENT),
    Clause("CLIENT-DECODE-4", "MUST", "A value that is no whole number of the rows' dtype is refused, neither wrapped nor rounded; -1 is none.", _SILENT),
    Clause("CLIENT-DECODE-5", "MUST", "The dtype of rows follows from the number of experts alone: uint8 up to 256, else uint16.", "vLLM 0.31.0 routed experts; samples of one batch agree"),
    Clause("CLIENT-DECODE-6", "MUST", "Where rows are due, no payload is refused.", _SILENT),
    Clause("CLIENT-DECODE-7", "MUST", "A payload that is malformed, or whose size is not the one it names, is refused; nothing in it is executed.", "a payload comes from the network"),
    Clause("CLIENT-IDS-1", "MUST", "Checked rows with an id that is none of the model's experts are refused.", _REPLAY),
    Clause("CLIENT-IDS-2", "MUST", "Checked rows that name an expert twice in one layer are refused.", _REPLAY),
    Clause("CLIENT-IDS-3", "MUST", "Checked rows with an id other than zero in a layer without a router are refused.", _REPLAY),
    Clause("CLIENT-IDS-4", "MUST", "Checked rows in which a layer with a router and several slots is zero throughout are refused.", "its router was not captured"),
    # Joining the calls of a conversation.
    Clause("CLIENT-MERGE-1", "MUST", "A call whose prompt does not begin with the tokens so far is refused.", _OWN),
    Clause("CLIENT-MERGE-2", "MUST", "Rows that begin behind the first position that has none, after rows that are known, are refused.", _SILENT),
    Clause("CLIENT-MERGE-3", "MUST", "Rows that do not end with the token before a call's last are refused.", _LAST),
    Clause("CLIENT-MERGE-4", "MUST", "Where the first is kept, a position keeps the row that it was sampled with, whatever later calls return.", "partial rollouts under old weights"),
    Clause("CLIENT-MERGE-5", "MUST", "Where the last is kept, a position has the row of the latest call that returned one.", "a prefix that is computed again"),
    Clause("CLIENT-MERGE-6", "MUST", "Where both must be equal, rows of a known position that differ are refused.", _SILENT),
    Clause("CLIENT-MERGE-7", "MUST", "The row of a call's last token is filled from a later call that returns it; until then it is not known.", _LAST),
    Clause("CLIENT-MERGE-8", "MUST", "A call without rows is refused when it sampled tokens; without any, its prompt is known and its rows are not.", "an abort before the first forward pass"),
    Clause("CLIENT-MERGE-9", "MUST", "A call that is refused leaves the conversation as it was.", "rejection is atomic"),
    Clause("CLIENT-CUT-1", "MUST", "A cut keeps the tokens before it with their rows, and nothing else.", "stop strings and length limits"),
    Clause("CLIENT-CUT-2", "MUST", "A cut beyond the tokens is refused.", _SILENT),
    Clause("CLIENT-CUT-3", "MUST", "Calls on a branch change nothing of the conversation that it left, nor the other way round.", "turns form a tree"),
    Clause("CLIENT-SPLICE-1", "MUST", "Parts of one call between which a position is missing are refused.", "prefill and decode on two engines"),
    Clause("CLIENT-SPLICE-2", "MUST", "Parts that differ where they overlap are refused.", "prefill and decode on two engines"),
    Clause("CLIENT-SPLICE-3", "MUST", "Spliced rows are those of both parts, each position once.", "prefill and decode on two engines"),
    Clause("CLIENT-VERSION-1", "MUST", "Spans of weight versions that do not cover a call's output, each token once, are refused.", "vLLM 0.33.0 return_weight_versions"),
    Clause("CLIENT-VERSION-2", "MUST", "A row's version is that of the token sampled from its forward pass; a prompt's rows have the first one's.", "vLLM 0.33.0 return_weight_versions"),
    # Rows as tensors.
    Clause("CLIENT-ARRAY-1", "MUST", "The row of a position stands in its place, and the mask is true where a row is known and nowhere else.", _OWN),
    Clause("CLIENT-ARRAY-2", "MUST", "An array shorter than the tokens is refused.", _SILENT),
    Clause("CLIENT-ARRAY-3", "MUST", "Where missing rows are refused, one before the last token is.", _SILENT),
    Clause("CLIENT-ARRAY-4", "MUST", "In place of a missing row stands what was asked for: zeros, the ids from 0 on in layers with a router, or -1 in a signed dtype.", "Megatron RouterReplay needs valid, distinct ids"),
    Clause("CLIENT-PAD-1", "MUST", "Padding stands on the side that was asked for, and is masked.", _OWN),
    Clause("CLIENT-PAD-2", "MUST", "A length below the longest sample is refused.", _SILENT),
    Clause("CLIENT-PACK-1", "MUST", "Packed samples follow one another, each from its offset on, a multiple of the alignment.", _OWN),
    Clause("CLIENT-PACK-2", "MUST", "Samples of different schemas are refused.", _SILENT),
    Clause("CLIENT-PACK-3", "MUST", "A dtype that cannot hold every expert's id is refused, also where the ids at hand would fit.", "what depends on values fails late"),
    Clause("CLIENT-SHARD-1", "MUST", "A contiguous shard is the rank's equal part of the places, the mask with it.", "context and sequence parallelism"),
    Clause("CLIENT-SHARD-2", "MUST", "A zigzag shard is the rank's part from the front, then its part from the back.", "context parallelism under a causal mask"),
    Clause("CLIENT-SHARD-3", "MUST", "Places that do not divide evenly are refused.", _SILENT),
    Clause("CLIENT-LAYERS-1", "MUST", "Rows of the layers with a router are those layers only, in order.", "Megatron RouterReplay, in order of the routers"),
    Clause("CLIENT-LAYERS-2", "MUST", "Rows of a stage are those of its layers with a router.", "pipeline parallelism, virtual stages too"),
    Clause("CLIENT-LAYERS-3", "MUST", "Layers that the model lacks, or not in its order, are refused.", _SILENT),
)


class Change(NamedTuple):
    """Another sentence of a clause from some profile on."""

    since: str
    id: str
    sentence: str


_CHANGES = (
    Change("0.33", "SCHED-HASH-1", "The first metadata of an activation carries every hash of a block that the steps built so far compute in full, from the first on."),
    Change("0.33", "SCHED-HASH-3", "A metadata carries every hash of an active request that was not sent yet, of the blocks that the steps built so far compute in full; none is skipped."),
    Change("0.33", "SCHED-HASH-6", "An active request that is not scheduled gets a hash-only update when it has new hashes of computed blocks."),
    Change("0.33", "SCHED-TERM-3", "A request that was never scheduled ends without a terminal event; its blocks are retained, and it is no longer marked as loading."),
    Change("0.33", "SCHED-TERM-5", "The terminal event carries the hashes of computed blocks that were not sent yet, as they are when the request ends."),
    Change("0.33", "WORK-EMIT-2", "Rows that the step itself computed come from it, others from stored blocks, blocks that wait for their key, and the tail."),
    Change("0.33", "WORK-EMIT-3", "Rows to be returned are in the step, in the store, in a full block that waits for its key, or in the tail."),
    Change("0.33", "STORE-PUT-1", "A referenced object is written once; writing its key again keeps the first rows."),
    Change("0.33", "STORE-PUT-2", "The store never holds more objects than it has room for, and takes more room only for objects that may not go."),
    Change("0.33", "STORE-PUT-3", "The oldest unreferenced objects make room, none of the batch unless it was just released; what does not fit then makes the store grow."),
    Change("0.33", "STORE-REF-1", "The store's references are those of the requests that live in the worker, and one for each retained block."),
)
# fmt: on


def _worded(clause: Clause, profile: str) -> Clause:
    """A clause as a profile words it."""
    new = {
        change.id: change.sentence
        for change in _CHANGES
        if profile.removesuffix(PER_REQUEST) in since(change.since)
    }
    return clause._replace(sentence=new.get(clause.id, clause.sentence))


ALL_CLAUSES: dict[str, Clause] = {clause.id: clause for clause in _CLAUSES}
"""Every clause by id, in reading order, those included that nothing is judged by yet."""
CLAUSES: dict[str, Clause] = {
    clause.id: _worded(clause, judged[-1])._replace(profiles=judged)
    for clause in _CLAUSES
    if (judged := tuple(name for name in clause.profiles if is_judged(name)))
}
"""The clauses that implementations are judged by, with the profiles that these are judged under."""


SCHEDULER = ("SCHED", "WIRE")
"""The components that a scheduler connector answers for."""
WORKER = ("WORK", "STORE", "ROW")
"""The components that a worker connector answers for."""
EITHER = ("FAIL",)
"""The components that both answer for."""
CLIENT = ("CLIENT",)
"""The component that a trainer's client answers for."""


def holds_in(clause: Clause, profile: str) -> bool:
    """Whether a clause holds in a profile, or in its variant: there what it refuses fails a request (FAIL-ALONE-1)."""
    return profile in clause.profiles or profile.removesuffix(PER_REQUEST) in clause.profiles


def in_profile(profile: str, components: tuple[str, ...] = SCHEDULER) -> tuple[Clause, ...]:
    """The clauses of some components that hold in one profile, in reading order and as it words them."""
    return tuple(
        _worded(clause, profile)
        for clause in ALL_CLAUSES.values()
        if holds_in(clause, profile) and clause.component in components
    )
