"""The JSON-lines report: what is written is valid by its schema and reads back as what it was."""

from __future__ import annotations

import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxout_conformance import files, report, representing
from auxout_conformance.mistakes import UserMistake
from auxout_conformance.verdicts import ClauseResult, Report, Verdict, Violation, WrongAnswer
from auxout_spec.clauses import CLAUSES
from auxout_spec.engine import Abort, Add, Land, Launch, Tamper, Unpack
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import Scenario

SCHEMA = json.loads(
    (resources.files("auxout_conformance") / "report.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

texts = st.text(max_size=20)
names = st.lists(texts, max_size=3).map(tuple)
counts = st.integers(0, 10**6)
clause_ids = st.sampled_from(list(CLAUSES))
events = st.sampled_from(
    [
        Add("A", 4, start=2, text="T", session=True),
        Launch((("A", 4), ("B", 1)), drafts=(("B", 0),), hits=(("A", 0),)),
        Land((("A", 2),), stop=(("A", 1),)),
        Abort("A"),
        Tamper("cut_rows", "A", 1),
        Unpack(b"\x00\xff", 2),
    ]
)
scenarios = st.builds(
    Scenario,
    st.lists(events, max_size=5).map(tuple),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["", *PROFILES]),
    texts,
    clause_ids,
    st.integers(0, 9),
    representing.ANY,
    st.integers(0, 9),
    st.just(False),
    st.integers(0, 2),
)
results = st.builds(
    ClauseResult, clause_ids, st.sampled_from(["holds", "violated", "known", "not judged"]), counts, names
)
violations = st.builds(
    Violation,
    clause_ids,
    scenarios,
    counts,
    texts,
    texts,
    texts,
    texts,
    st.none() | counts,
    texts,
    st.none() | counts,
)
conversations = st.dictionaries(texts, st.lists(counts, max_size=3), max_size=3)
wrong_answers = st.builds(WrongAnswer, clause_ids, texts, texts, conversations, texts, texts, texts)
reports = st.builds(
    Report,
    target=texts,
    version=texts,
    profile=st.sampled_from(["", *PROFILES]),
    suite=st.sampled_from(["smoke", "default", "deep"]),
    seed=st.none() | counts,
    verdict=st.sampled_from(Verdict),
    clauses=st.lists(results, max_size=3).map(tuple),
    violations=st.lists(violations, max_size=2).map(tuple),
    wrong_answers=st.lists(wrong_answers, max_size=2).map(tuple),
    known=names,
    expected=st.lists(clause_ids, max_size=2).map(tuple),
    reason=texts,
    num_cases=counts,
    num_scenarios=counts,
    num_calls=counts,
    seconds=st.floats(0, 1e6),
    notes=names,
)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@given(st.lists(reports, max_size=3), st.lists(texts, max_size=3))
def test_round_trip_and_schema(written: list[Report], argv: list[str]) -> None:
    text = report.dump(written, report.header(argv))
    for line in text.splitlines():
        VALIDATOR.validate(json.loads(line))
    assert report.load(text) == written


@pytest.mark.parametrize(
    "line",
    [
        {"line": "verdict"},
        {"line": "header", "auxout": "report/2"},
        {"line": "target", "target": "impl"},
        {"line": "clause", "target": "impl", "clause": "nonsense"},
    ],
)
def test_the_schema_refuses(line: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(line)


def test_a_reader_skips_fields_that_it_does_not_know() -> None:
    made = Report("impl", "", "0.32", "default", 0, Verdict.CONFORM)
    lines = report.dump([made], report.header([])).splitlines()
    longer = [json.dumps({**json.loads(line), "new": 1}) for line in lines]
    assert report.load("\n".join(longer)) == [made]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [], "line 1: not JSON"),
        (lambda lines: ["{}"], "line 1: expected a header"),
        (lambda lines: ['{"auxout": "report/9"}', *lines[1:]], "line 1: expected a header"),
        (lambda lines: [lines[0], "{"], "line 2: not JSON"),
        (lambda lines: [lines[0], "[]"], "line 2: a line of a report must be an object"),
        (lambda lines: lines[:-1], "ends before the summary of 'impl'"),
        (lambda lines: [lines[0], lines[2]], "line 2: 'summary' stands outside"),
        (lambda lines: [*lines[:2], lines[1]], "line 3: 'target' stands outside"),
        (lambda lines: [*lines[:2], '{"line": "summary"}'], "line 3: $: 'target' is a required property"),
    ],
)
def test_what_is_no_report_is_refused(change: Any, said: str) -> None:
    made = Report("impl", "", "0.32", "default", 0, Verdict.CONFORM)
    lines = report.dump([made], report.header([])).splitlines()
    with pytest.raises(report.MalformedReport, match=re.escape(said)):
        report.load("\n".join(change(lines)))


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text("old")
    files.check_writable(str(path), "report")
    assert path.read_text() == "old"
    files.write_text(str(path), "new", "report")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserMistake, match=r"cannot write report .*: no space left on device"):
        files.write_text(str(path), "new", "report")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.check_writable(str(pipe), "report")
        files.write_text(str(pipe), "text", "report")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_reading_says_what_is_wrong(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserMistake, match="is not UTF-8 text"):
        files.read_text(str(binary), "scenario")
    with pytest.raises(UserMistake, match="is a directory"):
        files.read_text(str(tmp_path), "scenario")
    with pytest.raises(UserMistake, match="null"):
        files.read_text("a\0b", "scenario")
