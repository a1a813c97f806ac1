"""Runs the random judge: so many examples of the state machine, until one fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky, FlakyFailure
from hypothesis.stateful import run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

from auxout_spec.profiles import Profile
from auxout_spec.representation import Representation

from .hosts import TargetBroken
from .judge import Play
from .judge.play import Player
from .machine import STEPS, Ended, EngineMachine, Found, Tally
from .representing import ANY


def search(
    host: Player,
    profile: Profile,
    *,
    examples: int,
    seed_number: int | None,
    ignored: frozenset[str],
    tally: Tally,
    on_example: Callable[[], None] = lambda: None,
    kind: type[Play] = Play,
    with_worker: bool = False,
    representations: SearchStrategy[Representation] = ANY,
) -> Found | None:
    """Run random scenarios until one fails; None if none does or the target broke (``tally.broken``).

    Args:
        examples: how many to run.
        seed_number: None: always the same ones.
        ignored: clauses whose failures are known already.
        tally: counts what was run.
        kind: how answers are judged.
        with_worker: drive the worker too.
        representations: what they may look like to the connectors.
    """
    machine = type(
        "Machine",
        (EngineMachine,),
        {
            "host": host,
            "profile": profile,
            "ignored": ignored,
            "kind": kind,
            "tally": tally,
            "on_example": staticmethod(on_example),
            "with_worker": with_worker,
            "representations": representations,
        },
    )
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=seed_number is None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=(
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
            HealthCheck.large_base_example,
        ),
        print_blob=False,
    )
    if seed_number is not None:
        machine = seed(seed_number)(machine)
    # Hypothesis runs an example that ended once more and complains if it ends otherwise; the first end counts.
    with contextlib.suppress(Ended, FlakyFailure, Flaky, TargetBroken):
        run_state_machine_as_test(machine, settings=chosen)
    return tally.found
