"""Targets: every form a name may have, every mistake, and what is kept of a wheel."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from auxout_conformance import known, known_bad
from auxout_conformance.targets import Target, TargetError, list_targets, resolve, sources, wheels
from auxout_conformance.targets.adapter import from_factory, from_module
from auxout_conformance.targets.loading import PACKAGE, LoadSpec, load, load_connector_module
from auxout_conformance.targets.resolve import ENTRY_POINTS, FORMS
from auxout_spec.profiles import LATEST, PROFILES

SOURCE = Path(__file__).parents[2] / "reference" / "auxout_reference"
PIP = subprocess.CompletedProcess[str]


def make_wheel(path: Path, *, folder: str = wheels.FOLDER, **files: str) -> Path:
    """A small wheel: a connector package and something else."""
    contents = {
        f"{folder}/__init__.py": "",
        f"{folder}/connector.py": "x = 1\n",
        "vllm/__init__.py": "1 / 0\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**contents, **files}.items():
            archive.writestr(name, text)
    return path


def mistake(action: Callable[[], object]) -> str:
    with pytest.raises(TargetError) as caught:
        action()
    return str(caught.value)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of fetched wheels."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("AUXOUT_CACHE", str(folder))
    return folder


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Nothing is fetched; the commands that would fetch are kept."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> PIP:
        commands.append(command)
        return PIP(
            command, 1, "", "WARNING: slow\nERROR: no matching version\nERROR: No matching distribution\n"
        )

    monkeypatch.setattr(wheels.subprocess, "run", run)
    return commands


# Names that are targets.


@pytest.mark.parametrize("name", ["reference", "impl"])
@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_ours(name: str, profile: str | None) -> None:
    target = resolve(name, profile)
    assert (target.name, target.profile, target.foreign) == (name, profile or LATEST, False)
    assert (target.version, target.release) == ("", "")
    assert load(target.spec).scheduler(target.profile).reset() is None


@pytest.mark.parametrize("entry", known_bad.catalogue(), ids=lambda entry: entry.name)
def test_known_bad_is_judged_where_it_is_wrong(entry: known_bad.KnownBad) -> None:
    target = resolve(f"known-bad:{entry.name}")
    assert (target.spec, target.profile, target.foreign) == (
        LoadSpec("known-bad", entry.name),
        entry.profile,
        False,
    )
    assert resolve(f"known-bad:{entry.name}", "0.31").profile == "0.31"


@pytest.mark.parametrize("name", ["module:factory", "a.b.c:d.e", "_m:_f"])
def test_a_factory(name: str) -> None:
    assert resolve(name) == Target(name, LoadSpec("factory", name), LATEST)
    assert resolve(name, "0.31").profile == "0.31"


def test_a_registered_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = (metadata.EntryPoint("mine", "package.module:factory", ENTRY_POINTS),)
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == ENTRY_POINTS else ())
    assert resolve("mine") == Target("mine", LoadSpec("factory", "package.module:factory"), LATEST)
    assert ("mine", "registered as package.module:factory") in [(t.name, t.what) for t in list_targets()]


def keep(folder: Path, **files: str) -> Path:
    """A folder of the cache as it was fetched."""
    folder.mkdir(parents=True)
    for name, text in {"connector": "", **files}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "digests.json").write_text(json.dumps(sources.digests(folder)))
    return folder


@pytest.mark.parametrize("version", ["0.31.9", "0.32.9"])
def test_a_release_in_the_cache(version: str, cache: Path, no_pip: list[list[str]]) -> None:
    folder = keep(cache / f"vllm-{version}")
    target = resolve(f"vllm=={version}")
    assert target == Target(
        f"vllm=={version}", LoadSpec("folder", str(folder)), version[:4], f"vllm {version}", version
    )
    assert no_pip == []
    assert (f"vllm=={version}", "fetched already") in [(t.name, t.what) for t in list_targets()]
    assert resolve(f"vllm=={version}", "0.31").profile == "0.31"


@pytest.mark.parametrize(
    ("name", "version", "release"),
    [
        ("vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl", "0.32.0", "0.32.0"),
        ("vllm-0.32.1+cu129-cp38-abi3-linux_x86_64.whl", "0.32.1", "0.32.1"),
        ("my_vllm-0.32.0rc1-py3-none-any.whl", "0.32.0rc1", "0.32.0rc1"),
    ],
)
def test_a_wheel_file(name: str, version: str, release: str, tmp_path: Path) -> None:
    path = str(make_wheel(tmp_path / name))
    target = resolve(path)
    assert (target.name, target.profile, target.version) == (path, "0.32", f"vllm {version}")
    assert target.release == release
    folder = Path(target.spec.where)
    assert sorted(each.name for each in folder.iterdir()) == ["__init__.py", "connector.py"]


def test_a_source_tree_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / wheels.FOLDER
    folder.mkdir(parents=True)
    (folder / "connector.py").touch()
    for name in (str(tmp_path), str(folder)):
        target = resolve(name, "0.31")
        assert target == Target(name, LoadSpec("folder", str(folder)), "0.31")
        said = mistake(lambda name=name: resolve(name))
        assert said == f"the version of {name} cannot be told from its files; add --profile (0.31 or 0.32)"


def installed(monkeypatch: pytest.MonkeyPatch, version: str, *files: str) -> None:
    paths = [metadata.PackagePath(name) for name in files]
    for path in paths:
        path.dist = SimpleNamespace(locate_file=lambda path: Path("site") / str(path))  # type: ignore[assignment]
    monkeypatch.setattr(metadata, "version", lambda name: version)
    monkeypatch.setattr(metadata, "files", lambda name: paths)


def test_the_installed_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.31.0+cpu", "vllm/__init__.py", f"{wheels.FOLDER}/connector.py")
    target = resolve("vllm")
    folder = str(Path("site") / wheels.FOLDER)
    assert target == Target("vllm", LoadSpec("folder", folder), "0.31", "vllm 0.31.0+cpu", "0.31.0")


def test_every_form_is_listed() -> None:
    listed = [each.name for each in list_targets()]
    assert listed[:2] == ["reference", "impl"]
    assert {form for form, _ in FORMS} <= set(listed)


# Names that are not.


def test_an_unknown_profile() -> None:
    assert mistake(lambda: resolve("reference", "9")) == "unknown profile 9; the profiles are 0.31, 0.32"


@pytest.mark.parametrize(
    "name", ["", "nope", "vllm=0.31.0", "vllm==", "vllm==0/1", "a:b:c", "a b:c", "1:x", ":x", "x:"]
)
def test_no_such_target(name: str) -> None:
    said = mistake(lambda: resolve(name))
    assert said.startswith(
        f"there is no target {name!r}; a target is one of reference, impl, impl-torch, impl-request, module:factory,"
    )


def test_no_such_known_bad() -> None:
    said = mistake(lambda: resolve("known-bad:nope"))
    assert said.startswith("there is no known-bad target 'nope'; known are names-unscheduled, ")


def test_vllm_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    said = mistake(lambda: resolve("vllm"))
    assert said == "vLLM is not installed here; name a release instead, for example vllm==0.32.0"


@pytest.mark.parametrize("files", [(), ("vllm/__init__.py",)])
def test_the_installed_vllm_is_too_old(monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]) -> None:
    installed(monkeypatch, "0.30.1", *files)
    said = mistake(lambda: resolve("vllm"))
    assert said == f"the installed vLLM 0.30.1 has no {wheels.FOLDER}; the connector came with 0.31.0"


def test_a_version_without_a_profile(tmp_path: Path, no_pip: list[list[str]]) -> None:
    said = mistake(lambda: resolve("vllm==0.99.0"))
    assert said == "no profile describes vllm==0.99.0 (version 0.99.0) yet; add --profile (0.31 or 0.32)"
    assert no_pip == []
    nameless = str(make_wheel(tmp_path / "some.whl"))
    assert "(version unknown) yet; add --profile" in mistake(lambda: resolve(nameless))
    assert resolve(nameless, "0.32").release == ""


def test_no_such_file(tmp_path: Path) -> None:
    name = str(tmp_path / "vllm-0.32.0-py3-none-any.whl")
    assert mistake(lambda: resolve(name)) == f"there is no file {name}"


def test_a_folder_without_a_connector(tmp_path: Path) -> None:
    said = mistake(lambda: resolve(str(tmp_path), "0.32"))
    assert said == f"{tmp_path} has no {wheels.FOLDER}/connector.py and is not that folder itself"


# Wheels.


def test_nothing_of_a_wheel_lands_elsewhere(tmp_path: Path) -> None:
    """Only files directly in the connector's folder are unpacked, under their own names."""
    folder = wheels.FOLDER
    tricks = (
        "../evil.py", "/evil.py", f"{folder}/../evil.py", f"{folder}/sub/evil.py", f"{folder}/..\\evil.py",
        f"{folder}/evil.so", f"{folder}/evil.py/x.py", f"x/{folder}/evil.py", f"{folder}/evil.py\n", f"{folder}/",
    )  # fmt: skip
    wheel = make_wheel(tmp_path / "a.whl", **dict.fromkeys(tricks, "1 / 0\n"))
    into = tmp_path / "deep" / "connector"
    assert wheels.extract_wheel(wheel, into) == into
    everything = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert everything == {"a.whl", "deep/connector/__init__.py", "deep/connector/connector.py"}


