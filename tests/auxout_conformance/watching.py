"""What must stay as it is: a watch over things that were handed out, until the end of a play."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LATEST, OTHERS = 4, 4
"""Things that are looked at after a call: those handed out last, and as many of the others in turn."""


class Watch:
    """Things that were handed out, each with a way to read it and what it said then."""

    def __init__(self) -> None:
        self._kept: list[tuple[Callable[[], Any], Any]] = []
        self._next = 0

    def keep(self, read: Callable[[], Any]) -> None:
        """Watch a thing from now on.

        Args:
            read: what the thing says; compared by equality, so a copy.
        """
        self._kept.append((read, read()))

    def changed(self) -> bool:
        """Whether one of those that are looked at this time says something else; it is no longer watched then."""
        older = max(len(self._kept) - LATEST, 0)
        turn = {(self._next + number) % older for number in range(min(OTHERS, older))}
        self._next = (self._next + OTHERS) % max(older, 1)
        looked_at = [self._kept[number] for number in sorted(turn)] + self._kept[older:]
        changed = [entry for entry in looked_at if _says(entry[0]) != entry[1]]
        self._kept = [entry for entry in self._kept if entry not in changed] if changed else self._kept
        return bool(changed)


def _says(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        return error
