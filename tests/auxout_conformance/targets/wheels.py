"""Fetches released vLLM wheels and keeps of each only the connector package."""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from auxout_spec import reading

from .. import known
from ..leftovers import Scratch
from . import sources
from .adapter import TargetError

FOLDER = "vllm/distributed/aux_output_connector"
_NAME = re.compile(rf"{FOLDER}/\w+\.py")
_DIGESTS = "digests.json"
"""In each folder of the cache: the SHA-256 of its files."""
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_34_x86_64", "manylinux1_x86_64")


def cache_dir() -> Path:
    """Where fetched connectors are kept: ``$AUXOUT_CACHE``, else the user's cache directory."""
    explicit = os.environ.get("AUXOUT_CACHE")
    if explicit:
        return Path(explicit).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "auxout"


def cached_versions() -> tuple[str, ...]:
    """vLLM versions whose connector is in the cache."""
    found = (path.name.removeprefix("vllm-") for path in cache_dir().glob("vllm-*") if path.is_dir())
    return tuple(sorted(found))


def fetch(version: str) -> Path:
    """The connector folder of a released version, fetched by pip the first time (about 340 MB for a moment).

    Raises:
        TargetError: no such version, no network, or no connector in it.
    """
    kept = cache_dir() / f"vllm-{version}"
    if _is_whole(kept, version):
        return kept
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with Scratch("fetch-", cache_dir()) as scratch:
            _fetch_into(scratch / "connector", version, scratch)
            if not _is_whole(kept, version):  # another process may have been faster
                if kept.exists():
                    os.replace(kept, scratch / "broken")
                os.replace(scratch / "connector", kept)
    except OSError as error:
        raise TargetError(
            f"cannot keep vllm=={version} in {cache_dir()}: {error}; set AUXOUT_CACHE to another folder"
        ) from None
    return kept


def fetch_sources(version: str) -> Path:
    """A zip file with every Python file of a released version, kept in the cache (some 15 MB) next to the connector.

    Raises:
        TargetError: no such version, or no network.
    """
    kept = cache_dir() / f"sources-{version}.zip"
    if zipfile.is_zipfile(kept):
        return kept
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with Scratch("fetch-", cache_dir()) as scratch:
            _keep_sources(download(version, scratch), scratch / "sources.zip")
            os.replace(scratch / "sources.zip", kept)
    except OSError as error:
        raise TargetError(
            f"cannot keep vllm=={version} in {cache_dir()}: {error}; set AUXOUT_CACHE to another folder"
        ) from None
    return kept


def is_source(name: str) -> bool:
    """Whether a file of a wheel is one of vLLM's Python files."""
    return name.startswith("vllm/") and name.endswith(".py")


def _keep_sources(wheel: Path, into: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as kept:
            for name in sorted(filter(is_source, archive.namelist())):
                kept.writestr(zipfile.ZipInfo(name), archive.read(name), zipfile.ZIP_DEFLATED)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError):
        raise TargetError(f"{wheel.name} is not a wheel (a zip file)") from None


def _is_whole(kept: Path, version: str) -> bool:
    """Whether a folder of the cache holds what was put there, and what is on record for a release."""
    try:
        written = reading.parse((kept / _DIGESTS).read_text(encoding="utf-8"))
        return sources.digests(kept) == written and written == (known.files_of(version) or written)
    except (OSError, ValueError, TargetError):
        return False


def _fetch_into(folder: Path, version: str, scratch: Path) -> None:
    """Fetch a release; pip compares the wheel with the index's digest, and here its files with those on record."""
    sources_kept = cache_dir() / f"sources-{version}.zip"
    _extract(sources_kept if zipfile.is_zipfile(sources_kept) else download(version, scratch), folder)
    found = sources.digests(folder)
    if found != (known.files_of(version) or found):
        raise TargetError(
            f"the files of the fetched vllm=={version} are not those of that release on record; name the wheel or a "
            "folder to judge them all the same"
        )
    (folder / _DIGESTS).write_text(json.dumps(found), encoding="utf-8")


def extract_wheel(wheel: Path, into: Path) -> Path:
    """The connector folder of a wheel file, unpacked into ``into``."""
    try:
        _extract(wheel, into)
    except OSError as error:
        raise TargetError(f"cannot unpack {wheel}: {(error.strerror or str(error)).lower()}") from None
    return into


def wheel_version(wheel: Path) -> str:
    """The version in a wheel's file name, without a local part; empty if the name says none."""
    match = re.match(r"[A-Za-z0-9_.]+?-(\d[^-+]*)", wheel.name)
    return match.group(1) if match else ""


def download(version: str, scratch: Path) -> Path:
    """The wheel of a release, fetched by pip into a folder.

    Raises:
        TargetError: pip could not.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(scratch)]
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    done = subprocess.run([*command, f"vllm=={version}"], capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("vllm-*.whl"))
    if done.returncode or not wheels:
        raise TargetError(f"pip could not download vllm=={version}: {_reason(done.stderr)}")
    return wheels[0]


def _reason(said: str) -> str:
    """What pip says was wrong: its last error, or the last line of the traceback of one that it did not expect."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    if not errors:
        return "pip printed no reason"
    return lines[-1] if errors[-1] == "Exception:" else errors[-1]


def _extract(wheel: Path, into: Path) -> None:
    """Copy the connector's Python files out of a wheel, by name: nothing can land outside ``into``."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [info for info in archive.infolist() if _NAME.fullmatch(info.filename)]
            if f"{FOLDER}/connector.py" not in (info.filename for info in found):
                raise TargetError(f"{wheel.name} has no {FOLDER}; the connector came with vLLM 0.31.0")
            # More than an entry says of itself is not unpacked.
            sources.check_bounds(wheel.name, len(found), sum(info.file_size for info in found))
            into.mkdir(parents=True, exist_ok=True)
            for info in found:
                with archive.open(info) as source, open(into / Path(info.filename).name, "wb") as target:
                    shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError):
        # RuntimeError: it is encrypted, or packed in a way that this Python cannot read.
        raise TargetError(f"{wheel} is not a wheel (a zip file)") from None
