"""Verifying patches, on a connector of our own: the reference, in vLLM's folder."""

from __future__ import annotations

import difflib
import json
import shutil
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from auxout_conformance import expect, hosts, leftovers, report, runner, verifying
from auxout_conformance.known_bad import reference_source
from auxout_conformance.targets import PatchError, TargetError, wheels
from auxout_conformance.verifying import Result, Verification, signatures, verifier
from auxout_conformance.verifying.outcome import Outcome

pytestmark = pytest.mark.usefixtures("quick")

NAME = f"{wheels.FOLDER}/connector.py"
PARAMETERS = {
    "__init__": 'self, *, profile: str = "0.32"',
    "request_finished": "self, request",
    "reset": "self",
    "take_output": "self, request, output",
}
ROWS = "rows = super().take_output(request, output); return rows if rows is None else "


def overridden(text: str, **methods: str) -> str:
    """The text of a connector module with methods replaced; ``super()`` has the plain ones."""
    name = "AuxOutputSchedulerConnector"
    plain = f"_Plain{text.count('class _Plain')}"
    text = text.replace(f"class {name}", f"class {plain}") + f"\n\nclass {name}({plain}):\n"
    return text + "".join(
        f"    def {method}({PARAMETERS[method]}):\n        {body}\n" for method, body in methods.items()
    )


@pytest.fixture(scope="module")
def judged() -> dict[str, verifying.Base]:
    """The plain tree's judgement, made by the first test that needs it."""
    return {}


Verify = Callable[..., Verification]


@pytest.fixture
def verify(tree: Path, tmp_path: Path, judged: dict[str, verifying.Base]) -> Verify:
    """Verify the tree with methods replaced, or with its text changed by ``edit``."""

    def verify(edit: Callable[[str], str] | None = None, **methods: str) -> Verification:
        changed = tmp_path / "changed"
        shutil.copytree(tree, changed)
        path = changed / NAME
        text = path.read_text()
        path.write_text(edit(text) if edit else overridden(text, **methods))
        base = verifying.load_base(str(tree), profile="0.32", suite="smoke")
        base.report = judged[text].report if text in judged else None
        done = verifying.verify(str(changed), base)
        judged[text] = base
        shutil.rmtree(changed)
        return done

    return verify


def clauses(done: Verification, outcome: Outcome) -> list[str]:
    return [each.clause for each in done.having(outcome)]


def test_a_change_of_nothing(verify: Verify) -> None:
    done = verify(edit=lambda text: text)
    assert (done.result, done.exit_code, done.base, done.patched) == (Result.CLEAN, 0, None, None)
    assert done.reason == "no file of the connector is changed, so there is nothing to judge"


def test_a_change_that_breaks_nothing(verify: Verify) -> None:
    done = verify(edit=lambda text: text + "\n# a comment\n")
    assert (done.result, done.exit_code) == (Result.CLEAN, 0)
    # What the design of the whole cannot keep is violated with every worker.
    assert {each.outcome for each in done.clauses} == {"kept", "still violated"}
    assert all(each.findings for each in done.having("still violated"))
    assert (done.changes, done.moves, done.reason, done.notes) == ((), (), "", ())
    assert done.base is not None
    assert done.patched is not None
    assert (done.base.suite, done.base.seed) == (done.patched.suite, done.patched.seed)
    assert done.num_scenarios >= 5
    assert (
        str(done)
        .splitlines()[-1]
        .startswith(f"{done.patch} on {done.base_name}  nothing broken  profile 0.32")
    )


def test_a_broken_clause(verify: Verify) -> None:
    done = verify(take_output=ROWS + "rows[:-1]")
    assert (done.result, done.exit_code) == (Result.BROKEN, 1)
    assert clauses(done, "broken") == ["SCHED-TAKE-3"]
    (broken,) = done.having("broken")
    assert broken.violation is not None
    assert len(broken.violation.scenario.events) <= 4
    assert broken.violation.expected == "1 row A[0, 1)"
    assert broken.violation.actual == "0 rows"
    lines = str(done).splitlines()
    assert lines[0] == "broken 1 of 1"
    assert lines[1].startswith("SCHED-TAKE-3  The rows are exactly")
    assert "  broken          SCHED-TAKE-3" in lines


