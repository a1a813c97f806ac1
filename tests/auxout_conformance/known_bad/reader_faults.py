"""Faults of a worker that show only when another request reads what it stored, or stands beside another."""

from __future__ import annotations

from textwrap import dedent

from .edits import Replace
from .entry import TAKE, KnownBad

_FILE = "worker.py"
_CAPTURE = "WorkerCore._capture"
_ROWS = ("ROW-EXACT-1", "ROW-EXACT-2", "STORE-PUT-1", "WORK-PUBLISH-1", "WORK-EMIT-3", "STORE-READ-1", "WORK-CAPTURE-1",
         "WORK-KEYS-1", "WORK-EMIT-2", "WORK-EMIT-1")  # fmt: skip
_LACKS = "raise ProtocolViolation('SCHED-TAKE-2', request_id, \"the worker's output lacks the request\")"


def _captures(name: str, clause: str, story: str, more: str) -> KnownBad:
    """Something else is stored than what was accepted."""
    stored = "state.requests[request_id], accepted[request_id] = after, new"
    edit = Replace(_CAPTURE, stored, f"{dedent(more).strip()}\n{stored}")
    return KnownBad(name, (clause, *_ROWS), story, (edit,), file=_FILE)


def _taken(name: str, story: str, instead: str) -> KnownBad:
    """Where an output lacks a request, others may be in it."""
    return KnownBad(name, ("SCHED-TAKE-2", "SCHED-TAKE-11"), story, (Replace(TAKE, _LACKS, instead),))


READER_FAULTS = (
    _captures(
        "worker-stores-rejected-drafts",
        "WORK-CAPTURE-1",
        "Rejected drafts fill a block, which is stored with their rows.",
        """
        over = np.concatenate((after.tail, rows[len(new) :]))
        if len(after.tail) and len(over) >= self._block_size:
            block = after.capture_cursor // self._block_size
            after = replace(after, pending=(*after.pending, (block, over[: self._block_size])))
        """,
    ),
    _captures(
        "worker-stores-the-last-row-twice",
        "ROW-EXACT-1",
        "Of a block that a decode completes the last row is stored in the place of the first.",
        """
        if len(new) == 1 and after.pending:
            number, block = after.pending[-1]
            block = np.array(block)
            block[0] = block[-1]
            after = replace(after, pending=(*after.pending[:-1], (number, block)))
        """,
    ),
    _captures(
        "worker-stores-later-chunks-one-row-late",
        "ROW-EXACT-1",
        "Blocks of a chunk that is not the first hold the rows one position behind.",
        """
        if start and len(new) > 1 and after.pending:
            moved = tuple((number, np.roll(block, 1, axis=0)) for number, block in after.pending)
            after = replace(after, pending=moved)
        """,
    ),
    KnownBad(
        "worker-late-key-overwrites",
        ("STORE-PUT-1", *_ROWS),
        "A stored block without a reference is overwritten when it is written again.",
        (
            Replace(
                "BlockStore.put",
                "held[key] = held.pop(key, rows)",
                "held[key] = held.pop(key, rows) if key in self.references else rows",
            ),
        ),
        file="store.py",
    ),
    _taken(
        "another-request-s-rows",
        "Where other requests have output, the first of them stands in for one that has none.",
        "if not output: raise ProtocolViolation('SCHED-TAKE-2', request_id, 'no output')\n"
        "return next(iter(output.values())).rows",
    ),
    _taken(
        "no-rows-beside-others",
        "Where other requests have output, one that has none is not missed.",
        "if not output: raise ProtocolViolation('SCHED-TAKE-2', request_id, 'no output')\nreturn None",
    ),
)
