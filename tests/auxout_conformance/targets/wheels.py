"""Fetches released vLLM wheels and keeps of each only the connector package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from ..leftovers import Scratch
from .adapter import TargetError

FOLDER = "vllm/distributed/aux_output_connector"
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
    if (kept / "connector.py").is_file():
        return kept
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with Scratch("fetch-", cache_dir()) as scratch:
            _extract(download(version, scratch), scratch / "connector")
            if not kept.exists():
                os.replace(scratch / "connector", kept)
    except OSError as error:
        raise TargetError(
            f"cannot keep vllm=={version} in {cache_dir()}: {error}; set AUXOUT_CACHE to another folder"
        ) from None
    return kept


def extract_wheel(wheel: Path, into: Path) -> Path:
    """The connector folder of a wheel file, unpacked into ``into``."""
    _extract(wheel, into)
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
            names = [n for n in archive.namelist() if re.fullmatch(rf"{FOLDER}/\w+\.py", n)]
            if f"{FOLDER}/connector.py" not in names:
                raise TargetError(f"{wheel.name} has no {FOLDER}; the connector came with vLLM 0.31.0")
            into.mkdir(parents=True, exist_ok=True)
            for name in names:
                with archive.open(name) as source, open(into / Path(name).name, "wb") as target:
                    shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        # RuntimeError: it is encrypted, or packed in a way that this Python cannot read.
        raise TargetError(f"{wheel} is not a wheel (a zip file)") from None