def test_the_replay_command_of_a_diff_works(tree: Path, tmp_path: Path) -> None:
    diff = diff_with(tmp_path, reset="self._generation = 0")
    done = verifying.verify(str(diff), verifying.load_base(str(tree), profile="0.32", suite="smoke"))
    (broken,) = done.having("broken")
    assert broken.clause == "SCHED-RESET-1"
    assert broken.violation is not None
    words = broken.violation.replay
    assert words.endswith(f" {tree} --patch {diff}")
    again = runner.replay(broken.violation.scenario, str(tree), "0.32", patch=str(diff))
    assert again is not None
    assert again.clause == "SCHED-RESET-1"


def diff_with(folder: Path, **methods: str) -> Path:
    """A diff that replaces methods of the reference."""
    text = reference_source()
    new = overridden(text, **methods)
    lines = difflib.unified_diff(
        text.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{NAME}", f"b/{NAME}"
    )
    path = folder / "some.diff"
    path.write_text("".join(lines))
    return path


def test_a_fix_and_what_is_still_violated(tree: Path, tmp_path: Path) -> None:
    """The base is wrong twice; the change mends one."""
    path = tree / NAME
    plain = path.read_text()
    once = overridden(plain, reset="self._generation = 0")
    path.write_text(overridden(once, take_output=ROWS + "rows[:-1]"))
    changed = tmp_path / "changed"
    shutil.copytree(tree, changed)
    (changed / NAME).write_text(once)
    done = verifying.verify(str(changed), verifying.load_base(str(tree), profile="0.32", suite="smoke"))
    assert done.result is Result.CLEAN
    assert clauses(done, "fixed") == ["SCHED-TAKE-3"]
    # A generation that does not move is wrong on the worker's side too.
    still = clauses(done, "still violated")
    assert [clause for clause in still if clause.startswith("SCHED")] == ["SCHED-RESET-1"]
    assert clauses(done, "broken") == []


