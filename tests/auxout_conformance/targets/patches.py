"""Applies a unified diff to a copy of a connector folder.

Only files of the copy can change. Every path in the diff is read first: one outside the connector is left out, one
that tries to escape refuses the whole diff. What ``git apply`` then gets is a diff written anew, with plain names
below the copy, and no links, binary files or modes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from .adapter import PatchError
from .wheels import FOLDER

MAX_BYTES = 16 << 20
"""A diff larger than this is not read."""
_NOTHING = "/dev/null"


class Applied(NamedTuple):
    """What a diff does to the connector."""

    changed: tuple[str, ...]
    """Files of the connector folder, in the order of the diff."""
    ignored: tuple[str, ...]
    """Files outside of it, as the diff names them; nothing was done to them."""


class _Change(NamedTuple):
    """One file of the diff that lies in the connector folder; no name: it is created or removed."""

    old: str
    new: str
    hunks: str
    copied: bool = False
    """The old file stays."""


def apply_diff(diff: str, folder: Path, base: str) -> Applied:
    """Apply the diff in file ``diff`` to ``folder``, which is a copy that may change.

    Args:
        base: what the folder is a copy of, for messages.

    Raises:
        PatchError: it is no diff, tries to write elsewhere, or does not fit.
    """
    files = _read(diff)
    if not files:
        raise PatchError(f"{diff} is not a unified diff: no file header (---, +++) was found")
    changes, ignored = list[_Change](), list[str]()
    relative = not any(_inside(name) for file in files for name in _names(file))
    for file in files:
        change = _change(diff, file, folder if relative else None)
        if change is None:
            ignored.append(_shown(file))
        elif change.hunks or change.old != change.new:
            changes.append(change)
    _apply(diff, changes, folder, base)
    return Applied(tuple(change.new or change.old for change in changes), tuple(ignored))


def _read(diff: str) -> PatchSet:
    try:
        if os.path.getsize(diff) > MAX_BYTES:
            raise PatchError(f"{diff} is larger than {MAX_BYTES >> 20} MiB; give the connector's part of it")
        text = Path(diff).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise PatchError(f"{diff} is not a unified diff: it is not UTF-8 text") from None
    except OSError as error:
        raise PatchError(f"cannot read {diff}: {(error.strerror or str(error)).lower()}") from None
    if not text.strip():
        raise PatchError(f"{diff} is empty")
    try:
        return PatchSet(text.replace("\r\n", "\n") if _all_crlf(text) else text)
    except UnidiffParseError as error:
        raise PatchError(f"{diff} is not a unified diff: {' '.join(str(error).split())}") from None


def _all_crlf(text: str) -> bool:
    """A mail client's line ends; vLLM's files have none of these."""
    return text.count("\n") == text.count("\r\n")


def _names(file: PatchedFile) -> tuple[str, str]:
    return file.source_file.rstrip("\r"), file.target_file.rstrip("\r")


def _shown(file: PatchedFile) -> str:
    old, new = _names(file)
    name = old if new == _NOTHING else new
    return name[2:] if name.startswith(("a/", "b/")) else name


def _change(diff: str, file: PatchedFile, relative_to: Path | None) -> _Change | None:
    """The file's change under its name in the connector folder; None if it lies elsewhere."""
    for name in _names(file):
        _check_plain(diff, name)
    old, new = (_placed(name, relative_to) for name in _names(file))
    if old is None and new is None:
        return None
    if file.is_symlink or file.is_submodule:
        raise PatchError(f"{diff} makes {new or old} a link, which is not applied")
    if file.is_binary_file:
        raise PatchError(f"{diff} changes {new or old} as a binary file, which is not applied")
    is_git = bool(file.patch_info) and file.patch_info[0].startswith("diff --git")
    copied = any(line.startswith("copy from ") for line in file.patch_info or ())
    if new is None:  # moved out of the connector: there it is gone
        return None if copied else _Change(old or "", "", "")
    if old is None:
        if is_git and _names(file)[0] != _NOTHING:
            raise PatchError(f"{diff} moves {_names(file)[0]} to {new}, but {diff} does not hold its text")
        old = new
    hunks = "".join(str(hunk) for hunk in file)
    if file.is_added_file or not old:
        return _Change("", new, hunks)
    if file.is_removed_file or not new:
        return _Change(old, "", hunks)
    # ``diff -u connector.py.orig connector.py`` names a backup; only git renames.
    return _Change(old if is_git else new, new, hunks, copied)


