"""Every transition of a model, taken on a target."""

from __future__ import annotations

import pytest

from auxout_conformance import cli, covering
from auxout_conformance.covering import Covered
from auxout_conformance.hosts import InProcess
from auxout_conformance.mistakes import UserMistake
from auxout_conformance.targets import resolve
from auxout_spec.engine import EngineState, Event, initial, step
from auxout_spec.explorer.canonical import canonical
from auxout_spec.explorer.choices import event_of
from auxout_spec.explorer.models import MODELS
from auxout_spec.explorer.search import explore
from auxout_spec.explorer.system import Whole, WholeState, all_options
from auxout_spec.explorer.walks import Graph
from auxout_spec.profiles import PROFILES

EVERYTHING = 1_000_000
SMALL = "session-0.32"


def covered(target: str, model: str, max_states: int) -> Covered:
    resolved = resolve(target)
    host, profile = InProcess(resolved), PROFILES[resolved.profile]
    return covering.cover(MODELS[model], resolved, host, profile, max_states, lambda shown: None)


@pytest.mark.parametrize("name", [SMALL, "same-prompt", "found-session-lost"])
def test_walks_take_each_transition(name: str) -> None:
    model = MODELS[name]
    system = Whole(model)
    expected: set[tuple[EngineState, Event]] = set()
    for state in (found := [system.start()]):
        given = all_options(model, state.engine)
        for move in system.moves(state):
            expected.add((state.engine, event_of(model.menu, model.ids, move.choice, given)))
            if move.broken is None and isinstance(move.after, WholeState) and move.after not in found:
                found.append(move.after)
    taken: set[tuple[EngineState, Event]] = set()
    for walk in Graph(model, EVERYTHING).walks():
        engine = initial()
        for event in walk.events:
            taken.add((engine, event))
            engine = canonical(step(model.config, engine, event)[0], model.bounded)
    assert taken == expected


def test_each_walk_takes_what_none_took_before() -> None:
    result, graph = explore(MODELS[SMALL]), Graph(MODELS[SMALL], EVERYTHING)
    assert graph.complete
    assert graph.transitions == result.transitions
    walks = list(graph.walks())
    assert all(walk.num_known < len(walk.events) for walk in walks)
    assert sum(len(walk.events) - walk.num_known for walk in walks) == result.transitions


def test_a_cut_graph_says_so_and_holds_what_leaves_the_nearest_states() -> None:
    """The start, where A arrives; A alone, where a chunk, an abort, a step or B follows; A and B."""
    graph = Graph(MODELS[SMALL], 3)
    walks = [[type(event).__name__ for event in walk.events] for walk in graph.walks()]
    assert not graph.complete
    assert graph.transitions == 11
    assert walks[:3] == [["Add", "Chunk"], ["Add", "Abort"], ["Add", "Launch"]]
    assert walks[3] == ["Add", "Add", "Chunk"]
    assert sorted(walks[4:]) == [["Add", "Add", "Abort"]] * 2 + [["Add", "Add", "Launch"]] * 3


@pytest.mark.parametrize(("target", "max_states"), [("reference", 200), ("impl", 200), ("impl-torch", 50)])
def test_ours_go_through_every_transition(target: str, max_states: int) -> None:
    for model in (SMALL, "bounded"):
        result = covered(target, model, max_states)
        assert result.violation is None
        assert result.taken == result.transitions > max_states
        assert not result.complete


@pytest.mark.parametrize(
    ("fault", "model", "clause"),
    [
        ("worker-never-torn-down", SMALL, "WORK-TEAR-2"),
        ("capture-late-key-lost", "bounded", "WORK-PUBLISH-1"),
        ("update-not-counted", "bounded", "SCHED-HASH-2"),
    ],
)
def test_a_fault_is_found_and_made_small(fault: str, model: str, clause: str) -> None:
    result = covered(f"known-bad:{fault}", model, 300)
    assert result.violation is not None
    assert result.violation.clause == clause
    assert result.violation.found_by == f"model {model}"
    assert len(result.violation.scenario.events) <= 8
    assert result.taken < result.transitions


def test_without_a_name_it_is_every_model_of_the_profile_in_which_nothing_breaks() -> None:
    models = covering.models_for([], "0.31")
    assert {"session", "start-2-0.31", "cut-0.31"} <= {model.name for model in models}
    assert {model.profile for model in models} == {"0.31"}
    assert not any(model.nightly or model.name.startswith("found-") for model in models)


def test_a_model_of_another_profile_is_a_mistake() -> None:
    with pytest.raises(UserMistake, match=r"model cut-0\.31 is of profile 0\.31; give --profile 0\.31"):
        covering.models_for(["cut-0.31"], "0.32")


def test_the_command_tells_how_much_was_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cover", "impl", SMALL, "--max-states", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["model", "transitions", "taken", "walks", "calls", "verdict"]
    assert lines[1].startswith(f"{SMALL} ")
    assert lines[1].endswith("every answer is right")
    assert lines[2].startswith("impl  conform  profile 0.32  ")
    assert lines[2].endswith("transitions taken; 1 of 1 models cut")


def test_the_command_shows_a_violation_with_its_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cover", "known-bad:worker-never-torn-down", SMALL, "--max-states", "50"]) == 1
    out = capsys.readouterr().out
    assert "found by  model session-0.32" in out
    assert "auxout replay '{" in out
    assert out.splitlines()[-1].startswith("known-bad:worker-never-torn-down  violation  profile 0.32")


def test_the_command_says_that_a_target_broke(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cover", "test_covering:nothing", SMALL]) == 3
    assert "target broken" in capsys.readouterr().out
