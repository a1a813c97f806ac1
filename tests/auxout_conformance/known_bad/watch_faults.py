"""Faults in what is handed over: it changes later, is used after it was given back, or belongs to one process."""

from __future__ import annotations

from .edits import Append, Replace
from .entry import BUILD, FINISH, INIT, RESET, TAKE, KnownBad

_CORE = "WorkerCore"
_FILE = "worker.py"
_RETURNED = "AuxRequestOutput(request.emit_cursor, np.array(rows))"
_ROWS = "rows[: accepted_end - start]"
_EMPTIED = "for other in self._table.values(): del other.block_hashes[:]"
_GLOBAL_TABLE = """
_packed_elsewhere = []

def _of_table(number):
    return PackedBlockHashes(*_packed_elsewhere[number])

def _to_table(self):
    _packed_elsewhere.append((self.data, self.item_size))
    return _of_table, (len(_packed_elsewhere) - 1,)

PackedBlockHashes.__reduce__ = _to_table
"""


def _empties(name: str, where: str, story: str, clause: str = "SCHED-META-7") -> KnownBad:
    """A call empties the hash lists of requests that it is not about."""
    others = (
        "for other in self._table.values():\n    if other.request_id != request_id: del other.block_hashes[:]"
    )
    action = _EMPTIED if where == RESET else others
    edits = (
        Append(INIT, "self._table = {}"),
        Replace(BUILD, "self._ended = {}", "self._ended = {}\nself._table = requests"),
    )
    before = {
        TAKE: Replace(TAKE, "found = output[request_id]", f"found = output[request_id]\n{action}"),
        FINISH: Replace(
            FINISH, "request_id = request.request_id", f"request_id = request.request_id\n{action}"
        ),
        RESET: Append(RESET, action),
    }
    return KnownBad(name, (clause, "SCHED-META-5"), story, (*edits, before[where]))


