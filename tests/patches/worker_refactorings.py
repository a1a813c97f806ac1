"""Changes of the worker and its store that keep the behaviour: each must verify clean."""

from __future__ import annotations

import ast
from dataclasses import replace

from auxout_conformance.known_bad.edits import Append, Replace, Rewrite

from .patch import (
    BACKGROUND,
    BEGIN,
    BUFFER,
    COMMIT,
    NEWEST,
    STORE,
    WORKER,
    Patch,
    capture,
    find,
    imported,
    renamed,
    store,
    worker,
)
from .refactorings import reworded, without_docstrings


def _moved_last(name: str) -> Rewrite:
    """A method stands at the end of its class."""

    def move(module: ast.Module) -> int:
        body = find(module, WORKER).body
        method = find(module, f"{WORKER}.{name}")
        body.remove(method)
        body.append(method)
        return 1

    return Rewrite(move)


def _without_single_row_path(module: ast.Module) -> int:
    """One row is copied like any number of them."""
    for node in ast.walk(find(module, f"{BUFFER}.capture")):
        body = getattr(node, "body", ())
        for index, each in enumerate(body):
            if isinstance(each, ast.If) and ast.unparse(each.test) == "count == 1":
                node.body[index : index + 1] = each.orelse
                return 1
    return 0


def _without_whole_block_path(module: ast.Module) -> int:
    """Whole blocks go through the buffer like others."""
    loop = next(node for node in ast.walk(find(module, f"{BUFFER}.capture")) if isinstance(node, ast.While))
    at = next(index for index, each in enumerate(loop.body) if isinstance(each, ast.If))
    del loop.body[at]
    return 1


