"""``auxout init``: the files with which a new implementer starts."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from . import files
from .mistakes import UserMistake

TEMPLATES = {
    "my_connector.py": "my_connector.py.txt",
    "my_worker.py": "my_worker.py.txt",
    "test_conformance.py": "test_conformance.py.txt",
    ".github/workflows/conformance.yml": "conformance.yml.txt",
}
"""File to write -> template in this package."""


def start(folder: str) -> tuple[str, ...]:
    """Write the files into a folder and return their names in it.

    Raises:
        UserMistake: one of them is there already, or the folder cannot be written; then none is written.
    """
    root = Path(folder)
    there = [name for name in TEMPLATES if (root / name).exists()]
    if there:
        raise UserMistake(f"{folder} has {' and '.join(there)} already; nothing was written")
    for name in TEMPLATES:
        try:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserMistake(f"cannot write to {folder!r}: {files.reason(error)}") from None
        files.check_writable(str(root / name), "file")
    for name, template in TEMPLATES.items():
        files.write_text(str(root / name), _template(template), "file")
    return tuple(TEMPLATES)


def _template(name: str) -> str:
    return (resources.files("auxout_conformance") / "templates" / name).read_text(encoding="utf-8")
