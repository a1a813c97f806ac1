"""Files named on the command line: reading them, and writing them whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from .mistakes import UserMistake


def read_text(path: str, what: str) -> str:
    """The text of a file; ``what`` names its role in the message.

    Raises:
        UserMistake: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserMistake(f"{what} {path} is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise UserMistake(f"cannot read {what} {path!r}: {reason(error)}") from None


def write_text(path: str, text: str, what: str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    Raises:
        UserMistake: it cannot be written.
    """
    try:
        _write(Path(path), text)
    except (OSError, ValueError) as error:
        raise UserMistake(f"cannot write {what} {path!r}: {reason(error)}") from None


def check_writable(path: str, what: str) -> None:
    """Find out before a long run whether ``write_text`` can work; leaves nothing behind.

    Raises:
        UserMistake: it cannot.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise UserMistake(f"cannot write {what} {path!r}: it is a directory; name a file in it")
        if _replaceable(target):
            temporary = _temporary(target)
            temporary.touch()
            temporary.unlink()
    except (OSError, ValueError) as error:
        raise UserMistake(f"cannot write {what} {path!r}: {reason(error)}") from None


def _write(target: Path, text: str) -> None:
    if not _replaceable(target):
        target.write_text(text, encoding="utf-8")
        return
    temporary = _temporary(target)
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _replaceable(target: Path) -> bool:
    """A device or a pipe, such as ``/dev/stderr``, is written to and never replaced."""
    return target.is_file() or not target.exists()


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def reason(error: Exception) -> str:
    """What the operating system said, to end a sentence with."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file or directory"
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error)).lower()