def test_a_wheel_without_a_connector(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "vllm-0.30.0-py3-none-any.whl", folder="vllm/other")
    said = mistake(lambda: wheels.extract_wheel(wheel, tmp_path / "out"))
    assert said == f"{wheel.name} has no {wheels.FOLDER}; the connector came with vLLM 0.31.0"


def not_a_zip(path: Path) -> None:
    path.write_text("this is no zip file")


def cut_short(path: Path) -> None:
    path.write_bytes(make_wheel(path).read_bytes()[:-30])


def rotten(path: Path) -> None:
    """Compressed data that does not decompress."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{wheels.FOLDER}/connector.py", "x = 1\n" * 1000)
        start = archive.filelist[0].header_offset + 30 + len(archive.filelist[0].filename)
    data = bytearray(path.read_bytes())
    data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)


def encrypted(path: Path) -> None:
    data = bytearray(make_wheel(path).read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(signature)
        while at >= 0:
            data[at + offset] |= 1
            at = data.find(signature, at + 4)
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", [not_a_zip, cut_short, rotten, encrypted])
def test_what_is_not_a_wheel(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.32.0-py3-none-any.whl"
    spoil(path)
    assert mistake(lambda: resolve(str(path))) == f"{path} is not a wheel (a zip file)"


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("vllm-0.31.0-cp38-abi3-manylinux_2_28_x86_64.whl", "0.31.0"),
        ("vllm-0.31.0+cu129-cp38-abi3-linux.whl", "0.31.0"),
        ("vllm_tpu-0.32.0.dev3-py3-none-any.whl", "0.32.0.dev3"),
        ("vllm.whl", ""),
        ("vllm-new-py3.whl", ""),
    ],
)
def test_wheel_version(name: str, version: str) -> None:
    assert wheels.wheel_version(Path(name)) == version


# Fetching.


def test_pip_is_asked_once_and_the_rest_is_thrown_away(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> PIP:
        commands.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]) / "vllm-0.32.9-py3-none-any.whl")
        return PIP(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    assert wheels.cached_versions() == ()
    first, second = wheels.fetch("0.32.9"), wheels.fetch("0.32.9")
    assert first == second == cache / "vllm-0.32.9"
    assert sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*")) == [
        "vllm-0.32.9", "vllm-0.32.9/__init__.py", "vllm-0.32.9/connector.py", "vllm-0.32.9/digests.json",
    ]  # fmt: skip
    assert len(commands) == 1
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert commands[0][-1] == "vllm==0.32.9"
    assert wheels.cached_versions() == ("0.32.9",)


def test_somebody_else_may_fetch_meanwhile(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> PIP:
        make_wheel(Path(command[command.index("--dest") + 1]) / "vllm-0.32.9-py3-none-any.whl")
        keep(cache / "vllm-0.32.9", connector="theirs")
        return PIP(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    assert (wheels.fetch("0.32.9") / "connector.py").read_text() == "theirs"


def no_connector(folder: Path) -> None:
    (folder / "connector.py").unlink()


def changed(folder: Path) -> None:
    (folder / "connector.py").write_text("x = 2")


def one_more(folder: Path) -> None:
    (folder / "more.py").write_text("")


def no_digests(folder: Path) -> None:
    (folder / "digests.json").unlink()


def bad_digests(folder: Path) -> None:
    (folder / "digests.json").write_text("[" * 100_000)


def a_device(folder: Path) -> None:
    (folder / "more.py").symlink_to("/dev/zero")


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize(
    "spoil", [no_connector, changed, one_more, no_digests, bad_digests, a_device, a_file, shutil.rmtree]
)
def test_a_broken_entry_is_fetched_again_once(
    spoil: Callable[[Path], None], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> PIP:
        commands.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]) / "vllm-0.32.9-py3-none-any.whl")
        return PIP(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    spoil(keep(cache / "vllm-0.32.9", connector="x = 1\n"))
    for _ in range(3):
        assert (wheels.fetch("0.32.9") / "connector.py").read_text() == "x = 1\n"
    assert len(commands) == 1
    assert [path.name for path in cache.iterdir()] == ["vllm-0.32.9"]


def test_a_release_on_record_has_the_files_on_record(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a folder of the cache nor a wheel with other files passes for it."""

    def run(command: list[str], **options: Any) -> PIP:
        make_wheel(Path(command[command.index("--dest") + 1]) / "vllm-0.32.0-py3-none-any.whl")
        return PIP(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    keep(cache / "vllm-0.32.0", connector="theirs")
    said = mistake(lambda: wheels.fetch("0.32.0"))
    assert said.startswith("the files of the fetched vllm==0.32.0 are not those of that release on record; ")


def test_pip_says_why_it_failed(cache: Path, no_pip: list[list[str]]) -> None:
    said = mistake(lambda: resolve("vllm==0.32.7"))
    assert said == "pip could not download vllm==0.32.7: No matching distribution"
    assert len(no_pip) == 1
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("code", [0, 1])
def test_pip_says_nothing(code: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.subprocess, "run", lambda command, **options: PIP(command, code, "", ""))
    assert (
        mistake(lambda: wheels.fetch("0.32.0"))
        == "pip could not download vllm==0.32.0: pip printed no reason"
    )


def test_a_cache_that_cannot_be_written(cache: Path, no_pip: list[list[str]]) -> None:
    cache.write_text("a file, not a folder")
    said = mistake(lambda: wheels.fetch("0.32.0"))
    assert said.startswith(f"cannot keep vllm==0.32.0 in {cache}: ")
    assert said.endswith("; set AUXOUT_CACHE to another folder")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AUXOUT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "me")
    assert wheels.cache_dir() == tmp_path / "me" / ".cache" / "auxout"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert wheels.cache_dir() == tmp_path / "xdg" / "auxout"
    monkeypatch.setenv("AUXOUT_CACHE", str(tmp_path / "own"))
    assert wheels.cache_dir() == tmp_path / "own"


