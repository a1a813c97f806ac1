"""Turns the name of a target into a ``Target``: what to load, which version it is, which profile judges it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from auxout_spec.clauses import CLAUSES
from auxout_spec.profiles import LATEST, PER_REQUEST, PROFILES, is_judged, is_specified

from .. import known
from ..leftovers import Scratch
from . import revisions, sources, wheels
from .adapter import NoProfile, TargetError
from .loading import LoadSpec

BUILT_IN = {
    "reference": "auxout_reference.connector,auxout_reference.worker",
    "impl": "auxout.connector,auxout.core",
}
PER_REQUEST_TARGET = "impl-request"
FAST = ("impl", "impl-torch", PER_REQUEST_TARGET)
"""Ours that follow only the profiles by which implementations are judged."""
TORCH = "auxout.connector,auxout.worker"
ENTRY_POINTS = "auxout.targets"
FORMS = (
    ("module:factory", "a function in an importable module that returns a connector"),
    ("vllm", "the installed vLLM"),
    ("vllm==X", "a released vLLM; its wheel is fetched by pip into a cache"),
    ("FILE.whl", "a wheel file of vLLM"),
    ("DIR", "a source tree of vLLM, or its aux_output_connector folder with --profile"),
    ("DIR@REV", "a git revision of a source tree"),
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
    patch: str = ""
    """The diff that was applied to a copy of it."""
    notes: tuple[str, ...] = ()
    """What a reader of the judgement should know about how it was made."""
    scratch: Scratch | None = field(default=None, repr=False, compare=False)
    """Where its files were put for the time being."""

    @property
    def words(self) -> tuple[str, ...]:
        """How a command line names it."""
        return (self.name, "--patch", self.patch) if self.patch else (self.name,)

    @property
    def title(self) -> str:
        """How people name it."""
        return f"{self.name} + {self.patch}" if self.patch else self.name


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
    if profile is not None and not is_specified(profile):
        raise TargetError(f"unknown profile {profile}; the profiles are {', '.join(PROFILES)}")
    if profile is not None and not is_judged(profile) and name in FAST:
        raise TargetError(f"{name} does not follow profile {profile} yet; it can be tried on the reference")
    if name == "impl-torch":
        # Its own process: the stand-ins for vLLM are not for this one.
        return Target(name, LoadSpec("vllm-module", TORCH), profile or LATEST)
    if name == PER_REQUEST_TARGET:
        # Its own process: it logs each request that fails.
        chosen = (profile or LATEST).removesuffix(PER_REQUEST) + PER_REQUEST
        return Target(name, LoadSpec("module", BUILT_IN["impl"]), chosen)
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
    checkout, at, revision = name.rpartition("@")
    if at and revision and Path(checkout).is_dir():
        return _revision(name, Path(checkout), revision, profile)
    if name in _entry_points():
        where = _entry_points()[name].value
        return Target(name, LoadSpec("factory", where), profile or LATEST)
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
        return Target(name, LoadSpec("factory", name), profile or LATEST)
    forms = ", ".join([*BUILT_IN, "impl-torch", PER_REQUEST_TARGET, *(form for form, _ in FORMS)])
    raise TargetError(f"there is no target {name!r}; a target is one of {forms}")


def patched(target: Target, diff: str) -> Target:
    """The target with the diff in a file applied to a copy of it.

    Raises:
        TargetError: it is no vLLM that lies in a folder.
        PatchError: it is no diff, or does not apply.
    """
    if target.spec.kind != "folder":
        raise TargetError(
            f"a patch applies to a released, installed or checked-out vLLM, which {target.name} is not"
        )
    # Judging without a patch needs no patch library.
    from . import patches

    scratch = _scratch()
    copy = scratch.folder / "connector"
    sources.copy(Path(target.spec.where), copy)
    applied = patches.apply_diff(diff, copy, target.name)
    notes = () if not applied.ignored else (f"ignored in {diff}: {_listed(applied.ignored)}",)
    return replace(
        target, spec=LoadSpec("folder", str(copy)), patch=diff, notes=target.notes + notes, scratch=scratch
    )


def list_targets() -> tuple[Listed, ...]:
    """What can be judged here, and the forms a target may have."""
    built_in = (
        Listed("reference", "our readable reference"),
        Listed("impl", "our fast drop-in, its worker without torch"),
        Listed("impl-torch", "our fast drop-in with its torch worker"),
        Listed(PER_REQUEST_TARGET, "our fast drop-in, in which an inconsistent request fails alone"),
    )
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
    scratch = _scratch()
    found = _released(name, wheels.extract_wheel(path, scratch.folder / "connector"), version, judged)
    return replace(found, scratch=scratch)


def _tree(name: str, profile: str | None) -> Target:
    """A source tree; a release's known findings are its own only if its connector is that release's, byte for byte."""
    root = Path(name).resolve()
    folder = root if (root / "connector.py").is_file() else root / wheels.FOLDER
    if not (folder / "connector.py").is_file():
        raise TargetError(f"{name} has no {wheels.FOLDER}/connector.py and is not that folder itself")
    version = "" if folder == root else revisions.version_of(root)
    return _tree_target(name, folder, version, profile)


def _revision(name: str, checkout: Path, revision: str, profile: str | None) -> Target:
    scratch = _scratch()
    folder = scratch.folder / "connector"
    revisions.export(checkout, revision, folder)
    version = revisions.version_of(checkout, revision)
    return replace(_tree_target(name, folder, version, profile), scratch=scratch)


def _tree_target(name: str, folder: Path, version: str, profile: str | None) -> Target:
    release = known.release_with(sources.digests(folder))
    judged = _profile_of_tree(name, version or release, profile)
    note = f"its connector is that of vllm {release}, so that release's known findings count"
    notes = (note,) if release else ()
    return Target(name, LoadSpec("folder", str(folder)), judged, _shown(version), release, notes=notes)


def _scratch() -> Scratch:
    try:
        return Scratch()
    except OSError as error:
        raise TargetError(f"cannot make a temporary folder: {error.strerror or error}") from None


def _shown(version: str) -> str:
    return f"vllm {version} or later" if version else ""


def _profile_of_tree(name: str, version: str, profile: str | None) -> str:
    if profile is None and not version:
        raise TargetError(
            f"the version of {name} cannot be told from its files; add --profile ({' or '.join(PROFILES)})"
        )
    return _profile_of(version, name, profile)


def _listed(names: tuple[str, ...], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _released(name: str, folder: Path, version: str, profile: str) -> Target:
    plain = version.split("+")[0]
    sources.python_files(folder)
    return Target(name, LoadSpec("folder", str(folder)), profile, f"vllm {version}", plain)


def _profile_of(version: str, name: str, profile: str | None) -> str:
    """The profile of a version, ``0.31.0`` being profile ``0.31``."""
    if profile is not None:
        return profile
    short = ".".join(version.split(".")[:2])
    if short in PROFILES:
        return short
    raise NoProfile(
        name,
        f"no profile describes {name} (version {version or 'unknown'}) yet; add --profile ({' or '.join(PROFILES)})",
    )
