"""Faults in what a step's metadata says: who runs, where to emit from, which hashes are new."""

from __future__ import annotations

from .edits import Append, Replace
from .entry import BUILD, EMIT_START, FINISH, INIT, METADATA, RESET, KnownBad

METADATA_FAULTS = (
    KnownBad(
        "names-unscheduled",
        ("SCHED-META-1",),
        "Every active request is named as if it ran in the step.",
        (
            Replace(
                BUILD,
                'request = _look_up(requests, request_id, "SCHED-HASH-6")',
                'request = _look_up(requests, request_id, "SCHED-HASH-6")\n'
                "emit_starts[request_id] = self._emit_start(request_id, request)",
            ),
        ),
    ),
    KnownBad(
        "batch-order-lost",
        ("SCHED-META-2",),
        "The step's requests are walked in sorted order.",
        (
            Replace(
                BUILD,
                "scheduler_output.num_scheduled_tokens",
                "sorted(scheduler_output.num_scheduled_tokens)",
            ),
        ),
    ),
    KnownBad(
        "empty-step-skipped",
        ("SCHED-META-3",),
        "A step that schedules nothing returns at once, without the updates and events that are due.",
        (
            Replace(
                BUILD,
                "new_hashes: dict[str, list[bytes]] = {}",
                """
                new_hashes: dict[str, list[bytes]] = {}
                if not scheduler_output.num_scheduled_tokens:
                    return AuxOutputConnectorMetadata(self._generation, {}, {}, ())
                """,
            ),
        ),
    ),
    KnownBad(
        "generation-always-zero",
        ("SCHED-META-4", "SCHED-RESET-1"),
        "The metadata is always stamped with the first generation.",
        (Replace(METADATA, "self._generation", "0"),),
    ),
    KnownBad(
        "batch-overwritten",
        ("SCHED-META-5",),
        "The engine's num_scheduled_tokens is reused for the emit starts.",
        (
            Replace(
                BUILD,
                "emit_starts: dict[str, int] = {}",
                "emit_starts: dict[str, int] = scheduler_output.num_scheduled_tokens",
            ),
        ),
    ),
    KnownBad(
        "hashes-taken-out",
        ("SCHED-META-5",),
        "Hashes are taken out of the request's list as they are sent.",
        (
            Replace(
                "_unsent_hashes",
                "unsent = list(hashes[sent.num_hashes :])",
                "unsent = [hashes.pop(sent.num_hashes) for _ in range(sent.num_hashes, len(hashes))]",
            ),
        ),
    ),
    KnownBad(
        "metadata-reused",
        ("SCHED-META-6",),
        "One dictionary of emit starts serves every step, so metadata in flight changes.",
        (
            Append(INIT, "self._emit_starts = {}"),
            Replace(
                BUILD,
                "emit_starts: dict[str, int] = {}",
                "emit_starts = self._emit_starts\nemit_starts.clear()",
            ),
        ),
    ),
    KnownBad(
        "start-beyond-prompt-refused",
        ("SCHED-ACCEPT-1",),
        "A prompt start beyond the prompt is taken for a mistake of the caller.",
        (
            Replace(
                BUILD,
                "emit_starts[request_id] = self._emit_start(request_id, request)",
                "assert request.sampling_params.routed_experts_prompt_start <= request.num_prompt_tokens\n"
                "emit_starts[request_id] = self._emit_start(request_id, request)",
            ),
        ),
    ),
)

