"""Plausible mistakes in the worker and its store: each must be named by its clause."""

from __future__ import annotations

import ast

from auxout_conformance.known_bad.edits import Append, Edit, Replace, Rewrite
from auxout_conformance.verifying import Result

from .patch import (
    BACKGROUND,
    BEGIN,
    BUFFER,
    CLOSE,
    COMMIT,
    NEWEST,
    PREPARE,
    PROCESS,
    PUBLISH,
    STORE,
    WORKER,
    Edits,
    Patch,
    capture,
    find,
    store,
    worker,
)


def _bug(name: str, clauses: str, edits: Edits) -> Patch:
    broken = tuple(clauses.split())
    return Patch(name, edits, Result.BROKEN, broken=broken, changes=None, releases=NEWEST)


def _worker(name: str, clauses: str, *edits: Edit) -> Patch:
    return _bug(name, clauses, worker(*edits))


def _store(name: str, clauses: str, *edits: Edit) -> Patch:
    return _bug(name, clauses, store(*edits))


def _capture(name: str, clauses: str, *edits: Edit) -> Patch:
    return _bug(name, clauses, capture(*edits))


def _materialized_first(module: ast.Module) -> int:
    """Outputs are put together before the step's blocks are stored."""
    body = find(module, COMMIT).body
    at = next(index for index, each in enumerate(body) if "self._publish_blocks" in ast.unparse(each))
    body.insert(len(body) - 1, body.pop(at))
    return 1


def _deferred_teardown_forgotten(module: ast.Module) -> int:
    """Nothing is torn down when a last step was processed."""
    for node in ast.walk(find(module, PROCESS)):
        if isinstance(node, ast.If) and "state.finished" in ast.unparse(node.test):
            node.test = ast.Constant(False)
            return 1
    return 0


def _released_first_to_last(module: ast.Module) -> int:
    """Keys are released in the order in which they came."""
    count = 0
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "reversed":
            node.func, count = ast.Name("list", ast.Load()), count + 1
    return count


def _never_deferred(module: ast.Module) -> int:
    """A request is torn down with its terminal event, whatever is in flight."""
    for node in ast.walk(find(module, BEGIN)):
        body = getattr(node, "body", ())
        for each in body:
            if isinstance(each, ast.If) and ast.unparse(each.test) == "state.pending_outputs":
                body.remove(each)
                return 1
    return 0


def _releases_forgotten(module: ast.Module) -> int:
    """A request that ends keeps its references."""
    count = 0
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        for index, each in enumerate(body if isinstance(body, list) else ()):
            if isinstance(each, ast.Expr) and ast.unparse(each).startswith("release_keys.extend(reversed("):
                body[index], count = ast.Pass(), count + 1
    return count


def _youngest_first(module: ast.Module) -> int:
    """Victims are looked for from the youngest on."""
    for node in ast.walk(find(module, f"{STORE}._evict_to_fit")):
        if isinstance(node, ast.For) and ast.unparse(node.iter) == "self._lru":
            node.iter = ast.parse("reversed(self._lru)", mode="eval").body
            return 1
    return 0