# Bounds.


def big(path: Path) -> None:
    """A small wheel that unpacks to more than a connector can be."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{wheels.FOLDER}/connector.py", b"#" * (sources.MAX_BYTES + 1))


def many(path: Path) -> None:
    make_wheel(path, **{f"{wheels.FOLDER}/m{number}.py": "" for number in range(sources.MAX_FILES)})


@pytest.mark.parametrize(("spoil", "said"), [(big, "more than 16 MiB"), (many, "more than 200 Python files")])
def test_a_wheel_that_is_too_large(spoil: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.32.0-py3-none-any.whl"
    spoil(path)
    assert path.stat().st_size < 1 << 20
    assert said in mistake(lambda: resolve(str(path)))


def test_a_wheel_that_lies_about_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.32.0-py3-none-any.whl"
    big(path)
    data = path.read_bytes()
    path.write_bytes(data.replace((sources.MAX_BYTES + 1).to_bytes(4, "little"), (5).to_bytes(4, "little")))
    assert mistake(lambda: resolve(str(path))) == f"{path} is not a wheel (a zip file)"


def test_wheels_with_any_byte_changed_are_refused_or_read(tmp_path: Path) -> None:
    """Not a traceback: of 300 wheels with some bytes changed, each is a wheel or is refused in a sentence."""
    draw, path = random.Random(7), tmp_path / "vllm-0.32.0-py3-none-any.whl"
    whole = make_wheel(path).read_bytes()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(TargetError):
            resolve(str(path))


def hole(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def itself(path: Path) -> None:
    path.symlink_to(path)


def directory(path: Path) -> None:
    path.mkdir()
    hole(path / "deeper.py")


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("spoil", [hole, pipe, dangling, itself, directory, huge])
def test_a_tree_with_files_that_are_none(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    """A device without end, a pipe that nobody writes to, links that lead nowhere, a terabyte: told, and not read."""
    folder = tmp_path / wheels.FOLDER
    folder.mkdir(parents=True)
    (folder / "connector.py").write_text("")
    spoil(folder / "x.py")
    said = mistake(lambda: resolve(str(tmp_path), "0.32"))
    assert "x.py" in said or "16 MiB" in said


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("x = 1\n")
    folder = tmp_path / wheels.FOLDER
    folder.mkdir(parents=True)
    (folder / "connector.py").symlink_to(tmp_path / "real.txt")
    assert resolve(str(tmp_path), "0.32").release == ""
    sources.copy(folder, tmp_path / "copy")
    assert not (tmp_path / "copy" / "connector.py").is_symlink()


# A tree that is a release.


def test_a_tree_whose_connector_is_a_release_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / wheels.FOLDER
    folder.mkdir(parents=True)
    (folder / "connector.py").write_text("x = 1\n")
    record = {"0.31.0": sources.digests(folder)}
    monkeypatch.setattr(known, "_files", lambda: record)
    for name in (str(tmp_path), str(folder)):
        target = resolve(name)  # the version need not be told
        assert (target.release, target.profile) == ("0.31.0", "0.31")
        assert target.notes == (
            "its connector is that of vllm 0.31.0, so that release's known findings count",
        )
    assert resolve(str(tmp_path), "0.32").profile == "0.32"
    (folder / "worker.py").write_text("")
    assert resolve(str(tmp_path), "0.31").release == ""


def test_the_files_on_record_are_those_of_a_package() -> None:
    for release in ("0.31.0", "0.32.0"):
        files = known.files_of(release)
        assert files is not None
        assert {"__init__.py", "connector.py", "worker.py", "store.py"} <= files.keys()
        assert known.release_with(dict(files)) == release
        assert all(len(digest) == 64 for digest in files.values())
    assert known.files_of("0.30.0") is None


# Loading.


@pytest.fixture
def forget_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a folder leaves modules under vLLM's names, which is fine in a child process only."""
    parts = PACKAGE.split(".")
    for name in (
        *(".".join(parts[:end]) for end in range(1, 4)),
        f"{PACKAGE}.connector",
        f"{PACKAGE}.errors",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)


