"""Changes that keep the behaviour: each must verify clean."""

from __future__ import annotations

import ast

from auxout_conformance.known_bad.edits import Append, Replace, Rewrite

from .patch import BUILD, CONNECTOR, FINISH, ITERATE, PACK, RESET, TAKE, Patch, connector, find, renamed


def _extracted_emit_start(module: ast.Module) -> int:
    """The emit start is computed in a method of its own."""
    build, connector = find(module, BUILD), find(module, CONNECTOR)
    for node in ast.walk(build):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Name) and called.id == "max":
                helper = ast.parse("@staticmethod\ndef _emit_start(request):\n    return 0").body[0]
                assert isinstance(helper, ast.FunctionDef)
                helper.body = [ast.Return(node.value)]
                node.value = ast.parse("self._emit_start(request)", mode="eval").body
                connector.body.append(helper)
                return 1
    return 0


def without_docstrings(module: ast.Module) -> int:
    """Every docstring is dropped."""
    count = 0
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) and body:
            node.body, count = body[1:] or [ast.Pass()], count + 1
    return count


def _reset_reordered(module: ast.Module) -> int:
    """The independent statements of reset come in reverse order."""
    body = find(module, RESET).body
    body[1:] = reversed(body[1:])
    return len(body) - 1


def _emit_start_first(module: ast.Module) -> int:
    """The emit start is computed before the hashes are packed."""
    loop = next(node for node in ast.walk(find(module, BUILD)) if isinstance(node, ast.For))
    at = next(index for index, each in enumerate(loop.body) if isinstance(each, ast.Assert))
    first = next(i for i, each in enumerate(loop.body) if "requests[" in ast.unparse(each)) + 1
    moved = loop.body[at : at + 2]
    del loop.body[at : at + 2]
    loop.body[first:first] = moved
    return len(moved)


def _typed(module: ast.Module) -> int:
    """Local variables get type hints, and return types become Any."""
    count = 0
    for name in ("token_end", "local_end"):
        body = find(module, TAKE).body
        for index, node in enumerate(body):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                target = ast.Name(name, ast.Store())
                body[index] = ast.AnnAssign(target, ast.Name("int", ast.Load()), node.value, 1)
                count += 1
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            node.returns, count = ast.Constant("object"), count + 1
    return count


def reworded(module: ast.Module) -> int:
    """Refusals say something else."""
    count = 0
    for node in ast.walk(module):
        if isinstance(node, ast.Assert) and node.msg is not None:
            node.msg, count = ast.Constant("the protocol does not allow this"), count + 1
    return count


def _slots(module: ast.Module) -> int:
    """The wire types become dataclasses with slots."""
    count = 0
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            node.decorator_list, count = [ast.parse("dataclass(slots=True)", mode="eval").body], count + 1
    return count


REFACTORINGS = (
    Patch("rename-local", connector(renamed("packed", "unsent"))),
    Patch("rename-attribute", connector(renamed("_sent_hash_counts", "_num_hashes_sent"))),
    Patch("rename-helper", connector(renamed("_pack_new_hashes", "_unsent_hashes"))),
    Patch("extract-emit-start", connector(Rewrite(_extracted_emit_start))),
    Patch("drop-docstrings", connector(Rewrite(without_docstrings))),
    Patch("reorder-reset", connector(Rewrite(_reset_reordered))),
    Patch("reorder-emit-start", connector(Rewrite(_emit_start_first))),
    Patch("type-hints", connector(Rewrite(_typed))),
    Patch("slots", connector(Rewrite(_slots))),
    Patch(
        "reword-refusals",
        connector(Rewrite(reworded)),
        changes=(
            "build_connector_meta: a refusal is worded differently",
            "request_finished: a refusal is worded differently",
            "take_output: a refusal is worded differently",
        ),
    ),
    Patch(
        "faster-loop",
        connector(
            Replace(
                BUILD,
                "self._sent_hash_counts.items()",
                "[(r, n) for r, n in self._sent_hash_counts.items() if len(requests[r].block_hashes) != n]",
            ),
        ),
    ),
    Patch(
        "explicit-default",
        connector(
            Replace(
                BUILD,
                "num_sent = self._sent_hash_counts.setdefault(request_id, 0)",
                """
                if request_id not in self._sent_hash_counts:
                    self._sent_hash_counts[request_id] = 0
                num_sent = self._sent_hash_counts[request_id]
                """,
            ),
        ),
    ),
    Patch(
        "look-before-pop",
        connector(
            Replace(
                FINISH,
                "num_sent = self._sent_hash_counts.pop(request_id, None)",
                """
                if request_id not in self._sent_hash_counts:
                    return
                num_sent = self._sent_hash_counts.pop(request_id)
                """,
            ),
        ),
    ),
    Patch(
        "join-in-a-loop",
        connector(
            Replace(PACK, "b''.join(new_hashes)", "bytes(value for one in new_hashes for value in one)")
        ),
    ),
    Patch(
        "index-arithmetic",
        connector(
            Replace(
                ITERATE,
                """
                for start in range(0, len(self.data), self.item_size):
                    yield self.data[start:start + self.item_size]
                """,
                """
                yield from (self.data[at:at + self.item_size] for at in range(0, len(self.data), self.item_size))
                """,
            ),
        ),
    ),
    Patch(
        "copy-rows",
        connector(Replace(TAKE, "request_output.rows[:local_end]", "request_output.rows[:local_end].copy()")),
        changes=("take_output: a copy of the worker's rows instead of a view of the worker's rows",),
    ),
    Patch(
        "event-list",
        connector(Replace(BUILD, "tuple(self._finished_requests)", "[*self._finished_requests]")),
        changes=(
            "build_connector_meta: finished_requests in a list instead of finished_requests in a tuple",
        ),
    ),
    Patch(
        "new-method",
        connector(Append(CONNECTOR, "def num_active(self):\n    return len(self._sent_hash_counts)")),
    ),
)
