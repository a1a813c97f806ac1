"""The documentation: every command shown is run, generated parts are what the code says, the site builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from auxout import AuxOutputSchedulerConnector
from auxout_conformance.known import findings_of
from auxout_conformance.targets.adapter import Offer
from auxout_spec.clauses import in_profile

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (?P<how>file|printed|tested by|tested with): (?P<what>[^>]+) -->\n)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)```",
    re.DOTALL,
)
EXIT_CODE = re.compile(r"\s+#.*\bexit code (\d).*$")
LANGUAGES = {"sh", "python", "json", "text"}
STAND_INS = {
    "a checkout": f"""set -e
folder=path/to/vllm/vllm/distributed/aux_output_connector
mkdir -p $folder
cp {ROOT}/reference/auxout_reference/*.py $folder
git -C path/to/vllm init -q -b main
git -C path/to/vllm config user.name n && git -C path/to/vllm config user.email e@example.org
git -C path/to/vllm add -A && git -C path/to/vllm commit -qm base
git -C path/to/vllm checkout -q -b change
echo '# a remark' >> $folder/connector.py
git -C path/to/vllm commit -qam change
set +e"""
}
"""What a page takes for granted, made before its first block that says so."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    how: str
    """``file``: it is the content of a file; ``tested by``: a file of the repository runs it; ``tested with``: it is
    run with a stand-in; ``printed``: one of the commands prints it, ``...`` standing for anything."""
    what: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = re.sub(r"```\{.*?```\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = BLOCK.finditer(text)
    return [Block(m["language"], m["text"], m["how"] or "", m["what"] or "") for m in found]


def commands(block: Block) -> list[str]:
    """The commands of a block; a line that ends in a backslash goes on."""
    text = block.text.replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def script(page: Path) -> list[str]:
    """What a reader of the page types, as lines of bash; each command must end with the exit code that it says."""
    lines: list[str] = []
    for number, block in enumerate(blocks(page)):
        if block.how == "file":
            mark = f"END_OF_FILE_{number}"
            lines += [f"cat > {block.what} << '{mark}'", block.text + mark]
        elif block.language == "sh" and block.how != "tested by":
            if block.what in STAND_INS and STAND_INS[block.what] not in lines:
                lines.append(STAND_INS[block.what])
            for command in commands(block):
                said = EXIT_CODE.search(command)
                code = int(said[1]) if said else 0
                plain = EXIT_CODE.sub("", command)
                lines += [plain, f"code=$?; [ $code -eq {code} ] || {{ echo 'exit code' $code; exit 99; }}"]
    return lines


def environment(tmp_path: Path) -> dict[str, str]:
    """Where ``auxout`` and ``python`` are those of this run, and nothing is fetched."""
    bin_path = tmp_path / "bin"
    bin_path.mkdir()
    for name, words in (
        ("auxout", f"{sys.executable} -m auxout_conformance.cli"),
        ("python", sys.executable),
    ):
        command = bin_path / name
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o755)
    roots = os.pathsep.join(str(ROOT / root) for root in ("spec", "reference", "impl", "tests"))
    found = {**os.environ, "PYTHONPATH": roots, "PATH": f"{bin_path}{os.pathsep}{os.environ['PATH']}"}
    return found | {
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "hypothesis"),
        "XDG_CACHE_HOME": str(tmp_path),
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if script(page)], ids=lambda page: page.name)
def test_every_command_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash"],
        input="\n".join(script(page)) + "\n",
        cwd=work,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    for block in blocks(page):
        if block.how == "printed":
            pattern = "".join(f"{re.escape(line)}[^\n]*\n" for line in block.text.splitlines())
            assert re.search(pattern.replace(re.escape("..."), "[^\n]*"), done.stdout), block.text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_run_here_is_run_elsewhere(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"a block of {block.language!r}"
        if block.how == "tested by":
            text = (ROOT / block.what).read_text(encoding="utf-8")
            for command in commands(block):
                plain = EXIT_CODE.sub("", command).split("#")[0]
                words = set(re.findall(r"[A-Za-z_]+", plain)) - {"export"}
                assert all(word in text for word in words), f"{block.what} does not run {command!r}"


def test_the_connector_is_imported_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (each for each in blocks(ROOT / "docs" / "import.md") if each.how == "tested with")
    names = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.core.sched.scheduler")
    parent = None
    for name in names:
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], module)
        parent = module
    assert f"import {names[-1]} as" in block.text
    exec(compile(block.text, "import.md", "exec"), {})
    assert parent is not None
    assert parent.AuxOutputSchedulerConnector is AuxOutputSchedulerConnector


def test_generated_parts_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import generate; print([str(path) for path, _ in generate.stale()])"],
        cwd=ROOT / "docs",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*map(os.path.abspath, sys.path)]))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]", "run `make docs`"


def test_the_first_page_counts_the_clauses_and_names_the_findings() -> None:
    """What ``make conform`` ends with, as README shows it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    judged = in_profile("0.32", Offer(scheduler=True, worker=True).components)
    assert set(re.findall(r"profile 0\.32  (\d+) clauses", text)) == {str(len(judged))}
    (named,) = re.findall(r"conforms except known findings ((?:F31-\d+, )+)\.\.\.", text)
    ids = [finding.id for finding in findings_of("0.31.0")]
    assert named.rstrip(", ").split(", ") == ids[:3]


def test_every_field_of_an_event_is_explained() -> None:
    text = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert not [row for row in rows if not row[-1].strip(" |")]


def test_every_page_is_in_the_contents() -> None:
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("{toctree}")[2].split()
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages == set(contents) & pages


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="needs the extra docs")
    pytest.importorskip("myst_parser", reason="needs the extra docs")
    pytest.importorskip("furo", reason="needs the extra docs")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tutorial.html").exists()
