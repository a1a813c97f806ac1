"""Fixes of known findings of the released worker and its store."""

from __future__ import annotations

from auxout_conformance.known_bad.edits import Replace, Rewrite
from auxout_conformance.verifying import Result

from .fixes import explicit_refusals
from .patch import BEGIN, COMMIT, PREPARE, PROCESS, STORE, Patch, capture, imported, store, worker

_FIRST_WRITER = Replace(
    f"{STORE}.put",
    "unique = {obj.key: obj for obj in objects}",
    """
    unique = {}
    for obj in objects:
        unique.setdefault(obj.key, obj)
    """,
)
_IN_ORDER = Replace(
    PROCESS,
    """
    teardown = []
    release_keys: list[str] = []
    """,
    """
    assert self._pending_outputs and self._pending_outputs[0] is pending, "auxiliary output out of order"
    teardown = []
    release_keys: list[str] = []
    """,
)
_KNOWN_ONLY = (
    Replace(
        BEGIN,
        "release_keys: list[str] = []",
        """
        live = self._requests if metadata.generation == self._generation else {}
        for request_id in (*metadata.block_hashes, *metadata.finished_requests):
            assert request_id in live or request_id in metadata.requests, f"unknown request {request_id}"
        release_keys: list[str] = []
        """,
    ),
    Replace(
        PREPARE,
        "num_rows = int(query_start_loc[-1])",
        """
        num_rows = int(query_start_loc[-1])
        for request_id in request_ids:
            assert request_id in self._requests, f"unknown request {request_id}"
        """,
    ),
)
_STARTS_FIRST = Replace(
    BEGIN,
    "release_keys: list[str] = []",
    """
    release_keys: list[str] = []
    if metadata.generation == self._generation:
        for request_id, emit_start in metadata.requests.items():
            known = self._requests.get(request_id)
            if known is not None and known.pending_outputs == 0:
                assert emit_start <= known.emit_cursor, "auxiliary output Scheduler emit cursor moved ahead"
    """,
)
_SAVED = Replace(
    PROCESS,
    """
    teardown = []
    release_keys: list[str] = []
    try:
        outputs = self._commit_output(pending)
    finally:
        self._pending_outputs.remove(pending)
        for request_id in pending.request_ids:
            state = self._requests[request_id]
            state.pending_outputs -= 1
            if state.pending_outputs == 0 and state.finished:
                teardown.append(request_id)
                release_keys.extend(reversed(state.aux_output_keys))
    """,
    """
    teardown = []
    release_keys: list[str] = []
    buffer = self._buffer
    states = {name: copy.copy(self._requests[name]) for name in pending.request_ids}
    tails = {name: copy.copy(tail) for name, tail in buffer._requests.items()}
    free, owned = list(buffer._free_slots), dict(buffer._owned_slots)
    try:
        outputs = self._commit_output(pending)
    except BaseException:
        self._requests.update(states)
        buffer._requests, buffer._owned_slots = tails, owned
        buffer._free_slots[:] = free
        raise
    self._pending_outputs.remove(pending)
    for request_id in pending.request_ids:
        state = self._requests[request_id]
        state.pending_outputs -= 1
        if state.pending_outputs == 0 and state.finished:
            teardown.append(request_id)
            release_keys.extend(reversed(state.aux_output_keys))
    """,
)

WORKER_FIXES = (
    Patch("worker-fix-first-writer", store(_FIRST_WRITER), fixed=("STORE-PUT-1",)),
    Patch("worker-fix-step-order", worker(_IN_ORDER), fixed=("WORK-STEP-1",)),
    Patch("worker-fix-unknown-requests", worker(*_KNOWN_ONLY), fixed=("WORK-REFUSE-1",)),
    Patch(
        "worker-fix-assert-only",
        worker(Rewrite(explicit_refusals)) | capture(Rewrite(explicit_refusals)),
        fixed=("WORK-REFUSE-4",),
    ),
    # F31-10 no longer shows, but what was stored before a read failed stays: WORK-REFUSE-3 is still violated.
    Patch("worker-half-fix-step-atomic", worker(imported("import copy"), _SAVED)),
    Patch(
        "worker-fix-and-break",
        store(_FIRST_WRITER) | worker(Replace(COMMIT, "emit_start <= token_end", "emit_start < token_end")),
        Result.BROKEN,
        broken=("WORK-EMIT-1",),
        fixed=("STORE-PUT-1",),
        changes=None,
    ),
    Patch(
        "worker-fix-begin-atomic",
        worker(*_KNOWN_ONLY, _STARTS_FIRST),
        fixed=("WORK-REFUSE-1", "WORK-REFUSE-2"),
    ),
)
