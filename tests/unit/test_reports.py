"""Markdown, JUnit XML and the HTML page, made from one report file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from auxout_conformance import report
from auxout_conformance.report import ReportFile
from auxout_conformance.reports import FORMATS
from auxout_conformance.reports.document import document
from auxout_conformance.reports.markdown import MAX_LETTERS
from auxout_conformance.timeline import picture
from auxout_conformance.verdicts import ClauseResult, Report, Verdict, Violation
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import CLAUSES
from auxout_spec.engine import Abort, Add, Launch
from auxout_spec.scenario import Scenario

SCENARIO = Scenario((Add("A", 4), Launch((("A", 4),)), Abort("A"), Launch()), profile="0.32")
EXPECTED = "generation 0, requests {}, block_hashes {}, finished_requests [A]"
ACTUAL = "generation 0, requests {}, block_hashes {}, finished_requests []"
NASTY = '<img src=x onerror=alert(1)> | `code` & "quotes" \' ]]> \x1b[31m \x00 *bold* \ud800'
HEAD = {
    "line": "header", "auxout": "report/1", "tool": "auxout 0.1.0", "python": "3.11.7", "platform": "linux x86_64",
    "argv": ["auxout", "conform", "x:make"], "time": "2026-01-02T03:04:05+00:00",
}  # fmt: skip


def violation(**changes: Any) -> Violation:
    inline = scenarios.dump(SCENARIO, indent=False)
    made = Violation(
        "SCHED-TERM-1", SCENARIO, 4, "build_connector_meta({})", EXPECTED, ACTUAL, "case sched-term-1-1", None,
        f"auxout replay '{inline}' x:make", 9,
    )  # fmt: skip
    return replace(made, **changes)


def judged(*violations: Violation, **changes: Any) -> Report:
    broken = {each.clause for each in violations}
    results = (
        ClauseResult("SCHED-META-1", "holds", 2),
        ClauseResult("SCHED-RESTART-2", "known", 1, ("F31-1",)),
        ClauseResult("SCHED-META-6", "not judged", 1),
        *(ClauseResult(clause, "violated", 3) for clause in sorted(broken)),
    )
    made = Report(
        "x:make", "x 1.0", "0.32", "default", None, Verdict.VIOLATION if violations else Verdict.CONFORM, results,
        violations, num_cases=40, num_scenarios=300, num_calls=12345, seconds=3.25, notes=("a note",),
    )  # fmt: skip
    return replace(made, **changes)


def file_of(*reports: Report, verification: dict[str, Any] | None = None) -> ReportFile:
    """As it reads after it was written."""
    text = report.dump(reports, HEAD)
    if verification is not None:
        text += json.dumps(verification) + "\n"
    return report.read(text)


ONE = file_of(judged(violation()))
VERIFICATION = {
    "line": "verification", "patch": "fix.diff", "base": "vllm==0.31.0", "profile": "0.31", "result": "broken",
    "exit_code": 1, "reason": "", "replay": "", "num_scenarios": 150, "seconds": 9.0, "notes": ["another note"],
    "clauses": [
        {"clause": "SCHED-META-1", "outcome": "kept", "findings": [], "violation": None},
        {"clause": "SCHED-RESTART-2", "outcome": "fixed", "findings": ["F31-1"], "violation": None},
        {
            "clause": "SCHED-TERM-1", "outcome": "broken", "findings": [],
            "violation": {
                "event": 4, "call": "build_connector_meta({})", "expected": EXPECTED, "actual": ACTUAL,
                "found_by": "comparison", "seed": None, "replay": "auxout replay X",
                "scenario": json.loads(scenarios.dump(SCENARIO)),
            },
        },
    ],
    "moves": [
        {
            "profile": "0.32", "clauses": ["SCHED-EMIT-4"], "instead_of": ["SCHED-EMIT-3"],
            "call": "build_connector_meta({})", "base": EXPECTED, "patched": ACTUAL,
            "scenario": json.loads(scenarios.dump(SCENARIO)),
        }
    ],
    "changes": [
        {
            "what": "reset: another answer", "event": 1, "call": "reset()", "base": "None", "patched": "1",
            "scenario": json.loads(scenarios.dump(SCENARIO)),
        }
    ],
}  # fmt: skip
PATCHED = file_of(judged(), judged(violation()), verification=VERIFICATION)


class Page(HTMLParser):
    """Tags and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_everything(name: str) -> None:
    text = FORMATS[name](ONE)
    shown = Page(text).text if name != "markdown" else text.replace("\\", "")
    for words in ("SCHED-TERM-1", "x:make", "0.32", "fixed scenarios", "shrunk from 9 events"):
        assert words in shown or words in text
    assert CLAUSES["SCHED-TERM-1"].sentence in text.replace("\\", "")
    assert violation().replay in shown
    assert "finished_requests [A]" in shown.replace("&#124;", "|")
    if name != "junit":
        assert "a note" in text


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_target_says_stays_text(name: str) -> None:
    bad = violation(expected=NASTY, actual=NASTY, call=NASTY, found_by=NASTY, replay=NASTY)
    text = FORMATS[name](ReportFile(HEAD, [judged(bad, target=NASTY, reason=NASTY, notes=(NASTY,))], None))
    text.encode()
    assert "<img" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert "\x1b" not in text
    assert "\x00" not in text
    if name == "junit":
        ElementTree.fromstring(text)
    if name == "html":
        assert not [tag for tag, _ in Page(text).tags if tag == "img"]


