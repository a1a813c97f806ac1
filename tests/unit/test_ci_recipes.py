"""The CI recipes in ``docs/ci``: the script is run, and the workflow's commands are run as it states them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from auxout_conformance import known
from auxout_conformance.targets import wheels

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "ci"
NAME = f"{wheels.FOLDER}/connector.py"
WHO = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a branch ``change`` that touches the connector, and a ``main`` that went on since."""
    root = tmp_path / "checkout"
    shutil.copytree(
        ROOT / "reference" / "auxout_reference",
        root / wheels.FOLDER,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    git(root, "init", "-q", "-b", "main")
    commit(root)
    git(root, "tag", "v0.32.0")
    git(root, "checkout", "-q", "-b", "change")
    (root / NAME).write_text((root / NAME).read_text() + "\n# a remark\n")
    commit(root)
    git(root, "checkout", "-q", "main")
    (root / "README").write_text("main went on\n")
    commit(root)
    git(root, "checkout", "-q", "change")
    return root


def git(root: Path, *words: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *WHO, *words], cwd=root, check=True, env=environment, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "next")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """An environment in which ``auxout`` is on the path."""
    command = tmp_path / "bin" / "auxout"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m auxout_conformance.cli "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    python = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return {**os.environ, "PATH": path, "AUXOUT_SUITE": "smoke", **python, **more}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_script(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    command = ["bash", str(RECIPES / "verify.sh"), str(checkout), "main"]
    ran = run(command, tmp_path, environment(tmp_path, AUXOUT_OUT=str(out)))
    assert ran.returncode == 0, ran.stderr
    assert "nothing broken" in ran.stdout
    assert sorted(path.name for path in out.iterdir()) == ["verify.html", "verify.jsonl", "verify.md"]
    (checkout / NAME).write_text(
        (checkout / NAME).read_text() + "AuxOutputSchedulerConnector.reset = lambda s: None\n"
    )
    commit(checkout)
    ran = run(command, tmp_path, environment(tmp_path, AUXOUT_OUT=str(out)))
    assert ran.returncode == 1
    assert "SCHED-RESET-1" in (out / "verify.md").read_text()


def test_the_script_says_how_it_is_used(tmp_path: Path) -> None:
    ran = run(["bash", str(RECIPES / "verify.sh")], tmp_path, environment(tmp_path))
    assert ran.returncode != 0
    assert "usage: verify.sh CHECKOUT BASE_REVISION [REVISION]" in ran.stderr


def test_the_workflow(checkout: Path, tmp_path: Path) -> None:
    """Its own commands, with what GitHub would put in; installing is left out."""
    workflow = yaml.safe_load((RECIPES / "verify.yml").read_text())
    steps = workflow["jobs"]["verify"]["steps"]
    (checkout / ".github" / "workflows").mkdir(parents=True)
    shutil.copy(RECIPES / "verify.sh", checkout / ".github" / "workflows" / "verify.sh")
    commands = [step["run"] for step in steps if "run" in step]
    installing = [command for command in commands if command.startswith("pip install")]
    assert installing[-1] == 'pip install "auxout[conformance,torch]"'
    summary = tmp_path / "summary.md"
    given = environment(tmp_path, BASE="main", HEAD="change", GITHUB_STEP_SUMMARY=str(summary))
    for command in commands[len(installing) :]:
        ran = run(["bash", "-e", "-c", command], checkout, given)
        assert ran.returncode == 0, ran.stderr
    assert "nothing broken" in summary.read_text()
    uploaded = next(
        step["with"]["path"] for step in steps if step.get("uses", "").startswith("actions/upload-artifact")
    )
    assert [path.name for path in checkout.glob(uploaded)]


@pytest.fixture
def releases(tmp_path: Path) -> dict[str, str]:
    """An environment in which pip knows two releases of vLLM, both in the cache."""
    given = environment(tmp_path, AUXOUT_CACHE=str(tmp_path / "cache"))
    pip = tmp_path / "bin" / "pip"
    pip.write_text(
        '#!/bin/sh\n[ "$*" = "index versions vllm --disable-pip-version-check" ] || exit 9\n'
        "echo 'vllm (9.9.0)'\necho 'Available versions: 9.9.0, 9.8.0'\n"
    )
    pip.chmod(0o755)
    (tmp_path / "cache").mkdir()
    text = (ROOT / "reference" / "auxout_reference" / "connector.py").read_text()
    for version, more in (("9.8.0", ""), ("9.9.0", "\n\ndef max_cache_hit(request): ...\n")):
        with zipfile.ZipFile(tmp_path / "cache" / f"sources-{version}.zip", "w") as archive:
            archive.writestr(NAME, text + more)
    return given


def test_the_nightly_script(releases: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    given = {**releases, "AUXOUT_OUT": str(out)}
    ran = run(["bash", str(RECIPES / "drift.sh"), "9.8.0"], tmp_path, given)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout.startswith("vllm==9.9.0 against vllm==9.8.0  drift  ")
    assert "    + max_cache_hit(request)" in (out / "drift.txt").read_text().splitlines()
    assert json.loads((out / "drift.json").read_text())["result"] == "drift"
    ran = run(["bash", str(RECIPES / "drift.sh"), "9.9.0"], tmp_path, given)
    assert (ran.returncode, ran.stdout) == (0, "vllm==9.9.0 is the newest release\n")
    ran = run(["bash", str(RECIPES / "drift.sh"), "9.8.0", "9.8.0"], tmp_path, given)
    assert ran.returncode == 0
    ran = run(["bash", str(RECIPES / "drift.sh")], tmp_path, given)
    assert ran.returncode != 0
    assert "usage: drift.sh KNOWN [NEWEST]" in ran.stderr


def test_the_nightly_script_without_an_index(releases: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "pip").write_text("#!/bin/sh\nexit 0\n")
    ran = run(["bash", str(RECIPES / "drift.sh"), "9.8.0"], tmp_path, releases)
    assert (ran.returncode, ran.stderr) == (2, "drift.sh: pip names no version of vllm\n")


def test_the_nightly_workflow(releases: dict[str, str], tmp_path: Path) -> None:
    """Its own commands, in their order; the night's failure is what the summary tells."""
    workflow = yaml.safe_load((RECIPES / "drift.yml").read_text())
    assert workflow[True]["schedule"]  # YAML reads the key ``on`` as true
    job = workflow["jobs"]["drift"]
    assert job["env"]["KNOWN"] == known.newest_release()
    checkout = tmp_path / "checkout"
    (checkout / ".github" / "workflows").mkdir(parents=True)
    shutil.copy(RECIPES / "drift.sh", checkout / ".github" / "workflows" / "drift.sh")
    summary = tmp_path / "summary.md"
    given = {**releases, "KNOWN": "9.8.0", "GITHUB_STEP_SUMMARY": str(summary)}
    install, compare, summarize = (step["run"] for step in job["steps"] if "run" in step)
    assert install == 'pip install "auxout[conformance,torch]"'
    assert run(["bash", "-e", "-c", compare], checkout, given).returncode == 1
    assert run(["bash", "-e", "-c", summarize], checkout, given).returncode == 0
    assert "+ max_cache_hit(request)" in summary.read_text()
    uploaded = next(
        step["with"]["path"] for step in job["steps"] if "upload-artifact" in step.get("uses", "")
    )
    assert sorted(path.name for path in checkout.glob(uploaded)) == ["drift.json", "drift.txt"]