def test_a_move_to_the_next_profile_and_back(tree: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, profile in ((old, "0.31"), (new, "0.32")):
        shutil.copytree(tree, folder)
        path = folder / NAME
        path.write_text(overridden(path.read_text(), __init__=f"super().__init__(profile={profile!r})"))
    forward = verifying.verify(str(new), verifying.load_base(str(old), profile="0.31", suite="smoke"))
    assert forward.result is Result.CLEAN
    (move,) = forward.moves
    assert (move.profile, move.clauses, move.instead_of) == ("0.32", ("SCHED-EMIT-4",), ("SCHED-EMIT-3",))
    assert (move.base, move.patched) != ("", "")
    assert clauses(forward, "moved") == ["SCHED-EMIT-3"]
    assert "moved           now behaves as profile 0.32 in SCHED-EMIT-4 instead of SCHED-EMIT-3" in str(
        forward
    )
    back = verifying.verify(str(old), verifying.load_base(str(new), profile="0.32", suite="smoke"))
    assert back.result is Result.BROKEN
    assert clauses(back, "broken") == ["SCHED-EMIT-4"]
    assert back.notes == ("SCHED-EMIT-4 broken by behaving as profile 0.31 in SCHED-EMIT-3",)


def test_changes_that_the_protocol_leaves_open(verify: Verify) -> None:
    done = verify(
        take_output=ROWS + "rows.copy()",
        request_finished="try: super().request_finished(request)\n"
        "        except AssertionError as error: raise ValueError(*error.args) from None",
    )
    assert done.result is Result.CLEAN
    assert sorted(change.what for change in done.changes) == [
        "request_finished: refused with ValueError instead of ProtocolViolation",
        "take_output: a copy of the worker's rows instead of a view of the worker's rows",
    ]
    for change in done.changes:
        assert len(change.scenario.events) <= 4
    text = str(done)
    assert "change 1 of 2" in text
    assert "left open       changed: " in text


def test_a_public_signature(verify: Verify) -> None:
    done = verify(edit=lambda text: text.replace("def reset(self)", "def restart(self)"))
    assert (done.result, done.exit_code) == (Result.SIGNATURE, 1)
    assert done.reason == "connector.AuxOutputSchedulerConnector.reset: public object was removed"
    assert (done.patched, done.clauses) == (None, ())


@pytest.mark.parametrize(
    ("head", "result", "why"),
    [
        ("import nowhere", Result.DOES_NOT_LOAD, "No module named 'nowhere'"),
        ("def", Result.DOES_NOT_LOAD, "SyntaxError"),
        ("raise KeyboardInterrupt", Result.DOES_NOT_LOAD, "KeyboardInterrupt"),
        ("import os; os._exit(3)", Result.KILLS, "crashed during loading (exit status 3)"),
        ("import os; os.kill(os.getpid(), 9)", Result.KILLS, "signal 9"),
        ("while True: pass", Result.HANGS, "hung: loading took over 3 s"),
        ("kept = bytearray(1 << 44)", Result.DOES_NOT_LOAD, "MemoryError"),
    ],
)
def test_a_change_that_does_not_load(
    verify: Verify, monkeypatch: pytest.MonkeyPatch, head: str, result: Result, why: str
) -> None:
    if result is Result.HANGS:
        base, plain = set[str](), verifier.open_host

        def open_host(target: Any, **options: Any) -> Any:
            monkeypatch.setattr(hosts, "LOAD_SECONDS", 3.0 if base else 60.0)
            base.add(target.name)
            return plain(target, **options)

        monkeypatch.setattr(verifier, "open_host", open_host)
    done = verify(edit=lambda text: f"{text}\n{head}\n")
    assert (done.result, done.exit_code) == (result, 3)
    assert why in done.reason
    assert "\n" not in done.reason


@pytest.mark.parametrize(
    ("body", "result"), [("os._exit(1)", Result.KILLS), ("os.kill(os.getpid(), 9)", Result.KILLS)]
)
def test_a_change_that_ends_its_process_in_a_call(verify: Verify, body: str, result: Result) -> None:
    done = verify(reset=f"import os; {body}")
    assert (done.result, done.exit_code) == (result, 3)
    assert "crashed during reset" in done.reason


def test_a_change_that_hangs_in_a_call(verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts.Child.__init__, "__defaults__", (False, 2.0))
    done = verify(reset="import threading; threading.Event().wait()")
    assert (done.result, done.exit_code) == (Result.HANGS, 3)
    assert "reset took over 2 s" in done.reason


def test_a_base_that_does_not_load(tree: Path, verify: Verify) -> None:
    path = tree / NAME
    path.write_text(path.read_text() + "\n1 / 0\n")
    done = verify(edit=lambda text: text.replace("1 / 0", ""))
    assert (done.result, done.exit_code) == (Result.BASE_BROKEN, 3)
    assert "ZeroDivisionError" in done.reason


def test_files_that_the_suite_does_not_drive_are_named(tree: Path, tmp_path: Path) -> None:
    (tree / wheels.FOLDER / "routed_experts.py").write_text("x = 1\n")
    (tree / wheels.FOLDER / "worker.py").unlink()
    changed = tmp_path / "changed"
    shutil.copytree(tree, changed)
    (changed / wheels.FOLDER / "routed_experts.py").write_text("x = 2\n")
    done = verifying.verify(str(changed), verifying.load_base(str(tree), profile="0.32", suite="smoke"))
    why = "changed, but not judged, because the worker cannot be loaded here: routed_experts.py"
    assert (done.result, done.exit_code, done.reason) == (Result.INCOMPLETE, 4, why)
    assert done.notes[0] == why


# What no play executed.

RARELY = "if len(self.__dict__) > 10**6:\n            raise MemoryError\n        return super().reset()"


def test_changed_lines_that_no_play_executed(tree: Path, tmp_path: Path) -> None:
    """They are named, and make a verdict without a fault incomplete, unless that is allowed."""
    changed = tmp_path / "changed"
    shutil.copytree(tree, changed)
    text = (changed / NAME).read_text()
    (changed / NAME).write_text(overridden(text, reset=RARELY))
    (place,) = [
        at for at, line in enumerate((changed / NAME).read_text().splitlines(), 1) if "MemoryError" in line
    ]
    base = verifying.load_base(str(tree), profile="0.32", suite="smoke")
    done = verifying.verify(str(changed), base)
    left = f"connector.py:{place}"
    assert (done.result, done.exit_code, done.unplayed) == (Result.INCOMPLETE, 4, (left,))
    assert done.reason == f"no play executed {left}"
    assert f"not played      {left}" in str(done)
    allowed = verifying.verify(str(changed), base, allow_unplayed=True)
    assert (allowed.result, allowed.exit_code, allowed.unplayed, allowed.reason) == (
        Result.CLEAN,
        0,
        (left,),
        "",
    )


# Names.


def test_a_patch_that_is_nothing(tree: Path) -> None:
    base = verifying.load_base(str(tree), profile="0.32")
    with pytest.raises(
        TargetError, match=r"the patch 'nothing.diff' is no file with a diff, and there is no target"
    ):
        verifying.verify("nothing.diff", base)
    with pytest.raises(TargetError, match="a patch is verified on a released"):
        verifying.verify("reference", base)
    with pytest.raises(TargetError, match="a patch is verified on a released"):
        verifying.load_base("impl")


def test_a_diff_that_does_not_apply(tree: Path, tmp_path: Path) -> None:
    diff = tmp_path / "some.diff"
    diff.write_text(f"--- a/{NAME}\n+++ b/{NAME}\n@@ -1 +1 @@\n-nothing like it\n+else\n")
    with pytest.raises(PatchError, match="does not apply to"):
        verifying.verify(str(diff), verifying.load_base(str(tree), profile="0.32"))


# Signatures.


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ("class C:\n    def f(self, a, b=1): ...\n", ()),
        ("class C:\n    def f(self, a: int, b: int = 1) -> str: ...\n    def g(self): ...\n", ()),
        ("class C:\n    def f(self, a, b=1, *, c=2): ...\n", ()),
        ("class C:\n    def f(self, a, c=1): ...\n", ("connector.C.f(b): parameter was removed",)),
        ("class C:\n    def f(self, a): ...\n", ("connector.C.f(b): parameter was removed",)),
        (
            "class C:\n    def f(self, a, b=1, *, c): ...\n",
            ("connector.C.f(c): parameter was added as required",),
        ),
        ("class C:\n    def _f(self): ...\n", ("connector.C.f: public object was removed",)),
        ("def C(): ...\n", ("connector.C: public object points to a different kind of object",)),
        ("class C(:\n", ()),
        (None, ()),
    ],
)
def test_signatures(tmp_path: Path, new: str | None, found: tuple[str, ...]) -> None:
    for name, text in (("base", "class C:\n    def f(self, a, b=1): ...\n"), ("patched", new)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "connector.py").write_text(text)
    assert signatures.breaking_changes(tmp_path / "base", tmp_path / "patched") == found


