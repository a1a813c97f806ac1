"""``auxout init``: a stub that can be judged at once, and files that are whole."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from auxout import WorkerCore
from auxout_conformance import cli, init
from auxout_conformance.mistakes import UserMistake
from auxout_spec.clauses import CLAUSES

FILES = {"my_connector.py", "my_worker.py", "test_conformance.py", ".github/workflows/conformance.yml"}


def written(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_writes_its_files_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "port"
    assert cli.main(["init", str(folder)]) == 0
    assert written(folder) == FILES
    out = capsys.readouterr().out
    assert "wrote my_connector.py" in out
    assert f"cd {folder} && auxout smoke my_connector:make" in out


@pytest.mark.parametrize("name", sorted(FILES))
def test_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    there = tmp_path / name
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert f"has {name} already; nothing was written" in capsys.readouterr().err
    assert written(tmp_path) == {name}
    assert there.read_text() == "mine"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserMistake, match="cannot write to"):
        init.start(str(tmp_path / "file"))
    with pytest.raises(UserMistake, match="cannot write to"):
        init.start(str(tmp_path / "file" / "below"))


def test_what_is_written_is_well_formed(tmp_path: Path) -> None:
    init.start(str(tmp_path))
    for name in FILES:
        text = (tmp_path / name).read_text()
        if name.endswith(".py"):
            compile(ast.parse(text), name, "exec")
        assert "\t" not in text
        assert text.endswith("\n")
        assert max(map(len, text.splitlines())) <= 110
        for group in re.findall(r"(?:SCHED|WIRE|WORK|STORE)-[A-Z]+", text):
            assert any(clause.startswith(group + "-") for clause in CLAUSES)


@pytest.mark.parametrize("target", ["my_connector:make", "my_worker:make"])
def test_a_stub_is_judged_a_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    init.start(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["conform", target, "-x", "--suite", "smoke"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{target}  violation")


def test_the_worker_s_stub_has_the_methods_of_a_worker(tmp_path: Path) -> None:
    """What it takes and returns is what ours does, so that a port can be put in its place."""
    init.start(str(tmp_path))
    stub = runpy.run_path(str(tmp_path / "my_worker.py"))["make"]
    for method in ("begin_step", "prepare_output", "process_output", "close"):
        ours = inspect.signature(getattr(WorkerCore, method)).parameters
        assert list(inspect.signature(getattr(stub, method)).parameters) == list(ours)
    given = set(inspect.signature(stub).parameters)
    assert given <= set(inspect.signature(WorkerCore).parameters)
    assert given == {"block_size", "shape_per_token", "dtype", "max_objects", "max_num_seqs", "max_in_flight"}


def test_the_test_fails_with_what_the_command_line_prints(
    tmp_path: Path, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    init.start(str(tmp_path))
    code = compile((tmp_path / "test_conformance.py").read_text(), "test_conformance.py", "exec")
    module: dict[str, Any] = {}
    exec(code, module)
    monkeypatch.setitem(module, "run", judge.conforming)
    module["test_it_conforms"]("my_connector:make")
    monkeypatch.setitem(module, "run", judge.violating)
    with pytest.raises(pytest.fail.Exception, match=r"\nauxout replay '{") as caught:
        module["test_it_conforms"]("my_connector:make")
    assert not caught.value.pytrace
