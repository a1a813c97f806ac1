"""Another process, in which pickles are opened: it has the target's code, and nothing that happened since.

Metadata and outputs cross process boundaries in an engine. What unpickles only where it was made, because it looks
something up in memory, works in a test of one process and fails there.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

SECONDS = 10.0
"""How long opening a pickle may take."""
_open_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
"""This side's ends, of which a fork gets copies that it must close: an end closes with its last copy."""


class Unopened(Exception):
    """A pickle that cannot be opened elsewhere; the message says why."""


class Elsewhere:
    """A fork of this process; made once a target is loaded and before any of it is used.

    Args:
        contents: what to tell of a thing that was opened, without the target's classes.
    """

    def __init__(self, contents: Callable[[Any], Any]) -> None:
        forking = multiprocessing.get_context("fork")
        self._end, theirs = forking.Pipe()
        _open_ends.add(self._end)
        process = forking.Process(target=_serve, args=(theirs, contents), daemon=True)
        with warnings.catch_warnings():
            # It only unpickles, and takes no lock that another thread may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self.close = weakref.finalize(self, _finish, self._end, process)

    def open(self, data: bytes) -> Any:
        """What is in a pickle, as far as ``contents`` tells.

        Raises:
            Unopened: it does not unpickle there, or the process ended over it.
        """
        try:
            self._end.send_bytes(data)
            if not self._end.poll(SECONDS):
                raise EOFError
            is_open, found = pickle.loads(self._end.recv_bytes())
        except (OSError, EOFError):
            self.close()
            raise Unopened("another process ended or hung when it unpickled it") from None
        if not is_open:
            raise Unopened(f"another process cannot unpickle it: {found}")
        return found


def can_fork() -> bool:
    """Whether there are such processes here."""
    return "fork" in multiprocessing.get_all_start_methods()


def _serve(end: Connection, contents: Callable[[Any], Any]) -> None:
    """Open pickles until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in _open_ends:
        other.close()
    os.closerange(3, end.fileno())
    os.closerange(end.fileno() + 1, 1 << 10)
    while True:
        try:
            data = end.recv_bytes()
        except EOFError:
            return
        end.send_bytes(pickle.dumps(_opened(data, contents), protocol=5))


def _opened(data: bytes, contents: Callable[[Any], Any]) -> tuple[bool, Any]:
    try:
        return True, contents(pickle.loads(data))
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def _finish(end: Connection, process: BaseProcess) -> None:
    end.close()
    process.join(1.0)
    if process.is_alive():
        process.kill()
        process.join()
