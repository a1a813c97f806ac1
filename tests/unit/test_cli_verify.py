"""``auxout verify`` as a user meets it: options, exit codes, and what it makes of input that is no good."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from auxout_conformance import commands
from auxout_conformance.known_bad import reference_source
from auxout_conformance.targets import wheels
from auxout_conformance.verifying.outcome import ClauseOutcome, Result, Verification

pytestmark = pytest.mark.usefixtures("quick")

NAME = f"{wheels.FOLDER}/connector.py"
LAST = reference_source().splitlines()
WHO = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def appended(*lines: str) -> str:
    """A diff that adds lines at the end of the connector."""
    head = f"--- a/{NAME}\n+++ b/{NAME}\n@@ -{len(LAST)},1 +{len(LAST)},{1 + len(lines)} @@\n {LAST[-1]}\n"
    return head + "".join(f"+{line}\n" for line in lines)


def new_file(name: str, mode: str = "100644") -> str:
    return f"diff --git a/{name} b/{name}\nnew file mode {mode}\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x = 1\n"


RESET = "AuxOutputSchedulerConnector.reset = lambda self: {}"
MALFORMED: dict[str, tuple[str | bytes, int, str]] = {
    "not-a-diff": ("hello\n", 2, "is not a unified diff: no file header"),
    "empty": ("", 2, "is empty"),
    "not-text": (b"\x00\xff\xfe", 2, "is not a unified diff: it is not UTF-8 text"),
    "cut-short": (appended("x = 1")[:-8], 2, "is not a unified diff: Hunk is shorter than expected"),
    "wrong-base": (appended("x = 1").replace(LAST[-1], "    something_else()"), 2, "is it the right base?"),
    "missing-file": (appended("x = 1").replace("connector.py", "nothing.py"), 2, "it has no nothing.py"),
    "binary": (
        f"diff --git a/{NAME} b/{NAME}\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n",
        2,
        "as a binary file, which is not applied",
    ),
    "path-escape": (new_file(f"{wheels.FOLDER}/../../../../../escaped.py"), 2, "nothing was applied"),
    "absolute-path": ("--- /dev/null\n+++ /tmp/escaped.py\n@@ -0,0 +1 @@\n+x = 1\n", 2, "nothing was applied"),
    "symlink": (new_file(f"{wheels.FOLDER}/link.py", "120000"), 2, "a link, which is not applied"),
    "submodule": (new_file(f"{wheels.FOLDER}/link.py", "160000"), 2, "a link, which is not applied"),
    "syntax-error": (appended("def"), 3, "does not load: SyntaxError: invalid syntax"),
    "import-error": (appended("import nowhere"), 3, "does not load: ModuleNotFoundError"),
    "huge-allocation": (appended("kept = bytearray(1 << 44)"), 3, "does not load: MemoryError"),
    "deep-recursion": (appended("f = lambda: f()", "f()"), 3, "does not load: RecursionError"),
    "exit-at-import": (appended("import os", "os._exit(9)"), 3, "crashed during loading (exit status 9)"),
    "killed": (appended("import os", RESET.format("os.kill(os.getpid(), 9)")), 3, "crashed during reset (signal 9)"),
    "floods-its-answers": (
        appended("import os", "b = b'x' * (1 << 20)", "while True: os.write(3, b)"), 3, "answered loading without end",
    ),
    "signature": (appended("AuxOutputSchedulerConnector = None"), 1, "public signature changed"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_input(run: Any, tree: Path, scratch: Path, tmp_path: Path, name: str) -> None:
    text, code, why = MALFORMED[name]
    diff = tmp_path / "some.diff"
    diff.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = contents(tmp_path)
    ran = run("verify", diff, "--base", tree, "--profile", "0.32", "--suite", "smoke")
    assert ran.code == code
    told = ran.err if code == 2 else ran.out
    (sentence,) = [line for line in told.splitlines() if why in line]
    assert sentence.startswith("auxout: " if code == 2 else f"{diff} on {tree}  ")
    assert "Traceback" not in ran.out + ran.err
    assert contents(tmp_path) == before
    assert processes(tmp_path) == []


def contents(folder: Path) -> set[str]:
    return {path.as_posix() for path in folder.rglob("*")}


def processes(folder: Path) -> list[str]:
    """Processes that have to do with a folder and do not end by themselves: a killed one needs a moment."""
    command = ["ps", "-eo", "stat,args"]
    deadline = time.monotonic() + 10
    while True:
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        left = [line for line in listed.splitlines() if str(folder) in line and not line.startswith("Z")]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def test_an_endless_loop_at_import(
    run: Any, tree: Path, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auxout_conformance.hosts.LOAD_SECONDS", 5.0)
    diff = tmp_path / "some.diff"
    diff.write_text(appended("while True: pass"))
    ran = run("verify", diff, "--base", tree, "--profile", "0.32", "--suite", "smoke")
    assert ran.code == 3
    assert "  hangs  " in ran.out
    assert "hung: loading took over 5 s" in ran.out
    assert (list(scratch.iterdir()), processes(tmp_path)) == ([], [])


def test_children_of_the_patched_code_end_with_it(
    run: Any, tree: Path, scratch: Path, tmp_path: Path
) -> None:
    diff = tmp_path / "some.diff"
    started = f"[sys.executable, '-c', 'import signal; signal.pause()', {str(tmp_path)!r}]"
    diff.write_text(
        appended("import subprocess, sys", f"kept = [subprocess.Popen({started}) for _ in range(25)]")
    )
    ran = run("verify", diff, "--base", tree, "--profile", "0.32", "--suite", "smoke")
    assert ran.code == 0
    assert (list(scratch.iterdir()), processes(tmp_path)) == ([], [])


def test_no_network_for_the_wheel(
    run: Any, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUXOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    diff = tmp_path / "some.diff"
    diff.write_text(appended("x = 1"))
    ran = run("verify", diff, "--base", "vllm==0.31.0")
    assert ran.code == 2
    (sentence,) = ran.err.splitlines()
    assert sentence.startswith("auxout: pip could not download vllm==0.31.0: ")
    assert list((tmp_path / "cache").iterdir()) == []


FULL = """
import resource, signal, sys
from auxout_conformance import cli
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
sys.exit(cli.main(sys.argv[1:]))
"""


def run_full(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command when no file may grow beyond two kilobytes, which is what a full disk looks like to a writer."""
    return subprocess.run(
        [sys.executable, "-B", "-c", FULL, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        # Not measured under coverage, whose own file is then too large.
        env={
            **os.environ,
            "COVERAGE_PROCESS_CONFIG": "",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **environment,
        },
    )


def test_a_full_disk(tree: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    diff = tmp_path / "some.diff"
    diff.write_text(appended("x = 1"))
    ran = run_full("verify", diff, "--base", tree, "--profile", "0.32", TMPDIR=str(scratch))
    assert ran.returncode == 2
    (sentence,) = ran.stderr.splitlines()
    assert sentence == f"auxout: cannot copy {tree / wheels.FOLDER}: file too large"
    assert list(scratch.iterdir()) == []


def released(folder: Path, compression: int) -> None:
    """A wheel as pip would find it; its connector is larger than what fits on the disk."""
    info = "vllm-0.31.0.dist-info"
    files = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        NAME: "x = 1\n" * 1000,
    }
    folder.mkdir()
    with zipfile.ZipFile(folder / "vllm-0.31.0-py3-none-any.whl", "w", compression) as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.mark.parametrize(
    ("compression", "why"),
    [
        (zipfile.ZIP_STORED, "pip could not download vllm==0.31.0: "),
        (zipfile.ZIP_DEFLATED, "cannot keep vllm==0.31.0 in {cache}: "),
    ],
    ids=["while-pip-fetches", "while-it-is-unpacked"],
)
def test_a_full_disk_in_the_cache(tmp_path: Path, compression: int, why: str) -> None:
    cache, links, scratch = (tmp_path / name for name in ("cache", "links", "scratch"))
    scratch.mkdir()
    released(links, compression)
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": os.devnull}
    environment |= {"AUXOUT_CACHE": str(cache), "TMPDIR": str(scratch)}
    ran = run_full("verify", "x.diff", "--base", "vllm==0.31.0", **environment)
    assert ran.returncode == 2
    (sentence,) = ran.stderr.splitlines()
    assert sentence.startswith("auxout: " + why.format(cache=cache))
    assert "File too large" in sentence
    assert list(cache.iterdir()) == list(scratch.iterdir()) == []


def test_a_cache_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    ran = run_full("verify", "x.diff", "--base", "vllm==0.31.0", AUXOUT_CACHE=str(tmp_path / "cache"))
    assert ran.returncode == 2
    (sentence,) = ran.stderr.splitlines()
    assert "cannot keep vllm==0.31.0 in" in sentence
    assert "set AUXOUT_CACHE to another folder" in sentence


# Options.


class FakeVerifying:
    """Stands in for ``auxout_conformance.verifying``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.result = Result.CLEAN
        monkeypatch.setattr(commands.verifying, "load_base", self.load_base)
        monkeypatch.setattr(commands.verifying, "verify", self.verify)

    def load_base(self, name: str, **options: Any) -> Any:
        self.base, self.options = name, options
        target = SimpleNamespace(profile=options["profile"] or "0.32")
        return SimpleNamespace(target=target, close=lambda: None)

    def verify(
        self, patch: str, base: Any, progress: Callable[..., None], *, allow_unplayed: bool
    ) -> Verification:
        self.calls.append((patch, self.base, self.options))
        outcomes = (ClauseOutcome("SCHED-META-1", "kept"), ClauseOutcome("WIRE-HASH-2", "fixed", ("F32-6",)))
        return Verification(patch, None, None, self.result, self.base, "0.32", outcomes)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeVerifying:
    return FakeVerifying(monkeypatch)


@pytest.mark.parametrize(
    ("words", "patch", "base"),
    [
        (("fix.diff", "--base", "vllm==0.32.0"), "fix.diff", "vllm==0.32.0"),
        (("fix.diff", "--base", "vllm", "--base-rev", "main"), "fix.diff", "vllm@main"),
        (("--base", "vllm", "--base-rev", "A", "--rev", "B"), "vllm@B", "vllm@A"),
        (("--base", "vllm", "--base-rev", "A"), "vllm", "vllm@A"),
        (("--base", "vllm", "--rev", "B"), "vllm@B", "vllm"),
    ],
)
def test_what_is_verified(
    run: Any, fake: FakeVerifying, words: tuple[str, ...], patch: str, base: str
) -> None:
    ran = run("verify", *words, "--suite", "deep", "--seed", "7", "--profile", "0.31")
    assert ran.code == 0
    assert fake.calls == [(patch, base, {"profile": "0.31", "suite": "deep", "seed": 7})]
    assert "  fixed           WIRE-HASH-2 (F32-6)" in ran.out.splitlines()
    assert ran.out.splitlines()[-1].startswith(
        f"{patch} on {base}  nothing broken  profile 0.32  1 of 2 clauses kept"
    )


@pytest.mark.parametrize("result", Result)
def test_exit_codes(run: Any, fake: FakeVerifying, result: Result) -> None:
    fake.result = result
    codes = {Result.CLEAN: 0, Result.BROKEN: 1, Result.SIGNATURE: 1, Result.INCOMPLETE: 4}
    assert run("verify", "fix.diff", "--base", "vllm").code == codes.get(result, 3)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--base", "vllm"), "name a patch, or revisions of the base with --base-rev and --rev"),
        (("fix.diff", "--base", "vllm", "--rev", "B"), "give a patch or --rev, not both"),
        (("fix.diff",), "the following arguments are required: --base"),
        (("fix.diff", "--base", "vllm", "--profile", "9"), "there is no profile '9'"),
        (
            ("fix.diff", "--base", "vllm", "--expect", "nowhere.json"),
            "cannot read expectation file 'nowhere.json'",
        ),
        (("fix.diff", "--base", "vllm", "--report", "no/such/folder"), "cannot write report"),
    ],
)
def test_mistakes(run: Any, fake: FakeVerifying, words: tuple[str, ...], why: str) -> None:
    ran = run("verify", *words)
    assert ran.code == 2
    assert why in ran.err
    assert fake.calls == []


def test_a_base_or_a_patch_that_is_nothing(run: Any, tree: Path) -> None:
    assert "there is no target 'nothing'" in run("verify", "fix.diff", "--base", "nothing").err
    ran = run("verify", "nothing.diff", "--base", tree, "--profile", "0.32")
    assert ran.code == 2
    assert "auxout: the patch 'nothing.diff' is no file with a diff" in ran.err
    assert "add --profile" in run("verify", "nothing.diff", "--base", tree).err


def git(folder: Path, *words: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *WHO, *words], cwd=folder, check=True, env=environment, capture_output=True)


def test_revisions_expectations_and_report(run: Any, tree: Path, scratch: Path, tmp_path: Path) -> None:
    """From a checkout with a change that is not committed: what it breaks, noted, then expected."""
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "one")
    git(tree, "tag", "v0.32.0")
    (tree / NAME).write_text((tree / NAME).read_text() + RESET.format("None") + "\n")
    words = ("verify", "--base", tree, "--base-rev", "HEAD", "--suite", "smoke")
    expected, written = tmp_path / "expect.json", tmp_path / "report.jsonl"
    ran = run(*words, "--write-expect", expected)
    assert ran.code == 1
    assert f"wrote {expected}: " in ran.err
    broken = [entry["clause"] for entry in json.loads(expected.read_text())["expected"]]
    assert "SCHED-RESET-1" in broken
    expected.write_text(expected.read_text().replace("TODO: say why", "a generation is not wanted here"))
    ran = run(*words, "--expect", expected, "--report", written)
    assert ran.code == 0
    assert f"  expected        {', '.join(broken)}" in ran.out.splitlines()
    line = json.loads(written.read_text().splitlines()[-1])
    assert (line["line"], line["base"], line["exit_code"]) == ("verification", f"{tree}@HEAD", 0)
    git(tree, "commit", "-qam", "two")
    assert run(*words, "--rev", "HEAD~1").code == 0
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(run: Any, shell: str, tmp_path: Path) -> None:
    ran = run("completion", shell)
    assert ran.code == 0
    assert "--base-rev" in ran.out
    if shutil.which(shell):
        script = tmp_path / "completion"
        script.write_text(ran.out)
        subprocess.run([shell, "-n", script], check=True)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes(run: Any, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(run("completion", "bash").out)
    ask = (
        f"source {script}; COMP_WORDS=(auxout ver); COMP_CWORD=1; COMP_LINE='auxout ver'; COMP_POINT=10; "
        "$(complete -p auxout | sed 's/.*-F \\([^ ]*\\).*/\\1/') auxout ver auxout; echo ${COMPREPLY[@]}"
    )
    said = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["verify"]
