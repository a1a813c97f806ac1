"""Nothing is left behind: child processes and temporary folders end with this process, whatever ends it.

A small process of its own, the *guard*, holds the other end of a pipe. It is told what there is to end, and when the
pipe closes, because this process ended or was killed, it ends what is left. It starts with the first thing to guard.

Run as a program, this file is the guard.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any, TextIO

GROUP, FOLDER = "group", "folder"
"""What can be guarded: a process group by its number, a folder by its path."""


class Guard:
    """The guard of this process, from this side."""

    def __init__(self) -> None:
        self._owner = self._pipe = -1

    def add(self, kind: str, what: int | str) -> None:
        """Something that must end with this process."""
        self._tell([True, kind, what])

    def drop(self, kind: str, what: int | str) -> None:
        """It ended already."""
        self._tell([False, kind, what])

    def _tell(self, line: list[Any]) -> None:
        if self._owner != os.getpid():  # the first time, or in a process that was forked
            self._owner, self._pipe = os.getpid(), _start()
        # Without a guard everything works, as long as this process is not killed.
        with contextlib.suppress(OSError):
            os.write(self._pipe, json.dumps(line).encode() + b"\n")


GUARD = Guard()


class Scratch:
    """A temporary folder that goes with this object, and with this process at the latest.

    Args:
        within: where it is made; the system's folder for temporary files by default.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, prefix: str = "auxout-", within: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        GUARD.add(FOLDER, str(self.folder))
        self.remove = weakref.finalize(self, _remove, str(self.folder))
        """Removes it at once."""

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *error: object) -> None:
        self.remove()


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    GUARD.drop(FOLDER, folder)


def _start() -> int:
    """Start the guard; the end of the pipe on which it is told."""
    reads, writes = os.pipe()
    quiet = [(os.POSIX_SPAWN_OPEN, out, os.devnull, os.O_WRONLY, 0) for out in (1, 2)]
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", __file__],
        {"PATH": os.environ.get("PATH", "")},
        file_actions=[(os.POSIX_SPAWN_DUP2, reads, 0), *quiet],
        # Ctrl-C is for the process group in the foreground, which it must outlive.
        setpgroup=0,
    )
    os.close(reads)
    return writes


def serve(lines: TextIO) -> None:
    """What the guard does: listen until the pipe closes, then end what is left."""
    left: dict[tuple[str, int | str], None] = {}
    for line in lines:
        is_new, kind, what = json.loads(line)
        if is_new:
            left[kind, what] = None
        else:
            left.pop((kind, what), None)
    for kind, what in left:
        if kind == GROUP and isinstance(what, int):
            with contextlib.suppress(OSError):
                os.killpg(what, signal.SIGKILL)
    for kind, what in left:
        if kind == FOLDER:
            shutil.rmtree(str(what), ignore_errors=True)


if __name__ == "__main__":
    serve(sys.stdin)
