"""Faults in what a worker takes in, captures and returns."""

from __future__ import annotations

from .edits import Append, Replace
from .entry import KnownBad
from .output_faults import REFUSE_BY_ASSERT

_FILE = "worker.py"
_CORE = "WorkerCore"
_INIT = f"{_CORE}.__init__"
_BEGIN = f"{_CORE}.begin_step"
_PREPARE = f"{_CORE}.prepare_output"
_PROCESS = f"{_CORE}.process_output"
_ENTER = f"{_CORE}._enter"
_EMIT = f"{_CORE}._emit"
_SNAPSHOT = "np.array(rows[start:end])"
_RETURNED = "AuxRequestOutput(request.emit_cursor, np.array(rows))"
_SLOTS = """
slot = self._slots.setdefault(self._num_prepared % self._max_in_flight, np.empty((512, *rows.shape[1:]), rows.dtype))
self._num_prepared += 1
slot[: len(rows)] = rows
rows = slot
"""


def _worker(name: str, clauses: tuple[str, ...], story: str, *edits: Replace | Append) -> KnownBad:
    return KnownBad(name, clauses, story, edits, file=_FILE)


def _state(name: str, clauses: tuple[str, ...], story: str, *edits: Replace) -> KnownBad:
    return KnownBad(name, clauses, story, edits, file="state.py")


BEGIN_FAULTS = (
    _worker(
        "worker-runs-and-ends",
        ("WORK-BEGIN-1",),
        "A request that runs and ends in one step is taken in.",
        Replace(
            _BEGIN,
            "if both and self._errors == 'raise': raise ProtocolViolation('WORK-BEGIN-1', both[0], _BOTH)",
            "both = []",
        ),
    ),
    _worker(
        "worker-goes-back-a-generation",
        ("WORK-BEGIN-2",),
        "Metadata of an older generation is taken in.",
        Replace(_ENTER, "generation < state.generation", "False"),
    ),
    _worker(
        "worker-generation-in-flight",
        ("WORK-BEGIN-3",),
        "A generation begins although steps are in flight.",
        Replace(_ENTER, 'state.in_flight and self._errors == "raise"', "False"),
    ),
    _worker(
        "worker-keeps-replaced-keys",
        ("WORK-KEYS-2",),
        "Replaced hashes are not looked at.",
        Replace("_replaced", 'getattr(metadata, "replaced_block_hashes", {})', "{}"),
    ),
    _worker(
        "worker-leaks-replaced-keys",
        ("WORK-KEYS-2",),
        "The reference of a replaced key is never given back.",
        Replace(f"{_CORE}._take_keys", "state.release += request.keys[kept:][::-1]", "pass"),
    ),
    _worker(
        "worker-late-start",
        ("WORK-BEGIN-4",),
        "An emit start beyond the emit cursor is not noticed.",
        Replace(f"{_CORE}._start", "emit_start > request.emit_cursor", "False"),
    ),
    _worker(
        "worker-unknown-end",
        ("WORK-BEGIN-5",),
        "The end of a request that never began is ignored.",
        Replace(
            f"{_CORE}._require_known",
            "self._fail(state, ProtocolViolation('WORK-BEGIN-5', request_id, what))",
            "None",
        ),
    ),
    _worker(
        "worker-crashes-on-unknown",
        ("WORK-REFUSE-1",),
        "A request that never began is looked up without a check.",
        Replace(
            f"{_CORE}._require_known",
            "self._fail(state, ProtocolViolation('WORK-BEGIN-5', request_id, what))",
            "state.requests[request_id]",
        ),
    ),
    _worker(
        "worker-keys-reversed",
        ("WORK-KEYS-1",),
        "The hashes of one metadata are appended last first.",
        Replace(
            f"{_CORE}._take_keys",
            "[(state.generation, block_hash) for block_hash in block_hashes]",
            "[(state.generation, block_hash) for block_hash in block_hashes][::-1]",
        ),
    ),
    _worker(
        "worker-generation-ignored",
        ("STORE-READ-2", "STORE-PUT-1", "WORK-PUBLISH-1"),
        "A key is the block hash alone, whatever the generation.",
        Replace(f"{_CORE}._take_keys", "(state.generation, block_hash)", "(0, block_hash)"),
    ),
    _worker(
        "worker-begin-not-atomic",
        ("WORK-REFUSE-2",),
        "A refused begin_step has already started requests.",
        Replace(_BEGIN, "state = self._state.copy()", "state = self._state = self._state.copy()"),
    ),
)

