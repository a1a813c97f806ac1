"""A patch of the corpus: edits of a released connector, and what ``auxout verify`` must say about it.

The edits are made on the syntax tree of the fetched release and written as a unified diff, so a patch holds no more
of the release than the expressions it changes.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass

from auxout_conformance.known_bad import edits
from auxout_conformance.known_bad.edits import Edit
from auxout_conformance.targets.wheels import FOLDER
from auxout_conformance.verifying import Result

RELEASES = ("0.31.0", "0.32.0")
CONNECTOR = "AuxOutputSchedulerConnector"
BUILD = f"{CONNECTOR}.build_connector_meta"
TAKE = f"{CONNECTOR}.take_output"
FINISH = f"{CONNECTOR}.request_finished"
PACK = f"{CONNECTOR}._pack_new_hashes"
RESET = f"{CONNECTOR}.reset"
ITERATE = "PackedBlockHashes.__iter__"


@dataclass(frozen=True)
class Patch:
    """One patch and its outcome."""

    name: str
    edits: tuple[Edit, ...]
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

    def diff(self, source: str) -> str:
        """The patch as a diff of a release's ``connector.py``."""
        name = f"{FOLDER}/connector.py"
        old, new = (
            source.splitlines(keepends=True),
            edits.edited(source, self.edits).splitlines(keepends=True),
        )
        return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def find(module: ast.Module, where: str) -> ast.AST:
    """The class or function of a dotted name."""
    node: ast.AST = module
    for name in where.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == name)
    return node
