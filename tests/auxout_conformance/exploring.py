"""Exploring models in parallel processes, and what is shown of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import connection
from typing import Any, NamedTuple

from auxout_spec import scenario
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.explorer import manifest
from auxout_spec.explorer.manifest import Expected
from auxout_spec.explorer.model import Model
from auxout_spec.explorer.models import MODELS
from auxout_spec.explorer.search import Result, explore
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import Scenario

from .mistakes import UserMistake, did_you_mean
from .timeline import Timeline, Wrong, build
from .verdicts import Progress

EXIT_DIFFERENT = 1
EXIT_CUT = 4
HEAD = ("model", "states", "transitions", "depth", "seconds", "verdict", "witnesses", "bounds")


class Explored(NamedTuple):
    """One model's result, and how it differs from the manifest."""

    model: Model
    result: Result
    differences: tuple[str, ...]


def chosen(names: Sequence[str], every: bool, nightly: bool, profile: str | None) -> list[Model]:
    """The models to explore: those named, else all of the everyday or the nightly set.

    Raises:
        UserMistake: there is no such model, or none is left.
    """
    for name in names:
        if name not in MODELS:
            raise UserMistake(
                f"there is no model {name}{did_you_mean(name, MODELS)}; `auxout explore` lists them"
            )
    models = [MODELS[name] for name in names]
    if not names:
        models = [
            model for model in MODELS.values() if (every and not model.nightly) or (nightly and model.nightly)
        ]
    models = [model for model in models if profile in (None, model.profile)]
    if not models:
        raise UserMistake(f"no model is of profile {profile}")
    return models


def explore_all(
    models: Sequence[Model], jobs: int, max_states: int, show: Callable[[Progress], None]
) -> Iterator[Explored]:
    """Explore models, several at a time and the largest first; each is returned when it is done."""
    expected = manifest.load()
    largest = sorted(models, key=lambda model: -_size(expected.get(model.name)))
    context = multiprocessing.get_context("spawn")
    told: Any = context.SimpleQueue()
    # Not concurrent.futures.wait: an interrupt in it can leave a future locked, for which the pool waits for ever.
    done: queue.SimpleQueue[Future[Result]] = queue.SimpleQueue()
    with ProcessPoolExecutor(jobs, context, _start, (told,)) as pool:
        for model in largest:
            pool.submit(_explore, model.name, max_states).add_done_callback(done.put)
        num_left = len(largest)
        try:
            while num_left:
                future: Future[Result] | None = None
                with contextlib.suppress(queue.Empty):
                    future = done.get(timeout=0.2)
                while not told.empty():
                    name, states = told.get()
                    show(Progress(name, "exploring", states, _size(expected.get(name))))
                if future is not None:
                    num_left -= 1
                    yield _explored(future.result(), expected)
        except BaseException:
            # What is being explored would be waited for.
            for process in multiprocessing.active_children():
                process.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def default_jobs() -> int:
    """As many processes as there are processors for us."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def exit_code(explored: Iterable[Explored]) -> int:
    """0 if all came to what the manifest says, 4 if some were only cut short, else 1."""
    different = [each for each in explored if each.differences]
    if not different:
        return 0
    return EXIT_CUT if all(each.result.verdict == "CUT" for each in different) else EXIT_DIFFERENT


def row(explored: Explored) -> tuple[str, ...]:
    """One line of the table."""
    model, result, differences = explored
    verdict = result.verdict
    if result.broken is not None:
        verdict += f" {result.broken.clause}"
    if result.trace:
        verdict += f" in {len(result.trace)}"
    return (
        model.name,
        f"{result.states:,}",
        f"{result.transitions:,}",
        str(result.depth),
        f"{result.seconds:.1f}",
        verdict if not differences else f"{verdict}, not as expected",
        str(len(result.witnesses)),
        f"{model.profile}: {manifest.bounds_of(model)}",
    )


def detail_lines(explored: Explored) -> list[str]:
    """How a model differs from the manifest, its witnesses, and its counterexample as a scenario to replay."""
    model, result, differences = explored
    lines = [f"{model.name}: {model.about}", *(f"  {difference}" for difference in differences)]
    lines.append(f"  seen: {', '.join(result.witnesses) or 'nothing rare'}")
    if result.broken is not None:
        lines.append(f"  {result.broken.clause}: {result.broken.message}")
    if result.trace:
        judged = model.profile in PROFILES
        play = "to be played on any target by `auxout replay FILE TARGET`"
        lines.append(f"  as a scenario, {play if judged else 'of a profile that nothing is judged by yet'}:")
        lines += scenario.dump(as_scenario(model, result)).splitlines()
    return lines


def as_scenario(model: Model, result: Result) -> Scenario:
    """The way to what a model breaks, in the format of all scenarios."""
    clause = result.broken.clause if result.broken is not None else ""
    made = Scenario(result.trace, model.block_size, model.depth, model.profile, model.name, clause)
    return of_kv_cache(made, model)


def of_kv_cache(made: Scenario, model: Model) -> Scenario:
    """A scenario with a model's KV cache."""
    return made._replace(
        kv_blocks=model.num_blocks, kv_connector=model.kv_connector, lookahead=model.lookahead
    )


def timeline_of(explored: Explored) -> Timeline:
    """The timeline of a model's counterexample."""
    model, result, _ = explored
    broken = result.broken
    wrong = broken and Wrong(broken.clause, _sentence(broken.clause), "", "", broken.message)
    return build(result.trace, model.config, wrong)


def listing(profile: str | None) -> list[tuple[str, ...]]:
    """Every model: name, profile, expected verdict, and what it is for."""
    expected = manifest.load()
    return [
        (model.name, model.profile, _verdict(expected.get(model.name)), model.about)
        for model in MODELS.values()
        if profile in (None, model.profile)
    ]


def freeze(explored: Iterable[Explored]) -> None:
    """Pin what was found in the manifest."""
    entries = {name: entry for name, entry in manifest.load().items() if name in MODELS}
    entries |= {each.model.name: manifest.found(each.model, each.result) for each in explored}
    manifest.FILE.write_text(manifest.dump(entries), encoding="utf-8")


def _sentence(clause: str) -> str:
    return ALL_CLAUSES[clause].sentence if clause in ALL_CLAUSES else ""


def _verdict(expected: Expected | None) -> str:
    return "" if expected is None else f"{expected.verdict} {expected.clause}".strip()


def _size(expected: Expected | None) -> int:
    return expected.states if expected is not None else 0


def _explored(result: Result, expected: dict[str, Expected]) -> Explored:
    model = MODELS[result.model]
    return Explored(model, result, tuple(manifest.differences(model, result, expected.get(model.name))))


_told: Any = None


def _start(told: Any) -> None:
    """Runs first in each process."""
    global _told  # noqa: PLW0603
    _told = told
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent has ended, by whatever signal: the rest of a search would be for nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # we were started by it
    connection.wait([parent.sentinel])
    os._exit(1)


def _explore(name: str, max_states: int) -> Result:
    """Runs in a process of its own."""
    return explore(MODELS[name], max_states=max_states, on_states=lambda states: _told.put((name, states)))
