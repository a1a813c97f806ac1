"""Other frameworks' functions, from their wheels: what the documentation says of them is what they show.

Nothing is fetched here. ``python tests/client_tools/frameworks.py`` fetches the wheels into the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from auxout_conformance import client
from auxout_conformance.verdicts import Verdict
from client_tools import frameworks
from client_tools.frameworks import FRAMEWORKS
from client_tools.lifting import at_hand

ROOT = Path(__file__).parents[2]
MARKS = {"right": "holds", "**wrong**": "violated", "": "not offered"}

pytestmark = pytest.mark.slow


@pytest.fixture(params=FRAMEWORKS)
def wheel(request: pytest.FixtureRequest) -> str:
    """A framework whose wheel is at hand."""
    if at_hand(request.param) is None:
        pytest.skip(
            f"the wheel of {request.param} was not fetched; python tests/client_tools/frameworks.py does"
        )
    return request.param


def documented(column: str) -> dict[str, str]:
    """A column of the table in docs/client.md: case -> status."""
    page = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    part = page.partition("<!-- measured: frameworks -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line]
    head, _, *cases = rows
    return {cells[0].strip("`"): MARKS[cells[head.index(column)]] for cells in cases}


def test_the_table_is_what_each_shows(wheel: str) -> None:
    checked = client.check(f"client_tools.frameworks:{FRAMEWORKS[wheel].__name__}")
    assert checked.verdict is Verdict.VIOLATION, checked.reason
    told = documented(wheel)
    shown = {result.case.name: result.status for result in checked.results}
    assert {name: shown[name] for name in told} == told
    assert {status for name, status in shown.items() if name not in told} == {"not offered"}
    assert list(told.values()).count("holds") >= 3


def test_ours_is_right_in_every_case_of_the_table() -> None:
    told = documented("auxout")
    assert set(told.values()) == {"holds"}
    assert len(told) >= 15
    checked = client.check("auxout.client.conversation:play", client.named(list(told)))
    assert [result.status for result in checked.results] == ["holds"] * len(told)


def test_the_benchmark_runs_the_same_work(wheel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "perf"))
    import client_frameworks as benchmark

    try:
        [contest] = [each for each in benchmark.contests(64) if each.wheel == wheel]
        benchmark.check(contest)
        theirs = np.asarray(contest.theirs())
        assert len(theirs) > 0
        if wheel == frameworks.AREAL:
            # Its join has the prefix of each resumed call again, which the table above tells.
            assert len(theirs) > len(contest.ours())
        else:
            mine = np.asarray(contest.ours())
            assert np.array_equal(theirs.reshape(len(theirs), *mine.shape[1:])[:63], mine[:63])
        seconds = benchmark.measure(contest, 1)
        assert all(each > 0 for each in seconds)
    finally:
        sys.modules.pop("client_frameworks", None)