WATCH_FAULTS = (
    _empties("empties-others-when-it-takes", TAKE, "Taking rows empties the hash lists of other requests."),
    _empties(
        "empties-others-when-one-ends", FINISH, "The end of a request empties the hash lists of others."
    ),
    _empties("empties-all-at-a-reset", RESET, "A reset empties the hash lists of all requests."),
    KnownBad(
        "rows-in-one-buffer",
        ("SCHED-TAKE-13",),
        "All rows are handed out in one buffer.",
        (
            Append(INIT, "self._buffer = None"),
            Replace(
                TAKE,
                f"return {_ROWS}",
                f"""
                import numpy as np
                rows = {_ROWS}
                if self._buffer is None:
                    self._buffer = np.zeros((4096, *rows.shape[1:]), rows.dtype)
                self._buffer[: len(rows)] = rows
                return self._buffer[: len(rows)]
                """,
            ),
        ),
    ),
    KnownBad(
        "rows-zeroed-later",
        ("SCHED-TAKE-13",),
        "The rows handed out last are set to zero before the next.",
        (
            Append(INIT, "self._last = None"),
            Replace(
                TAKE,
                f"return {_ROWS}",
                f"""
                if self._last is not None:
                    self._last[...] = 0
                self._last = {_ROWS}.copy()
                return self._last
                """,
            ),
        ),
    ),
    KnownBad(
        "rows-in-a-ring",
        ("SCHED-TAKE-13",),
        "Rows are handed out in a ring of three buffers.",
        (
            Append(INIT, "self._ring, self._turn = {}, 0"),
            Replace(
                TAKE,
                f"return {_ROWS}",
                f"""
                import numpy as np
                rows = {_ROWS}
                self._turn = (self._turn + 1) % 3
                kept = self._ring.setdefault(self._turn, np.zeros((4096, *rows.shape[1:]), rows.dtype))
                kept[: len(rows)] = rows
                return kept[: len(rows)]
                """,
            ),
        ),
    ),
    KnownBad(
        "metadata-in-a-ring",
        ("SCHED-META-6",),
        "Metadata is handed out in a ring of six objects.",
        (
            Append(INIT, "self._ring, self._turn = {}, 0"),
            Replace(
                BUILD,
                "return metadata",
                """
                self._turn = (self._turn + 1) % 6
                kept = self._ring.setdefault(self._turn, metadata)
                kept.__dict__.update(metadata.__dict__)
                return kept
                """,
            ),
        ),
    ),
    KnownBad(
        "hashes-in-a-table",
        ("WIRE-META-1",),
        "Hashes travel as the number of an entry in a table that only their own process has.",
        (Append("", _GLOBAL_TABLE),),
    ),
    KnownBad(
        "worker-keeps-starts",
        ("WORK-STEP-4",),
        "A step keeps the runner's array of starts.",
        (Replace(f"{_CORE}.prepare_output", "tuple(int(start) for start in token_starts)", "token_starts"),),
        file=_FILE,
    ),
    KnownBad(
        "worker-keeps-ids",
        ("WORK-STEP-4",),
        "A step keeps the runner's list of ids.",
        (
            Replace(
                f"{_CORE}.prepare_output",
                "PendingStep(tuple(request_ids), starts, parts, unknown, state.generation)",
                "PendingStep(request_ids, starts, parts, unknown, state.generation)",
            ),
        ),
        file=_FILE,
    ),
    KnownBad(
        "worker-keeps-boundaries",
        ("WORK-STEP-4",),
        "A step cuts its rows at the runner's boundaries only when it is processed.",
        (
            Replace(
                f"{_CORE}.prepare_output",
                "tuple(np.array(rows[start:end]) for start, end in pairwise(bounds))",
                "(np.array(rows), query_start_loc)",
            ),
            Replace(
                f"{_CORE}._capture",
                "pending.rows",
                "[pending.rows[0][start:end] for start, end in pairwise(pending.rows[1])]",
            ),
        ),
        file=_FILE,
    ),
    KnownBad(
        "worker-counts-overwritten",
        ("WORK-STEP-5",),
        "The runner's counts of rejected drafts are set to zero once they are used.",
        (
            Replace(
                f"{_CORE}.process_output", "self._land(state)", "self._land(state)\nnum_rejected[...] = 0"
            ),
        ),
        file=_FILE,
    ),
    KnownBad(
        "worker-appends-to-the-batch",
        ("WORK-STEP-5",),
        "An id is appended to the runner's list.",
        (
            Replace(
                f"{_CORE}.prepare_output",
                "self._state = state",
                "self._state = state\nrequest_ids.append('')",
            ),
        ),
        file=_FILE,
    ),
    KnownBad(
        "worker-uses-metadata-up",
        ("WORK-STEP-5",),
        "Hashes are taken out of the metadata as they are read.",
        (Append(f"{_CORE}.begin_step", "metadata.block_hashes.clear()"),),
        file=_FILE,
    ),
    KnownBad(
        "worker-clears-captured-rows",
        ("WORK-STEP-5",),
        "The runner's capture buffer is cleared once it was copied.",
        (Replace(f"{_CORE}.prepare_output", "self._state = state", "self._state = state\nrows[...] = 0"),),
        file=_FILE,
    ),
    KnownBad(
        "worker-stores-what-it-returns",
        ("WORK-EMIT-7",),
        "Stored blocks are slices of the rows that were returned, to save memory.",
        (
            Replace(
                f"{_CORE}._emit",
                f"outputs[request_id] = {_RETURNED}",
                f"""
                outputs[request_id] = {_RETURNED}
                for number, key in enumerate(request.keys):
                    first = number * self._block_size - request.emit_cursor
                    part = outputs[request_id].rows[max(first, 0) : first + self._block_size]
                    if first >= 0 and np.array_equal(state.store.objects.get(key), part):
                        state.store.objects[key] = part
                """,
            ),
        ),
        file=_FILE,
    ),
    KnownBad(
        "worker-output-in-a-table",
        ("WORK-EMIT-6",),
        "Outputs travel as the number of an entry in a table that only their own process has.",
        (
            Append(
                "",
                """
                _outputs_elsewhere = []

                def _of_table(number):
                    return AuxRequestOutput(*_outputs_elsewhere[number])

                def _to_table(self):
                    _outputs_elsewhere.append((self.token_start, self.rows))
                    return _of_table, (len(_outputs_elsewhere) - 1,)

                AuxRequestOutput.__reduce__ = _to_table
                """,
            ),
        ),
        file=_FILE,
    ),
)