def copied(folder: Path) -> Path:
    folder.mkdir()
    for name in ("connector.py", "engine.py", "errors.py", "profiles.py", "retention.py"):
        (folder / name).write_text((SOURCE / name).read_text())
    return folder


@pytest.mark.usefixtures("forget_vllm")
def test_a_folder_is_loaded_under_vllm_s_name_and_nothing_else_of_vllm(tmp_path: Path) -> None:
    folder = copied(tmp_path / "somewhere")
    module = load_connector_module(folder)
    assert module.__name__ == f"{PACKAGE}.connector"
    assert Path(module.__file__ or "").parent == folder
    assert not hasattr(sys.modules["vllm"], "__file__")
    adapter = load(LoadSpec("folder", str(folder)))
    assert list(adapter.packed_block_hashes(b"ab", 1)) == [b"a", b"b"]
    assert adapter.scheduler("0.31")._profile.name == "0.31"


@pytest.mark.usefixtures("forget_vllm")
def test_a_process_runs_one_folder(tmp_path: Path) -> None:
    """Under one name there is one package: a second one would silently be the first."""
    first, second = copied(tmp_path / "first"), copied(tmp_path / "second")
    load_connector_module(first)
    said = mistake(lambda: load_connector_module(second))
    assert (
        said == f"this process runs the connector of {first} already; another one needs a process of its own"
    )
    assert load_connector_module(first).__file__ == str(first / "connector.py")


