"""Faults in what the engine gets back, in how calls are refused, and in wire values."""

from __future__ import annotations

import ast

from .edits import Append, Replace, Rewrite
from .entry import BUILD, FINISH, ITERATE, TAKE, KnownBad


class _AssertInstead(ast.NodeTransformer):
    """Turns every ``if wrong: raise ProtocolViolation(...)`` into ``assert not wrong``."""

    times = 0

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        *before, last = node.body
        if not isinstance(last, ast.Raise) or "ProtocolViolation" not in ast.dump(last):
            return self.generic_visit(node)
        self.times += 1
        return [*before, ast.Assert(ast.UnaryOp(ast.Not(), node.test), last.exc)]


def _refuse_by_assert(module: ast.Module) -> int:
    transformer = _AssertInstead()
    transformer.visit(module)
    return transformer.times


REFUSE_BY_ASSERT = Rewrite(_refuse_by_assert)


TAKE_FAULTS = (
    KnownBad(
        "no-output-is-none",
        ("SCHED-TAKE-1",),
        "A step without worker output yields None instead of a refusal.",
        (
            Replace(
                TAKE,
                "raise ProtocolViolation('SCHED-TAKE-1', request_id, 'the worker returned no output for the step')",
                "return None",
            ),
        ),
    ),
    KnownBad(
        "no-entry-is-none",
        ("SCHED-TAKE-2",),
        "A request that the worker's output lacks yields None instead of a refusal.",
        (
            Replace(
                TAKE,
                "raise ProtocolViolation('SCHED-TAKE-2', request_id, \"the worker's output lacks the request\")",
                "return None",
            ),
        ),
    ),
    KnownBad(
        "one-row-short",
        ("SCHED-TAKE-3", "SCHED-TAKE-4"),
        "The subtraction for the last sampled token is made twice.",
        (Replace(TAKE, "request.num_tokens - 1", "request.num_tokens - 2"),),
    ),
    KnownBad(
        "last-rows",
        ("SCHED-TAKE-3", "SCHED-TAKE-8"),
        "The right number of rows, but from the end of the worker's output.",
        (Replace(TAKE, "rows[: accepted_end - start]", "rows[len(rows) - (accepted_end - start) :]"),),
    ),
    KnownBad(
        "empty-is-none",
        ("SCHED-TAKE-4",),
        "Output of which no row is accepted yet yields None instead of an empty array.",
        (Replace(TAKE, "accepted_end < start", "accepted_end <= start"),),
    ),
    KnownBad(
        "ahead-is-refused",
        ("SCHED-TAKE-5",),
        "Output that starts beyond the accepted tokens is refused while the request still runs.",
        (Replace(TAKE, "request.is_finished()", "True"),),
    ),
    KnownBad(
        "ahead-is-none-when-finished",
        ("SCHED-TAKE-6",),
        "Output beyond the accepted tokens of a finished request yields None instead of a refusal.",
        (Replace(TAKE, "request.is_finished()", "False"),),
    ),
    KnownBad(
        "short-output-accepted",
        ("SCHED-TAKE-7",),
        "Missing rows go unnoticed: whatever rows there are are returned.",
        (Replace(TAKE, "accepted_end - start > len(rows)", "False"),),
    ),
    KnownBad(
        "rows-not-cut",
        ("SCHED-TAKE-8",),
        "All rows of the worker's output are returned, also those of tokens that a stop rule removed.",
        (Replace(TAKE, "rows[: accepted_end - start]", "rows"),),
    ),
    KnownBad(
        "rows-widened",
        ("SCHED-TAKE-9",),
        "Rows are converted to another integer type.",
        (Replace(TAKE, "rows[: accepted_end - start]", 'rows[: accepted_end - start].astype("int32")'),),
    ),
    KnownBad(
        "rows-flattened",
        ("SCHED-TAKE-9",),
        "Layers and choices are flattened into one axis.",
        (
            Replace(
                TAKE,
                "rows[: accepted_end - start]",
                "rows[: accepted_end - start].reshape(accepted_end - start, rows.shape[1] * rows.shape[2])",
            ),
        ),
    ),
    KnownBad(
        "output-used-up",
        ("SCHED-TAKE-10",),
        "The request's entry is removed from the worker's output when it is taken.",
        (
            Replace(
                TAKE,
                "found = output[request_id]",
                "found = output.pop(request_id)",
            ),
        ),
    ),
    KnownBad(
        "rows-of-the-first-entry",
        ("SCHED-TAKE-11", "SCHED-TAKE-3", "SCHED-TAKE-4", "SCHED-TAKE-5", "SCHED-TAKE-7"),
        "The first entry of the worker's output is taken, whoever it belongs to.",
        (Replace(TAKE, "output[request_id]", "next(iter(output.values()))"),),
    ),
    KnownBad(
        "stale-output-dropped",
        ("SCHED-TAKE-12",),
        "Output that lands after its request was preempted is dropped.",
        (
            Replace(
                TAKE,
                "request_id = request.request_id",
                """
                request_id = request.request_id
                if request_id not in self._active and not request.is_finished():
                    return None
                """,
            ),
        ),
    ),
)

