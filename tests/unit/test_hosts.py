"""Where targets run: what becomes of one that crashes, hangs, prints, or answers with garbage."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from auxout_conformance import hosts
from auxout_conformance.hosts import Child, InProcess, TargetBroken, open_host
from auxout_conformance.observation import Observation, Raised
from auxout_conformance.setups import Setup
from auxout_conformance.targets.loading import LoadSpec
from auxout_conformance.targets.resolve import Target, resolve
from auxout_spec.calls import BuildConnectorMeta, Reset, TakeOutput, Unpack
from auxout_spec.values import Hashes, Metadata, RequestOutput, RequestView, Row, Rows

VIEW = RequestView("A", 5, 4, 1, 0, (b"0" * 32, b"1" * 32))
BUILD = BuildConnectorMeta((("A", 4),), (VIEW,))
ROWS = tuple(Row("A", position, 0, 0, "T") for position in range(4))
HEAD = (
    "import os, signal, sys, threading\n"
    "from auxout_reference.connector import AuxOutputSchedulerConnector, PackedBlockHashes\n"
)
CONNECTOR = "class Connector(AuxOutputSchedulerConnector):\n    def reset(self):\n        {body}\n"
FOR_EVER = "threading.Event().wait()"
GARBAGE = "os.write(3, {text!r})"
"""The child's answers leave through the first descriptor after the standard ones."""

Start = Callable[..., Child]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Every process that a test started; none of them may outlive the test."""
    processes: list[subprocess.Popen[bytes]] = []
    plain: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(plain(*args, **options))
        return processes[-1]

    monkeypatch.setattr(hosts.subprocess, "Popen", popen)
    yield processes
    assert processes
    for process in processes:
        assert process.returncode is not None, "a process is left"


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> Iterator[Start]:
    """Start a child that runs a module with the given text; ``body`` is what its connector's ``reset`` does."""
    monkeypatch.chdir(tmp_path)
    children: list[Child] = []

    def start(
        body: str = "return None", text: str = "", where: str = "foreign:Connector", **options: Any
    ) -> Child:
        (tmp_path / "foreign.py").write_text(text or HEAD + CONNECTOR.format(body=body))
        child = Child(Target(where, LoadSpec("factory", where), "0.32"), **options)
        children.append(child)
        child.new(Setup("0.32"))
        return child

    yield start
    for child in children:
        child.close()


def broken(action: Callable[[], object]) -> str:
    with pytest.raises(TargetBroken) as caught:
        action()
    return str(caught.value)


# A child that works.


def test_a_child_answers_like_the_same_connector_in_process(start: Start) -> None:
    child, here = start("return super().reset()"), InProcess(resolve("reference"))
    here.new(Setup("0.32"))
    take = TakeOutput(VIEW, (("A", RequestOutput(0, ROWS)),))
    for call in (BUILD, take, TakeOutput(VIEW, None), Reset(), BUILD, Unpack(b"abc", 2), Unpack(b"ab", 1)):
        assert child.call(call) == here.call(call)
    assert child.call(take).outcome == Rows(ROWS)
    assert child.call(Unpack(b"ab", 1)).outcome == Hashes((b"a", b"b"))
    child.new(Setup("0.32"))
    found = child.call(BUILD)._replace(traits=())
    assert found == Observation(Metadata(0, (("A", 4),), (("A", VIEW.block_hashes),), ()))


@pytest.mark.parametrize("optimized", [False, True])
def test_python_runs_optimized_when_asked(start: Start, optimized: bool) -> None:
    child = start("assert False, 'asserted'", optimized=optimized)
    outcome = child.call(Reset()).outcome
    assert outcome == (None if optimized else Raised("AssertionError", "asserted", True))


def test_the_environment_is_the_user_s(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUXOUT_TEST", "seen")
    child = start("raise RuntimeError(os.environ['AUXOUT_TEST'], os.getcwd(), sys.executable)")
    assert child.call(Reset()).outcome == Raised(
        "RuntimeError", str(("seen", os.getcwd(), sys.executable)), False
    )


def test_the_profile_reaches_a_factory_that_takes_one(start: Start) -> None:
    text = HEAD + (
        "class Connector(AuxOutputSchedulerConnector):\n"
        "    def __init__(self, profile='none'):\n"
        "        super().__init__()\n"
        "        self.asked = profile\n"
        "    def reset(self):\n"
        "        raise RuntimeError(self.asked)\n"
    )
    child = start(text=text)
    assert child.call(Reset()).outcome == Raised("RuntimeError", "0.32", False)


def test_a_target_may_print_as_much_as_it_likes(start: Start) -> None:
    body = "print('x' * 1_000_000); print('y' * 1_000_000, file=sys.stderr); os.write(1, b'z' * 1_000_000)"
    child = start(body)
    assert [child.call(Reset()).outcome for _ in range(3)] == [None] * 3


def test_foreign_code_runs_in_a_child_and_ours_does_not(start: Start) -> None:
    start()
    child = open_host(Target("foreign:Connector", LoadSpec("factory", "foreign:Connector"), "0.32"))
    assert isinstance(child, Child)
    child.close()
    child.close()
    assert isinstance(open_host(resolve("reference")), InProcess)


# A child that ends.


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os._exit(7)", "exit status 7"),
        ("os._exit(0)", "exit status 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
        ("sys.exit(5)", "exit status 5"),
        ("raise SystemExit", "exit status 0"),
    ],
)
def test_a_crash(start: Start, body: str, how: str) -> None:
    child = start(body)
    said = broken(lambda: child.call(Reset()))
    assert said == f"foreign:Connector crashed during reset ({how})"
    # Whoever goes on hears the same.
    assert broken(lambda: child.call(Reset())) == said
    assert broken(lambda: child.new(Setup("0.32"))) == said