def test_a_method_that_moved_to_a_base_class_is_still_there(tmp_path: Path) -> None:
    plain = "class C:\n    def f(self, a): ...\n"
    texts = {
        "base/connector.py": plain,
        "relative/connector.py": "from .parts import P\nclass C(P): ...\n",
        "relative/parts.py": plain.replace("C", "P"),
        "absolute/connector.py": "from vllm.distributed.aux_output_connector.parts import P\nclass C(P): ...\n",
        "absolute/parts.py": plain.replace("C", "P"),
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).with_name("__init__.py").touch()
    for name in ("relative", "absolute"):
        assert signatures.breaking_changes(tmp_path / "base", tmp_path / name) == ()


# Expectations and records.


def test_expectations(verify: Verify) -> None:
    done = verify(reset="self._generation = 0")
    meant = expect.load(
        '{"auxout": "expect/1", "profile": "0.32", "expected": [{"clause": "SCHED-RESET-1", "reason": "on purpose"}]}'
    )
    accepted = verifying.apply_expectations(done, meant)
    assert (accepted.result, accepted.exit_code) == (Result.CLEAN, 0)
    assert clauses(accepted, "expected") == ["SCHED-RESET-1"]
    assert accepted.notes == ("expected: SCHED-RESET-1: on purpose",)
    stale = meant._replace(entries=(*meant.entries, expect.Expectation("SCHED-TAKE-3", "not any more")))
    refused = verifying.apply_expectations(done, stale)
    assert (refused.result, refused.exit_code) == (Result.BROKEN, 1)
    assert refused.reason == "stale expectation: SCHED-TAKE-3 is no longer violated; remove this entry"


def test_a_record_is_a_report_with_one_line_more(verify: Verify) -> None:
    done = verify(reset="self._generation = 0")
    text = verifying.dump(done, report.header(["auxout"]))
    assert report.load(text) == [done.base, done.patched]
    schema = json.loads(resources.files("auxout_conformance").joinpath("report.schema.json").read_text())
    for each in text.splitlines():
        jsonschema.validate(json.loads(each), schema)
    line = json.loads(text.splitlines()[-1])
    assert (line["line"], line["result"], line["exit_code"]) == ("verification", "broken", 1)
    (broken,) = [each for each in line["clauses"] if each["outcome"] == "broken"]
    assert broken["clause"] == "SCHED-RESET-1"
    assert broken["violation"]["scenario"]["auxout"] == "scenario/1"


def test_nothing_is_left_behind(verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(leftovers.tempfile, "tempdir", str(scratch))
    for body in ("return super().reset()", "import os; os._exit(1)"):
        verify(reset=body)
    assert list(scratch.iterdir()) == []
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    assert str(tmp_path) not in listed