WORKER_BUGS = (
    # A step begins.
    _worker(
        "worker-both-accepted",
        "WORK-BEGIN-1 WORK-REFUSE-1",
        Replace(BEGIN, "not metadata.requests.keys() & metadata.finished_requests", "True"),
    ),
    _worker(
        "worker-older-generation-accepted",
        "WORK-BEGIN-2",
        Replace(BEGIN, "metadata.generation >= self._generation", "True"),
    ),
    _worker(
        "worker-generation-in-flight-accepted",
        "WORK-BEGIN-3",
        Replace(BEGIN, "not self._pending_outputs", "True"),
    ),
    _worker(
        "worker-late-start-accepted",
        "WORK-BEGIN-4",
        Replace(BEGIN, "emit_start <= state.emit_cursor", "True"),
    ),
    _worker(
        "worker-unsettled-start-checked",
        "WORK-BEGIN-4",
        Replace(BEGIN, "state.pending_outputs == 0", "True"),
    ),
    _worker(
        "worker-keys-in-front",
        "WORK-PUBLISH-1 WORK-KEYS-1",
        Replace(BEGIN, "state.aux_output_keys.extend(keys)", "state.aux_output_keys[:0] = keys"),
    ),
    _worker(
        "worker-one-namespace",
        "STORE-READ-2 STORE-PUT-1",
        Replace(BEGIN, "str(self._generation)", "'0'"),
    ),
    _worker(
        "worker-tails-survive-the-reset",
        "WORK-TEAR-2 WORK-CAPTURE-4 WORK-ACCEPT-1",
        Replace(BEGIN, "self._buffer.reset()", "None"),
    ),
    # Steps in flight.
    _worker(
        "worker-one-staging-buffer",
        "WORK-STEP-3 WORK-EMIT-5 ROW-EXACT-1",
        Replace(
            PREPARE,
            "self._capturer.snapshot_routing_data(num_rows)",
            "self._staged(self._capturer.snapshot_routing_data(num_rows))",
        ),
        Append(
            WORKER,
            """
            def _staged(self, rows):
                if not hasattr(self, "_staging"):
                    self._staging = torch.empty((1024, *rows.shape[1:]), dtype=rows.dtype)
                self._staging[:len(rows)] = rows
                return self._staging[:len(rows)]
            """,
        ),
    ),
    _worker(
        "worker-one-step-fewer",
        "WORK-ACCEPT-1",
        Replace(
            PREPARE,
            "len(self._pending_outputs) < self._max_concurrent_batches",
            "len(self._pending_outputs) + 1 < self._max_concurrent_batches",
        ),
    ),
    # The release crashes there already (F31-11), so another wrong answer is a change and breaks nothing.
    Patch(
        "worker-unknown-in-the-batch-skipped",
        worker(
            Replace(
                PREPARE,
                "self._requests[request_id].pending_outputs += 1",
                "if request_id in self._requests:\n    self._requests[request_id].pending_outputs += 1",
            )
        ),
        changes=("prepare_output: another answer, both against WORK-REFUSE-1",),
        releases=NEWEST,
    ),
    _worker(
        "worker-parts-of-others",
        "ROW-EXACT-2 WORK-EMIT-1 WORK-EMIT-2 WORK-EMIT-3 WORK-TEAR-1 WORK-ACCEPT-1 STORE-PUT-3",
        Replace(PREPARE, "list(input_batch.req_ids)", "sorted(input_batch.req_ids)"),
    ),
    # Capture.
    _worker(
        "worker-rejected-kept",
        "WORK-CAPTURE-1 WORK-CAPTURE-2 WORK-PUBLISH-1",
        Replace(COMMIT, "routed_experts[start:end - rejected]", "routed_experts[start:end]"),
    ),
    _worker(
        "worker-any-number-rejected",
        "WORK-CAPTURE-5",
        Replace(COMMIT, "0 <= rejected <= request_num_tokens", "True"),
    ),
    _worker(
        "worker-capture-goes-back",
        "WORK-CAPTURE-2",
        Replace(COMMIT, "capture_start >= capture_cursor", "True"),
    ),
    _worker(
        "worker-gap-accepted",
        "WORK-CAPTURE-3",
        Replace(COMMIT, "capture_cursor < state.scheduled_cursor", "True"),
    ),
    _worker(
        "worker-not-reattached",
        "WORK-CAPTURE-3 WORK-ACCEPT-1",
        Replace(COMMIT, "capture_start = capture_cursor", "pass"),
    ),
    _worker(
        "worker-scheduled-cursor-of-accepted",
        "WORK-CAPTURE-3",
        Replace(
            COMMIT,
            "state.scheduled_cursor = token_start + request_num_tokens",
            "state.scheduled_cursor = token_end",
        ),
    ),
    # Blocks.
    _worker(
        "worker-waiting-blocks-dropped",
        "WORK-PUBLISH-1 WORK-EMIT-3",
        Replace(
            PUBLISH,
            "[(start, buffer.retain_block(rows)) for start, rows in blocks if start >= keyed_end]",
            "[]",
        ),
    ),
    _worker(
        "worker-publishes-without-key",
        "WORK-ACCEPT-1 WORK-CAPTURE-3 WORK-TEAR-1 WORK-PUBLISH-1",
        Replace(PUBLISH, "start < keyed_end", "start <= keyed_end"),
    ),
    _worker(
        "worker-emits-before-publishing",
        "WORK-PUBLISH-1 WORK-EMIT-3 STORE-PUT-3",
        Rewrite(_materialized_first),
    ),
    # Outputs.
    _worker(
        "worker-emits-without-a-sample",
        "WORK-EMIT-1 WORK-ACCEPT-1",
        Replace(COMMIT, "sampled > 0 and emit_start <= token_end", "emit_start <= token_end"),
    ),
    _worker(
        "worker-no-empty-output",
        "WORK-EMIT-1",
        Replace(COMMIT, "emit_start <= token_end", "emit_start < token_end"),
    ),
    _worker(
        "worker-emit-cursor-stays",
        "WORK-EMIT-1 WORK-CAPTURE-3 WORK-TEAR-1 WORK-ACCEPT-1",
        Replace(COMMIT, "state.emit_cursor = token_end", "pass", times=2),
    ),
    _worker(
        "worker-preempted-output-lost",
        "WORK-EMIT-1 WORK-TEAR-1",
        Replace(COMMIT, "sampled > 0", "sampled > 0 and not state.finished"),
    ),
    _worker(
        "worker-hit-from-the-block-start",
        "ROW-EXACT-1 WORK-EMIT-1",
        Replace(COMMIT, "emit_start % block_size", "0"),
    ),
    _worker(
        "worker-tail-not-returned",
        "WORK-EMIT-1",
        Replace(COMMIT, "stored_end < token_end", "False"),
    ),
    _worker(
        "worker-rows-widened",
        "WORK-EMIT-4",
        Replace(
            COMMIT,
            "rows[emit_start - capture_start:]",
            "rows[emit_start - capture_start:].astype(np.int32)",
        ),
    ),
    _worker(
        "worker-output-holds-the-worker",
        "WORK-EMIT-6",
        Replace(
            COMMIT,
            "self._publish_blocks(block_batches)",
            """
            self._publish_blocks(block_batches)
            for each in outputs.values():
                each.connector = self
            """,
        ),
    ),
    # Ends.
    _worker("worker-torn-down-at-once", "WORK-TEAR-1", Rewrite(_never_deferred)),
    _worker("worker-never-torn-down", "WORK-TEAR-2", Rewrite(_deferred_teardown_forgotten)),
    _worker("worker-references-kept", "STORE-REF-1", Rewrite(_releases_forgotten)),
    _worker(
        "worker-keys-released-in-order",
        "STORE-PUT-3 WORK-TEAR-1",
        Rewrite(_released_first_to_last),
    ),
    _worker(
        "worker-closes-once",
        "WORK-CLOSE-1",
        Replace(
            CLOSE,
            "self._pending_outputs.clear()",
            "assert self._store is not None\nself._pending_outputs.clear()",
        ),
    ),
    _worker(
        "worker-close-waits-for-steps",
        "WORK-CLOSE-1",
        Replace(CLOSE, "self._pending_outputs.clear()", "assert not self._pending_outputs"),
    ),
    # The store.
    _store(
        "store-last-writer",
        "STORE-PUT-1 WORK-TEAR-1",
        Replace(f"{STORE}.put", "slot != self._UNALLOCATED_SLOT", "False"),
    ),
    _store(
        "store-one-too-many",
        "STORE-PUT-2 STORE-PUT-3 WORK-ACCEPT-1",
        Replace(
            f"{STORE}._evict_to_fit", "len(self._lru) - self.num_slots", "len(self._lru) - self.num_slots - 1"
        ),
    ),
    _store(
        "store-evicts-referenced",
        "STORE-PUT-3",
        Replace(
            f"{STORE}._evict_to_fit",
            "key not in self._references and key not in protected",
            "key not in protected",
        ),
    ),
    _store(
        "store-evicts-youngest",
        "STORE-PUT-3",
        Rewrite(_youngest_first),
    ),
    _store(
        "store-first-release-drops-all",
        "STORE-PUT-4",
        Replace(f"{STORE}._release", "self._references[key] - 1", "self._references.get(key, 1) * 0"),
        Replace(f"{STORE}._release", "del self._references[key]", "self._references.pop(key, None)"),
    ),
    _store(
        "store-retained-once",
        "STORE-PUT-4 STORE-REF-1",
        Replace(f"{STORE}._retain", "references + 1", "1"),
    ),
    _store(
        "store-serves-what-is-left",
        "STORE-READ-1",
        Replace(
            f"{STORE}.get_concatenated",
            "entries = [self._lru[key] for key in keys]",
            """
            keys = [key for key in keys if key in self._lru]
            entries = [self._lru[key] for key in keys]
            """,
        ),
    ),
    _store(
        "store-slot-used-twice",
        "ROW-EXACT-2 ROW-EXACT-1 WORK-KEYS-1",
        Replace(f"{STORE}._allocate_slot", "self._next_slot += 1", "pass"),
    ),
    _store(
        "store-failure-swallowed",
        "STORE-PUT-3",
        Replace(f"{BACKGROUND}._run", "self._error = error", "pass"),
    ),
    # Cutting rows into blocks.
    _capture(
        "capture-tail-not-copied",
        "WORK-EMIT-5",
        Replace(
            f"{BUFFER}.read",
            "self._rows[tail.slot, local_start:local_end].copy()",
            "self._rows[tail.slot, local_start:local_end]",
        ),
    ),
    _capture(
        "capture-starts-inside-a-block",
        "WORK-CAPTURE-4",
        Replace(f"{BUFFER}.capture", "local_start == tail.length", "True"),
    ),
    _capture(
        "capture-first-row-again",
        "ROW-EXACT-1 WORK-KEYS-1 WORK-EMIT-1 WORK-EMIT-2",
        Replace(f"{BUFFER}.capture", "rows[offset]", "rows[0]"),
    ),
    _capture(
        "capture-column-order",
        "WORK-EMIT-4",
        Replace("publish_routed_experts", "array.tobytes(order='C')", "array.tobytes(order='F')"),
    ),
)
