"""The timeline of a scenario: what its lanes say, and that both drawings show it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from xml.etree import ElementTree

import pytest

from auxout_conformance.cases import Case, all_cases
from auxout_conformance.exploring import Explored, timeline_of
from auxout_conformance.known import Finding, all_findings, deviations_of
from auxout_conformance.render import printable
from auxout_conformance.timeline import LANES, Timeline, build, of_scenario, of_violation, picture, terminal
from auxout_conformance.timeline.contrast import Part, differing, folded
from auxout_conformance.verdicts import Violation
from auxout_spec import scenario as scenarios
from auxout_spec.engine import (
    Abort,
    Add,
    Chunk,
    EngineConfig,
    Evict,
    Land,
    Launch,
    Load,
    Pause,
    Preempt,
    Reset,
)
from auxout_spec.explorer.models import MODELS
from auxout_spec.explorer.search import explore
from auxout_spec.profiles import PROFILES, SPECIFIED
from auxout_spec.scenario import Scenario
from auxout_spec.worker import Limits

SVG = "{http://www.w3.org/2000/svg}"
A4 = (Add("A", 4, max_tokens=3), Launch((("A", 4),)))
FOUND = [name for name in MODELS if name.startswith("found-")]


def cell(timeline: Timeline, event: int, lane: str) -> list[str]:
    """What a lane says of an event."""
    return [line.text for line in timeline.columns[event - 1].cells[LANES.index(lane)]]


def column(timeline: Timeline, event: int) -> dict[str, list[str]]:
    """What the lanes that say something say of an event."""
    return {lane: said for lane in LANES if (said := cell(timeline, event, lane))}


def test_a_request_from_its_arrival_to_its_end() -> None:
    timeline = build((*A4, Land(), Launch((("A", 1),)), Abort("A"), Land(), Launch()), EngineConfig())
    assert [each.title for each in timeline.columns] == [
        "add A", "launch A 4", "land", "launch A 1", "abort A", "land", "launch"
    ]  # fmt: skip
    assert column(timeline, 1) == {"engine": ["prompt 4, max_tokens 3"]}
    assert column(timeline, 2) == {
        "engine": ["runs A[0, 4)"],
        "scheduler": ["build_connector_meta()"],
        "channel": ["↓ generation 0", "↓ A emits from 0", "↓ A #0 #1"],
        "worker": ["begin_step()", "prepare_output()", "A starts, emits from 0", "A keys #0 #1"],
        "store": ["0 objects, 2 keys held"],
    }
    assert column(timeline, 3) == {
        "engine": ["A has 5 tokens"],
        "scheduler": ["take_output(A)", "A[0, 4)"],
        "channel": ["↑ A[0, 4)"],
        "worker": ["process_output()", "captured A[0, 4)", "emitted A[0, 4)"],
        "store": ["+ A[0, 2)", "+ A[2, 4)", "2 objects, 2 keys held"],
    }
    assert column(timeline, 5) == {
        "engine": ["A leaves"],
        "scheduler": ["request_finished(A)", "A ended, queued"],
    }
    assert column(timeline, 6) == {"worker": ["process_output()", "captured A[4, 5)", "emitted A[4, 5)"]}
    assert column(timeline, 7) == {
        "scheduler": ["build_connector_meta()"],
        "channel": ["↓ generation 0", "↓ A ended"],
        "worker": ["begin_step()", "A torn down"],
        "store": ["2 objects, 0 keys held"],
    }
    assert [(each.number, each.first, each.last) for each in timeline.flights] == [(1, 1, 2), (2, 3, 5)]
    assert [part.text for each in timeline.flights for part in each.parts] == ["A[0, 4)", "A[4, 5)"]
    assert (timeline.requests, timeline.end, timeline.note) == (("A",), 5, "")


def test_what_the_scheduler_connector_says_of_the_kv_cache() -> None:
    config = EngineConfig(SPECIFIED["0.33"], kv_connector=True, num_blocks=0)
    first = (Add("A", 3, max_tokens=1, text="T"), Launch((("A", 3),)), Land(), Evict())
    again = (Add("B", 4, text="T"), Load("B", 2), Abort("B"), Launch())
    timeline = build((*first, *again), config)
    assert cell(timeline, 6, "scheduler") == [
        "max_cache_hit(B)", "2 tokens", "cap_external_hit(B, 0, 2)", "2 tokens", "request_loading(B, 2)"
    ]  # fmt: skip
    assert cell(timeline, 8, "channel") == ["↓ generation 0", "↓ A ended", "↓ retain #0", "↓ release #0"]


def test_a_teardown_that_waits_and_a_key_that_comes_late() -> None:
    events = (*A4, Preempt("A"), Launch(), Land(), Launch((("A", 1),)))
    timeline = build(events, EngineConfig(depth=2))
    assert cell(timeline, 3, "engine") == ["A preempted"]
    assert cell(timeline, 4, "worker") == ["begin_step()", "A ended, 1 in flight"]
    assert cell(timeline, 5, "worker") == ["process_output()", "A torn down"]
    assert timeline.flights[-1].last is None
    late = build(
        (Add("A", 3, max_tokens=2), Launch((("A", 3),)), Launch((("A", 1),)), Land(), Land()), EngineConfig()
    )
    assert "without key A[2, 4)" in cell(late, 5, "worker")


def test_hits_evictions_pauses_and_resets() -> None:
    events = (
        Add("A", 4, max_tokens=1), Launch((("A", 4),)), Land(),
        Add("B", 5, text="A"), Launch((("B", 1),)), Land(), Abort("B"), Evict(), Pause(), Pause(False),
        Reset(weights=True), Launch(),
    )  # fmt: skip
    timeline = build(events, EngineConfig())
    assert cell(timeline, 5, "engine") == ["hits B[0, 4)", "runs B[4, 5)"]
    assert cell(timeline, 8, "engine") == ["KV gone: A:0 A:1"]
    assert (cell(timeline, 9, "engine"), cell(timeline, 10, "engine")) == (["paused"], ["runs again"])
    assert [each.title for each in timeline.columns[8:11]] == ["pause", "pause off", "reset"]
    assert column(timeline, 11) == {
        "engine": ["weights", "new weights"],
        "scheduler": ["reset()", "generation 1"],
    }
    assert "generation 1" in cell(timeline, 12, "worker")


def test_sessions() -> None:
    start = (Add("A", 3, max_tokens=1, session=True), Launch((("A", 3),)))
    timeline = build((*start, Chunk("A", 2), Land()), EngineConfig())
    assert cell(timeline, 1, "engine") == ["prompt 3, max_tokens 1, session"]
    assert cell(timeline, 3, "engine") == ["tokens 2", "A queues the chunk"]
    waiting = build((*start, Land()), EngineConfig())
    assert cell(waiting, 3, "engine") == ["A has 4 tokens", "A waits for its next chunk"]


def test_an_eviction_from_a_small_store() -> None:
    config = EngineConfig(block_size=2, limits=Limits(2, 2))
    first = (Add("A", 4, max_tokens=1), Launch((("A", 4),)), Land(), Launch())
    timeline = build((*first, Add("B", 4, max_tokens=1), Launch((("B", 4),)), Land()), config)
    assert cell(timeline, 7, "store") == ["+ B[0, 2)", "+ B[2, 4)", "- A[0, 2)", "- A[2, 4)"]


def test_the_worker_beside_refuses_once() -> None:
    again = (
        Add("A", 3, max_tokens=1),
        Launch((("A", 3),)),
        Land(),
        Add("A", 3, text="T"),
        Launch((("A", 3),)),
        Land(),
    )
    timeline = build(again, EngineConfig())
    refused = ["begin_step()", "refused, WORK-BEGIN-1", "A runs and ends in one step"]
    assert cell(timeline, 5, "worker") == refused
    assert cell(timeline, 6, "worker") == cell(timeline, 6, "store") == []
    assert timeline.note == "the worker refused event 5; what it would do afterwards is not shown"
    assert build(again[:5], EngineConfig()).note == ""


def test_it_ends_where_the_engine_cannot_go_on() -> None:
    timeline = build((*A4, Land(), Land()), EngineConfig())
    assert len(timeline.columns) == 3
    assert timeline.note == "event 4 cannot happen here: ENV-LAND-1: no step is in flight"


def violation(call: str, event: int = 3, **changes: str) -> Violation:
    fields = {"clause": "SCHED-TAKE-3", "expected": "4 rows A[0, 4)", "actual": "3 rows A[0, 3)", **changes}
    scenario = Scenario((*A4, Land((("A", 1),), stop=(("A", 1),)), Launch()), profile="0.32")
    return Violation(
        fields["clause"], scenario, event, call, fields["expected"], fields["actual"], "random", 1, "auxout replay"
    )  # fmt: skip


def test_the_wrong_call_is_marked_and_ends_it() -> None:
    timeline = of_violation(violation("request_finished(A)"))
    assert len(timeline.columns) == 3
    marked = [
        line.text for each in timeline.columns for lane in each.cells for line in lane if line.tone == "wrong"
    ]
    assert marked == ["request_finished(A)"]
    assert timeline.wrong is not None
    assert timeline.wrong.sentence.startswith("The rows are exactly")


def test_a_call_that_the_right_course_does_not_have_marks_nothing() -> None:
    timeline = of_violation(violation("reset()"))
    assert not [
        line for each in timeline.columns for lane in each.cells for line in lane if line.tone == "wrong"
    ]
    assert timeline.wrong is not None


def test_the_deviations_of_a_release_decide_what_is_right() -> None:
    finding = next(each for each in all_findings() if each.id == "F31-1")
    assert deviations_of([]) == frozenset()
    deviations = deviations_of(["F31-1", "F31-3"])
    assert finding.deviation in deviations
    assert len(deviations) == 2
    found = replace(violation(""), scenario=finding.scenario, event=len(finding.scenario.events))
    right, released = of_violation(found), of_violation(found, deviations)
    assert cell(right, found.event, "channel") != cell(released, found.event, "channel")


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_every_case_is_drawn(case: Case) -> None:
    check_drawings(of_scenario(case.scenario, case.profiles[-1]))


@pytest.mark.parametrize("finding", all_findings(), ids=lambda finding: finding.id)
def test_every_known_finding_is_drawn(finding: Finding) -> None:
    config = scenarios.config_of(finding.scenario, PROFILES[finding.scenario.profile])
    released = config.profile._replace(deviations=frozenset((finding.deviation,)))
    for profile in (config.profile, released):
        check_drawings(build(finding.scenario.events, config._replace(profile=profile)))


@pytest.mark.parametrize("name", FOUND)
def test_the_explorer_s_counterexamples_are_drawn(name: str) -> None:
    model = MODELS[name]
    result = explore(model)
    timeline = timeline_of(Explored(model, result, ()))
    check_drawings(timeline)
    if result.verdict == "DEADLOCK":
        assert timeline.wrong is None
        return
    assert result.broken is not None
    assert timeline.wrong is not None
    assert (len(timeline.columns), timeline.wrong.clause) == (len(result.trace), result.broken.clause)
    assert timeline.note == ""
    last = [line for lane in timeline.columns[-1].cells for line in lane]
    if result.broken.clause.startswith(("WORK-BEGIN", "WORK-CAPTURE", "STORE-READ")):
        assert f"refused, {result.broken.clause}" in [line.text for line in last]


def check_drawings(timeline: Timeline) -> None:
    """Both drawings say everything that the timeline says, within their bounds."""
    texts = [line.text for each in timeline.columns for lane in each.cells for line in lane]
    lines = [line.plain for line in terminal.draw(timeline, 100)]
    assert max(map(len, lines)) <= 100
    root = ElementTree.fromstring(picture.draw(timeline, "x"))
    drawn = squeezed("".join("".join(each.itertext()) for each in root.iter(f"{SVG}text")))
    shown = squeezed("".join(lines))
    for text in texts:
        words = squeezed(printable(text).partition(" ")[0])
        assert words in drawn
        assert words in shown
    assert [each.get("id") for each in root if each.get("id")] == ["x-title", "x-text"]
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for rect in root.iter(f"{SVG}rect"):
        box = {name: rect.get(name, "0") for name in ("x", "y", "width", "height")}
        if "100%" not in box.values():
            assert float(box["x"]) + float(box["width"]) <= width + 1
            assert float(box["y"]) + float(box["height"]) <= height + 1
            assert float(box["width"]) > 0


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_a_narrow_terminal_gets_several_bands() -> None:
    timeline = build((*A4, Land(), Launch((("A", 1),)), Land()), EngineConfig())
    assert terminal.fits(timeline, 200)
    assert not terminal.fits(timeline, 60)
    lines = [line.plain for line in terminal.draw(timeline, 60)]
    assert max(map(len, lines)) <= 60
    headings = [line for line in lines if re.match(r" +\d", line)]
    assert len(headings) > 1
    assert [int(number) for line in headings for number in re.findall(r"(?<= )(\d) [al]", line)] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_steps_in_flight_are_bars() -> None:
    timeline = build(
        (Add("A", 4, max_tokens=4), Launch((("A", 4),)), Launch((("A", 1),)), Land(), Land()), EngineConfig()
    )
    lines = [line.plain for line in terminal.draw(timeline, 200)]
    first, second = (line for line in lines if "├ step" in line)
    assert first.index("├") < second.index("├") < first.index("┤") < second.index("┤")
    # Overlapping steps have a line each, steps one after the other share one.
    alone = build((*A4, Land(), Launch((("A", 1),)), Land()), EngineConfig())
    (line,) = (line.plain for line in terminal.draw(alone, 200) if "├ step" in line.plain)
    assert line.count("┤") == 2
    # A bar that goes on in the next band is cut, not closed.
    cut = [line.plain for line in terminal.draw(timeline, 60) if "step" in line.plain]
    assert any("╴" in line for line in cut)
    assert any("╶" in line for line in cut)


def test_what_a_target_says_cannot_break_the_picture() -> None:
    timeline = of_violation(violation("take_output(A)", actual='raised X: <script>&"\x1b[2J\x00\ud800'))
    svg = picture.draw(timeline)
    ElementTree.fromstring(svg)
    assert "<script>" not in svg
    assert "\\x1b[2J" in svg


def test_an_empty_scenario_is_drawn() -> None:
    check_empty = build((), EngineConfig())
    assert terminal.draw(check_empty, 80) == []
    ElementTree.fromstring(picture.draw(check_empty))


def test_what_differs_is_set_off() -> None:
    expected = "generation 0, requests {A: 0, B: 1}, finished_requests [A]"
    actual = "generation 0, requests {A: 1, B: 1}, finished_requests [A]"
    mine, others = differing(expected, actual)
    assert [part.text for part in mine if part.differs] == ["requests {A: 0, B: 1}"]
    assert [part.text for part in others if part.differs] == ["requests {A: 1, B: 1}"]
    assert "".join(part.text for part in mine) == expected
    assert differing("4 rows", "None") == ([Part("4 rows", False)], [Part("None", False)])


def test_pieces_are_folded_at_their_width() -> None:
    lines = folded(
        [Part("expected ", False), Part("a" * 30, True), Part(", ", False), Part("b" * 5, False)], 20, 9
    )
    texts = ["".join(part.text for part in line) for line in lines]
    assert all(len(text) <= 20 for text in texts)
    assert squeezed("".join(texts)) == "expected" + "a" * 30 + "," + "b" * 5
    assert [key for key, _ in groupby(part.differs for line in lines for part in line if part.text.strip())] == [
        False, True, False,
    ]  # fmt: skip