_REFACTORINGS = (
    Patch("worker-rename-cursor", worker(renamed("emit_cursor", "next_emitted"))),
    # What the worker holds can no longer be read from its fields; that is no fault.
    Patch("worker-rename-requests", worker(renamed("_requests", "_states"))),
    Patch("worker-rename-method", worker(renamed("_commit_output", "_commit"))),
    Patch("worker-drop-docstrings", worker(Rewrite(without_docstrings))),
    Patch("worker-reorder-methods", worker(_moved_last("prepare_output"))),
    Patch(
        "worker-reword-refusals",
        worker(Rewrite(reworded)),
        changes=(
            "begin_step: a refusal is worded differently",
            "process_output: a refusal is worded differently",
        ),
    ),
    Patch("worker-reentrant-lock", worker(renamed("Lock", "RLock"))),
    Patch(
        "worker-deque",
        worker(
            imported("from collections import deque"),
            Replace(
                f"{WORKER}.__init__",
                "self._pending_outputs: list[PendingAuxOutput] = []",
                "self._pending_outputs: deque[PendingAuxOutput] = deque()",
            ),
        ),
    ),
    Patch(
        "worker-overlap-in-a-loop",
        worker(
            Replace(
                BEGIN,
                "not metadata.requests.keys() & metadata.finished_requests",
                "all(request_id not in metadata.requests for request_id in metadata.finished_requests)",
            )
        ),
    ),
    Patch(
        "worker-explicit-default",
        worker(
            Replace(
                BEGIN,
                "state = self._requests.setdefault(request_id, _WorkerRequestState(emit_cursor=emit_start))",
                """
                if request_id not in self._requests:
                    self._requests[request_id] = _WorkerRequestState(emit_cursor=emit_start)
                state = self._requests[request_id]
                """,
            )
        ),
    ),
    Patch(
        "worker-keys-in-a-loop",
        worker(
            Replace(
                BEGIN,
                """
                release_keys.extend(
                    key for state in self._requests.values() for key in reversed(state.aux_output_keys)
                )
                """,
                """
                for state in self._requests.values():
                    for key in state.aux_output_keys[::-1]:
                        release_keys.append(key)
                """,
            )
        ),
    ),
    Patch(
        "worker-copy-returned-rows",
        worker(
            Replace(COMMIT, "rows[emit_start - capture_start:]", "rows[emit_start - capture_start:].copy()")
        ),
    ),
    Patch(
        "worker-preallocated-rows",
        worker(
            Replace(
                COMMIT,
                "rows = np.concatenate((rows, buffer.read(request_id, stored_end, token_end)))",
                """
                stored_rows, rows = rows, np.empty((token_end - emit_start, *rows.shape[1:]), rows.dtype)
                rows[:len(stored_rows)] = stored_rows
                rows[len(stored_rows):] = buffer.read(request_id, stored_end, token_end)
                """,
            )
        ),
    ),
    Patch(
        "worker-extract-accepted-rows",
        worker(
            Replace(
                COMMIT,
                "rows = routed_experts[start:end - rejected]",
                "rows = self._accepted(routed_experts, start, end, rejected)",
            ),
            Append(
                WORKER,
                """
                @staticmethod
                def _accepted(rows, start, end, rejected):
                    return rows[start:end - rejected]
                """,
            ),
        ),
    ),
    Patch(
        "worker-new-method",
        worker(Append(WORKER, "def usage_summary(self):\n    return len(self._requests)")),
    ),
    Patch("store-rename-references", store(renamed("_references", "_counts"))),
    Patch(
        "store-rename-read",
        store(renamed("get_concatenated", "read_all")) | capture(renamed("get_concatenated", "read_all")),
    ),
    Patch(
        "store-bytearray",
        store(
            Replace(
                f"{STORE}.__init__",
                "mmap.mmap(-1, self.num_slots * self.object_nbytes)",
                "bytearray(self.num_slots * self.object_nbytes)",
            ),
            Replace(f"{STORE}.close", "arena.close()", "None"),
        ),
    ),
    Patch(
        "store-victims-at-once",
        store(
            Replace(
                f"{STORE}._evict_to_fit",
                """
                for key in self._lru:
                    if key not in self._references and key not in protected:
                        victims.append(key)
                        if len(victims) == excess:
                            break
                """,
                "victims = [k for k in self._lru if k not in self._references and k not in protected][:excess]",
            )
        ),
    ),
    Patch(
        "store-counter",
        store(
            imported("from collections import Counter"),
            Replace(
                f"{STORE}.__init__",
                "self._references: dict[str, int] = {}",
                "self._references: Counter[str] = Counter()",
            ),
            Replace(
                f"{STORE}._retain",
                "for key in keys:\n    references = self._references.get(key, 0)\n"
                "    self._references[key] = references + 1",
                "self._references.update(keys)",
            ),
        ),
    ),
    Patch(
        "store-slices-joined",
        store(
            Replace(
                f"{STORE}.get_concatenated",
                """
                arena = memoryview(arena_obj)
                try:
                    payload = b''.join(
                        arena[slot * self.object_nbytes:(slot + 1) * self.object_nbytes] for slot in entries)
                finally:
                    arena.release()
                """,
                """
                size, payload = self.object_nbytes, bytearray()
                for slot in entries:
                    payload += arena_obj[slot * size:(slot + 1) * size]
                """,
            )
        ),
    ),
    Patch(
        "store-thread-name",
        store(Replace(f"{BACKGROUND}.__init__", "'vllm-aux-output-writer'", "'aux-output-store'")),
    ),
    # What is read is referenced, and becomes the youngest when it is released.
    Patch(
        "store-reading-does-not-refresh",
        store(Replace(f"{STORE}.get_concatenated", "self._lru.move_to_end(key)", "None")),
    ),
    # After a batch that did not fit nothing is read any more: the store is closed for good.
    Patch(
        "store-failed-batch-not-cleared",
        store(Replace(f"{STORE}.put", "self._lru.get(key) == self._UNALLOCATED_SLOT", "False")),
    ),
    Patch("capture-one-copy", capture(Rewrite(_without_single_row_path))),
    Patch("capture-all-through-the-buffer", capture(Rewrite(_without_whole_block_path))),
    Patch(
        "capture-other-keys",
        capture(
            Replace(
                "routed_experts_keys",
                "f'vllm-artifact/{aux_output_namespace}/'",
                "f'{aux_output_namespace}:'",
            )
        ),
    ),
    Patch(
        "capture-writable-rows",
        capture(
            Replace(
                "materialize_routed_experts",
                "np.frombuffer(payload, dtype=dtype).reshape((-1, *shape_per_token))",
                "np.frombuffer(payload, dtype=dtype).reshape((-1, *shape_per_token)).copy()",
            )
        ),
    ),
    Patch(
        "capture-rename-functions",
        capture(renamed("publish_routed_experts", "publish"))
        | worker(renamed("publish_routed_experts", "publish")),
    ),
)

WORKER_REFACTORINGS = tuple(replace(patch, releases=NEWEST) for patch in _REFACTORINGS)
