"""Faults that show only with ids, hashes, rows or generations of some kinds: each is right in a small, plain world."""

from __future__ import annotations

from .edits import Append, Edit, Replace
from .entry import BUILD, FINISH, METADATA, KnownBad

_CORE = "WorkerCore"
_FILE = "worker.py"
_IDS = (
    "SCHED-HASH-1",
    "SCHED-ACCEPT-1",
    "SCHED-HASH-2",
    "SCHED-HASH-3",
    "SCHED-HASH-7",
    "SCHED-HASH-8",
    "SCHED-HASH-9",
    "SCHED-HASH-10",
    "SCHED-HASH-12",
    "SCHED-TERM-1",
    "SCHED-TERM-2",
    "SCHED-TERM-3",
    "SCHED-META-1",
)
_HASHES = (
    "SCHED-HASH-1",
    "SCHED-HASH-3",
    "SCHED-TERM-5",
    "SCHED-HASH-10",
    "SCHED-HASH-12",
    "WIRE-META-1",
    "SCHED-ACCEPT-1",
)
_ROWS = ("WORK-EMIT-4", "WORK-EMIT-1", "ROW-EXACT-1", "ROW-EXACT-2", "WORK-ACCEPT-1")
_RETURNED = "AuxRequestOutput(request.emit_cursor, np.array(rows))"
_NUM_ACTIVE = "self._active.get(request_id, NOTHING_SENT)"


def _ids(name: str, key: str, story: str) -> KnownBad:
    """Requests are told apart by something made of their id."""
    known = f"self._active.get({key}, (None, NOTHING_SENT))[1]"
    edits: tuple[Edit, ...] = (
        Append("", "import unicodedata" if "unicodedata" in key else "pass"),
        Replace(BUILD, f"sent = {_NUM_ACTIVE}", f"sent = {known}"),
        Replace(BUILD, "self._active.items()", "self._active.values()"),
        Replace(
            BUILD,
            f"{{request_id: _advanced({_NUM_ACTIVE}, hashes) for request_id, hashes in new_hashes.items()}}",
            f"{{{key}: (request_id, _advanced({known}, hashes)) for request_id, hashes in new_hashes.items()}}",
        ),
        Replace(
            BUILD,
            "{request_id: _advanced(NOTHING_SENT, hashes) for request_id, hashes in replaced.items()}",
            f"{{{key}: (request_id, _advanced(NOTHING_SENT, hashes)) for request_id, hashes in replaced.items()}}",
        ),
        Replace(FINISH, "request_id not in self._active", f"{key} not in self._active"),
        Replace(FINISH, "sent = self._active[request_id]", f"sent = self._active[{key}][1]"),
        Replace(FINISH, "del self._active[request_id]", f"del self._active[{key}]"),
    )
    return KnownBad(name, _IDS, story, edits)


def _hashes(name: str, story: str, new: str) -> KnownBad:
    """Something is made of each hash on its way."""
    return KnownBad(
        name, _HASHES, story, (Replace("_unsent_hashes", "list(hashes[sent.num_hashes :])", new),)
    )


def _returns(name: str, story: str, rows: str, clauses: tuple[str, ...] = _ROWS) -> KnownBad:
    """A worker returns something made of the right rows."""
    new = f"AuxRequestOutput(request.emit_cursor, {rows})"
    return KnownBad(name, clauses, story, (Replace(f"{_CORE}._emit", _RETURNED, new),), file=_FILE)


_SENT = "hashes[sent.num_hashes :]"

