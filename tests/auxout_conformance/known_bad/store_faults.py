"""Faults in how a worker cuts rows into blocks, and in its store."""

from __future__ import annotations

from .edits import Replace
from .entry import KnownBad

_PUT = "BlockStore.put"
_READ = "BlockStore.read"


def _capture(name: str, clauses: tuple[str, ...], story: str, *edits: Replace) -> KnownBad:
    return KnownBad(name, clauses, story, edits, file="capture.py")


def _store(name: str, clauses: tuple[str, ...], story: str, *edits: Replace) -> KnownBad:
    return KnownBad(name, clauses, story, edits, file="store.py")


CAPTURE_FAULTS = (
    _capture(
        "capture-keeps-rejected",
        ("WORK-CAPTURE-1",),
        "The rows of rejected drafts are kept.",
        Replace("accepted_rows", "rows[:len(rows) - num_rejected]", "rows"),
    ),
    _capture(
        "capture-goes-back",
        ("WORK-CAPTURE-2",),
        "Rows behind the capture cursor are skipped without a word.",
        Replace(
            "captured",
            "raise ProtocolViolation('WORK-CAPTURE-2', request_id, f'capture goes back from {cursor} to {start}')",
            "rows = rows[cursor - start:]",
        ),
    ),
    _capture(
        "capture-refuses-lost-drafts",
        ("WORK-CAPTURE-3",),
        "A step that was scheduled behind drafts which were then rejected is refused.",
        Replace("captured", "start > cursor and cursor >= request.scheduled_cursor", "start > cursor"),
    ),
    _capture(
        "capture-skips",
        ("WORK-CAPTURE-3",),
        "A position that was never scheduled may be skipped.",
        Replace("captured", "start > cursor and cursor >= request.scheduled_cursor", "False"),
    ),
    _capture(
        "capture-starts-inside-a-block",
        ("WORK-CAPTURE-4",),
        "A first capture inside a block is taken for the block's beginning.",
        Replace("captured", "len(request.tail) != cursor % block_size", "False"),
    ),
    _capture(
        "capture-any-number-rejected",
        ("WORK-CAPTURE-5",),
        "More rejected drafts than rows leave none.",
        Replace("accepted_rows", "not 0 <= num_rejected <= len(rows)", "False"),
    ),
    _capture(
        "capture-late-key-lost",
        ("WORK-PUBLISH-1",),
        "A full block whose key has not arrived is dropped.",
        Replace("published", "replace(request, pending=waiting)", "replace(request, pending=())"),
    ),
    _capture(
        "capture-tail-lost",
        ("WORK-EMIT-3", "WORK-EMIT-1", "WORK-ACCEPT-1"),
        "The rows of an incomplete block are not returned with the stored ones.",
        Replace(
            "emitted",
            "np.concatenate([*parts, rest[start - rest_start:]])",
            "np.concatenate([*parts, rest[:0]])",
        ),
    ),
    _capture(
        "capture-returns-stored-rows",
        ("WORK-EMIT-2",),
        "Rows are read from the store even where the step itself computed them.",
        Replace("emitted", "start >= step_start", "start >= step_start and start % block_size > 0"),
    ),
    _capture(
        "capture-hit-off-by-one",
        ("ROW-EXACT-1", "WORK-EMIT-1"),
        "What is read from the store starts with its block, not with the emit cursor.",
        Replace("emitted", "start % block_size", "0"),
    ),
)

STORE_FAULTS = (
    _store(
        "store-last-writer",
        ("STORE-PUT-1",),
        "Writing a key again replaces its rows.",
        Replace(
            _PUT,
            "held[key] = held.pop(key, rows)",
            """
            held.pop(key, None)
            held[key] = rows
            """,
        ),
    ),
    _store(
        "store-one-too-many",
        ("STORE-PUT-2", "STORE-PUT-3"),
        "The store holds one object more than it may.",
        Replace(_PUT, "len(held) - self.max_objects", "len(held) - self.max_objects - 1"),
    ),
    _store(
        "store-evicts-referenced",
        ("STORE-PUT-3",),
        "A block that a live request references may be evicted.",
        Replace(_PUT, "key not in references and key not in written", "key not in written"),
    ),
    _store(
        "store-evicts-youngest",
        ("STORE-PUT-3",),
        "The youngest unreferenced blocks make room.",
        Replace(_PUT, "evictable[:excess]", "evictable[::-1][:excess]"),
    ),
    _store(
        "store-drops-references",
        ("STORE-PUT-4",),
        "The first release of a key drops all references to it.",
        Replace(
            "_moved",
            """
            moved[key] -= 1
            if moved[key] == 0:
                del moved[key]
            """,
            "del moved[key]",
        ),
        Replace(
            "_moved",
            "raise ProtocolViolation('STORE-PUT-4', None, 'a key is released more often than it was retained')",
            "continue",
        ),
    ),
    _store(
        "store-keeps-a-partial-batch",
        ("WORK-REFUSE-3", "WORK-REFUSE-2"),
        "A batch that does not fit leaves the objects that did.",
        Replace("BlockStore.copy", "dict(self.objects)", "self.objects"),
        Replace(_PUT, "dict(self.objects)", "self.objects"),
    ),
    _store(
        "store-serves-what-is-left",
        ("STORE-READ-1",),
        "Blocks that are missing are left out.",
        Replace(
            _READ,
            "missing = [key for key in keys if key not in self.objects]",
            """
            missing = []
            keys = [key for key in keys if key in self.objects] or list(self.objects)[:1]
            """,
        ),
    ),
)
