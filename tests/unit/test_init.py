"""``auxout init``: a stub that can be judged at once, and files that are whole."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from auxout_conformance import cli, init
from auxout_conformance.mistakes import UserMistake
from auxout_spec.clauses import CLAUSES

FILES = {"my_connector.py", "test_conformance.py", ".github/workflows/conformance.yml"}


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
        for group in re.findall(r"(?:SCHED|WIRE)-[A-Z]+", text):
            assert any(clause.startswith(group + "-") for clause in CLAUSES)


def test_the_stub_is_judged_a_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    init.start(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["conform", "my_connector:make", "-x", "--suite", "smoke"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("my_connector:make  violation")


def test_the_test_fails_with_what_the_command_line_prints(
    tmp_path: Path, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    init.start(str(tmp_path))
    code = compile((tmp_path / "test_conformance.py").read_text(), "test_conformance.py", "exec")
    module: dict[str, Any] = {}
    exec(code, module)
    monkeypatch.setitem(module, "run", judge.conforming)
    module["test_connector_conforms"]()
    monkeypatch.setitem(module, "run", judge.violating)
    with pytest.raises(pytest.fail.Exception, match=r"\nauxout replay '{") as caught:
        module["test_connector_conforms"]()
    assert not caught.value.pytrace
