"""What foreign code may use in its process: a clean environment, an empty folder to run in, limited resources.

This bounds accidents: a loop, a leak, a flood of processes. It is no sandbox: the code runs as the user, reads what
the user can read and reaches the network.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Environment variables that pass: none of them holds a secret."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
MAX_MEMORY = 4 << 30
"""Bytes of address space."""
MAX_FILE = 64 << 20
"""Bytes of any file it writes."""
MAX_CPU = 3600
"""Seconds of processor time, for whatever outlives its process group."""
MAX_MORE_TASKS = 64
"""Processes and threads beyond those that the user has already; the superuser is not held to it."""

WATCHED = "watched"
"""The last word on the command line of a child that measures which lines run."""


def environment(scratch: str) -> dict[str, str]:
    """The environment of a foreign process: no secrets, its home and temporary files in ``scratch``."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    own = dict.fromkeys(("HOME", "TMPDIR"), scratch)
    # Nothing is written beside the code, which may be a user's checkout.
    python = {"PYTHONPATH": python_path(), "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | own | python | dict.fromkeys(ONE_THREAD, "1")


def python_path() -> str:
    """The search path of this process, for a child."""
    return os.pathsep.join(os.path.abspath(path) for path in sys.path if path)


def limit() -> None:
    """Limit the calling process, and whatever it starts, from now on."""
    for what, most in (
        ("RLIMIT_AS", MAX_MEMORY),
        ("RLIMIT_FSIZE", MAX_FILE),
        ("RLIMIT_CPU", MAX_CPU),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", _num_tasks() + MAX_MORE_TASKS),
    ):
        _lower(what, most)


def _lower(what: str, most: int) -> None:
    """Lower one limit for good; a system that does not know it goes without."""
    kind = getattr(resource, what, None)
    if kind is None:
        return
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (most, most))


def _num_tasks() -> int:
    """Processes and threads of this user, as far as they can be counted."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += sum(1 for _ in (process / "task").iterdir())
    return count or 1 << 12
