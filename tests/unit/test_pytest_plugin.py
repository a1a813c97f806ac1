"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = ("--pyargs", "auxout_conformance.cases")


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with this plugin only, from a folder that has nothing to do with us."""
    return python(folder, "-m", "pytest", "-p", "no:cacheprovider", "-p", "_auxout_pytest", *words)


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=env,
        check=False,
        timeout=300,
    )


def test_loading_it_imports_nothing_of_ours(tmp_path: Path) -> None:
    code = "import sys, _auxout_pytest; print([name for name in sys.modules if name.startswith('auxout')])"
    assert python(tmp_path, "-c", code).stdout == "[]\n"


def test_every_case_is_a_test(tmp_path: Path) -> None:
    from auxout_conformance.cases import all_cases

    done = run_pytest(tmp_path, *CASES, "--auxout-target", "reference", "-q")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert len(all_cases()) > 50


def test_a_failure_reads_like_the_command_line(tmp_path: Path) -> None:
    from auxout_conformance import init

    init.start(str(tmp_path))
    done = run_pytest(tmp_path, *CASES, "--auxout-target", "my_connector:make", "-q", "-k", "SCHED-META-1")
    assert done.returncode == 1
    for text in (
        "SCHED-META-1  The metadata names exactly",
        "  expected  ",
        "  actual    ",
        '{"auxout": "scenario/1"',
    ):
        assert text in done.stdout
    assert any(line.startswith("auxout replay '{") for line in done.stdout.splitlines())
    assert "Traceback" not in done.stdout
    assert "complaint" not in done.stdout


def test_without_a_target_nothing_passes(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, *CASES)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert done.stdout.count("auxout: no connector to judge: give --auxout-target T") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--auxout-target", "nope"), "there is no target 'nope'"),
        (("--auxout-target", "reference", "--auxout-profile", "9"), "profile"),
    ],
)
def test_a_mistake_is_a_usage_error(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run_pytest(tmp_path, *CASES, *words)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_fixtures_give_the_names(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_names(auxout_target, auxout_profile):\n"
        "    assert (auxout_target, auxout_profile) == ('reference', '0.31')\n"
    )
    given = run_pytest(tmp_path, "--auxout-target", "reference", "--auxout-profile", "0.31")
    assert given.returncode == 0, given.stdout
    assert "1 passed" in given.stdout
    skipped = run_pytest(tmp_path, "-rs")
    assert "1 skipped" in skipped.stdout
    assert "give --auxout-target T" in skipped.stdout


def test_a_target_that_crashes_fails_its_cases_only(tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(
        "import os\n"
        "from auxout_reference.connector import AuxOutputSchedulerConnector, PackedBlockHashes\n"
        "class Crashing(AuxOutputSchedulerConnector):\n"
        "    def reset(self):\n"
        "        os._exit(7)\n"
    )
    chosen = "sched-reset-1-1 or sched-reset-2-1 or sched-term-1-1"
    done = run_pytest(tmp_path, *CASES, "--auxout-target", "crashing:Crashing", "-q", "-k", chosen)
    assert "2 failed, 1 passed" in done.stdout
    assert (
        "target broken: crashing:Crashing crashed during reset (exit status 7)\n  replay\nauxout replay '{"
        in done.stdout
    )


PORT = (
    "from auxout_reference.connector import AuxOutputSchedulerConnector, PackedBlockHashes\n"
    "def make(profile): return AuxOutputSchedulerConnector(profile=profile)\n"
)


def test_cases_of_a_half_that_is_not_there_are_skipped(tmp_path: Path) -> None:
    """As the command leaves them out: a correct scheduler connector alone passes both."""
    (tmp_path / "port.py").write_text(PORT)
    done = run_pytest(tmp_path, *CASES, "--auxout-target", "port:make", "-q", "-rs")
    assert done.returncode == 0, done.stdout
    assert "WORK-CLOSE-1 is about the worker: port:make has no worker" in done.stdout
    assert "failed" not in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not load: ModuleNotFoundError: No module named 'port'"),
        ("1 / 0\n", "does not load: ZeroDivisionError: division by zero"),
        ("x = 1\n", "does not load: module port has no make; the form is module:factory"),
        ("import os\nos._exit(3)\n", "crashed during loading (exit status 3)"),
    ],
)
def test_a_target_that_does_not_load_is_one_usage_error(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "port.py").write_text(text)
    done = run_pytest(tmp_path, *CASES, "--auxout-target", "port:make", "-q")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --auxout-target port:make: port:make {said}" in done.stderr
    assert "failed" not in done.stdout


def test_expected_violations_are_expected_failures(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(
        PORT.replace(
            "def make", "class Bad(AuxOutputSchedulerConnector):\n    def reset(self): pass\ndef make"
        ).replace("return Aux", "return Bad(profile=profile)  #")
    )
    file = tmp_path / "known.json"
    file.write_text(
        '{"auxout": "expect/1", "profile": "0.32", "expected": ['
        '{"clause": "SCHED-RESET-1", "reason": "to be done"}]}'
    )
    words = (*CASES, "--auxout-target", "port:make", "-q", "-k", "sched-reset-1 or sched-meta-1-1", "-rx")
    assert "failed" in run_pytest(tmp_path, *words).stdout
    done = run_pytest(tmp_path, *words, "--auxout-expect", "known.json")
    assert done.returncode == 0, done.stdout
    assert "SCHED-RESET-1 is expected: to be done" in done.stdout
    file.write_text("{}")
    done = run_pytest(tmp_path, *words, "--auxout-expect", "known.json")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        "--auxout-expect known.json: expectation file known.json: the file must be an object" in done.stderr
    )