def test_what_a_target_prints_is_kept_while_it_runs_and_after(start: Start) -> None:
    child = start("print('one', file=sys.stderr); print('two')")
    child.call(Reset())
    assert child.said() == "one\ntwo\n"
    # Looking does not move where the process writes.
    child.call(Reset())
    child.close()
    assert child.said() == "one\ntwo\n" * 2
    assert InProcess(resolve("reference")).said() == ""


def test_a_broken_target_brings_what_it_said(start: Start) -> None:
    child = start("print('a trace\\nof some lines', file=sys.stderr); os._exit(1)")
    with pytest.raises(TargetBroken) as caught:
        child.call(Reset())
    assert caught.value.said == "a trace\nof some lines\n"


def test_the_last_words_of_a_crash(start: Start) -> None:
    body = "print('a' * 100_000, file=sys.stderr); print('out of memory', file=sys.stderr); os._exit(1)"
    child = start(body)
    assert broken(lambda: child.call(Reset())) == (
        "foreign:Connector crashed during reset (exit status 1); its last words: out of memory"
    )


def test_a_crash_between_calls(start: Start, started: list[subprocess.Popen[bytes]]) -> None:
    child = start()
    started[0].kill()
    started[0].wait()
    assert broken(lambda: [child.new(Setup("0.32")), child.call(Reset())]).startswith(
        "foreign:Connector crashed"
    )


def test_a_hang(start: Start) -> None:
    child = start(FOR_EVER, call_seconds=0.2)
    said = "foreign:Connector hung: reset took over 0.2 s"
    assert broken(lambda: child.call(Reset())) == said
    assert broken(lambda: child.call(Reset())) == said


def test_a_hang_while_loading(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "LOAD_SECONDS", 0.2)
    said = broken(lambda: start(text=f"import threading\n{FOR_EVER}\n"))
    assert said == "foreign:Connector hung: loading took over 0.2 s"


def test_a_child_that_closes_its_answers(start: Start) -> None:
    child = start(f"os.closerange(3, 64); {FOR_EVER}", call_seconds=0.2)
    assert broken(lambda: child.call(Reset())) == "foreign:Connector closed its answers during reset"


# A child that answers with garbage.


@pytest.mark.parametrize(
    "text",
    [
        b"garbage\n",
        b"\xff\xfe\n",
        b"5\n",
        b"[]\n",
        b"null\n",
        b'"text"\n',
        b"{}\n",
        b'{"result": null}\n',
        b'{"notes": []}\n',
        b'{"notes": 5, "result": null}\n',
        b'{"notes": [], "result": {"generation": 0}}\n',
        b'{"notes": [], "result": {"hashes": ["xy"]}}\n',
        b'{"notes": [], "result": 5}\n',
        b'{"notes": [], "raised": {}}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_garbage(start: Start, text: bytes) -> None:
    child = start(GARBAGE.format(text=text))
    assert broken(lambda: child.call(Reset())) == "foreign:Connector answered reset with something unreadable"


@pytest.mark.parametrize("text", [b"garbage\n", b"5\n"])
def test_garbage_while_loading(start: Start, text: bytes) -> None:
    source = HEAD + GARBAGE.format(text=text) + "\nConnector = AuxOutputSchedulerConnector\n"
    said = broken(lambda: start(text=source))
    assert said == "foreign:Connector answered loading with something unreadable"


# A child that does not load.


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit('bye')\n", "SystemExit: bye"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt: "),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def\n", "SyntaxError: invalid syntax (foreign.py, line 1)"),
        ("x = 1\n", "module foreign has no Connector; the form is module:factory"),
        ("Connector = 1\n", "foreign:Connector is not callable; name a function that returns a connector"),
        (
            "def Connector(): return 5\n",
            "foreign:Connector returned int, which has no build_connector_meta, ",
        ),
        (HEAD + "def Connector(): 1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_target_that_does_not_load(start: Start, text: str, why: str) -> None:
    said = broken(lambda: start(text=text))
    assert said.startswith(f"foreign:Connector does not load: {why}")
    assert "\n" not in said


def test_a_target_that_exits_at_import(start: Start) -> None:
    said = broken(lambda: start(text="import os\nos._exit(4)\n"))
    assert said == "foreign:Connector crashed during loading (exit status 4)"


# In this process.


def test_in_process_needs_a_session() -> None:
    host = InProcess(resolve("reference"))
    with pytest.raises(RuntimeError, match="new"):
        host.call(Reset())
    host.new(Setup("0.32"))
    assert host.call(Reset()) == Observation(None)
    host.close()
    with pytest.raises(RuntimeError, match="new"):
        host.call(Reset())


@pytest.mark.parametrize("where", ["nowhere", "auxout_spec.values"])
def test_in_process_what_does_not_load_is_broken(where: str) -> None:
    target = Target("ours", LoadSpec("module", where), "0.32", foreign=False)
    assert broken(lambda: InProcess(target)).startswith("ours does not load: ")


def test_what_a_target_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "starts_a_process.py").write_text(
        "import subprocess, sys\n"
        "from auxout_reference.connector import AuxOutputSchedulerConnector, PackedBlockHashes\n"
        "started = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(started.pid))\n"
        "def make(): return AuxOutputSchedulerConnector()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    child = Child(resolve("starts_a_process:make"))
    ends = os.pidfd_open(int((tmp_path / "pid").read_text()))
    try:
        child.close()
        assert select.select([ends], [], [], 10)[0] == [ends]
    finally:
        os.close(ends)
