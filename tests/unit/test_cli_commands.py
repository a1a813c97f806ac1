"""The other commands, mistakes on the command line, and what surrounds every command."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from auxout_conformance import commands, replaying
from auxout_conformance.hosts import TargetBroken
from auxout_conformance.known import findings_of
from auxout_conformance.targets import Target
from auxout_conformance.targets.loading import LoadSpec
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import CLAUSES
from auxout_spec.engine.guards import GUARDS

SCENARIO = (
    '{"auxout": "scenario/1", "profile": "0.32", "events": [{"add": "A", "prompt": 4}, {"launch": {"A": 4}}]}'
)


def test_a_table_is_folded_on_a_terminal_only(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("clauses").out.splitlines()
    assert len(plain) == 1 + len(CLAUSES) + len(GUARDS)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    assert len(run("clauses").out.splitlines()) > len(plain)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["conform", "nope"], "there is no target 'nope'"),
        (["conform", "refrence"], "did you mean reference?"),
        (["conform", "reference", "nope"], "there is no target 'nope'"),
        (["conform", "reference", "--profile", "0.3"], "the profiles are 0.31, 0.32"),
        (["conform", "reference", "--suite", "fast"], "invalid choice: 'fast'"),
        (["conform", "reference", "--seed", "x"], "invalid int value: 'x'"),
        (["conform"], "the following arguments are required: T; see `auxout conform --help`"),
        (["conform", "reference", "--report", "."], "is a directory"),
        (["conform", "reference", "--report", "no/such/place"], "there is no such file or directory"),
        (["conform", "reference", "--expect", "absent.json"], "absent.json': there is no such file"),
        (["conform", "reference", "impl", "--write-expect", "x"], "one target; judge the targets one by one"),
        (["conform", "reference", "-x", "--write-expect", "x"], "leave out -x"),
        (["conform", "reference", "--write-expect", "no/place"], "there is no such file or directory"),
        (["confrom", "reference"], "invalid choice: 'confrom'"),
        (["replay", "absent.json", "reference"], "cannot read scenario 'absent.json'"),
        (["replay", "{", "reference"], "on the command line) cannot be read: not JSON"),
        (["replay", "{}", "reference"], 'expected "auxout": "scenario/1"'),
        (["replay", SCENARIO, "nope"], "there is no target 'nope'"),
        (
            ["replay", SCENARIO.replace('"A": 4', '"A": 5'), "reference"],
            "event 2 of the scenario cannot happen",
        ),
        (["replay", SCENARIO.replace("0.32", "9"), "reference"], "unknown profile '9'"),
        (["clauses", "SCHED-MET-1"], "did you mean SCHED-META-1"),
        (["clauses", "xyz"], "`auxout clauses` lists them"),
        (["clauses", "SCHED-EMIT-3", "--profile", "0.32"], "SCHED-EMIT-3 is no clause of profile 0.32"),
        (["clauses", "--profile", "1"], "there is no profile '1'"),
    ],
)
def test_a_mistake_is_one_sentence(
    run: Any, judge: Any, words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert said in ran.err
    assert ran.err.startswith("auxout: ")
    assert len(ran.err.splitlines()) == 1
    assert judge.calls == []


def test_replay_says_for_each_target_what_happened(run: Any, judge: Any) -> None:
    judge.replays["impl"] = judge.violation("impl")
    ran = run("replay", judge.inline, "reference", "impl")
    assert ran.code == 1
    assert f"{judge.clause}  {CLAUSES[judge.clause].sentence}" in ran.out
    assert ran.out.splitlines()[-2:] == [
        "reference  conform    profile 0.32  every answer is right",
        f"impl       violation  profile 0.32  {judge.clause}",
    ]
    assert [call["profile"] for call in judge.calls] == ["0.32", "0.32"]


def test_replay_reads_a_file_and_standard_input(
    run: Any, judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(scenarios.dump(judge.scenario))
    assert run("replay", path, "reference").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(judge.inline))
    assert run("replay", "-", "reference").code == 0
    assert [call["scenario"] for call in judge.calls] == [judge.scenario, judge.scenario]


def test_the_profile_of_a_replay(run: Any, judge: Any) -> None:
    older = scenarios.dump(judge.scenario._replace(profile="0.31"), indent=False)
    either = scenarios.dump(judge.scenario._replace(profile=""), indent=False)
    run("replay", older, "reference")
    run("replay", older, "reference", "--profile", "0.32")
    run("replay", either, "reference")
    assert [call["profile"] for call in judge.calls] == ["0.31", "0.32", "0.32"]


def test_replay_draws_the_timeline(run: Any, judge: Any, tmp_path: Path) -> None:
    drawn = tmp_path / "timeline.svg"
    right = run("replay", judge.inline, "reference", "--svg", drawn)
    assert right.code == 0
    assert "engine     prompt 4" in right.out
    assert "✗" not in right.out
    assert judge.clause not in drawn.read_text()
    judge.replays["impl"] = judge.violation("impl")
    wrong = run("replay", judge.inline, "reference", "impl", "--svg", drawn)
    assert wrong.out.count("✗ build_connector_meta()") == 1
    assert judge.clause in drawn.read_text()
    assert run("replay", judge.inline, "reference", "--svg", tmp_path).code == 2


def test_a_violation_is_drawn_where_it_fits(run: Any, judge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    judge.reports["impl"] = judge.violating("impl")
    assert "✗ build_connector_meta()" in run("conform", "impl").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    assert "✗" not in run("conform", "impl").out


def test_replay_on_a_broken_target(run: Any, judge: Any) -> None:
    judge.replays["impl"] = TargetBroken("impl crashed during reset (signal 11)")
    ran = run("replay", judge.inline, "impl")
    assert ran.code == 3
    assert ran.out == "impl  target broken  profile 0.32  impl crashed during reset (signal 11)\n"


def test_replay_shows_what_the_target_wrote(run: Any, judge: Any) -> None:
    judge.said = "debug 1\n\x1b[2Jdebug 2\n"
    lines = run("replay", judge.inline, "impl").out.splitlines()
    assert lines[:4] == ["  stderr    of impl:", "            debug 1", "            \\x1b[2Jdebug 2", ""]
    judge.said = ""
    judge.replays["impl"] = TargetBroken("impl crashed", said="Traceback\nValueError: x")
    out = run("replay", judge.inline, "impl").out
    assert "            ValueError: x\n" in out


def test_replay_with_known_findings_names_those_it_accepted(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The known findings of a release are accepted, which is not the same as right."""

    released = Target("vllm==0.31.0", LoadSpec("module", "auxout_reference"), "0.31", release="0.31.0")
    monkeypatch.setattr(replaying.runner, "replay", lambda *_, **__: None)
    monkeypatch.setattr(replaying.runner, "known_in", lambda *_, **__: findings_of("0.31.0")[:2])
    monkeypatch.setattr(commands, "resolve", lambda name, profile: released)
    ran = run("replay", "--known", "F31-1", "vllm==0.31.0")
    assert ran.code == 0
    named = ", ".join(finding.id for finding in findings_of("0.31.0")[:2])
    assert ran.out.rstrip().endswith(f"every answer is right but for known findings: {named}")


