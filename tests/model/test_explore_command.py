"""`auxout explore` from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from auxout_conformance import cli, exploring
from auxout_conformance.exploring import Explored
from auxout_spec import scenario
from auxout_spec.explorer import manifest
from auxout_spec.explorer.models import MODELS
from auxout_spec.explorer.search import explore


def test_lists_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in MODELS)
    assert cli.main(["explore", "--profile", "0.31"]) == 0
    assert "start-0 " not in capsys.readouterr().out


def test_explores_models_in_processes_and_prints_the_counterexample(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["explore", "session-0.32", "found-start-beyond-0.31", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "VIOLATION SCHED-TAKE-2 in 3" in out
    start = out.index('{"auxout"')
    played = scenario.load(out[start : out.index("]}", start) + 2])
    assert (played.clause, played.profile, len(played.events)) == ("SCHED-TAKE-2", "0.31", 3)


def test_a_counterexample_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawn = tmp_path / "found.svg"
    assert cli.main(["explore", "found-start-beyond-0.31", "--jobs", "1", "--svg", str(drawn)]) == 0
    out = capsys.readouterr().out
    assert "engine     prompt" in out
    assert "! refused, SCHED-TAKE-2" in out
    root = ElementTree.fromstring(drawn.read_text())
    assert "SCHED-TAKE-2" in "".join(root.itertext())


def test_nothing_to_draw_is_a_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawn = tmp_path / "none.svg"
    assert cli.main(["explore", "session-0.32", "--jobs", "1", "--svg", str(drawn)]) == 2
    assert "no counterexample was found, so there is nothing to draw" in capsys.readouterr().err
    assert not drawn.exists()
    assert cli.main(["explore", "session-0.32", "--svg", str(tmp_path)]) == 2
    assert "it is a directory" in capsys.readouterr().err


def test_a_model_that_is_cut_short_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", "id-again", "--max-states", "5000", "--jobs", "1"]) == 4
    captured = capsys.readouterr()
    assert "CUT, not as expected" in captured.out
    assert "id-again: exploring" in captured.err


def test_processes_end_with_their_parent() -> None:
    command = [sys.executable, "-m", "auxout_conformance.cli", "explore", "nightly-three", "--jobs", "1"]
    explorer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with explorer:
        assert explorer.stderr is not None
        assert b"nightly-three: exploring" in explorer.stderr.read(len("nightly-three: exploring"))
        explorer.kill()
        # Each process has the other end of the pipe, so this returns when the last of them has ended.
        explorer.communicate(timeout=30)


def test_mistakes_are_told_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", "defalt"]) == 2
    assert "default" in capsys.readouterr().err
    assert cli.main(["explore", "default", "--profile", "0.31"]) == 2
    assert "no model is of profile 0.31" in capsys.readouterr().err


def test_chooses_sets() -> None:
    every = exploring.chosen([], every=True, nightly=False, profile=None)
    nightly = exploring.chosen([], every=False, nightly=True, profile=None)
    assert {model.name for model in [*every, *nightly]} == set(MODELS)
    assert not {model.name for model in every} & {model.name for model in nightly}


def test_exit_codes_and_the_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = MODELS["found-start-beyond-0.31"]
    same = Explored(model, explore(model), ())
    cut = Explored(model, same.result._replace(verdict="CUT"), ("verdict",))
    other = same._replace(differences=("states",))
    assert [exploring.exit_code(each) for each in ([], [same], [same, cut], [cut, other])] == [0, 0, 4, 1]
    monkeypatch.setattr(manifest, "FILE", tmp_path / "manifest.json")
    manifest.FILE.write_text('{"gone": {"bounds": "", "verdict": "OK"}}', encoding="utf-8")
    exploring.freeze([same])
    assert set(manifest.load()) == {model.name}
    assert exploring.listing("0.31")[0][2] == ""