STEP_FAULTS = (
    _worker(
        "worker-unknown-in-batch",
        ("WORK-STEP-2",),
        "A request that never began is skipped when it is in a batch.",
        Replace(
            _PREPARE,
            "self._fail(state, ProtocolViolation('WORK-STEP-2', request_id, _NEVER_BEGAN))",
            "None",
        ),
    ),
    _worker(
        "worker-any-order",
        ("WORK-STEP-1",),
        "A later step is processed before the oldest.",
        Replace(_PROCESS, "state.in_flight[0] is not pending", "False"),
    ),
    _worker(
        "worker-snapshot-aliases",
        ("WORK-STEP-3",),
        "A step's rows are a view of the capture buffer.",
        Replace(_PREPARE, _SNAPSHOT, "rows[start:end]"),
    ),
    _worker(
        "worker-one-staging-buffer",
        ("WORK-STEP-3", "WORK-EMIT-5"),
        "All steps in flight share one staging buffer.",
        Append(_INIT, "self._staging = np.empty((512, *shape_per_token), dtype)"),
        Replace(
            _PREPARE,
            "bounds = [int(bound) for bound in query_start_loc]",
            """
            bounds = [int(bound) for bound in query_start_loc]
            self._staging[: len(rows)] = rows
            rows = self._staging
            """,
        ),
        Replace(_PREPARE, _SNAPSHOT, "rows[start:end]"),
    ),
    _worker(
        "worker-rows-of-another-request",
        ("ROW-EXACT-2", "WORK-EMIT-1"),
        "The parts of a batch are handed to its requests in the opposite order.",
        Replace(
            _PREPARE,
            "PendingStep(tuple(request_ids), starts, parts, unknown, state.generation)",
            "PendingStep(tuple(request_ids), starts, parts[::-1], unknown, state.generation)",
        ),
    ),
    _worker(
        "worker-refuses-full-depth",
        ("WORK-ACCEPT-1",),
        "One step fewer than allowed may be in flight.",
        Replace(
            f"{_CORE}._require_step",
            "len(self._state.in_flight) >= self._max_in_flight",
            "len(self._state.in_flight) + 1 >= self._max_in_flight",
        ),
    ),
    _worker(
        "worker-keeps-rows-of-dropped-tokens",
        ("WORK-KEYS-2", "WORK-EMIT-1", "WORK-CAPTURE-2", "ROW-EXACT-2"),
        "Steps in flight when a session turns over are captured like others.",
        Replace(f"{_CORE}._take_stale", "state.requests[request_id].num_stale", "False"),
    ),
    _worker(
        "worker-error-comes-late",
        ("WORK-CAPTURE-5", "WORK-CAPTURE-2", "WORK-CAPTURE-4"),
        "What is wrong with a step is raised by the next call instead.",
        Append(_INIT, "self._late = None"),
        Replace(
            _PROCESS,
            "accepted = self._capture(state, pending, num_rejected, stale)",
            """
            try:
                accepted = self._capture(state, pending, num_rejected, stale)
            except ProtocolViolation as violation:
                self._late = violation
                return {}
            """,
        ),
        Append(f"{_CORE}._require_open", "if self._late is not None: raise self._late"),
    ),
    _worker(
        "worker-step-not-atomic",
        ("WORK-REFUSE-3",),
        "A refused process_output has taken its step out of flight.",
        Replace(
            _PROCESS,
            "accepted = self._capture(state, pending, num_rejected, stale)",
            """
            self._state.in_flight = self._state.in_flight[1:]
            accepted = self._capture(state, pending, num_rejected, stale)
            """,
        ),
    ),
)

