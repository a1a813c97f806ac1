"""What code from a folder may use: a clean environment, an empty folder, limited resources."""

from __future__ import annotations

import resource
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from auxout_conformance import hosts, isolation, pipes
from auxout_conformance.hosts import Child, Crashed, DoesNotLoad, Hung, TargetBroken
from auxout_conformance.observation import Raised
from auxout_conformance.setups import Setup
from auxout_conformance.targets.loading import LoadSpec
from auxout_conformance.targets.resolve import Target
from auxout_spec.calls import Reset

CONNECTOR = (
    "import os, resource, sys\n"
    "from auxout_reference.connector import AuxOutputSchedulerConnector as Plain, PackedBlockHashes\n"
    "{head}\n"
    "class AuxOutputSchedulerConnector(Plain):\n"
    "    def reset(self):\n"
    "        {body}\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "connector"
    made.mkdir()
    return made


@contextmanager
def child(folder: Path, body: str = "return None", head: str = "") -> Iterator[Child]:
    """A process that runs a connector folder; ``body`` is what ``reset`` does, ``head`` what its import does."""
    (folder / "connector.py").write_text(CONNECTOR.format(body=body, head=head))
    running = Child(Target("foreign", LoadSpec("folder", str(folder)), "0.32"), call_seconds=5)
    try:
        running.new(Setup("0.32"))
        yield running
    finally:
        running.close()


def said(folder: Path, expression: str) -> str:
    """The value of an expression within the process."""
    with child(folder, f"raise RuntimeError({expression})") as running:
        outcome = running.call(Reset()).outcome
        assert isinstance(outcome, Raised)
        return outcome.message


def test_the_environment_holds_no_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    names = set(said(folder, "' '.join(os.environ)").split())
    assert "LC_ALL" in names
    assert names <= {
        *isolation.KEPT, *isolation.ONE_THREAD, "HOME", "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE",
    }  # fmt: skip


def test_it_runs_in_an_empty_folder_that_goes_with_it(folder: Path) -> None:
    with child(folder, "open('left', 'w'); raise RuntimeError(os.getcwd())") as running:
        outcome = running.call(Reset()).outcome
        assert isinstance(outcome, Raised)
        scratch = Path(outcome.message)
        assert [path.name for path in scratch.iterdir()] == ["left"]
    assert not scratch.exists()
    assert [path.name for path in folder.iterdir()] == ["connector.py"]


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ("RLIMIT_AS", isolation.MAX_MEMORY),
        ("RLIMIT_FSIZE", isolation.MAX_FILE),
        ("RLIMIT_CPU", isolation.MAX_CPU),
        ("RLIMIT_CORE", 0),
    ],
)
def test_a_limit(folder: Path, limit: str, most: int) -> None:
    soft, hard = map(int, said(folder, f"'%d %d' % resource.getrlimit(resource.{limit})").split())
    assert soft == hard
    assert 0 <= hard <= most
    assert resource.getrlimit(getattr(resource, limit)) != (soft, hard)


def test_processes_are_limited_to_some_more_than_there_are(folder: Path) -> None:
    most = int(said(folder, "str(resource.getrlimit(resource.RLIMIT_NPROC)[1])"))
    assert 1 < most < 1 << 20


def test_a_lower_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[int, int]] = []
    monkeypatch.setattr(isolation.resource, "getrlimit", lambda kind: (5, 10))
    monkeypatch.setattr(isolation.resource, "setrlimit", lambda kind, both: kept.append(both))
    isolation.limit()
    assert kept == [(10, 10)] * 3 + [(0, 0), (10, 10)]


def test_a_system_without_a_limit_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(isolation.resource, "RLIMIT_AS")

    def refuse(kind: int, both: tuple[int, int]) -> None:
        raise ValueError("not here")

    monkeypatch.setattr(isolation.resource, "setrlimit", refuse)
    isolation.limit()


# What it is bounded by.


def test_a_huge_allocation(folder: Path) -> None:
    with child(folder, "bytearray(1 << 42)") as running:
        assert running.call(Reset()).outcome == Raised("MemoryError", "", False)
    with pytest.raises(DoesNotLoad, match="MemoryError"), child(folder, head="kept = bytearray(1 << 42)"):
        pass


def test_an_endless_file(folder: Path) -> None:
    body = "f = open('f', 'wb')\n        while True: f.write(bytes(1 << 22))"
    with child(folder, body) as running:
        outcome = running.call(Reset()).outcome
        assert isinstance(outcome, Raised)
        assert (outcome.type, outcome.message) == ("OSError", "[Errno 27] File too large")


def test_many_children_end_with_it(folder: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    body = (
        "import subprocess\n"
        f"        for n in range(20): subprocess.Popen(['sh', '-c', 'echo $$ > {started}/' + str(n) + '; sleep 600'])"
    )
    with child(folder, body) as running:
        assert running.call(Reset()).outcome is None
        assert eventually(lambda: len(numbers(started)) == 20)
    found = numbers(started)
    assert eventually(lambda: not any(map(alive, found)))


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes to hold within some seconds."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        select.select([], [], [], 0.02)
    return condition()


def numbers(folder: Path) -> list[int]:
    return [int(text) for path in folder.iterdir() if (text := path.read_text().strip())]


def alive(number: int) -> bool:
    """Whether a process still runs; one that ended but that nobody waited for does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_it_may_not_take_for_ever_in_small_steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "import threading; threading.Event().wait(0.3)"
    with child(folder, body) as running:
        monkeypatch.setattr(hosts, "ALL_SECONDS", running._waited + 1)
        with pytest.raises(Hung, match=r"its answers took over .* s in all"):
            [running.call(Reset()) for _ in range(20)]


def test_an_answer_without_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "MAX_LINE", 1 << 20)
    body = "while True: os.write(3, b'x' * (1 << 16))"
    with child(folder, body) as running, pytest.raises(Crashed, match="answered reset without end"):
        running.call(Reset())


def test_an_answer_drop_by_drop(folder: Path) -> None:
    body = "import threading\n        while True: os.write(3, b' '); threading.Event().wait(0.1)"
    with child(folder, body) as running:
        running._call_seconds = 0.5
        with pytest.raises(Hung, match=r"reset took over 0\.5 s"):
            running.call(Reset())


def test_a_note_on_a_clause_that_does_not_exist(folder: Path) -> None:
    body = 'os.write(3, b\'{"notes": [["NO-SUCH", ""]], "traits": [], "result": null}\\n\')'
    with child(folder, body) as running, pytest.raises(TargetBroken, match="something unreadable"):
        running.call(Reset())
