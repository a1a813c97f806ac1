"""Takes every transition of a model on a target: what the explorer tries on the spec, tried on code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from auxout_spec.engine import Event
from auxout_spec.explorer import manifest
from auxout_spec.explorer.model import Model
from auxout_spec.explorer.models import MODELS
from auxout_spec.explorer.walks import Graph
from auxout_spec.profiles import Profile
from auxout_spec.scenario import Scenario

from .exploring import chosen, of_kv_cache
from .hosts import Host, open_host
from .judge import Failure, play
from .known import findings_of
from .mistakes import UserMistake
from .showing import judged_profile
from .shrinking import Shrinker
from .targets import Target
from .verdicts import Progress, Violation
from .violations import violation_of

ROOMY = 1024
"""Objects of a store that evicts nothing in models whose store has no bound."""
HEAD = ("model", "transitions", "taken", "walks", "calls", "verdict")


class Covered(NamedTuple):
    """What became of one model on one target."""

    model: Model
    transitions: int
    taken: int
    """Transitions that the target was led through, every answer on the way being right."""
    complete: bool
    """Whether the model has no transitions but these."""
    walks: int
    calls: int
    violation: Violation | None
    """The first wrong answer, its scenario made small."""


def models_for(names: Sequence[str], profile: str) -> list[Model]:
    """The models of a target's protocol version: those named, else those of the everyday set in which nothing breaks.

    Raises:
        UserMistake: there is no such model, or it is of another protocol version.
    """
    if not names:
        expected = manifest.load()
        models = [MODELS[name] for name, entry in expected.items() if entry.verdict == "OK"]
        return [model for model in models if model.profile == profile and not model.nightly]
    models = chosen(names, every=False, nightly=False, profile=None)
    for model in models:
        if model.profile != profile:
            raise UserMistake(
                f"model {model.name} is of profile {model.profile}; give --profile {model.profile}"
            )
    return models


def cover_all(
    models: Sequence[Model], target: Target, max_states: int, show: Callable[[Progress], None]
) -> Iterator[Covered]:
    """Lead a target through models, one after the other; known findings of a release are accepted.

    Raises:
        TargetBroken: the target does not load, crashed or hung.
    """
    profile = judged_profile(target, findings_of(target.release))
    host = open_host(target)
    try:
        for model in models:
            yield cover(model, target, host, profile, max_states, show)
    finally:
        host.close()


def cover(
    model: Model,
    target: Target,
    host: Host,
    profile: Profile,
    max_states: int,
    show: Callable[[Progress], None],
) -> Covered:
    """Lead a target through a model, until everything was taken or an answer is wrong.

    Under the deviations of a release a walk ends where the released engine goes another way.

    Args:
        profile: what judges the target.
        max_states: leave out transitions beyond so many states.

    Raises:
        TargetBroken: the target crashed or hung.
    """
    graph = Graph(model, max_states)
    taken = walks = calls = 0
    violation: Violation | None = None
    for walk in graph.walks():
        scenario = _scenario(model, walk.events)
        played, failure = play(host, scenario, profile)
        walks, calls = walks + 1, calls + played.num_calls
        if failure is not None:
            violation = _violation(model, target, host, profile, scenario, failure)
            break
        taken += max(0, played.num_events - walk.num_known)
        show(Progress(target.title, model.name, taken, graph.transitions))
    return Covered(model, graph.transitions, taken, graph.complete, walks, calls, violation)


def row(covered: Covered) -> tuple[str, ...]:
    """One line of the table."""
    violation = covered.violation
    return (
        covered.model.name,
        f"{covered.transitions:,}{'' if covered.complete else ' (cut)'}",
        f"{covered.taken:,}",
        f"{covered.walks:,}",
        f"{covered.calls:,}",
        "every answer is right" if violation is None else f"violation {violation.clause}",
    )


def counts(covered: Sequence[Covered]) -> str:
    """How much was taken, in a few words."""
    taken, transitions = sum(each.taken for each in covered), sum(each.transitions for each in covered)
    cut = sum(not each.complete for each in covered)
    return f"{taken:,} of {transitions:,} transitions taken; {cut} of {len(covered)} models cut"


def _scenario(model: Model, events: tuple[Event, ...]) -> Scenario:
    store = min(model.capacity, ROOMY)
    made = Scenario(events, model.block_size, model.depth, model.profile, store=store)
    return of_kv_cache(made, model)


def _violation(
    model: Model, target: Target, host: Host, profile: Profile, scenario: Scenario, failure: Failure
) -> Violation:
    small, failure = Shrinker(host, profile, frozenset()).shrink(scenario, failure)
    flags = ["--known"] if profile.deviations else []
    violation = violation_of(target, failure, small, f"model {model.name}", None, flags)
    fewer = len(small.events) < len(scenario.events)
    return replace(violation, shrunk_from=len(scenario.events)) if fewer else violation