def test_markdown_is_short_above_and_folded_below() -> None:
    text = FORMATS["markdown"](ONE)
    lines = text.splitlines()
    assert lines[0].startswith("| target | verdict |")
    assert "❌ violation" in lines[2]
    assert "1 violated, 1 known, 1 not judged, 1 hold" in lines[2]
    assert text.count("<details") == text.count("</details>") == 2
    assert "```text\n           1 add A" in text


def test_markdown_of_several_targets_names_them() -> None:
    other = judged(
        target="y:make", verdict=Verdict.BROKEN, reason="y:make crashed", replay="auxout replay Y y:make"
    )
    text = FORMATS["markdown"](file_of(judged(violation()), other))
    assert "## x:make" in text
    assert "⚠️ target broken" in text
    assert "**y:make**: y:make crashed" in text
    assert "```sh\nauxout replay Y y:make\n```" in text


def test_markdown_fits_a_comment() -> None:
    many = [violation(clause=clause) for clause in list(CLAUSES)[:60]]
    text = FORMATS["markdown"](ReportFile(HEAD, [judged(*many)], None))
    assert len(text) <= MAX_LETTERS
    assert text.count("auxout replay") == 60
    assert "Timeline" not in text
    huge = [violation(clause=clause, actual="x" * 3000) for clause in list(CLAUSES)[:60]]
    cut = FORMATS["markdown"](ReportFile(HEAD, [judged(*huge)], None))
    assert len(cut) <= MAX_LETTERS + 10
    assert cut.endswith("…\n")


def test_backticks_do_not_end_a_block() -> None:
    text = FORMATS["markdown"](ReportFile(HEAD, [judged(violation(replay="a ``` b"))], None))
    assert "````sh\na ``` b\n````" in text


def test_junit_has_a_case_for_each_clause() -> None:
    announced = replace(judged(violation()), expected=("SCHED-TERM-1",), verdict=Verdict.CONFORM)
    broken = judged(verdict=Verdict.BROKEN, reason="it crashed", replay="auxout replay X")
    root = ElementTree.fromstring(FORMATS["junit"](file_of(judged(violation()), announced, broken)))
    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["12", "1", "1", "7"]
    first, second, third = root
    assert first.get("name") == "x:make"
    assert first.get("timestamp") == HEAD["time"]
    assert {each.get("name"): each.get("value") for each in first.iter("property")}["profile"] == "0.32"
    (failure,) = first.iter("failure")
    assert failure.get("type") == "MUST"
    assert failure.text is not None
    assert failure.text.endswith(violation().replay)
    assert not list(second.iter("failure"))
    (error,) = third.iter("error")
    assert (error.get("message"), error.text) == ("it crashed", "auxout replay X")
    skipped = [each.get("message") for each in first.iter("skipped")]
    assert skipped == ["known finding F31-1", "not judged"]


def test_junit_keeps_a_violation_without_a_clause_line() -> None:
    partial = replace(judged(violation()), clauses=())
    root = ElementTree.fromstring(FORMATS["junit"](file_of(partial)))
    assert root.get("failures") == "1"


def test_a_stale_finding_is_an_error_in_junit() -> None:
    stale = judged(verdict=Verdict.VIOLATION, reason="known finding F31-1 no longer occurs")
    root = ElementTree.fromstring(FORMATS["junit"](file_of(stale)))
    assert root.get("errors") == "1"


def test_the_page_loads_nothing() -> None:
    text = FORMATS["html"](PATCHED)
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "object", "embed")]
    assert not [
        a for _, attributes in page.tags for a in attributes if a in ("src", "srcset", "onclick", "style")
    ]
    assert re.sub(r'xmlns="http://www.w3.org/2000/svg"', "", text).count("://") == 0
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_page_is_in_order_for_those_who_hear_it() -> None:
    page = Page(FORMATS["html"](PATCHED))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    named = [word for _, a in page.tags for word in (a.get("aria-labelledby") or "").split()]
    assert set(named) <= set(ids)
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert all(link and link[1:] in ids for link in links)
    assert dict(page.tags)["html"] == {"lang": "en"}
    assert all(a.get("scope") for tag, a in page.tags if tag == "th")


