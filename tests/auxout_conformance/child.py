"""The process that runs a foreign target: reads calls as JSON lines, answers with observations.

``python -m auxout_conformance.child KIND WHERE [watched]``. The first answer says whether the target loaded. What the
target prints goes to standard error; the answers have a file descriptor of their own.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from auxout_spec import scenario as scenarios
from auxout_spec import trace
from auxout_spec.deviations import Deviation
from auxout_spec.profiles import named
from auxout_spec.representation import Representation
from auxout_spec.retention import KvCache

from . import isolation, observation
from .elsewhere import Elsewhere, can_fork
from .reading import contents
from .session import Session
from .setups import Setup
from .targets.adapter import Adapter, TargetError
from .targets.drivers import Sizes
from .targets.loading import LoadSpec, load
from .targets.numbers import numbers_of

if TYPE_CHECKING:
    from .measuring import Measure


def main(argv: list[str]) -> int:
    """Serve one target until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spec, watched = LoadSpec(*argv[:2]), isolation.WATCHED in argv[2:]
    try:
        if spec.isolated:
            isolation.limit()
        measure = _measure(spec) if watched else None
        adapter = load(spec)
        elsewhere = Elsewhere(contents) if can_fork() else None
        session = Session(adapter, Setup("", Sizes(1, 1, 1)))
    except BaseException as error:
        known = isinstance(error, TargetError)
        _answer(answers, {"broken": str(error) if known else f"{type(error).__name__}: {error}"})
        return 1
    offer = adapter.offer._replace(numbers=numbers_of(spec))
    _answer(answers, {"loaded": offer._asdict()})
    for line in sys.stdin:
        request = json.loads(line)
        if "lines" in request:
            _answer(answers, {"lines": measure.lines() if measure is not None else {}})
            continue
        if "solve" in request:
            _answer(answers, {"found": _solve(adapter, request)})
            continue
        if "new" in request:
            session.close()
            sizes = request["sizes"] and Sizes(*request["sizes"])
            looks = Representation(**request["representation"])
            setup = Setup(request["new"], sizes, looks, KvCache(*request["cache"]))
            session = Session(adapter, setup, elsewhere)
            continue
        seen = session.call(trace.call_from_json(request))
        _answer(answers, observation.to_json(seen))
    return 0


def _solve(adapter: Adapter, request: dict[str, Any]) -> list[Any]:
    # Its import takes a second.
    from .solving import solve

    assert adapter.scheduler is not None  # it is asked for nothing else
    deviations = frozenset(map(Deviation, request["deviations"]))
    profile = named(request["solve"])._replace(deviations=deviations)
    make = partial(adapter.scheduler, profile.name)
    return [json.loads(scenarios.dump(found)) for found in solve(make, profile, request["suite"])]


def _measure(spec: LoadSpec) -> Measure:
    # Only what is verified is measured.
    from .measuring import Measure

    return Measure(Path(spec.where))


def _answer(answers: TextIO, data: dict[str, Any]) -> None:
    answers.write(json.dumps(data) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
