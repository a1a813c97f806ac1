"""Revisions of a checkout: read without checking out, and what is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from auxout_conformance.targets import TargetError, resolve, wheels
from auxout_conformance.targets.revisions import version_of

FOLDER = wheels.FOLDER
WHO = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")


def git(checkout: Path, *words: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *WHO, *words], cwd=checkout, check=True, env=environment, capture_output=True)


def commit(checkout: Path, **files: str) -> None:
    for name, text in files.items():
        path = checkout / FOLDER / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "next")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with two revisions; only the first is tagged as a release."""
    root = tmp_path / "vllm-checkout"
    root.mkdir()
    git(root, "init", "-q")
    commit(root, connector="first = 1\n", store="x = 1\n")
    git(root, "tag", "v0.31.0")
    (root / FOLDER / "sub").mkdir()
    (root / FOLDER / "sub" / "part.py").write_text("y = 1\n")
    (root / FOLDER / "link.py").symlink_to("/etc/hostname")
    (root / FOLDER / "notes.txt").write_text("no source\n")
    commit(root, connector="second = 2\n")
    return root


def mistake(name: str, profile: str | None = None) -> str:
    with pytest.raises(TargetError) as caught:
        resolve(name, profile)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_revision_is_read_and_the_checkout_stays(checkout: Path) -> None:
    (checkout / FOLDER / "connector.py").write_text("not committed\n")
    old, new = resolve(f"{checkout}@v0.31.0"), resolve(f"{checkout}@HEAD", "0.32")
    assert (Path(old.spec.where) / "connector.py").read_text() == "first = 1\n"
    assert (Path(new.spec.where) / "connector.py").read_text() == "second = 2\n"
    files = sorted(path.relative_to(new.spec.where).as_posix() for path in Path(new.spec.where).rglob("*.py"))
    assert files == ["connector.py", "store.py", "sub/part.py"]
    assert (checkout / FOLDER / "connector.py").read_text() == "not committed\n"
    assert (old.profile, old.version, new.profile) == ("0.31", "vllm 0.31.0 or later", "0.32")
    # Known findings are a release's; this is somebody's tree.
    assert old.release == ""


def test_the_profile_of_a_checkout_is_its_newest_release_s(checkout: Path) -> None:
    assert resolve(str(checkout)).profile == "0.31"
    git(checkout, "tag", "v0.32.1rc1")
    assert resolve(str(checkout)).profile == "0.32"
    assert resolve(str(checkout), "0.31").profile == "0.31"


def test_without_a_tag_the_profile_must_be_given(checkout: Path) -> None:
    git(checkout, "tag", "-d", "v0.31.0")
    assert "cannot be told from its files; add --profile" in mistake(str(checkout))
    assert "cannot be told from its files; add --profile" in mistake(f"{checkout}@HEAD")
    assert resolve(f"{checkout}@HEAD", "0.32").version == ""


def test_a_tree_within_another_repository_has_not_its_version(checkout: Path) -> None:
    inner = checkout / "vendored"
    (inner / FOLDER).mkdir(parents=True)
    (inner / FOLDER / "connector.py").write_text("")
    assert version_of(inner) == ""


@pytest.mark.parametrize("revision", ["nowhere", "HEAD~7", "--help", "v0.31.0:vllm"])
def test_no_such_revision(checkout: Path, revision: str) -> None:
    assert revision in mistake(f"{checkout}@{revision}", "0.32")


def test_no_repository(tmp_path: Path) -> None:
    assert f"cannot read {tmp_path} at HEAD: " in mistake(f"{tmp_path}@HEAD", "0.32")


def test_no_connector_at_that_revision(checkout: Path) -> None:
    git(checkout, "rm", "-rqf", FOLDER)
    git(checkout, "commit", "-qm", "gone")
    assert f"has no {FOLDER}/connector.py at HEAD" in mistake(f"{checkout}@HEAD", "0.32")


def test_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "git is needed to read a revision" in mistake(f"{checkout}@HEAD", "0.32")


def test_what_was_read_goes_with_its_target(checkout: Path) -> None:
    target = resolve(f"{checkout}@HEAD", "0.32")
    folder = Path(target.spec.where)
    assert folder.exists()
    del target
    assert not folder.exists()