EMIT_FAULTS_OF_WORKERS = (
    _worker(
        "worker-returns-before-it-stores",
        ("WORK-PUBLISH-1", "WORK-EMIT-3"),
        "A step's outputs are put together before its blocks are stored.",
        Replace(
            _PROCESS,
            """
            self._write(state, self._take_ready(state, landed))
            outputs = self._emit(state, pending, num_sampled, accepted, stale)
            """,
            """
            outputs = self._emit(state, pending, num_sampled, accepted, stale)
            self._write(state, self._take_ready(state, landed))
            """,
        ),
    ),
    _worker(
        "worker-emit-cursor-stays",
        ("WORK-EMIT-1", "WORK-ACCEPT-1"),
        "Rows that were returned are returned again.",
        Replace(
            _EMIT,
            "state.requests[request_id] = replace(request, emit_cursor=request.capture_cursor)",
            "",
        ),
    ),
    _worker(
        "worker-returns-without-a-sample",
        ("WORK-EMIT-1",),
        "Rows of a chunk are returned although nothing was sampled.",
        Replace(_EMIT, "num_sampled > 0", "True"),
    ),
    _worker(
        "worker-forgets-preempted-output",
        ("WORK-EMIT-1", "WORK-TEAR-1"),
        "A request that ended while its step was in flight gets nothing for it.",
        Replace(_EMIT, "num_sampled > 0", "num_sampled > 0 and not request.finished"),
    ),
    _worker(
        "worker-narrows-rows",
        ("WORK-EMIT-4",),
        "Rows are returned in 8 bits, however many experts there are.",
        Replace(_EMIT, _RETURNED, "AuxRequestOutput(request.emit_cursor, np.array(rows, np.uint8))"),
    ),
    _worker(
        "worker-widens-rows",
        ("WORK-EMIT-4",),
        "Rows are returned as the capture buffer's 32-bit integers.",
        Replace(_EMIT, _RETURNED, "AuxRequestOutput(request.emit_cursor, np.array(rows, np.int32))"),
    ),
    _worker(
        "worker-output-aliases",
        ("WORK-EMIT-5",),
        "Returned rows are a view of a staging slot that a later step fills.",
        Append(_INIT, "self._slots, self._num_prepared = {}, 0"),
        Replace(
            _PREPARE,
            "bounds = [int(bound) for bound in query_start_loc]",
            "bounds = [int(bound) for bound in query_start_loc]\n" + _SLOTS.strip(),
        ),
        Replace(_PREPARE, _SNAPSHOT, "rows[start:end]"),
        Replace(_EMIT, _RETURNED, "AuxRequestOutput(request.emit_cursor, rows)"),
    ),
    _worker(
        "worker-output-does-not-travel",
        ("WORK-EMIT-6",),
        "An output holds a lock, which cannot be pickled.",
        Replace(
            _EMIT,
            f"outputs[request_id] = {_RETURNED}",
            f"""
            import threading
            outputs[request_id] = {_RETURNED}
            outputs[request_id].lock = threading.Lock()
            """,
        ),
    ),
)

TEAR_FAULTS = (
    _state(
        "worker-torn-down-too-early",
        ("WORK-TEAR-1",),
        "A request is torn down with its terminal event, although its step is in flight.",
        Replace("State.drop_ended", "not request.num_in_flight", "True"),
    ),
    _state(
        "worker-never-torn-down",
        ("WORK-TEAR-2",),
        "A request that ended stays.",
        Replace("State.drop_ended", "self.drop(request_id)", "None"),
    ),
    _worker(
        "worker-deferred-teardown-forgotten",
        ("WORK-TEAR-2",),
        "A request whose last step lands after its terminal event stays.",
        Replace(f"{_CORE}._land", "state.drop_ended(landed.request_ids)", "None"),
    ),
    _state(
        "worker-prefix-released-first",
        ("WORK-TEAR-1", "STORE-PUT-3"),
        "A request's keys are released first to last, so that the beginning of a prefix is evicted first.",
        Replace(
            "State.drop", "self.requests.pop(request_id).keys[::-1]", "self.requests.pop(request_id).keys"
        ),
    ),
    _state(
        "worker-reference-leak",
        ("STORE-REF-1",),
        "A request that is dropped keeps its references in the store.",
        Replace(
            "State.drop",
            "self.release += self.requests.pop(request_id).keys[::-1]",
            "self.requests.pop(request_id)\n",
        ),
    ),
    _worker(
        "worker-close-waits-for-steps",
        ("WORK-CLOSE-1",),
        "Closing with a step in flight fails.",
        Replace(
            f"{_CORE}.close",
            "self._closed = True",
            """
            if self._state.in_flight:
                raise RuntimeError('a step is in flight')
            self._closed = True
            """,
        ),
    ),
    KnownBad(
        "worker-assert-only",
        ("WORK-REFUSE-4",),
        "The worker's refusals are assert statements, which python -O removes.",
        (REFUSE_BY_ASSERT,),
        file=_FILE,
    ),
)
