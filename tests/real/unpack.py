"""Fetches a released vLLM and unpacks it without its compiled libraries: python unpack.py 0.31.0 FOLDER."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path

from auxout_conformance.targets import wheels


def unpack(version: str, folder: Path) -> None:
    """Leave the Python files of a release in a folder, or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheel = wheels.download(version, Path(scratch))
        kept = Path(scratch) / "kept"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(kept, [name for name in archive.namelist() if not name.endswith(".so")])
        os.replace(kept, folder)


if __name__ == "__main__":
    unpack(sys.argv[1], Path(sys.argv[2]))
