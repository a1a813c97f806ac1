"""Fixes of known findings of the releases, moves between profiles, and patches that cannot be judged."""

from __future__ import annotations

import ast

from auxout_conformance.known_bad.edits import Append, Replace, Rewrite
from auxout_conformance.verifying import Result

from .patch import BUILD, CONNECTOR, FINISH, ITERATE, RESET, TAKE, Patch, connector, find


def explicit_refusals(module: ast.Module) -> int:
    """Every assert statement becomes an if that raises."""
    count = 0
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        for index, each in enumerate(body if isinstance(body, list) else ()):
            if isinstance(each, ast.Assert):
                raised = ast.Call(ast.Name("AssertionError", ast.Load()), [each.msg] if each.msg else [], [])
                body[index] = ast.If(ast.UnaryOp(ast.Not(), each.test), [ast.Raise(raised)], [])
                count += 1
    return count


def _clamped(module: ast.Module) -> int:
    """The prompt start is cut to the prompt, as 0.32 does."""
    for node in ast.walk(find(module, BUILD)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "max":
            limit = ast.parse("request.num_prompt_tokens", mode="eval").body
            node.args[0] = ast.Call(ast.Name("min", ast.Load()), [node.args[0], limit], [])
            return 1
    return 0


def _not_clamped(module: ast.Module) -> int:
    """The prompt start is kept, as 0.31 does."""
    for node in ast.walk(find(module, BUILD)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "max":
            inner = node.args[0]
            assert isinstance(inner, ast.Call)
            node.args[0] = inner.args[0]
            return 1
    return 0


def _apart_is_passed_on(module: ast.Module) -> int:
    """The metadata carries the final hashes of restarted requests apart."""
    for node in ast.walk(find(module, BUILD)):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            node.value.args.append(ast.Name("apart", ast.Load()))
            return 1
    return 0


_POSITIVE = Replace(
    ITERATE,
    "for start in range(0, len(self.data), self.item_size):\n    yield self.data[start:start + self.item_size]",
    """
    if self.item_size <= 0:
        raise ValueError(f"item size {self.item_size} is not positive")
    for start in range(0, len(self.data), self.item_size):
        yield self.data[start:start + self.item_size]
    """,
)
_WHOLE = Replace(
    ITERATE,
    "for start in range(0, len(self.data), self.item_size):\n    yield self.data[start:start + self.item_size]",
    """
    if self.item_size > 0 and len(self.data) % self.item_size:
        raise ValueError(f"{len(self.data)} bytes are no whole number of hashes")
    for start in range(0, len(self.data), self.item_size):
        yield self.data[start:start + self.item_size]
    """,
)
_FINISH_ATOMIC = Replace(
    FINISH,
    """
    num_sent = self._sent_hash_counts.pop(request_id, None)
    if num_sent is None:
        return
    self._finished_requests[request_id] = self._pack_new_hashes(request.block_hashes, num_sent)
    """,
    """
    if request_id not in self._sent_hash_counts:
        return
    final = self._pack_new_hashes(request.block_hashes, self._sent_hash_counts[request_id])
    del self._sent_hash_counts[request_id]
    self._finished_requests[request_id] = final
    """,
)
_BUILD_ATOMIC = Replace(
    BUILD,
    "scheduled_requests: dict[str, int] = {}",
    """
    scheduled_requests: dict[str, int] = {}
    for request_id, num_sent in self._sent_hash_counts.items():
        assert num_sent <= len(requests[request_id].block_hashes), "KV block-hash history shrank"
    """,
)
_RESTART = (
    Append("AuxOutputConnectorMetadata", "finished_block_hashes: dict[str, PackedBlockHashes] | None = None"),
    Replace(
        BUILD,
        "block_hashes is not None",
        "block_hashes is not None and request_id not in scheduled_requests",
    ),
    Replace(
        BUILD,
        "self._finished_requests = {}",
        """
        apart = {r: h for r, h in self._finished_requests.items() if h is not None and r in scheduled_requests}
        self._finished_requests = {}
        """,
    ),
    Rewrite(_apart_is_passed_on),
)
_ITEM_SIZE_WORDS = "unpack: a refusal is worded differently"

FIXES = (
    Patch("fix-item-size", connector(_POSITIVE), fixed=("WIRE-HASH-2",), changes=(_ITEM_SIZE_WORDS,)),
    Patch("fix-ragged-data", connector(_WHOLE), fixed=("WIRE-HASH-3",)),
    Patch(
        "fix-both-wire-values",
        connector(
            _WHOLE,
            Replace(
                ITERATE,
                "self.item_size > 0 and len(self.data) % self.item_size",
                "self.item_size <= 0 or len(self.data) % self.item_size",
            ),
        ),
        fixed=("WIRE-HASH-2", "WIRE-HASH-3"),
        changes=(_ITEM_SIZE_WORDS,),
    ),
    Patch("fix-assert-only", connector(Rewrite(explicit_refusals)), fixed=("SCHED-REFUSE-6",)),
    Patch("fix-finish-atomic", connector(_FINISH_ATOMIC), fixed=("SCHED-REFUSE-4",)),
    Patch("fix-build-atomic", connector(_BUILD_ATOMIC), fixed=("SCHED-REFUSE-3",)),
    Patch("fix-restart", connector(*_RESTART), fixed=("SCHED-RESTART-2",)),
    Patch(
        "fix-all-refusals",
        connector(_FINISH_ATOMIC, _BUILD_ATOMIC, Rewrite(explicit_refusals)),
        fixed=("SCHED-REFUSE-3", "SCHED-REFUSE-4", "SCHED-REFUSE-6"),
    ),
    Patch(
        "fix-and-break",
        connector(_POSITIVE, Replace(TAKE, "request.num_tokens - 1", "request.num_tokens - 2")),
        Result.BROKEN,
        broken=("SCHED-TAKE-3", "SCHED-TAKE-4", "SCHED-TAKE-7"),
        fixed=("WIRE-HASH-2",),
        changes=None,
    ),
)

MOVES = (
    # Where a prompt starts beyond its end, 0.31.0 ends the engine: F31-21.
    Patch(
        "clamp",
        connector(Rewrite(_clamped)),
        moved=("SCHED-EMIT-4",),
        fixed=("SCHED-TAKE-2",),
        releases=("0.31.0",),
    ),
    Patch(
        "clamp-and-fix",
        connector(Rewrite(_clamped), _WHOLE),
        moved=("SCHED-EMIT-4",),
        fixed=("SCHED-TAKE-2", "WIRE-HASH-3"),
        releases=("0.31.0",),
    ),
    Patch(
        "unclamp",
        connector(Rewrite(_not_clamped)),
        Result.BROKEN,
        broken=("SCHED-EMIT-4",),
        releases=("0.32.0",),
    ),
)

_SIGNATURE, _LOAD = Result.SIGNATURE, Result.DOES_NOT_LOAD


def _renamed_parameter(module: ast.Module) -> int:
    """take_output(request, outputs)."""
    take = find(module, TAKE)
    assert isinstance(take, ast.FunctionDef)
    take.args.args[2].arg = "outputs"
    take.body.insert(1, ast.parse("output = outputs").body[0])
    return 1


def _renamed_reset(module: ast.Module) -> int:
    """reset becomes start_generation."""
    reset = find(module, RESET)
    assert isinstance(reset, ast.FunctionDef)
    reset.name = "start_generation"
    return 1


def _needs_size(module: ast.Module) -> int:
    """The constructor wants an argument."""
    built = find(module, f"{CONNECTOR}.__init__")
    assert isinstance(built, ast.FunctionDef)
    built.args.args.append(ast.arg("block_size"))
    return 1


def _at_import(text: str) -> Rewrite:
    def added(module: ast.Module) -> int:
        module.body += ast.parse(text).body
        return 1

    return Rewrite(added)


UNJUDGED = (
    Patch("rename-parameter", connector(Rewrite(_renamed_parameter)), _SIGNATURE),
    Patch("rename-reset", connector(Rewrite(_renamed_reset)), _SIGNATURE),
    Patch("constructor-argument", connector(Rewrite(_needs_size)), _SIGNATURE),
    Patch(
        "metadata-field-required",
        connector(Append("AuxOutputConnectorMetadata", "step: int")),
        _SIGNATURE,
    ),
    Patch("import-fails", connector(_at_import("import vllm.no_such_module")), _LOAD),
    Patch("import-raises", connector(_at_import("raise RuntimeError('not on this machine')")), _LOAD),
    Patch("import-loops", connector(_at_import("while True: pass")), Result.HANGS),
    Patch(
        "exits-in-a-call",
        connector(Replace(RESET, "self._generation += 1", "import os; os._exit(7)")),
        Result.KILLS,
    ),
    Patch(
        "kills-itself",
        connector(Replace(TAKE, "request_id = request.request_id", "import os; os.kill(os.getpid(), 9)")),
        Result.KILLS,
    ),
)
