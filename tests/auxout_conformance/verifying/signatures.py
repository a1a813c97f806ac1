"""Whether callers of the original can call the patched code: public signatures, read without importing anything."""

from __future__ import annotations

from pathlib import Path

import griffe

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
    for name in MODULES:
        old, new = _read(name, base), _read(name, patched)
        if old is None or new is None:  # a module that is gone or does not parse does not load either
            continue
        breakages = griffe.find_breaking_changes(old, new)
        found += [_sentence(each) for each in breakages if each.kind not in _HARMLESS]
    return tuple(dict.fromkeys(found))


def _read(name: str, folder: Path) -> griffe.Module | None:
    path = folder / f"{name}.py"
    if not path.is_file():
        return None
    try:
        read = griffe.load(name, search_paths=[folder], allow_inspection=False, resolve_aliases=False)
    except (griffe.GriffeError, ImportError, SyntaxError, RecursionError, ValueError):
        return None
    return read if isinstance(read, griffe.Module) else None


def _sentence(breakage: griffe.Breakage) -> str:
    what = breakage.kind.value[0].lower() + breakage.kind.value[1:]
    parameter = breakage.old_value or breakage.new_value
    named = f"({parameter.name})" if isinstance(parameter, griffe.Parameter) else ""
    return f"{breakage.obj.path}{named}: {what}"
