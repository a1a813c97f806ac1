"""The cases of ``client-check``: spec and library pass, wrong answers are rejected, every clause has both sides."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest

from auxout.client import conversation as library
from auxout_conformance.client.cases import Case, all_cases
from auxout_conformance.client.judging import judge
from auxout_spec.clauses import CLAUSES, CLIENT, Clause
from auxout_spec.client import conversation as spec
from auxout_spec.client.values import ERRORS

OBLIGATIONS = [clause for clause in CLAUSES.values() if clause.component in CLIENT]
CASES = [pytest.param(case, id=case.name) for case in all_cases()]


def as_answer(played: dict[str, Any]) -> dict[str, Any]:
    """What a process under judgement says of the same."""
    return {"raised": played["error"]} if "error" in played else played


@pytest.mark.parametrize("clause", OBLIGATIONS, ids=lambda clause: clause.id)
def test_every_clause_has_a_positive_and_a_negative_side(clause: Clause) -> None:
    cases = [case for case in all_cases() if case.clause == clause.id]
    # A refusal is the negative side of a clause about what is refused; a result's are its wrong answers.
    assert [case for case in cases if case.wrong or "error" in case.want]
    assert clause.id not in ERRORS or [case for case in cases if "error" in case.want]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("play", [spec.play, library.play], ids=["spec", "library"])
def test_ours_are_right_and_name_the_clause(play: Any, case: Case) -> None:
    played = play(case.conversation)
    assert judge(case.want, as_answer(played)) is None
    if "error" in case.want:
        assert (played["error"], played["clause"]) == (case.want["error"], case.clause)
        assert ERRORS[case.clause] == played["error"]


@pytest.mark.parametrize("case", CASES)
def test_spec_and_library_give_the_same_answer(case: Case) -> None:
    assert spec.play(case.conversation) == library.play(case.conversation)


@pytest.mark.parametrize("case", [each for each in CASES if "rows" in each.values[0].want])  # type: ignore[attr-defined]
def test_the_judge_accepts_the_right_answer_and_rejects_wrong_ones(case: Case) -> None:
    assert judge(case.want, case.right_answer) is None
    assert case.wrong
    for answer in case.wrong_answers():
        assert answer != case.right_answer
        assert judge(case.want, answer) is not None
    assert judge(case.want, {"raised": "ValueError"}) is not None


@pytest.mark.parametrize("case", [each for each in CASES if "error" in each.values[0].want])  # type: ignore[attr-defined]
def test_the_judge_rejects_an_answer_where_a_refusal_is_due(case: Case) -> None:
    assert judge(case.want, {"raised": "AssertionError"}) is None
    assert judge(case.want, {"rows": [], "mask": []}) is not None


def test_the_file_is_as_its_schema_says() -> None:
    folder = resources.files("auxout_conformance.client")
    schema, data = (json.loads((folder / name).read_text()) for name in ("cases.schema.json", "cases.json"))
    jsonschema.validate(data, schema)
    assert len(data["cases"]) >= 40
    names = [case["name"] for case in data["cases"]]
    assert len(set(names)) == len(names)
    assert all(case["story"].endswith(".") for case in data["cases"])
    conversations = [json.dumps(case.conversation, sort_keys=True) for case in all_cases()]
    assert len(set(conversations)) == len(conversations)


def test_an_answer_without_a_mask_may_miss_the_last_row_only() -> None:
    row = [[1, 2]]
    assert judge({"rows": [row, row, None]}, {"rows": [row, row, [[0, 0]]]}) is None
    wrong = judge({"rows": [None, row, None]}, {"rows": [[[0, 0]], row, [[0, 0]]]})
    assert wrong is not None
    assert wrong.expected == "places 0 told as missing"


@pytest.mark.parametrize("rows", [None, "text", 7, [], [[[1]]]])
def test_an_answer_that_is_none_is_wrong_and_no_crash(rows: object) -> None:
    assert judge({"rows": [[[1]], None]}, {"rows": rows, "mask": rows}) is not None
