"""The pipes to a child process: a line to it, a line from it, and the end of what it writes to standard error.

Both of its outputs are read whenever this side waits, so that neither a child that prints much nor one that does not
read can block the other side.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from typing import IO

MAX_LINE = 16 << 20
"""Bytes of one answer."""
LAST_WORDS = 1 << 12
"""Bytes at the end of its standard error that are kept."""
_CHUNK = 1 << 16
_MOST_AT_ONCE = 64
"""Chunks: more than a pipe holds, and an end to a process that never stops printing."""


class TooLong(Exception):
    """A line without end."""


class Pipes:
    """The three pipes of one process.

    Args:
        process: started with pipes for its standard input, output and error.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._answers, self._errors = bytearray(), bytearray()
        for pipe in self._open():
            os.set_blocking(pipe.fileno(), False)

    def send(self, line: bytes, seconds: float) -> None:
        """Write a line.

        Raises:
            OSError: the process does not read any more.
            TimeoutError: it did not read in time.
        """
        left = memoryview(line + b"\n")
        deadline = time.monotonic() + seconds
        while left:
            try:
                left = left[os.write(self._stdin.fileno(), left) :]
            except BlockingIOError:
                self._wait(deadline, self._stdin)

    def receive(self, seconds: float) -> bytes | None:
        """The next line; None if there will be none.

        Raises:
            TimeoutError: it did not come in time.
            TooLong: it has no end.
        """
        deadline = time.monotonic() + seconds
        while (end := self._answers.find(b"\n")) < 0:
            if len(self._answers) > MAX_LINE:
                raise TooLong
            self._wait(deadline)
            found = _read(self._stdout)
            if found == b"":
                return None
            self._answers += found or b""
        line = bytes(self._answers[:end])
        del self._answers[: end + 1]
        return line

    def said(self) -> str:
        """The end of what the process wrote to standard error until now, also after it ended."""
        self._listen()
        return self._errors.decode(errors="replace")

    def close(self) -> None:
        """Close this side; what was said is kept."""
        self._listen()
        for pipe in self._open():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _open(self) -> list[IO[bytes]]:
        return [pipe for pipe in (self._stdin, self._stdout, self._stderr) if not pipe.closed]

    def _wait(self, deadline: float, written: IO[bytes] | None = None) -> None:
        """Until there is an answer to read, or ``written`` takes more; standard error is read on the way."""
        awaited = written or self._stdout
        with selectors.DefaultSelector() as selector:
            selector.register(awaited, selectors.EVENT_WRITE if written else selectors.EVENT_READ)
            if self._listen():
                selector.register(self._stderr, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                ready = [key.fileobj for key, _ in selector.select(left)]
                if self._stderr in ready and not self._listen():
                    selector.unregister(self._stderr)
                if awaited in ready:
                    return
        raise TimeoutError

    def _listen(self) -> bool:
        """Read what is on standard error by now; whether more may come."""
        if self._stderr.closed:
            return False
        for _ in range(_MOST_AT_ONCE):
            found = _read(self._stderr)
            if not found:
                return found is None
            self._errors += found
            del self._errors[:-LAST_WORDS]
        return True


def _read(pipe: IO[bytes]) -> bytes | None:
    """What a pipe holds: empty at its end, None if there is nothing yet."""
    try:
        return os.read(pipe.fileno(), _CHUNK)
    except BlockingIOError:
        return None
