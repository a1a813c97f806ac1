"""Whether callers of the original can call the patched code: public signatures, read without importing anything."""

from __future__ import annotations

from pathlib import Path

import griffe

from ..leftovers import Scratch
from ..targets.loading import PACKAGE

MODULES = ("connector", "worker")
"""The modules that an engine calls; the others are the connector's own."""
_HARMLESS = frozenset(
    (
        # Annotations are words, and the suite judges the values.
        griffe.BreakageKind.RETURN_CHANGED_TYPE,
        griffe.BreakageKind.ATTRIBUTE_CHANGED_TYPE,
        griffe.BreakageKind.ATTRIBUTE_CHANGED_VALUE,
        griffe.BreakageKind.CLASS_REMOVED_BASE,
    )
)


def breaking_changes(base: Path, patched: Path) -> tuple[str, ...]:
    """What changed in the public signatures of two connector folders so that a caller breaks, as short sentences."""
    found: list[str] = []
    old, new = _read(base), _read(patched)
    for name in MODULES:
        # A module that is gone or does not parse does not load either.
        if name in old and name in new:
            breakages = griffe.find_breaking_changes(old[name], new[name])
            found += [_sentence(each) for each in breakages if each.kind not in _HARMLESS]
    return tuple(dict.fromkeys(found))


def _read(folder: Path) -> dict[str, griffe.Module]:
    """The modules of a folder that parse."""
    with Scratch() as root:
        # Under its own name, so that what a class inherits from another module of the folder is found.
        package = root.joinpath(*PACKAGE.split("."))
        package.parent.mkdir(parents=True)
        package.symlink_to(folder.resolve(), target_is_directory=True)
        try:
            read = griffe.load(
                PACKAGE, search_paths=[str(root)], allow_inspection=False, force_inspection=False
            )
        except (griffe.GriffeError, ImportError, SyntaxError, RecursionError, KeyError, ValueError):
            return {}
        members = {} if isinstance(read, griffe.Alias) else read.members
        return {name: each for name, each in members.items() if isinstance(each, griffe.Module)}


def _sentence(breakage: griffe.Breakage) -> str:
    what = breakage.kind.value[0].lower() + breakage.kind.value[1:]
    parameter = breakage.old_value or breakage.new_value
    named = f"({parameter.name})" if isinstance(parameter, griffe.Parameter) else ""
    return f"{breakage.obj.path.removeprefix(f'{PACKAGE}.')}{named}: {what}"
