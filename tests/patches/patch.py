"""A patch of the corpus: edits of a released connector, and what ``auxout verify`` must say about it.

The edits are made on the syntax tree of the fetched release and written as a unified diff, so a patch holds no more
of the release than the expressions it changes.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from auxout_conformance.known_bad import edits
from auxout_conformance.known_bad.edits import Edit, Rewrite
from auxout_conformance.targets.wheels import FOLDER
from auxout_conformance.verifying import Result
from auxout_spec.profiles import PROFILES

RELEASES = tuple(f"{name}.0" for name in PROFILES)
NEWEST = RELEASES[-1:]
"""For patches of the worker, whose files are the same in both releases."""
Edits = Mapping[str, tuple[Edit, ...]]
"""Edits by the file of the connector folder that they change."""
CONNECTOR = "AuxOutputSchedulerConnector"
BUILD = f"{CONNECTOR}.build_connector_meta"
TAKE = f"{CONNECTOR}.take_output"
FINISH = f"{CONNECTOR}.request_finished"
PACK = f"{CONNECTOR}._pack_new_hashes"
RESET = f"{CONNECTOR}.reset"
ITERATE = "PackedBlockHashes.__iter__"
WORKER = "AuxOutputWorkerConnector"
BEGIN = f"{WORKER}.begin_step"
PREPARE = f"{WORKER}.prepare_output"
PROCESS = f"{WORKER}.process_output"
COMMIT = f"{WORKER}._commit_output"
PUBLISH = f"{WORKER}._publish_blocks"
CLOSE = f"{WORKER}.close"
STORE = "BlockObjectStore"
BACKGROUND = "BackgroundBlockObjectStore"
BUFFER = "RoutedExpertsBuffer"


@dataclass(frozen=True)
class Patch:
    """One patch and its outcome."""

    name: str
    edits: Edits
    result: Result = Result.CLEAN
    broken: tuple[str, ...] = ()
    """The clauses it breaks; the first must be among those that are named, and no other may be."""
    fixed: tuple[str, ...] = ()
    """The clauses it fixes, all of them."""
    moved: tuple[str, ...] = ()
    """The clauses of another profile that it follows now."""
    changes: tuple[str, ...] | None = ()
    """What it changes besides; None where that is beside the point."""
    releases: tuple[str, ...] = RELEASES

    def diff(self, folder: Path) -> str:
        """The patch as a diff of a release's connector folder."""
        lines: list[str] = []
        for file, changes in self.edits.items():
            old = (folder / file).read_text(encoding="utf-8")
            new = edits.edited(old, changes)
            name = f"{FOLDER}/{file}"
            lines += difflib.unified_diff(
                old.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}"
            )
        return "".join(lines)


def connector(*changes: Edit) -> Edits:
    """Edits of the scheduler connector."""
    return {"connector.py": changes}


def worker(*changes: Edit) -> Edits:
    """Edits of the worker connector."""
    return {"worker.py": changes}


def store(*changes: Edit) -> Edits:
    """Edits of the worker's store."""
    return {"store.py": changes}


def capture(*changes: Edit) -> Edits:
    """Edits of how the worker cuts rows into blocks."""
    return {"routed_experts.py": changes}


def find(module: ast.Module, where: str) -> ast.AST:
    """The class or function of a dotted name."""
    node: ast.AST = module
    for name in where.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == name)
    return node


def renamed(old: str, new: str) -> Rewrite:
    """Whatever has the name ``old`` in a file has the name ``new``."""

    def rename(module: ast.Module) -> int:
        count = 0
        for node in ast.walk(module):
            for field in ("id", "attr", "name", "arg"):
                if getattr(node, field, None) == old:
                    setattr(node, field, new)
                    count += 1
        return count

    return Rewrite(rename)


def imported(statement: str) -> Rewrite:
    """A file imports something more."""

    def add(module: ast.Module) -> int:
        first = next(at for at, each in enumerate(module.body) if isinstance(each, ast.Import))
        module.body[first:first] = ast.parse(statement).body
        return 1

    return Rewrite(add)
