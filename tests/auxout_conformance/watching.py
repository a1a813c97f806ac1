"""What must stay as it is: a watch over things that were handed out, for as long as a play goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

LATEST = 4
"""Things that are looked at after each call because they were handed out last."""
OTHERS = 4
"""How many of the others are looked at, in turn."""
MOST = 64
"""Entries that are read again after each call; what is left of them is saved."""


class _Kept(NamedTuple):
    read: Callable[[], Any]
    said: Any
    size: int


class Watch:
    """Things that were handed out, each with a way to read it and what it said then."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._next = self._left = 0

    def keep(self, read: Callable[[], Any], size: int = 1) -> None:
        """Watch a thing from now on.

        Args:
            read: what the thing says; compared by equality, so a copy.
            size: how many entries it has, by which reading it takes longer.
        """
        self._kept.append(_Kept(read, read(), size))

    def changed(self) -> bool:
        """Whether one of those that are looked at this time says something else; it is no longer watched then.

        The newest ones, and others in turn; one that has more entries than are read at a time is looked at when they
        have been saved for it.
        """
        self._left += MOST
        newest = self._newest()
        looked_at = newest + self._others(newest)
        changed = [kept for kept in looked_at if _says(kept.read) != kept.said]
        if changed:
            self._kept = [kept for kept in self._kept if all(kept is not each for each in changed)]
        return bool(changed)

    def _newest(self) -> list[_Kept]:
        """Those of the newest that are small enough to be looked at each time."""
        found, left = list[_Kept](), MOST
        for kept in self._kept[: -LATEST - 1 : -1]:
            if kept.size <= left:
                found.append(kept)
                left -= kept.size
        return found

    def _others(self, newest: list[_Kept]) -> list[_Kept]:
        large = [kept for kept in self._kept[-LATEST:] if not any(kept is each for each in newest)]
        num_older, found = max(len(self._kept) - LATEST, 0), list[_Kept]()
        count = num_older + len(large)
        while len(found) < min(OTHERS, count):
            turn = self._next % count
            kept = self._kept[turn] if turn < num_older else large[turn - num_older]
            if kept.size > self._left:
                break
            found.append(kept)
            self._left -= kept.size
            self._next = turn + 1
        if not count:
            self._left = 0
        return found


def _says(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        return error
