"""The connector folder of a git checkout at a revision, read without checking anything out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from . import sources
from .adapter import TargetError
from .wheels import FOLDER

_FILE_MODES = (b"100644", b"100755")


def export(checkout: Path, revision: str, into: Path) -> None:
    """Write the connector's files at a revision into a folder.

    Only their contents are read: no hook, filter or submodule of the checkout runs.

    Raises:
        TargetError: it is no checkout, or has no such revision, or no connector at it.
    """
    if revision.startswith("-"):
        raise TargetError(f"{revision!r} is no git revision")
    commit = _git(checkout, revision, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode()
    listed = _git(checkout, revision, "ls-tree", "-r", "-l", "-z", commit.strip(), "--", f"{FOLDER}/")
    into.mkdir(parents=True)
    count = size = 0
    for entry in listed.split(b"\0"):
        about, _, name = entry.partition(b"\t")
        inside = name.decode(errors="replace").removeprefix(f"{FOLDER}/")
        mode, _, blob, num_bytes = (*about.split(), b"", b"", b"", b"")[:4]
        if mode not in _FILE_MODES or not re.fullmatch(r"(\w+/)*\w+\.py", inside, re.ASCII):
            continue
        count, size = count + 1, size + int(num_bytes)
        sources.check_bounds(f"{checkout} at {revision}", count, size)
        target = into / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_git(checkout, revision, "cat-file", "blob", blob.decode()))
    if not (into / "connector.py").is_file():
        raise TargetError(f"{checkout} has no {FOLDER}/connector.py at {revision}")


def archive(checkout: Path, revision: str, into: Path) -> None:
    """Write vLLM's files at a revision into a zip file.

    Raises:
        TargetError: it is no checkout, or has no such revision.
    """
    if revision.startswith("-"):
        raise TargetError(f"{revision!r} is no git revision")
    into.write_bytes(_git(checkout, revision, "archive", "--format=zip", revision, "--", "vllm"))


def version_of(checkout: Path, revision: str = "HEAD") -> str:
    """The version that a checkout calls itself: its newest release tag, ``0.31.0`` for ``v0.31.0``; empty if none."""
    try:
        # Not the tags of a repository in which the tree merely lies.
        _git(checkout, revision, "cat-file", "-e", f"{revision}:./{FOLDER}/connector.py")
        tag = _git(checkout, revision, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", revision)
    except TargetError:
        return ""
    return tag.decode(errors="replace").strip().removeprefix("v")


def _git(checkout: Path, revision: str, *words: str) -> bytes:
    git = shutil.which("git")
    if git is None:
        raise TargetError("git is needed to read a revision, and it is not on the PATH")
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    command = [git, "-C", str(checkout), *words]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[0].removeprefix("fatal: ") if said else f"there is no revision {revision!r}"
        raise TargetError(f"cannot read {checkout} at {revision}: {why}")
    return done.stdout
