"""What must stay as it is: a watch over things that were handed out, until the end of a play."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

LATEST = 4
"""Things that are looked at after each call because they were handed out last."""
OTHERS = 4
"""How many of the others are looked at, in turn."""
MOST = 64
"""Entries that all things looked at after one call may have together; at least one thing is looked at."""


class _Kept(NamedTuple):
    read: Callable[[], Any]
    said: Any
    size: int


class Watch:
    """Things that were handed out, each with a way to read it and what it said then."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._next = 0

    def keep(self, read: Callable[[], Any], size: int = 1) -> None:
        """Watch a thing from now on.

        Args:
            read: what the thing says; compared by equality, so a copy.
            size: how many entries it has, by which reading it takes longer.
        """
        self._kept.append(_Kept(read, read(), size))

    def changed(self) -> bool:
        """Whether one of those that are looked at this time says something else; it is no longer watched then."""
        older = max(len(self._kept) - LATEST, 0)
        turn = [(self._next + number) % older for number in range(min(OTHERS, older))]
        left, looked_at = MOST, list[_Kept]()
        for number in [*range(older, len(self._kept)), *turn]:
            if looked_at and self._kept[number].size > left:
                break
            looked_at.append(self._kept[number])
            left -= self._kept[number].size
        self._next = (self._next + max(len(looked_at) - LATEST, 1)) % max(older, 1)
        changed = [kept for kept in looked_at if _says(kept.read) != kept.said]
        if changed:
            self._kept = [kept for kept in self._kept if all(kept is not each for each in changed)]
        return bool(changed)


def _says(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        return error