def test_the_page_of_a_verification_begins_with_the_patch() -> None:
    page = Page(FORMATS["html"](PATCHED))
    text = page.text
    assert [a["id"] for tag, a in page.tags if tag == "h2"] == ["patch", "target-1", "target-2"]
    assert "fix.diff on vllm==0.31.0" in text
    for words in (
        "SCHED-RESTART-2 (F31-1)", "now behaves as profile 0.32 in SCHED-EMIT-4 instead of SCHED-EMIT-3",
        "reset: another answer", "another note", "1 clause",
    ):  # fmt: skip
        assert words in text
    markdown = FORMATS["markdown"](PATCHED)
    assert markdown.startswith("### ❌ fix.diff on vllm==0.31.0: broken")
    assert markdown.count("### SCHED-TERM-1") == 1
    assert "| fixed | SCHED-RESTART-2 (F31-1) |" in markdown


def test_a_verification_tells_each_violation_once() -> None:
    page = FORMATS["html"](PATCHED)
    assert page.count('<article class="trouble"') == 1
    still = file_of(
        judged(), judged(violation(), violation(clause="SCHED-META-3")), verification=VERIFICATION
    )
    assert FORMATS["html"](still).count('<article class="trouble"') == 2
    assert FORMATS["markdown"](still).count("## x:make\n") == 1


def test_junit_of_a_verification_is_about_the_patch() -> None:
    root = ElementTree.fromstring(FORMATS["junit"](PATCHED))
    (suite,) = root
    assert suite.get("name") == "fix.diff on vllm==0.31.0"
    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["3", "1", "0", "0"]
    (failure,) = suite.iter("failure")
    assert failure.get("message") == f"broken: {CLAUSES['SCHED-TERM-1'].sentence}"
    gone = {**VERIFICATION, "clauses": [], "exit_code": 3, "result": "hangs", "replay": "auxout replay Y"}
    (suite,) = ElementTree.fromstring(FORMATS["junit"](file_of(judged(), verification=gone)))
    (error,) = suite.iter("error")
    assert (error.get("message"), error.text) == ("hangs", "auxout replay Y")


def test_violations_of_known_releases_are_drawn_with_their_deviations() -> None:
    section = document(file_of(judged(violation()))).sections[0]
    assert section.counts == (("violated", 1), ("known", 1), ("not judged", 1), ("holds", 1))
    assert [row.status for row in section.clauses] == ["violated", "known", "not judged", "holds"]
    assert section.troubles[0].timeline.columns


def test_the_colours_of_requests_can_be_read() -> None:
    for colour in (*picture.COLOURS, picture.INK, picture.FAINT, picture.WRONG, picture.REFUSED):
        for ground in (picture.PAPER, picture.SHADE):
            assert contrast(colour, ground) >= 4.5, (colour, ground)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# The command.


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "report.jsonl"
    path.write_text(report.dump([judged(violation())], HEAD))
    return path


def test_the_command_writes_each_format(run: Any, written: Path, tmp_path: Path) -> None:
    for name, beginning in (("markdown", "| target"), ("junit", "<?xml"), ("html", "<!doctype html>")):
        ran = run("report", written, "--format", name)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.lstrip().startswith(beginning)
        out = tmp_path / name
        assert run("report", written, "--format", name, "-o", out) == (0, "", "")
        assert out.read_text() == ran.out


def test_the_command_shows_a_report_as_conform_did(run: Any, written: Path) -> None:
    ran = run("report", written)
    assert ran.code == 0
    assert ran.out.startswith("violation 1 of 1\nSCHED-TERM-1")
    assert ran.out.splitlines()[-1].startswith("x:make  violation  profile 0.32")


def test_the_command_shows_a_verification(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "verify.jsonl"
    path.write_text(report.dump([judged(), judged(violation())], HEAD) + json.dumps(VERIFICATION) + "\n")
    lines = run("report", path).out.splitlines()
    assert lines[-1] == "fix.diff on vllm==0.31.0  broken"
    assert "broken   SCHED-TERM-1" in lines
    assert "kept     1 clause" in lines
    assert "changed  reset: another answer" in lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "absent.jsonl"], "cannot read report 'absent.jsonl'"),
        (["report", "{bad}"], "is not a report: line 1: not JSON"),
        (["report", "{good}", "-o", "x"], "-o goes with --format"),
        (["report", "{good}", "--format", "html", "-o", "no/such/place"], "cannot write report"),
    ],
)
def test_mistakes(run: Any, written: Path, tmp_path: Path, words: list[str], said: str) -> None:
    bad = tmp_path / "bad"
    bad.write_text("nonsense")
    ran = run(*(word.format(bad=bad, good=written) for word in words))
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