@pytest.mark.parametrize(
    ("given", "how"),
    [
        ("F31-15", (True, False)),  # in the whole design: each part answers as a release does
        ("f32-8", (False, True)),  # about refusals that are assert statements
        ("F31-14", (False, True)),
        ("F31-1", (False, False)),
        ("sched-term-1-1", (False, False)),
        ("{}", (False, False)),
    ],
)
def test_a_finding_is_replayed_as_its_page_says(given: str, how: tuple[bool, bool]) -> None:
    plain = replaying.How(known=False, optimized=False)
    assert replaying.how_to_show(given, plain) == how
    assert replaying.how_to_show(given, replaying.How(known=True, optimized=True)) == (True, True)


@pytest.mark.parametrize("command", ["smoke", "conform", "replay", "clauses", "targets", "init"])
def test_every_command_explains_itself_with_examples(run: Any, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"\n  auxout {command}" in ran.out
    assert command in run("--help").out


def test_without_words_the_help_is_a_usage_error(run: Any) -> None:
    ran = run()
    assert ran.code == 2
    assert "auxout conform" in ran.err


def test_version(run: Any) -> None:
    ran = run("--version")
    assert ran.code == 0
    assert ran.out.startswith("auxout ")


def test_clauses_of_a_profile_and_of_a_group(run: Any) -> None:
    out = run("clauses", "--profile", "0.31").out
    assert "SCHED-EMIT-3" in out
    assert "SCHED-EMIT-4" not in out
    group = run("clauses", "wire").out.splitlines()[1:]
    assert group
    assert all(line.startswith("WIRE-") for line in group)


def test_one_clause_in_full(run: Any) -> None:
    out = run("clauses", "sched-term-1").out
    clause = CLAUSES["SCHED-TERM-1"]
    assert out.startswith(f"{clause.id}  {clause.sentence}\n")
    for text in (clause.level, clause.source, ", ".join(clause.profiles), "cases"):
        assert text in out


def test_what_the_engine_model_holds_an_engine_to(run: Any) -> None:
    group = run("clauses", "env").out.splitlines()[1:]
    assert [line.split()[0] for line in group] == list(GUARDS)
    out = run("clauses", "env-launch-1").out
    guard = GUARDS["ENV-LAUNCH-1"]
    assert out.startswith(f"{guard.id}  {guard.sentence}\n")
    assert guard.source in out


def test_targets_are_listed(run: Any) -> None:
    lines = run("targets").out.splitlines()
    assert lines[0].startswith("reference ")
    assert any(line.startswith("module:factory ") for line in lines)


def test_a_missing_dependency_is_named() -> None:
    done = python(
        "import sys; sys.modules['rich'] = None; from auxout_conformance import cli; cli.main(['targets'])"
    )
    assert done.stderr.startswith("auxout: the command line needs rich, which is not installed: pip install")


def test_a_reader_that_goes_away() -> None:
    code = "import os, sys; from auxout_conformance import cli; sys.exit(cli.main(['clauses']))"
    read, write = os.pipe()
    os.close(read)
    try:
        done = python(code, stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def python(code: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True, env=env, check=False
    )
