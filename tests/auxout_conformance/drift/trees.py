"""The Python files of a vLLM: a release, a wheel, the installed one, a source tree, a revision, a connector folder."""

from __future__ import annotations

import ast
import re
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from ..targets import TargetError, revisions, wheels
from . import code

ROOT = "vllm/"
CONNECTOR = f"{wheels.FOLDER}/connector.py"
MAX_FILES = 20_000
MAX_BYTES = 512 << 20
"""Of all Python files together; vLLM 0.33 has 3,200 files of 55 MB."""


@dataclass
class Tree:
    """One vLLM as text.

    Args:
        name: how the user named it.
        texts: each Python file by its path, such as ``vllm/v1/request.py``.
        whole: False for a connector folder alone, around which there is no engine to look at.
    """

    name: str
    version: str
    texts: Mapping[str, str]
    whole: bool = True
    _parsed: dict[str, ast.Module | None] = field(default_factory=dict[str, "ast.Module | None"], repr=False)
    _functions: dict[str, Mapping[str, code.Function]] = field(
        default_factory=dict[str, "Mapping[str, code.Function]"], repr=False
    )

    def module(self, path: str) -> ast.Module | None:
        """A file's syntax tree; None if there is no such file, or if it is no Python."""
        if path not in self._parsed:
            self._parsed[path] = _parsed(self.texts.get(path, ""))
        return self._parsed[path] if path in self.texts else None

    def functions(self, path: str) -> Mapping[str, code.Function]:
        """The functions of a file by name; none if it cannot be read."""
        if path not in self._functions:
            module = self.module(path)
            self._functions[path] = code.functions(module) if module is not None else {}
        return self._functions[path]

    def classes(self, path: str) -> Mapping[str, ast.ClassDef]:
        """The classes of a file by name; none if it cannot be read."""
        module = self.module(path)
        return code.classes(module) if module is not None else {}

    def matching(self, pattern: re.Pattern[str]) -> Iterator[str]:
        """The paths whose text has a match, in order."""
        return (path for path in sorted(self.texts) if pattern.search(self.texts[path]))

    @property
    def package(self) -> tuple[str, ...]:
        """The files of the connector's package."""
        return tuple(path for path in sorted(self.texts) if path.startswith(f"{wheels.FOLDER}/"))


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a released file may have an invalid escape
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read(name: str) -> Tree:
    """The tree that a user named.

    Raises:
        TargetError: there is none, it is no vLLM, or it has no auxiliary-output connector.
    """
    for applies, reader in _READERS:
        if applies(name):
            tree = reader(name)
            break
    else:
        raise TargetError(
            f"{name!r} is no source of vLLM; name vllm==X, vllm, a wheel, a source tree, DIR@REV or a connector folder"
        )
    if CONNECTOR not in tree.texts:
        raise TargetError(f"{name} has no {CONNECTOR}; the connector came with vLLM 0.31.0")
    return tree


def _release(name: str) -> Tree:
    version = name.removeprefix("vllm==")
    return Tree(name, version, _texts_of_zip(wheels.fetch_sources(version), name))


def _wheel(name: str) -> Tree:
    if not Path(name).is_file():
        raise TargetError(f"there is no file {name}")
    return Tree(name, wheels.wheel_version(Path(name)), _texts_of_zip(Path(name), name))


def _installed(name: str) -> Tree:
    try:
        version, files = metadata.version("vllm"), metadata.files("vllm") or []
    except metadata.PackageNotFoundError:
        raise TargetError(
            "vLLM is not installed here; name a release instead, for example vllm==0.32.0"
        ) from None
    paths = {file.as_posix(): Path(str(file.locate())) for file in files if file.suffix == ".py"}
    return Tree(
        name, version, _texts(name, {key: path for key, path in paths.items() if key.startswith(ROOT)})
    )


def _folder(name: str) -> Tree:
    root = Path(name).resolve()
    if (root / "connector.py").is_file():
        paths = {f"{wheels.FOLDER}/{path.name}": path for path in sorted(root.glob("*.py"))}
        return Tree(name, "", _texts(name, paths), whole=False)
    found = (path for path in sorted((root / "vllm").rglob("*.py")) if path.is_file())
    paths = {path.relative_to(root).as_posix(): path for path in found}
    return Tree(name, revisions.version_of(root), _texts(name, paths))


def _revision(name: str) -> Tree:
    checkout, _, revision = name.rpartition("@")
    with tempfile.TemporaryDirectory(prefix="auxout-") as scratch:
        packed = Path(scratch) / "tree.zip"
        revisions.archive(Path(checkout), revision, packed)
        texts = _texts_of_zip(packed, name)
    return Tree(name, revisions.version_of(Path(checkout), revision), texts)


def _is_revision(name: str) -> bool:
    checkout, at, revision = name.rpartition("@")
    return bool(at and revision) and Path(checkout).is_dir()


_READERS: tuple[tuple[Callable[[str], object], Callable[[str], Tree]], ...] = (
    (lambda name: re.fullmatch(r"vllm==[\w.!+]+", name), _release),
    (lambda name: name == "vllm", _installed),
    (lambda name: name.endswith(".whl"), _wheel),
    (lambda name: bool(name) and Path(name).is_dir(), _folder),
    (_is_revision, _revision),
)


def _texts(name: str, paths: Mapping[str, Path]) -> dict[str, str]:
    try:
        _check_bounds(name, len(paths), sum(path.stat().st_size for path in paths.values()))
        return {key: path.read_text(encoding="utf-8", errors="replace") for key, path in paths.items()}
    except OSError as error:
        raise TargetError(f"cannot read {name}: {(error.strerror or str(error)).lower()}") from None


def _texts_of_zip(packed: Path, name: str) -> dict[str, str]:
    try:
        with zipfile.ZipFile(packed) as archive:
            found = [info for info in archive.infolist() if wheels.is_source(info.filename)]
            _check_bounds(name, len(found), sum(info.file_size for info in found))
            return {info.filename: archive.read(info).decode(errors="replace") for info in found}
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError):
        # RuntimeError: it is encrypted, or packed in a way that this Python cannot read.
        raise TargetError(f"{name} is not a wheel (a zip file)") from None


def _check_bounds(name: str, num_files: int, num_bytes: int) -> None:
    if num_files > MAX_FILES or num_bytes > MAX_BYTES:
        raise TargetError(
            f"{name} holds {num_files} Python files of {num_bytes >> 20} MiB, more than any vLLM; "
            f"at most {MAX_FILES} files of {MAX_BYTES >> 20} MiB are read"
        )
