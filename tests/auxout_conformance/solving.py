"""Numbers, ids and bytes of hashes, solved for instead of drawn: values for which a connector in plain Python is wrong.

A fault at a single value, or behind a mask, shows in no drawn play. Here the plays are short, and what they are about
is unknown: Hypothesis's CrossHair backend follows the target's code with symbolic values, and asks a solver for those
that make its answer another one than the specification's. What it finds is a scenario, and nothing more: the judge
plays it like any other, so that a solver accuses no right connector.

A value becomes concrete where the target hands it to code in C (``join``, ``pickle``, numpy) or, for an id, uses it as
a key. From there on it is as if it had been drawn. Numbers of hashes, requests and steps are concrete from the start:
the plays around the numbers in a target's source (``large``) are for these.

Calls are made here, and not in a ``Session``: that pickles and compares what it gets again and again, which makes every
value concrete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from auxout_spec.calls import (
    BuildConnectorMeta,
    RequestFinished,
    Reset,
    SchedulerCall,
    TakeOutput,
    apply_scheduler,
)
from auxout_spec.engine.events import Abort, Add, Preempt
from auxout_spec.profiles import Profile
from auxout_spec.representation import Representation
from auxout_spec.scenario import Scenario
from auxout_spec.scheduler import INITIAL
from auxout_spec.values import Outputs, RequestOutput, RequestView, Row, Rows

from .judge import agrees
from .large import Script
from .objects import EngineRequest
from .objects import RequestOutput as GivenOutput
from .observation import Raised
from .reading import read_metadata
from .verdicts import Suite

EXAMPLES: dict[Suite, int] = {"smoke": 0, "default": 40, "deep": 400}
"""Paths through the target's code that are followed for a puzzle; ``smoke`` solves none."""
MOST_TOKENS = 1 << 17
MOST_OUTPUTS = 500
"""Each takes a step of the play that shows it."""
MOST_ROWS = 6
HASH_SIZES = (8, 32)
"""Bytes."""

_NO_HEALTH_CHECK = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)

Make = Callable[[], Any]
"""A fresh scheduler connector."""


class Puzzle(NamedTuple):
    """A short play about unknown values."""

    name: str
    unknowns: dict[str, SearchStrategy[Any]]
    calls: Callable[..., Iterable[SchedulerCall]]
    """What is called, of the unknowns."""
    scenario: Callable[..., Scenario]
    """A play in which an engine makes such calls, of values for the unknowns and a profile."""
    part: float = 1.0
    """Of the paths; less where values soon become concrete, after which one path is as good as the next."""


class _Differs(Exception):
    """An answer is another one than the specification's."""


def is_possible() -> bool:
    """Whether what solving needs is installed: the extra ``symbolic``."""
    return find_spec("hypothesis_crosshair_provider") is not None


def solve(make: Make, profile: Profile, suite: Suite) -> Iterator[Scenario]:
    """Plays in which a target may be wrong, at most one for each puzzle; none if the suite solves none."""
    for puzzle in PUZZLES if EXAMPLES[suite] else ():
        found = _solve(make, profile, puzzle, round(puzzle.part * EXAMPLES[suite]))
        if found is not None:
            yield found


def _solve(make: Make, profile: Profile, puzzle: Puzzle, examples: int) -> Scenario | None:
    """A play in which a target may be wrong, of one puzzle."""
    found: dict[str, Any] = {}

    @settings(
        backend="crosshair",
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=_NO_HEALTH_CHECK,
    )
    @given(**puzzle.unknowns)
    def agree(**values: Any) -> None:
        if _differs(make(), profile, puzzle.calls(**values)):
            # The last time it comes here the values are concrete: Hypothesis repeats what failed.
            found.update(values)
            raise _Differs

    try:
        agree()
    except (_Differs, HypothesisException):
        # One that cannot be repeated tells nothing, which the judge will see.
        return puzzle.scenario(profile, **found) if found else None
    return None


def _differs(connector: Any, profile: Profile, calls: Iterable[SchedulerCall]) -> bool:
    """Whether a connector answers one of the calls other than the specification does."""
    state, requests = INITIAL, dict[str, EngineRequest]()
    for call in calls:
        state, right = apply_scheduler(profile, state, call)
        if not agrees(right, _answer(connector, call, requests)):
            return True
    return False


def _answer(connector: Any, call: SchedulerCall, requests: dict[str, EngineRequest]) -> Any:
    """What a connector answers, in the spec's values."""
    try:
        if isinstance(call, BuildConnectorMeta):
            return _build(connector, call, requests)
        if isinstance(call, TakeOutput):
            return _take(connector, call, requests)
        if isinstance(call, RequestFinished):
            return connector.request_finished(_object(call.request, requests))
        return connector.reset()
    except HypothesisException:  # not the target's
        raise
    except Exception as error:
        return Raised(type(error).__name__, str(error), isinstance(error, AssertionError | ValueError))


def _object(view: RequestView, requests: dict[str, EngineRequest]) -> EngineRequest:
    request = requests.setdefault(view.request_id, EngineRequest(view))
    request.update(view)
    return request


def _build(connector: Any, call: BuildConnectorMeta, requests: dict[str, EngineRequest]) -> Any:
    known = {view.request_id: _object(view, requests) for view in call.requests}
    step = SimpleNamespace(num_scheduled_tokens=dict(call.scheduled))
    return read_metadata(connector.build_connector_meta(step, known))