EMIT_FAULTS = (
    KnownBad(
        "prompt-start-ignored",
        ("SCHED-EMIT-1", "SCHED-EMIT-4", "SCHED-EMIT-5"),
        "Emission always starts at the first token.",
        (Replace(EMIT_START, "return max(prompt_start, emitted)", "return emitted"),),
    ),
    KnownBad(
        "emit-start-one-late",
        ("SCHED-EMIT-2", "SCHED-EMIT-5"),
        "With output tokens emission starts at num_tokens, which forgets that the last token has no row yet.",
        (Replace(EMIT_START, "request.num_tokens - 1", "request.num_tokens"),),
    ),
    KnownBad(
        "clamped-in-0.31",
        ("SCHED-EMIT-3",),
        "The prompt start is cut to the prompt in a profile that keeps it.",
        (Replace(EMIT_START, "self._profile.clamps_prompt_start", "True"),),
        "0.31",
    ),
    KnownBad(
        "not-clamped",
        ("SCHED-EMIT-4", "SCHED-EMIT-5"),
        "A prompt start beyond a shortened prompt is kept.",
        (Replace(EMIT_START, "self._profile.clamps_prompt_start", "False"),),
    ),
    KnownBad(
        "clamped-one-early",
        ("SCHED-EMIT-4", "SCHED-EMIT-1", "SCHED-EMIT-5"),
        "The prompt start is cut to the last prompt token instead of the prompt's end.",
        (Replace(EMIT_START, "request.num_prompt_tokens", "request.num_prompt_tokens - 1"),),
    ),
    KnownBad(
        "emit-start-cached",
        ("SCHED-EMIT-5", "SCHED-EMIT-2", "SCHED-EMIT-1"),
        "The emit start of a request's first step is kept for all its steps.",
        (
            Append(INIT, "self._emit_starts = {}"),
            Replace(
                BUILD,
                "emit_starts[request_id] = self._emit_start(request_id, request)",
                """
                self._emit_starts.setdefault(request_id, self._emit_start(request_id, request))
                emit_starts[request_id] = self._emit_starts[request_id]
                """,
            ),
            Append(FINISH, "self._emit_starts.pop(request_id, None)"),
        ),
    ),
)