def test_a_folder_without_its_file(tmp_path: Path) -> None:
    said = mistake(lambda: load(LoadSpec("folder", str(tmp_path))))
    assert said.startswith(f"{tmp_path} has no connector.py; ")


def test_a_factory_lies_where_the_command_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "typed_here.py").write_text(
        "from auxout_reference.connector import *\nclass Inner:\n    make = AuxOutputSchedulerConnector\n"
    )
    for where in ("typed_here:AuxOutputSchedulerConnector", "typed_here:Inner.make"):
        assert load(LoadSpec("factory", where)).scheduler("0.31")._profile.name == "0.31"
    assert sys.path[0] == str(tmp_path)
    monkeypatch.delitem(sys.modules, "typed_here")


def test_a_factory_that_is_not_there() -> None:
    said = mistake(lambda: load(LoadSpec("factory", "auxout_reference.connector:no.such")))
    assert said == "module auxout_reference.connector has no no.such; the form is module:factory"


def test_a_module_needs_both_names() -> None:
    both = SimpleNamespace(AuxOutputSchedulerConnector=lambda: 5, PackedBlockHashes=list)
    assert from_module(both, "it").scheduler("0.31") == 5
    said = mistake(lambda: from_module(SimpleNamespace(PackedBlockHashes=list), "it"))
    assert said.startswith("it has no AuxOutputSchedulerConnector; ")
    said = mistake(lambda: from_module(SimpleNamespace(), "it"))
    assert said.startswith("it has no AuxOutputSchedulerConnector and no PackedBlockHashes; ")