def _take(connector: Any, call: TakeOutput, requests: dict[str, EngineRequest]) -> Any:
    """Rows are numbered."""
    outputs = {
        name: GivenOutput(output.token_start, np.arange(len(output.rows), dtype=np.uint16).reshape(-1, 1, 1))
        for name, output in call.outputs or ()
    }
    taken = connector.take_output(_object(call.request, requests), outputs)
    return None if taken is None else Rows(_rows(np.ravel(taken).tolist()))


def _rows(numbers: Iterable[int]) -> tuple[Row, ...]:
    return tuple(Row("", number, 0, 0) for number in numbers)


def _view(name: str, prompt: int, outputs: int, start: int = 0, hashes: Sequence[bytes] = ()) -> RequestView:
    return RequestView(name, prompt + outputs, prompt, outputs, start, tuple(hashes))


def _output(name: str, first: int, count: int) -> Outputs:
    return ((name, RequestOutput(first, _rows(range(count)))),)


# Lengths and starts.


def _call_with_numbers(
    prompt: int, outputs: int, start: int, other_prompt: int, other_start: int
) -> Iterator[SchedulerCall]:
    def first(count: int) -> RequestView:
        return _view("A", prompt, count, start)

    other, both = _view("B", other_prompt, 0, other_start), (("A", 1), ("B", 1))
    yield BuildConnectorMeta((("A", 1),), (first(0),))
    num_rows = prompt - start
    if 0 <= num_rows <= MOST_ROWS:
        yield TakeOutput(first(1), _output("A", start, num_rows))
    yield RequestFinished(first(outputs))
    yield BuildConnectorMeta((("A", 1),), (first(outputs), other))
    yield TakeOutput(first(outputs + 1), _output("A", prompt + outputs - 1, 1))
    yield BuildConnectorMeta(both, (first(outputs + 1), other))
    yield RequestFinished(first(outputs + 2)._replace(finished=True))
    yield BuildConnectorMeta((), (other,))


def _play_with_numbers(
    profile: Profile, prompt: int, outputs: int, start: int, other_prompt: int, other_start: int
) -> Scenario:
    script = Script(profile, Scenario((), 128, 2))
    script.do(Add("A", prompt, start, outputs + 3), Add("B", other_prompt, other_start, 2))
    for _ in range(outputs):
        script.run(["A"])
    script.do(Preempt("A"))
    script.launch([])
    script.run(["A"])
    script.run(["A", "B"])
    script.abort_all()
    script.launch([])
    return script.scenario._replace(name="numbers solved for")


# Ids.


def _call_with_ids(first: str, second: str) -> Iterator[SchedulerCall]:
    assume(first != second)
    one, two, more = _view(first, 3, 0), _view(second, 4, 0), _view(first, 3, 1)
    yield BuildConnectorMeta(((first, 3),), (one, two))
    yield TakeOutput(more, _output(first, 0, 3))
    yield BuildConnectorMeta(((first, 1), (second, 4)), (more, two))
    yield TakeOutput(_view(first, 3, 2), (*_output(first, 3, 1), *_output(second, 0, 4)))
    yield RequestFinished(_view(first, 3, 2)._replace(finished=True))
    yield BuildConnectorMeta(((second, 1),), (_view(second, 4, 1),))
    yield Reset()
    yield BuildConnectorMeta(((second, 1),), (_view(second, 4, 2),))


def _play_with_ids(profile: Profile, first: str, second: str) -> Scenario:
    script = Script(
        profile, Scenario((), 128, 2, representation=Representation(first_ids=f"{first}\n{second}"))
    )
    script.do(Add("A", 3, 0, 4), Add("B", 4, 0, 4))
    script.run(["A"])
    script.run(["A", "B"])
    script.do(Abort("A"))
    script.run(["B"])
    script.abort_all()
    script.launch([])
    return script.scenario._replace(name="ids solved for")


# Bytes of hashes.


def _call_with_hashes(hashes: tuple[bytes, ...]) -> Iterator[SchedulerCall]:
    assume(len(set(hashes)) == len(hashes))
    yield BuildConnectorMeta((("A", 4),), (_view("A", 4, 0, 0, hashes[:2]),))
    yield BuildConnectorMeta((("A", 1),), (_view("A", 4, 2, 0, hashes[:3]),))
    yield RequestFinished(_view("A", 4, 4, 0, hashes)._replace(finished=True))
    yield BuildConnectorMeta((), ())


def _play_with_hashes(profile: Profile, hashes: tuple[bytes, ...]) -> Scenario:
    size, given_hashes = len(hashes[0]), " ".join(each.hex() for each in hashes)
    looks = Representation(hash_size=size, first_hashes=given_hashes)
    script = Script(profile, Scenario((), 2, 2, representation=looks))
    script.do(Add("A", 4, 0, 5))
    for _ in range(4):
        script.run(["A"])
    script.abort_all()
    script.launch([])
    return script.scenario._replace(name="hashes solved for")


_tokens, _starts = st.integers(1, MOST_TOKENS), st.integers(0, MOST_TOKENS + 1000)
_ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1, max_size=40)
PUZZLES = (
    Puzzle(
        "lengths and starts",
        {
            "prompt": _tokens,
            "outputs": st.integers(1, MOST_OUTPUTS),
            "start": _starts,
            "other_prompt": _tokens,
            "other_start": _starts,
        },
        _call_with_numbers,
        _play_with_numbers,
    ),
    Puzzle("ids", {"first": _ids, "second": _ids}, _call_with_ids, _play_with_ids, 0.3),
    *(
        Puzzle(
            f"hashes of {size} bytes",
            {"hashes": st.tuples(*[st.binary(min_size=size, max_size=size)] * 4)},
            _call_with_hashes,
            _play_with_hashes,
            0.5,
        )
        for size in HASH_SIZES
    ),
)
"""In each, all of its unknowns are solved for at once."""
