"""``auxout client-check``: several functions, exit codes, and a report that every format shows."""

from __future__ import annotations

import json
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from auxout_conformance import client, report
from auxout_conformance.cli import main
from auxout_conformance.client import Checked, all_cases
from auxout_conformance.client.checking import Result
from auxout_conformance.client.judging import Wrong
from auxout_conformance.render import report_text
from auxout_conformance.reports import FORMATS
from auxout_conformance.verdicts import Verdict

RIGHT = "auxout.client.conversation:play"
FUNCTIONS = '''
from auxout.client.conversation import play


def shifted(conversation):
    """Rows come one place late, and what is more than an array is not offered."""
    if set(conversation.get("result", {})) - {"as"}:
        raise NotImplementedError("arrays only")
    answer = play(conversation)
    if "rows" in answer and len(answer["rows"]) > 1:
        answer["rows"] = answer["rows"][-1:] + answer["rows"][:-1]
    return answer


def nothing(conversation):
    raise NotImplementedError("nothing at all")


def kills(conversation):
    import os
    os._exit(5)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_rows.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_report_of_several_functions_is_read_back_as_it_was(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = [RIGHT, "my_rows:shifted", "my_rows:nothing"]
    assert main(["client-check", *functions, "--report", "clients.jsonl"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[-3:]] == functions
    lines = (folder / "clients.jsonl").read_text().splitlines()
    for line in lines:
        jsonschema.validate(json.loads(line), report.schema())
    right, shifted, nothing = report.load("\n".join(lines))
    assert [each.verdict.value for each in (right, shifted, nothing)] == [
        "conform",
        "violation",
        "incomplete",
    ]
    assert right.num_cases == len(all_cases())
    assert right.wrong_answers == ()
    assert {each.status for each in right.clauses} == {"holds"}
    assert [each.profile for each in (right, shifted, nothing)] == [""] * 3
    assert {each.status for each in nothing.clauses} == {"not judged"}
    assert nothing.num_cases == 0
    assert "not offer" in shifted.notes[0]


def test_a_wrong_answer_says_everything(folder: Path) -> None:
    checked = client.check("my_rows:shifted", client.named(["single-turn", "slot-of-a-shared-expert"]))
    made = checked.report()
    [again] = report.load(report.dump([made], report.header([])))
    assert again == made
    [wrong] = made.wrong_answers
    case = next(case for case in all_cases() if case.name == "single-turn")
    assert (wrong.clause, wrong.case, wrong.story) == (case.clause, case.name, case.story)
    assert wrong.conversation == case.conversation
    assert wrong.replay == "auxout client-check my_rows:shifted --case single-turn"
    assert wrong.expected != wrong.actual
    statuses = {each.clause: (each.status, each.checks) for each in made.clauses}
    assert statuses == {case.clause: ("violated", 1), "CLIENT-DECODE-3": ("holds", 1)}


def test_a_clause_is_violated_if_one_of_its_cases_is() -> None:
    cases = [case for case in all_cases() if case.clause == "CLIENT-DECODE-1"]
    assert len(cases) > 2
    results = [Result(case, "holds") for case in cases]
    results[1] = Result(cases[1], "violated", Wrong("a", "b"))
    results[2] = Result(cases[2], "not offered")
    [clause] = Checked("m:f", Verdict.VIOLATION, tuple(results)).report().clauses
    assert (clause.status, clause.checks) == ("violated", len(cases) - 1)


@pytest.mark.parametrize(
    ("functions", "code"),
    [
        ([RIGHT], 0),
        ([RIGHT, RIGHT], 0),
        (["my_rows:nothing", RIGHT], 4),
        (["my_rows:nothing", "my_rows:absent"], 3),
        (["my_rows:kills", "my_rows:shifted", RIGHT], 1),
        ([RIGHT, "no_function"], 2),
        ([RIGHT, "--report", "no/such/folder/file.jsonl"], 2),
    ],
)
def test_the_most_serious_verdict_is_the_exit_code(
    folder: Path, functions: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["client-check", *functions, "--case", "single-turn"]) == code
    assert (code == 2) == bool(capsys.readouterr().err)


def test_a_function_that_ends_its_process_is_reported(folder: Path) -> None:
    assert main(["client-check", "my_rows:kills", "--report", "clients.jsonl"]) == 3
    [made] = report.load((folder / "clients.jsonl").read_text())
    assert made.verdict is Verdict.BROKEN
    assert "exit status 5" in made.reason
    assert "exit status 5" in report_text(made)


HOSTILE = "<script>alert('x')</script> | `b` \x1b[31m\n&"


@pytest.fixture(scope="module")
def shown() -> report.ReportFile:
    """Two wrong answers, one of them of a function that tries to steer what shows it."""
    first, second, third = all_cases()[:3]
    results = (
        Result(first, "violated", Wrong("place 0: [[1]]", HOSTILE)),
        Result(second, "violated", Wrong("place 1: [[2]]", "place 1: [[3]]")),
        Result(third, "holds"),
    )
    checked = Checked("my_rows:merge", Verdict.VIOLATION, results, seconds=1.5)
    right = Checked(RIGHT, Verdict.CONFORM, (Result(third, "holds"),))
    return report.read(
        report.dump([checked.report(), right.report()], report.header(["auxout", "client-check"]))
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_shows_every_wrong_answer(name: str, shown: report.ReportFile) -> None:
    text = FORMATS[name](shown)
    plain = unescape(text)
    for wrong in shown.reports[0].wrong_answers:
        assert wrong.replay in plain
        assert wrong.story.split(";")[0] in plain.replace("\\", "")
        assert wrong.clause in plain
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert RIGHT in plain


def test_the_page_has_the_conversation_and_no_timeline(shown: report.ReportFile) -> None:
    page = FORMATS["html"](shown)
    HTMLParser().feed(page)
    assert "<figure>" not in page
    assert page.count("<summary>The conversation</summary>") == 2
    for wrong in shown.reports[0].wrong_answers:
        assert json.dumps(wrong.conversation) in unescape(page)
    assert "<dt>story</dt>" in page
    assert "<dt>profile</dt>" not in page


def test_junit_has_a_failure_for_each_violated_clause(shown: report.ReportFile) -> None:
    root = ElementTree.fromstring(FORMATS["junit"](shown))
    assert (root.get("failures"), root.get("errors")) == ("1", "0")
    [failure] = root.iter("failure")
    # Both cases are of one clause.
    assert failure.text is not None
    assert failure.text.count("auxout client-check my_rows:merge --case") == 2
    assert failure.text.count("story  ") == 2


def test_the_terminal_shows_a_report_as_it_was_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["client-check", "my_rows:shifted", "--case", "single-turn", "--report", "clients.jsonl"])
    first = capsys.readouterr().out.splitlines()
    assert main(["report", "clients.jsonl"]) == 0
    again = capsys.readouterr().out.splitlines()
    # The last line has the duration in addition.
    assert again[:-1] == first[:-1]
    for words in ("my_rows:shifted", "violation", "1 case", "1 of 1 clauses violated"):
        assert words in again[-1]
    assert "profile" not in again[-1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_of_a_later_version_may_name_other_clauses(name: str, shown: report.ReportFile) -> None:
    text = report.dump(shown.reports, shown.head).replace(
        shown.reports[0].wrong_answers[0].clause, "CLIENT-NEW-7"
    )
    later = report.read(text)
    assert "CLIENT-NEW-7" in FORMATS[name](later)
    assert "CLIENT-NEW-7" in report_text(later.reports[0])


@pytest.mark.parametrize("field", ["case", "story", "conversation", "expected", "actual", "replay", "clause"])
def test_a_line_that_lacks_something_is_no_report(field: str, shown: report.ReportFile) -> None:
    lines = report.dump(shown.reports, shown.head).splitlines()
    number = next(index for index, line in enumerate(lines) if '"wrong answer"' in line)
    lines[number] = json.dumps({k: v for k, v in json.loads(lines[number]).items() if k != field})
    with pytest.raises(report.MalformedReport, match=f"line {number + 1}: .*{field}"):
        report.read("\n".join(lines))