HASH_FAULTS = (
    KnownBad(
        "prefix-taken-as-sent",
        ("SCHED-HASH-1", "SCHED-HASH-11", "SCHED-RESET-2", "SCHED-RESTART-2"),
        "The hashes a request has when it starts are taken as known to the worker.",
        (
            Replace(
                BUILD,
                "sent = self._active.get(request_id, NOTHING_SENT)",
                """
                known = request.block_hashes
                start = Sent(len(known), known[-1]) if known else NOTHING_SENT
                sent = self._active.setdefault(request_id, start)
                """,
            ),
        ),
    ),
    KnownBad(
        "update-not-counted",
        ("SCHED-HASH-2",),
        "Hash-only updates are sent but not counted as sent.",
        (
            Replace(
                BUILD,
                "_advanced(self._active.get(request_id, NOTHING_SENT), hashes)",
                "_advanced(self._active.get(request_id, NOTHING_SENT), hashes if request_id in emit_starts else [])",
            ),
        ),
    ),
    KnownBad(
        "resent-at-the-end",
        ("SCHED-HASH-2",),
        "The terminal event carries all hashes of the request, also those sent before.",
        (
            Replace(
                FINISH,
                "self._ended[request_id] = final",
                "self._ended[request_id] = list(request.block_hashes)",
            ),
        ),
    ),
    KnownBad(
        "one-hash-per-step",
        ("SCHED-HASH-3", "SCHED-TERM-5", "SCHED-HASH-6"),
        "When a step completes several blocks, only the hash of the last one is sent.",
        (
            Replace(
                "_unsent_hashes",
                "unsent = list(hashes[sent.num_hashes :])",
                """
                unsent = list(hashes[sent.num_hashes :])
                if sent.num_hashes > 0:
                    unsent = unsent[-1:]
                """,
            ),
        ),
    ),
    KnownBad(
        "hashes-sorted",
        ("SCHED-HASH-4",),
        "Hashes are sorted when they are packed.",
        (Replace("_pack", "b''.join(block_hashes)", "b''.join(sorted(block_hashes))"),),
    ),
    KnownBad(
        "empty-entry",
        ("SCHED-HASH-5", "SCHED-RESTART-3"),
        "A request without new hashes gets an empty entry.",
        (
            Replace(
                "_pack",
                """
                return {
                    request_id: PackedBlockHashes(b"".join(block_hashes), len(block_hashes[0]))
                    for request_id, block_hashes in hashes.items()
                    if block_hashes
                }
                """,
                """
                return {
                    request_id: PackedBlockHashes(b"".join(block_hashes), 32)
                    for request_id, block_hashes in hashes.items()
                }
                """,
            ),
        ),
    ),
    KnownBad(
        "update-forgotten",
        ("SCHED-HASH-6",),
        "An active request that is not scheduled gets its new hashes only when it runs again.",
        (Replace(BUILD, "request_id not in emit_starts", "new_hashes.setdefault(request_id, []) is None"),),
    ),
    KnownBad(
        "unscheduled-forgotten",
        ("SCHED-HASH-2", "SCHED-TERM-1", "SCHED-TERM-7", "SCHED-TERM-8"),
        "Only the requests of the step stay active.",
        (
            Replace(
                BUILD,
                "self._ended = {}",
                "self._ended = {}\nself._active = {name: self._active[name] for name in emit_starts}",
            ),
        ),
    ),
    KnownBad(
        "waiting-requests-sent",
        ("SCHED-HASH-7", "SCHED-TERM-9", "SCHED-RESET-4", "SCHED-RESET-3", "SCHED-TERM-3"),
        "Hashes of every known request are sent, whether it ever ran or not.",
        (
            Replace(
                BUILD,
                "self._active.items()",
                "[(name, self._active.get(name, NOTHING_SENT)) for name in requests]",
            ),
        ),
    ),
    KnownBad(
        "shrunk-list-accepted",
        ("SCHED-HASH-8",),
        "A hash list shorter than what was sent counts as nothing new while the request runs.",
        (
            Replace(
                "_unsent_hashes",
                "hashes = request.block_hashes",
                """
                hashes = request.block_hashes
                if len(hashes) < sent.num_hashes and shrunk_clause == "SCHED-HASH-8":
                    return []
                """,
            ),
        ),
    ),
    KnownBad(
        "replaced-history-unnoticed",
        ("SCHED-HASH-12",),
        "Only the number of sent hashes is remembered, so a replaced history goes unnoticed.",
        (
            Replace(
                "_is_replaced",
                "compared and sent.num_hashes > 0 and request.block_hashes[sent.num_hashes - 1] != sent.last",
                "False",
            ),
        ),
    ),
    KnownBad(
        "replaced-history-of-old-length-unnoticed",
        ("SCHED-HASH-12",),
        "A replaced history shows only where the list has grown.",
        (
            Replace(
                "_is_replaced",
                "unsent > 0 or (compare and unsent == 0)",
                "unsent > 0",
            ),
        ),
    ),
    KnownBad(
        "replaced-history-refused",
        ("SCHED-HASH-9",),
        "A replaced history ends the engine.",
        (
            Replace(
                "_unsent_hashes",
                "hashes = request.block_hashes",
                """
                hashes = request.block_hashes
                if _is_replaced(request, sent):
                    raise ProtocolViolation("SCHED-HASH-9", request_id, "hashes were replaced")
                """,
            ),
        ),
    ),
    KnownBad(
        "mixed-lengths-packed",
        ("SCHED-HASH-10",),
        "Hashes of different lengths are packed at the length of the first.",
        (Replace("_unsent_hashes", "len(lengths) > 1 or 0 in lengths", "False"),),
    ),
    KnownBad(
        "cursor-survives-preemption",
        ("SCHED-HASH-11", "SCHED-RESTART-2"),
        "A request that ended and runs again is sent only what it has not been sent before its end.",
        (
            Append(INIT, "self._cursors = {}"),
            Append(
                FINISH,
                """
                if request.block_hashes:
                    self._cursors[request_id] = Sent(len(request.block_hashes), request.block_hashes[-1])
                """,
            ),
            Append(RESET, "self._cursors = {}"),
            Replace(
                BUILD,
                "self._active.get(request_id, NOTHING_SENT)",
                "self._active.get(request_id, self._cursors.get(request_id, NOTHING_SENT))",
                times=2,
            ),
        ),
    ),
)
