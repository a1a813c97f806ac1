"""Plausible mistakes: each must be named by its clause."""

from __future__ import annotations

import ast

from auxout_conformance.known_bad.edits import Replace, Rewrite
from auxout_conformance.verifying import Result

from .patch import BUILD, FINISH, PACK, RESET, TAKE, Patch, connector, find


def _drop_hash_only_updates(module: ast.Module) -> int:
    """Requests that are not scheduled get nothing."""
    body = find(module, BUILD).body
    at = [index for index, node in enumerate(body) if isinstance(node, ast.If)]
    del body[at[0]]
    return len(at)


def _drop_sent_count(module: ast.Module) -> int:
    """What was sent to a scheduled request is not counted."""
    loop = next(node for node in ast.walk(find(module, BUILD)) if isinstance(node, ast.For))
    kept = [each for each in loop.body if not ast.unparse(each).startswith("self._sent_hash_counts[")]
    dropped = len(loop.body) - len(kept)
    loop.body = kept
    return dropped


def _no_prompt_start(module: ast.Module) -> int:
    """The emit start forgets the prompt start."""
    for node in ast.walk(find(module, BUILD)):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("max("):
            assert isinstance(node.value, ast.Call)
            node.value = node.value.args[1]
            return 1
    return 0


def _drop_last_assert(module: ast.Module) -> int:
    """Rows that are too few are handed out."""
    take = find(module, TAKE)
    asserts = [node for node in take.body if isinstance(node, ast.Assert)]
    take.body.remove(asserts[-1])
    return 1


def _bug(name: str, clauses: str, *edits: Replace | Rewrite) -> Patch:
    return Patch(name, connector(*edits), Result.BROKEN, broken=tuple(clauses.split()), changes=None)


