"""The Python files of a connector folder: within bounds, copied as plain files, told apart by their digests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from .adapter import TargetError

MAX_FILES = 200
MAX_BYTES = 16 << 20
"""Of all files together; the released connectors have some 50 kB."""


def python_files(folder: Path) -> tuple[Path, ...]:
    """The Python files below a folder.

    Raises:
        TargetError: one is a device, a pipe or the like, or they are more than a connector can be.
    """
    found, size = list[Path](), 0
    for path in _named_py(folder):
        try:
            size += path.stat().st_size
        except OSError as error:
            raise TargetError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
        if not path.is_file():
            raise TargetError(f"{path} is no regular file")
        found.append(path)
        check_bounds(str(folder), len(found), size)
    return tuple(sorted(found))


def check_bounds(name: str, num_files: int, num_bytes: int) -> None:
    """Raises ``TargetError`` where there is more than any connector package holds."""
    if num_files > MAX_FILES:
        raise TargetError(f"{name} holds more than {MAX_FILES} Python files, which is no connector package")
    if num_bytes > MAX_BYTES:
        raise TargetError(
            f"{name} holds more than {MAX_BYTES >> 20} MiB of Python, which is no connector package"
        )


def copy(folder: Path, into: Path) -> None:
    """Copy a folder's Python files as plain files of ours, also where they are links or belong to another user."""
    try:
        for path in python_files(folder):
            target = into / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    except OSError as error:
        raise TargetError(f"cannot copy {folder}: {(error.strerror or str(error)).lower()}") from None


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each Python file below a folder, by its name in it."""
    files = python_files(folder)
    try:
        return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in files}
    except OSError as error:
        raise TargetError(f"cannot read {folder}: {(error.strerror or str(error)).lower()}") from None


def _named_py(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(root, name) for name in names if name.endswith(".py"))