def _check_plain(diff: str, name: str) -> None:
    path = name.strip('"')
    if path != _NOTHING and (path.startswith(("/", "~")) or ".." in re.split(r"[/\\]", path)):
        raise PatchError(f"{diff} names {name}, which is outside of any source tree; nothing was applied")
    if any(not c.isprintable() for c in path):
        raise PatchError(f"{diff} names a file with control characters; nothing was applied")


def _inside(name: str) -> str:
    """A path's part below the connector folder; empty if it is not below it."""
    return f"/{name}".partition(f"/{FOLDER}/")[2]


def _placed(name: str, relative_to: Path | None) -> str | None:
    """The name in the connector folder, ``""`` for no file, None if it lies elsewhere."""
    if name == _NOTHING:
        return ""
    inside = _inside(name)
    if not inside and relative_to is not None:
        # A diff made in the folder itself.
        short = name[2:] if name.startswith(("a/", "b/")) else name
        inside = short if (relative_to / short).is_file() else ""
    if not inside:
        return None
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", inside, re.ASCII):
        raise PatchError(f"the diff names {name!r}, which is no name of a Python source file")
    return PurePosixPath(inside).as_posix()


def _apply(diff: str, changes: list[_Change], folder: Path, base: str) -> None:
    text = "".join(map(_as_git_diff, changes))
    if text:
        _git_apply(diff, text, folder, base)
    for change in changes:
        if not change.new and not change.hunks:
            (folder / change.old).unlink(missing_ok=True)


def _as_git_diff(change: _Change) -> str:
    """The change as ``git apply`` reads it."""
    old, new, hunks, copied = change
    if not new and not hunks:
        return ""
    lines = [f"diff --git a/{old or new} b/{new or old}"]
    if not old:
        lines.append("new file mode 100644")
    elif not new:
        lines.append("deleted file mode 100644")
    elif old != new:
        word = "copy" if copied else "rename"
        lines += ["similarity index 50%", f"{word} from {old}", f"{word} to {new}"]
    if hunks:
        lines += [f"--- {f'a/{old}' if old else _NOTHING}", f"+++ {f'b/{new}' if new else _NOTHING}"]
    return "\n".join(lines) + "\n" + hunks


def _git_apply(diff: str, text: str, folder: Path, base: str) -> None:
    git = shutil.which("git")
    if git is None:
        raise PatchError(f"git is needed to apply {diff}, and it is not on the PATH")
    # No repository around the copy and no user's settings have a say.
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "LC_ALL": "C",
    }
    command = [git, "apply", "--whitespace=nowarn", "-"]
    done = subprocess.run(
        command, cwd=folder, input=text, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PatchError(f"{diff} does not apply to {base}: {_why(done.stderr)}")


def _why(said: str) -> str:
    """What git objects to, as the end of a sentence."""
    place = re.search(r"^error: patch failed: (.+):(\d+)$", said, re.MULTILINE)
    if place:
        return f"{place[1]} reads otherwise around line {place[2]}; is it the right base?"
    missing = re.search(r"^error: (.+): No such file or directory$", said, re.MULTILINE)
    if missing:
        return f"it has no {missing[1]}"
    errors = [line.removeprefix("error: ") for line in said.splitlines() if line.startswith("error: ")]
    return errors[0] if errors else "git gave no reason"