LOOK_FAULTS = (
    _ids("ids-by-first-letter", "request_id[:1]", "Requests are told apart by the first letter of their id."),
    _ids("ids-by-last-letter", "request_id[-1:]", "Requests are told apart by the last letter of their id."),
    _ids("ids-cut-to-eight", "request_id[:8]", "Ids are cut to eight characters."),
    _ids("ids-cut-to-a-thousand", "request_id[:1024]", "Ids are cut to 1,024 characters."),
    _ids("ids-in-one-case", "request_id.upper()", "Ids are compared without regard to case."),
    _ids("ids-stripped", "request_id.strip()", "White space around ids is dropped."),
    _ids("ids-normalised", "unicodedata.normalize('NFC', request_id)", "Ids are normalised."),
    _ids(
        "ids-as-numbers",
        "int(request_id) if request_id.isdigit() else request_id",
        "Ids that are numbers become numbers.",
    ),
    _ids(
        "ids-without-suffix",
        "request_id.rpartition('-')[0] or request_id",
        "What follows the last dash of an id is dropped.",
    ),
    _hashes(
        "hashes-lose-zeros", "Zero bytes at a hash's end are dropped.", f"[h.rstrip(b'\\0') for h in {_SENT}]"
    ),
    _hashes(
        "hashes-as-numbers",
        "Hashes become numbers of 32 bytes and bytes again.",
        f"[int.from_bytes(h, 'big').to_bytes(32, 'big') for h in {_SENT}]",
    ),
    _hashes("hashes-cut-to-32", "Hashes are cut to 32 bytes.", f"[h[:32] for h in {_SENT}]"),
    _hashes(
        "hashes-as-signed",
        "Hashes go through a signed number of their size.",
        f"[abs(int.from_bytes(h, 'big', signed=True)).to_bytes(len(h), 'big') for h in {_SENT}]",
    ),
    KnownBad(
        "hashes-of-32-bytes",
        _HASHES,
        "Packed hashes are read as if each had 32 bytes.",
        (Replace("_pack", "len(block_hashes[0])", "32"),),
    ),
    KnownBad(
        "generation-in-a-byte",
        ("SCHED-META-4", "SCHED-RESET-1"),
        "The generation is kept in one byte.",
        (Replace(METADATA, "self._generation", "self._generation & 255"),),
    ),
    KnownBad(
        "generation-in-four-bits",
        ("SCHED-META-4", "SCHED-RESET-1"),
        "The generation is kept in four bits.",
        (Replace(METADATA, "self._generation", "self._generation % 16"),),
    ),
    KnownBad(
        "generation-in-two-signed-bytes",
        ("SCHED-META-4", "SCHED-RESET-1"),
        "The generation is kept in a signed number of two bytes.",
        (Replace(METADATA, "self._generation", "(self._generation + 32768) % 65536 - 32768"),),
    ),
    KnownBad(
        "every-known-request-is-sent",
        ("SCHED-HASH-7", "SCHED-META-1"),
        "Requests that the engine knows and never scheduled are sent too.",
        (
            Replace(
                BUILD,
                "metadata = self._metadata(emit_starts, new_hashes, replaced)",
                """
                if len(requests) > 3:
                    for request_id in requests.keys() - new_hashes.keys():
                        new_hashes[request_id] = list(requests[request_id].block_hashes)
                metadata = self._metadata(emit_starts, new_hashes, replaced)
                """,
            ),
        ),
    ),
    _returns(
        "worker-signed-bytes",
        "Rows of one byte are returned as signed numbers.",
        "np.array(rows).view(np.int8) if rows.dtype.itemsize == 1 else np.array(rows)",
    ),
    _returns(
        "worker-cuts-bytes-at-127",
        "Rows of one byte are cut at 127.",
        "np.minimum(rows, 127) if rows.dtype.itemsize == 1 else np.array(rows)",
    ),
    _returns(
        "worker-cuts-bytes-at-254",
        "The last expert of 256 becomes the one before.",
        "np.minimum(rows, 254) if rows.dtype.itemsize == 1 else np.array(rows)",
    ),
    _returns(
        "worker-signed-words",
        "Rows of two bytes are cut at 32,767.",
        "np.minimum(rows, 32767) if rows.dtype.itemsize == 2 else np.array(rows)",
    ),
    _returns(
        "worker-squeezes",
        "An axis of length one is dropped.",
        "np.squeeze(rows, 1) if rows.shape[1] == 1 else np.array(rows)",
    ),
    _returns(
        "worker-swaps-layers-and-choices",
        "Layers and choices are taken for each other.",
        "np.array(rows).reshape(len(rows), rows.shape[2], rows.shape[1])",
    ),
    _returns(
        "worker-sorts-choices",
        "The ids of a layer are sorted.",
        "np.sort(rows, axis=2) if rows.shape[2] > 2 else np.array(rows)",
    ),
    _returns(
        "worker-keeps-64-layers",
        "Layers beyond the sixty-fourth are lost.",
        "np.concatenate([rows[:, :64], np.zeros_like(rows[:, 64:])], 1)",
    ),
    KnownBad(
        "worker-generation-in-a-byte",
        ("STORE-READ-2", "WORK-BEGIN-2", "WORK-ACCEPT-1", "WORK-BEGIN-3"),
        "The worker keeps the generation in one byte.",
        (
            Replace(
                f"{_CORE}._enter",
                "generation = metadata.generation",
                "generation = metadata.generation % 256",
            ),
        ),
        file=_FILE,
    ),
    KnownBad(
        "worker-keys-in-eight-bytes",
        ("WORK-KEYS-1", "STORE-PUT-1", "ROW-EXACT-1", "ROW-EXACT-2", "WORK-PUBLISH-1", "STORE-REF-1"),
        "Of a block hash only the first eight bytes make the key.",
        (
            Replace(
                f"{_CORE}._take_keys", "(state.generation, block_hash)", "(state.generation, block_hash[:8])"
            ),
        ),
        file=_FILE,
    ),
    KnownBad(
        "worker-ids-cut-to-sixteen",
        ("WORK-STEP-2", "WORK-BEGIN-5", "WORK-ACCEPT-1", "WORK-EMIT-1", "STORE-PUT-4"),
        "The worker cuts ids to sixteen characters.",
        (
            Replace(
                f"{_CORE}.begin_step",
                "metadata.requests.items()",
                "{name[:16]: start for name, start in metadata.requests.items()}.items()",
            ),
        ),
        file=_FILE,
    ),
)
