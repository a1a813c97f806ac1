"""Turns the name of a target into a ``Target``: what to load, which version it is, which profile judges it."""

from __future__ import annotations

import atexit
import re
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from auxout_spec.clauses import CLAUSES
from auxout_spec.profiles import LATEST, PROFILES

from . import wheels
from .adapter import TargetError
from .loading import LoadSpec

BUILT_IN = {"reference": "auxout_reference.connector", "impl": "auxout.connector"}
ENTRY_POINTS = "auxout.targets"
FORMS = (
    ("module:factory", "a function in an importable module that returns a connector"),
    ("vllm", "the installed vLLM"),
    ("vllm==X", "a released vLLM; its wheel is fetched by pip into a cache"),
    ("FILE.whl", "a wheel file of vLLM"),
    ("DIR", "a source tree of vLLM, or its aux_output_connector folder with --profile"),
    ("known-bad:NAME", "one of the suite's own faulty connectors"),
)


@dataclass(frozen=True)
class Target:
    """An implementation under judgement."""

    name: str
    spec: LoadSpec
    profile: str
    """The profile that judges it."""
    version: str = ""
    """For example ``vllm 0.31.0``."""
    release: str = ""
    """The vLLM release whose known findings apply; empty for anything else."""
    foreign: bool = True
    """Runs in a child process."""


@dataclass(frozen=True)
class Listed:
    """A line of ``auxout targets``."""

    name: str
    what: str


def resolve(name: str, profile: str | None = None) -> Target:
    """The target that a user named.

    Args:
        profile: judge it under this profile instead of the one its version says.

    Raises:
        TargetError: there is no such target, or its profile cannot be told.
    """
    if profile is not None and profile not in PROFILES:
        raise TargetError(f"unknown profile {profile}; the profiles are {', '.join(PROFILES)}")
    if name in BUILT_IN:
        return Target(name, LoadSpec("module", BUILT_IN[name]), profile or LATEST, foreign=False)
    if name.startswith("known-bad:"):
        return _known_bad(name, profile)
    if name == "vllm" or re.fullmatch(r"vllm==[\w.!+]+", name):
        return _vllm(name, profile)
    if name.endswith(".whl"):
        return _wheel(name, profile)
    if name and Path(name).is_dir():
        return _tree(name, profile)
    if name in _entry_points():
        where = _entry_points()[name].value
        return Target(name, LoadSpec("factory", where), profile or LATEST)
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
        return Target(name, LoadSpec("factory", name), profile or LATEST)
    forms = ", ".join([*BUILT_IN, *(form for form, _ in FORMS)])
    raise TargetError(f"there is no target {name!r}; a target is one of {forms}")


def list_targets() -> tuple[Listed, ...]:
    """What can be judged here, and the forms a target may have."""
    built_in = (Listed("reference", "our readable reference"), Listed("impl", "our fast drop-in"))
    registered = tuple(Listed(name, f"registered as {ep.value}") for name, ep in _entry_points().items())
    cached = tuple(Listed(f"vllm=={v}", "fetched already") for v in wheels.cached_versions())
    return (*built_in, *registered, *cached, *(Listed(form, what) for form, what in FORMS))


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def _known_bad(name: str, profile: str | None) -> Target:
    from .. import known_bad

    short = name.removeprefix("known-bad:")
    by_name = {bad.name: bad for bad in known_bad.catalogue()}
    if short not in by_name:
        raise TargetError(f"there is no known-bad target {short!r}; known are {', '.join(by_name)}")
    # A fault of one profile only shows there.
    its_profiles = CLAUSES[by_name[short].clauses[0]].profiles
    return Target(name, LoadSpec("known-bad", short), profile or its_profiles[-1], foreign=False)


def _vllm(name: str, profile: str | None) -> Target:
    if name == "vllm":
        try:
            version, files = metadata.version("vllm"), metadata.files("vllm") or []
        except metadata.PackageNotFoundError:
            raise TargetError(
                "vLLM is not installed here; name a release instead, for example vllm==0.32.0"
            ) from None
        found = [f for f in files if f.as_posix().endswith(f"{wheels.FOLDER}/connector.py")]
        if not found:
            raise TargetError(
                f"the installed vLLM {version} has no {wheels.FOLDER}; the connector came with 0.31.0"
            )
        folder = Path(str(found[0].locate())).parent
    else:
        version = name.removeprefix("vllm==")
        judged = _profile_of(version, name, profile)
        return _released(name, wheels.fetch(version), version, judged)
    return _released(name, folder, version, _profile_of(version, name, profile))


def _wheel(name: str, profile: str | None) -> Target:
    path = Path(name)
    if not path.is_file():
        raise TargetError(f"there is no file {name}")
    version = wheels.wheel_version(path)
    judged = _profile_of(version, name, profile)
    scratch = tempfile.TemporaryDirectory(prefix="auxout-")
    atexit.register(scratch.cleanup)
    return _released(name, wheels.extract_wheel(path, Path(scratch.name) / "connector"), version, judged)


def _tree(name: str, profile: str | None) -> Target:
    """A source tree is judged without known findings: it is somebody's change, not a release."""
    root = Path(name).resolve()
    folder = root if (root / "connector.py").is_file() else root / wheels.FOLDER
    if not (folder / "connector.py").is_file():
        raise TargetError(f"{name} has no {wheels.FOLDER}/connector.py and is not that folder itself")
    if profile is None:
        raise TargetError(
            f"the version of {name} cannot be told from its files; add --profile ({' or '.join(PROFILES)})"
        )
    return Target(name, LoadSpec("folder", str(folder)), profile)


def _released(name: str, folder: Path, version: str, profile: str) -> Target:
    plain = version.split("+")[0]
    return Target(name, LoadSpec("folder", str(folder)), profile, f"vllm {version}", plain)


def _profile_of(version: str, name: str, profile: str | None) -> str:
    """The profile of a version, ``0.31.0`` being profile ``0.31``."""
    if profile is not None:
        return profile
    short = ".".join(version.split(".")[:2])
    if short in PROFILES:
        return short
    raise TargetError(
        f"no profile describes {name} (version {version or 'unknown'}) yet; add --profile ({' or '.join(PROFILES)})"
    )
