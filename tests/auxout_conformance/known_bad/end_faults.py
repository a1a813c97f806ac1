"""Faults in how requests end, run again, and are forgotten by a reset."""

from __future__ import annotations

from .edits import Append, Edit, Replace
from .entry import BUILD, FINISH, INIT, METADATA, RESET, KnownBad


def _event_although_inactive(seen: str) -> tuple[Edit, ...]:
    """Queue an event for an inactive request that was seen, or not seen, in a step before."""
    return (
        Append(INIT, "self._seen = set()"),
        Replace(BUILD, "self._ended = {}", "self._ended = {}\nself._seen.update(emit_starts)"),
        Replace(
            FINISH,
            "if request_id not in self._active: return",
            f"""
            if request_id not in self._active:
                if request_id {seen} self._seen:
                    self._ended.setdefault(request_id, [])
                return
            """,
        ),
    )


TERMINAL_FAULTS = (
    KnownBad(
        "event-needs-hashes",
        ("SCHED-TERM-1", "SCHED-TERM-7", "SCHED-RESTART-1"),
        "A request that ends with all its hashes sent queues no event.",
        (
            Replace(
                FINISH,
                "self._ended[request_id] = final",
                "if final:\n    self._ended[request_id] = final",
            ),
        ),
    ),
    KnownBad(
        "event-delivered-twice",
        ("SCHED-TERM-2", "SCHED-RESTART-1"),
        "The queue of terminal events is not emptied when it is delivered.",
        (Replace(BUILD, "self._ended = {}", ""),),
    ),
    KnownBad(
        "event-without-activation",
        ("SCHED-TERM-3",),
        "A request that was aborted before it ever ran is reported as finished.",
        _event_although_inactive("not in"),
    ),
    KnownBad(
        "event-at-second-end",
        ("SCHED-TERM-4", "SCHED-TERM-2"),
        "Aborting a request that was preempted before reports it as finished once more.",
        (*_event_although_inactive("in"), Append(RESET, "self._seen = set()")),
    ),
    KnownBad(
        "event-without-hashes",
        ("SCHED-TERM-5",),
        "The hashes of blocks that the last tokens completed are lost with the request.",
        (Replace(FINISH, "self._ended[request_id] = final", "self._ended[request_id] = []"),),
    ),
    KnownBad(
        "events-sorted",
        ("SCHED-TERM-6",),
        "Finished requests are reported sorted by id.",
        (Replace(METADATA, "tuple(ended)", "tuple(sorted(ended))"),),
    ),
    KnownBad(
        "preemption-ignored",
        ("SCHED-TERM-7", "SCHED-HASH-11", "SCHED-TERM-9"),
        "Only requests that are finished end; one that is preempted stays active.",
        (
            Replace(
                FINISH,
                "request_id not in self._active",
                "request_id not in self._active or not request.is_finished()",
            ),
        ),
    ),
    KnownBad(
        "shrunk-list-accepted-at-end",
        ("SCHED-TERM-8",),
        "A request whose hash list shrank ends as if nothing were owed.",
        (
            Replace(
                "_unsent_hashes",
                "hashes = request.block_hashes",
                """
                hashes = request.block_hashes
                if len(hashes) < sent.num_hashes and shrunk_clause == "SCHED-TERM-8":
                    return []
                """,
            ),
        ),
    ),
    KnownBad(
        "updates-after-the-end",
        ("SCHED-TERM-9", "SCHED-HASH-11", "SCHED-TERM-4", "SCHED-RESTART-2"),
        "A preempted request is reported as finished but stays among those that get updates.",
        (
            Replace(
                FINISH,
                "del self._active[request_id]",
                "if request.is_finished():\n    del self._active[request_id]",
            ),
        ),
    ),
)

RESTART_FAULTS = (
    KnownBad(
        "restart-not-reported",
        ("SCHED-RESTART-1",),
        "An id that runs again is taken off the list of finished requests.",
        (Replace(METADATA, "tuple(ended)", "tuple(name for name in ended if name not in emit_starts)"),),
    ),
    KnownBad(
        "restart-overwritten",
        ("SCHED-RESTART-2",),
        "The final hashes of the activation that ended overwrite those of the one that starts.",
        (
            Replace(
                METADATA,
                "{**new_hashes, **gone}",
                "{**new_hashes, **gone, **{name: final for name, final in restarted.items() if final}}",
            ),
        ),
    ),
    KnownBad(
        "restart-drops-final-hashes",
        ("SCHED-RESTART-3",),
        "The final hashes of an id that runs again are dropped.",
        (Replace(METADATA, "_pack(restarted)", "{}"),),
    ),
)

RESET_FAULTS = (
    KnownBad(
        "generation-kept",
        ("SCHED-RESET-1", "SCHED-META-4"),
        "A reset forgets what it must but stays in the same generation.",
        (Replace(RESET, "self._generation += 1", ""),),
    ),
    KnownBad(
        "active-kept-over-reset",
        ("SCHED-RESET-2", "SCHED-RESET-4"),
        "A reset does not forget which hashes were sent.",
        (Replace(RESET, "self._active = {}", ""),),
    ),
    KnownBad(
        "events-kept-over-reset",
        ("SCHED-RESET-3",),
        "A reset does not drop the terminal events that wait.",
        (Replace(RESET, "self._ended = {}", ""),),
    ),
    KnownBad(
        "all-resent-after-reset",
        ("SCHED-RESET-4",),
        "After a reset all requests are sent again, whether they run or not.",
        (Replace(RESET, "self._active = {}", "self._active = dict.fromkeys(self._active, NOTHING_SENT)"),),
    ),
)
