"""A process leaves no child and no temporary folder behind, whatever ends it; and Ctrl-C does not get lost."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from auxout_conformance import interrupts, leftovers
from auxout_conformance.leftovers import Scratch
from auxout_conformance.screen import Sparse
from auxout_conformance.verdicts import Progress

SEES = Progress("x", "cases", 1, 2)
FOREIGN = """
import os, subprocess, sys, time
from auxout_reference.connector import AuxOutputSchedulerConnector, PackedBlockHashes
left = {left!r}
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(left, "w") as file:
    file.write(f"{{os.getpid()}} {{started.pid}}")
time.sleep(600)
"""


@pytest.fixture
def heard() -> Iterator[None]:
    """Signals are not ignored in processes that are started, as they are by what runs in the background."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT])
def test_a_judgement_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """The target hangs while it loads, and has started a process of its own."""
    folder, left, temporary = tmp_path / "connector", tmp_path / "left", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    (folder / "connector.py").write_text(FOREIGN.format(left=str(left)))
    command = [sys.executable, "-m", "auxout_conformance.cli", "conform", str(folder), "--profile", "0.32"]
    python = os.pathsep.join(filter(None, sys.path))
    running = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": python},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert eventually(lambda: left.exists() and left.read_text().count(" ") == 1)
        pids = [int(word) for word in left.read_text().split()]
        assert all(map(alive, pids))
        assert list(temporary.iterdir())
        running.send_signal(number)
        running.wait(20)
    finally:
        running.kill()
        running.wait()
    assert eventually(lambda: not any(map(alive, pids)))
    assert eventually(lambda: not list(temporary.iterdir()))


def test_a_temporary_folder_goes_with_its_object(tmp_path: Path) -> None:
    scratch = Scratch("x-", tmp_path)
    folder = scratch.folder
    (folder / "file").write_text("")
    assert folder.parent == tmp_path
    assert folder.name.startswith("x-")
    del scratch
    gc.collect()
    assert not folder.exists()
    with Scratch(within=tmp_path) as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_the_guard_ends_what_was_not_ended(tmp_path: Path) -> None:
    kept, dropped = tmp_path / "kept", tmp_path / "dropped"
    for folder in (kept, dropped):
        folder.mkdir()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    lines = [
        [True, "folder", str(kept)],
        [True, "folder", str(dropped)],
        [False, "folder", str(dropped)],
        [False, "folder", "never added"],
        [True, "group", process.pid],
        [True, "group", 999999999],
    ]
    leftovers.serve(io.StringIO("\n".join(map(json.dumps, lines))))
    assert process.wait(20) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["dropped"]


def test_without_a_guard_everything_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = leftovers.Guard()
    reads, writes = os.pipe()
    os.close(reads)
    monkeypatch.setattr(leftovers, "_start", lambda: writes)
    guard.add(leftovers.FOLDER, str(tmp_path))
    guard.drop(leftovers.FOLDER, str(tmp_path))
    os.close(writes)


# Ctrl-C.


@pytest.mark.usefixtures("heard")
def test_an_exploration_ends_at_once() -> None:
    """Only the command is interrupted, not its workers, as a service manager does it."""
    python = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = subprocess.Popen(
        [sys.executable, "-m", "auxout_conformance.cli", "explore", "--all", "--jobs", "2"],
        env={**os.environ, **python},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    assert "exploring" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=20)
    assert running.returncode == 4
    assert "auxout: interrupted; there is no result.\n" in said
    assert "Traceback" not in said


@pytest.fixture
def handled() -> object:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.install()
    yield None
    signal.signal(signal.SIGINT, before)
    interrupts._CTRL_C.pending = False


@pytest.mark.usefixtures("handled")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_is_lost_comes_again() -> None:
    """The interpreter drops what a callback of its collector raises."""

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            signal.raise_signal(signal.SIGINT)

    display = Sparse()
    display.show(SEES)
    gc.callbacks.append(collected)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(collected)
    with pytest.raises(KeyboardInterrupt):
        display.show(SEES)
    display.show(SEES)


@pytest.mark.usefixtures("handled")
def test_an_interrupt_is_raised_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_process_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts.install()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