BUGS = (
    # Emit starts.
    _bug(
        "emit-start-one-late",
        "SCHED-EMIT-2 SCHED-EMIT-4 WORK-BEGIN-4",
        Replace(BUILD, "request.num_tokens - 1", "request.num_tokens"),
    ),
    _bug(
        "emit-start-of-outputs",
        "SCHED-EMIT-5 SCHED-EMIT-2",
        Replace(BUILD, "request.num_tokens - 1", "request.num_output_tokens - 1"),
    ),
    _bug(
        "no-prompt-start",
        "SCHED-EMIT-1 SCHED-EMIT-2 SCHED-EMIT-3 SCHED-EMIT-4 SCHED-EMIT-5",
        Rewrite(_no_prompt_start),
    ),
    # Who runs.
    _bug(
        "scheduled-sorted",
        "SCHED-META-2",
        Replace(
            BUILD, "scheduler_output.num_scheduled_tokens", "sorted(scheduler_output.num_scheduled_tokens)"
        ),
    ),
    _bug(
        "idle-step-empty",
        "SCHED-META-3 SCHED-TERM-1 SCHED-HASH-6 SCHED-HASH-8",
        Replace(
            BUILD,
            "scheduled_requests: dict[str, int] = {}",
            """
            if not scheduler_output.num_scheduled_tokens:
                return AuxOutputConnectorMetadata(self._generation, {}, {}, ())
            scheduled_requests: dict[str, int] = {}
            """,
        ),
    ),
    _bug(
        "batch-emptied",
        "SCHED-META-5",
        Replace(
            BUILD,
            "request = requests[request_id]",
            "request = requests.pop(request_id) if request_id in scheduler_output.num_scheduled_tokens "
            "and len(requests) > 1 else requests[request_id]",
            times=2,
        ),
    ),
    # Hashes.
    _bug(
        "first-hash-skipped",
        "SCHED-HASH-1 SCHED-HASH-3 SCHED-TERM-5 SCHED-HASH-6 SCHED-HASH-11 SCHED-RESTART-2 SCHED-RESET-2",
        Replace(PACK, "block_hashes[num_sent:]", "block_hashes[num_sent + 1:]"),
    ),
    _bug(
        "all-hashes-again",
        "SCHED-HASH-2 SCHED-RESTART-2",
        Replace(PACK, "block_hashes[num_sent:]", "block_hashes[:]"),
    ),
    _bug(
        "hashes-not-counted",
        "SCHED-HASH-2 SCHED-HASH-8 SCHED-TERM-8 SCHED-RESTART-2",
        Rewrite(_drop_sent_count),
    ),
    _bug(
        "newest-hash-first",
        "SCHED-HASH-4 SCHED-HASH-1 SCHED-HASH-2 SCHED-RESTART-2",
        Replace(PACK, "b''.join(new_hashes)", "b''.join(reversed(new_hashes))"),
    ),
    _bug("no-hash-only-updates", "SCHED-HASH-6 SCHED-HASH-8", Rewrite(_drop_hash_only_updates)),
    _bug(
        "empty-entries",
        "SCHED-HASH-5",
        Replace(PACK, "return None", "return PackedBlockHashes(b'', 1)"),
    ),
    _bug(
        "shrunk-history-accepted",
        "SCHED-HASH-8 SCHED-TERM-8",
        Replace(PACK, "num_sent <= len(block_hashes)", "True"),
    ),
    # Ends.
    _bug(
        "events-never-cleared",
        "SCHED-TERM-2 SCHED-REFUSE-4",
        Replace(BUILD, "self._finished_requests = {}", ""),
    ),
    _bug(
        "event-only-with-hashes",
        "SCHED-TERM-1 SCHED-TERM-7 SCHED-META-3 SCHED-RESTART-1",
        Replace(
            BUILD,
            "tuple(self._finished_requests)",
            "tuple(r for r, h in self._finished_requests.items() if h)",
        ),
    ),
    _bug(
        "final-hashes-lost",
        "SCHED-TERM-5 SCHED-TERM-8 SCHED-RESTART-3",
        Replace(FINISH, "self._pack_new_hashes(request.block_hashes, num_sent)", "None"),
    ),
    _bug(
        "events-reversed",
        "SCHED-TERM-6",
        Replace(BUILD, "tuple(self._finished_requests)", "tuple(reversed(self._finished_requests))"),
    ),
    _bug(
        "event-of-a-stranger",
        "SCHED-TERM-3 SCHED-TERM-2 SCHED-TERM-4 SCHED-HASH-2 SCHED-RESET-3 SCHED-RESET-4 "
        "SCHED-RESTART-2 SCHED-REFUSE-4",
        Replace(FINISH, "return", "num_sent = 0"),
    ),
    _bug(
        "preemption-forgotten",
        "SCHED-TERM-7 SCHED-TERM-6 SCHED-TERM-8 SCHED-META-3 SCHED-HASH-2 SCHED-RESTART-1 SCHED-TERM-4",
        Replace(
            FINISH,
            "request_id = request.request_id",
            """
            request_id = request.request_id
            if not request.is_finished():
                return
            """,
        ),
    ),
    _bug(
        "still-active-after-the-end",
        "SCHED-TERM-9 SCHED-META-3 SCHED-HASH-2 SCHED-HASH-11 SCHED-TERM-2 SCHED-TERM-4 SCHED-TERM-5 "
        "SCHED-RESTART-1 SCHED-RESTART-2 SCHED-ACCEPT-1 SCHED-REFUSE-1",
        Replace(
            FINISH, "self._sent_hash_counts.pop(request_id, None)", "self._sent_hash_counts.get(request_id)"
        ),
    ),
    _bug(
        "restart-swallows-the-event",
        "SCHED-RESTART-1",
        Replace(
            BUILD,
            "num_sent = self._sent_hash_counts.setdefault(request_id, 0)",
            """
            num_sent = self._sent_hash_counts.setdefault(request_id, 0)
            self._finished_requests.pop(request_id, None)
            """,
        ),
    ),
    # Resets.
    _bug("reset-keeps-events", "SCHED-RESET-3", Replace(RESET, "self._finished_requests.clear()", "None")),
    _bug(
        "reset-keeps-counts",
        "SCHED-RESET-2 SCHED-RESET-4",
        Replace(RESET, "self._sent_hash_counts.clear()", "None"),
    ),
    _bug("generation-stays", "SCHED-RESET-1", Replace(RESET, "self._generation += 1", "")),
    # Rows.
    _bug("no-rows-is-none", "SCHED-TAKE-4", Replace(TAKE, "local_end < 0", "local_end <= 0")),
    _bug(
        "rows-not-cut",
        "SCHED-TAKE-8 SCHED-TAKE-3",
        Replace(TAKE, "request_output.rows[:local_end]", "request_output.rows"),
    ),
    _bug(
        "one-row-too-few",
        "SCHED-TAKE-3 SCHED-TAKE-4 SCHED-TAKE-7",
        Replace(TAKE, "request.num_tokens - 1", "request.num_tokens - 2"),
    ),
    _bug(
        "last-rows",
        "SCHED-TAKE-3",
        Replace(
            TAKE,
            "request_output.rows[:local_end]",
            "request_output.rows[len(request_output.rows) - local_end:]",
        ),
    ),
    _bug("missing-rows-accepted", "SCHED-TAKE-7", Rewrite(_drop_last_assert)),
    _bug(
        "rows-narrowed",
        "SCHED-TAKE-9",
        Replace(TAKE, "request_output.rows[:local_end]", "request_output.rows[:local_end].astype(np.uint8)"),
    ),
    _bug(
        "output-consumed",
        "SCHED-TAKE-10 SCHED-ACCEPT-1",
        Replace(TAKE, "request_output = output[request_id]", "request_output = output.pop(request_id)"),
    ),
    _bug(
        "absent-output-is-none",
        "SCHED-TAKE-1 SCHED-TAKE-2",
        Replace(
            TAKE,
            "request_id = request.request_id",
            """
            request_id = request.request_id
            if not output or request_id not in output:
                return None
            """,
        ),
    ),
    _bug(
        "none-when-finished",
        "SCHED-TAKE-6",
        Replace(TAKE, "not request.is_finished()", "True"),
    ),
    # What breaks first.
    _bug(
        "unknown-request-crashes",
        "SCHED-REFUSE-1",
        Replace(TAKE, "output is not None and request_id in output", "output[request_id] is not None"),
    ),
)