REFUSAL_FAULTS = (
    KnownBad(
        "key-error",
        ("SCHED-REFUSE-1",),
        "A missing entry breaks with a KeyError instead of being refused.",
        (Replace(TAKE, "request_id not in output", "False"),),
    ),
    KnownBad(
        "refused-build-counts",
        ("SCHED-REFUSE-3",),
        "Hashes are counted as sent request by request, so a refusal leaves the first ones counted.",
        (
            Replace(
                BUILD,
                "emit_starts[request_id] = self._emit_start(request_id, request)",
                """
                emit_starts[request_id] = self._emit_start(request_id, request)
                self._active[request_id] = _advanced(sent, new_hashes[request_id])
                """,
            ),
            Replace(
                BUILD,
                "_advanced(self._active.get(request_id, NOTHING_SENT), hashes)",
                "_advanced(self._active[request_id], [] if request_id in emit_starts else hashes)",
            ),
        ),
    ),
    KnownBad(
        "refused-end-forgets",
        ("SCHED-REFUSE-4",),
        "The request is forgotten before its hash list is checked.",
        (
            Replace(FINISH, "sent = self._active[request_id]", "sent = self._active.pop(request_id)"),
            Replace(FINISH, "del self._active[request_id]", ""),
        ),
    ),
    KnownBad(
        "refused-take-forgets",
        ("SCHED-REFUSE-5",),
        "A request whose output is refused is dropped from the active ones.",
        (
            Replace(
                TAKE,
                'raise ProtocolViolation("SCHED-TAKE-7", request_id, what)',
                'self._active.pop(request_id, None)\nraise ProtocolViolation("SCHED-TAKE-7", request_id, what)',
            ),
        ),
    ),
    KnownBad(
        "assert-only",
        ("SCHED-REFUSE-6",),
        "Refusals are assert statements, which python -O removes.",
        (REFUSE_BY_ASSERT,),
    ),
)

WIRE_FAULTS = (
    KnownBad(
        "last-hash-lost",
        ("WIRE-HASH-1", "SCHED-HASH-1", "SCHED-HASH-3"),
        "Iterating a packed value stops one hash early.",
        (
            Replace(
                ITERATE,
                "range(0, len(self.data), self.item_size)",
                "range(0, len(self.data) - self.item_size, self.item_size)",
            ),
        ),
    ),
    KnownBad(
        "negative-item-size",
        ("WIRE-HASH-2",),
        "A negative item size makes a packed value look empty.",
        (Replace(ITERATE, "self.item_size <= 0", "self.item_size == 0"),),
    ),
    KnownBad(
        "ragged-data",
        ("WIRE-HASH-3",),
        "Packed data that does not divide evenly ends in a shorter hash.",
        (Replace(ITERATE, "len(self.data) % self.item_size", "False"),),
    ),
    KnownBad(
        "empty-data-is-a-hash",
        ("WIRE-HASH-4",),
        "Empty data iterates to one empty hash.",
        (
            Replace(
                ITERATE,
                "range(0, len(self.data), self.item_size)",
                "range(0, max(len(self.data), 1), self.item_size)",
            ),
        ),
    ),
    KnownBad(
        "pickle-loses-a-field",
        ("WIRE-META-1",),
        "Pickling was written for the four fields of the first release.",
        (
            Append(
                "AuxOutputConnectorMetadata",
                """
                def __reduce__(self):
                    fields = (self.generation, self.requests, self.block_hashes, self.finished_requests)
                    return (AuxOutputConnectorMetadata, fields)
                """,
            ),
        ),
    ),
)