CONNECTOR = SimpleNamespace(build_connector_meta=id, take_output=id, request_finished=id, reset=id)


def test_a_factory_may_return_a_connector_or_a_module() -> None:
    module = ModuleType("beside")
    module.PackedBlockHashes = list  # type: ignore[attr-defined]
    assert from_factory(lambda: CONNECTOR, module, "it").packed_block_hashes is list
    whole = SimpleNamespace(AuxOutputSchedulerConnector=lambda: CONNECTOR, PackedBlockHashes=tuple)
    assert from_factory(lambda: whole, ModuleType("empty"), "it").packed_block_hashes is tuple
    said = mistake(lambda: from_factory(lambda: CONNECTOR, ModuleType("empty"), "it"))
    assert said == "module empty has no PackedBlockHashes; import or define it beside the factory"


def test_a_factory_that_returns_something_else() -> None:
    module = ModuleType("beside")
    assert mistake(lambda: from_factory(5, module, "it")).startswith("it is not callable; ")
    said = mistake(lambda: from_factory(dict, module, "it"))
    assert said == "it returned dict, which has no build_connector_meta, take_output, request_finished, reset"
    partly = SimpleNamespace(**{**vars(CONNECTOR), "reset": None})
    assert mistake(lambda: from_factory(lambda: partly, module, "it")).endswith("which has no reset")


def test_a_factory_that_needs_a_profile_gets_one() -> None:
    module = ModuleType("mine")
    module.PackedBlockHashes = list  # type: ignore[attr-defined]
    seen: list[str] = []

    def make(profile: str) -> object:
        seen.append(profile)
        return CONNECTOR

    build = from_factory(make, module, "it").scheduler
    build("0.31")
    build("")
    assert seen == [LATEST, "0.31", LATEST]


def test_the_profile_is_passed_only_to_those_who_take_it() -> None:
    module = SimpleNamespace(
        AuxOutputSchedulerConnector=lambda profile="own": profile, PackedBlockHashes=list
    )
    assert [from_module(module, "it").scheduler(name) for name in ("", "0.31")] == ["own", "0.31"]
    without = SimpleNamespace(AuxOutputSchedulerConnector=dict, PackedBlockHashes=list)
    assert from_module(without, "it").scheduler("0.31") == {}
