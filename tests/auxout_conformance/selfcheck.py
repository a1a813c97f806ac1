"""Checks the judge itself: every wrong answer of the curated cases must be rejected by its case's clause.

A wrong answer changes the spec's answer to the first call of one event: ``{"event": 4, "finished_requests": []}``.
Fields of metadata replace those fields; in ``block_hashes`` and its two companions a list of numbers
stands for hashes of the request's list and null for no entry, in ``retained_block_hashes`` and its companion
``["A", 0]`` for a hash of a request that had it. ``tokens`` answers a call about a hit; no other wrong answer does.
``rows`` numbers the rows of the worker's output (null: None, ``"unknown"``: rows of no forward pass), ``rows_of``
hands out another request's rows, ``hashes`` is what a packed value iterates to, ``raised`` names an exception,
``refused`` refuses a legal call and ``answered``
accepts a forbidden one. ``call`` is the number of a later call of the event.

Of a worker's output, ``outputs`` changes that of a request: null takes it away; ``token_start`` and ``rows`` as
above; ``row`` changes those fields of every row, by a difference if they are numbers; ``later`` gives rows of a
later forward pass, ``unknown`` rows of none, ``rejected`` adds those of rejected drafts, and ``failed`` says
whether the request failed. ``usage`` changes what the worker says that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from auxout_spec import calls
from auxout_spec.calls import (
    WORKER_CALLS,
    BuildConnectorMeta,
    Call,
    Halves,
    HitCall,
    ProcessOutput,
    RequestFinished,
    TakeOutput,
)
from auxout_spec.profiles import is_judged, named
from auxout_spec.scenario import config_of
from auxout_spec.values import (
    Hashes,
    Metadata,
    Refusal,
    RequestOutput,
    RequestView,
    Result,
    Row,
    Rows,
    StepOutput,
    Tokens,
)
from auxout_spec.worker import Limits

from .cases import Case, all_cases
from .judge import Play
from .judge.worker_diagnosis import right_usage
from .objects import LATER_ROW, UNKNOWN_ROW
from .observation import Observation, Odd, Raised, Usage
from .reading import HELD
from .setups import Setup
from .targets.adapter import Offer


class SpecHost:
    """Answers every call as the spec does, except for one."""

    offer = Offer(scheduler=True, worker=True)

    def __init__(self) -> None:
        self.wrong: dict[str, Any] | None = None
        """The wrong answer to give to the next call."""

    def new(self, setup: Setup) -> None:
        self._profile, self._state = named(setup.profile), Halves()
        self._cache = setup.cache if self._profile.reads_kv_cache else None
        sizes, lenient = setup.sizes, self._profile.fails_requests
        self._limits = sizes and Limits(sizes.block_size, sizes.capacity, lenient)
        self._views: dict[str, RequestView] = {}

    def call(self, call: Call) -> Observation:
        if isinstance(call, BuildConnectorMeta):
            self._views.update((view.request_id, view) for view in call.requests)
        elif isinstance(call, RequestFinished):
            self._views[call.request.request_id] = call.request
        self._state, right = calls.apply(self._profile, self._limits, self._state, call, self._cache)
        outcome = Raised("AssertionError", right.message, True) if isinstance(right, Refusal) else right
        usage = right_usage(self._state.worker) if isinstance(call, WORKER_CALLS) else None
        wrong = self._due(isinstance(call, HitCall))
        if wrong is None:
            return Observation(outcome, usage=usage)
        if "usage" in wrong:
            return Observation(
                outcome, usage=Usage(**{**right_usage(self._state.worker)._asdict(), **wrong["usage"]})
            )
        return Observation(_falsified(call, right, wrong, self._views), usage=usage)

    def _due(self, about_hit: bool) -> dict[str, Any] | None:
        """The wrong answer, if this is the call that it is for."""
        wrong = self.wrong
        if wrong is None or about_hit is not ("tokens" in wrong):
            return None
        if wrong.get("call", 1) > 1:
            self.wrong = {**wrong, "call": wrong["call"] - 1}
            return None
        self.wrong = None
        return wrong


def check(case: Case, profile: str) -> str:
    """What is wrong with the judge, according to one case; empty if nothing is."""
    for wrong in case.wrong:
        host = SpecHost()
        play = Play.start(host, config_of(case.scenario, named(profile)))
        clause = ""
        for number, event in enumerate(case.scenario.events, 1):
            host.wrong = wrong if number == wrong["event"] else None
            failure = play.event(event)
            if failure is not None:
                clause = failure.clause
                break
        if clause != case.clause:
            said = f"named {clause}" if clause else "accepted it"
            return f"{case.name} (profile {profile}): the judge {said} when the answer was {wrong}"
    return ""


def check_all(on_case: Callable[[], None] = lambda: None, more: str = "") -> list[str]:
    """Every fault of the judge that the cases show.

    Args:
        more: a profile that is still being written, but judged by now.
    """
    faults: list[str] = []
    for case in all_cases():
        checked = (profile for profile in case.profiles if is_judged(profile) or profile == more)
        faults += [fault for profile in checked if (fault := check(case, profile))]
        on_case()
    return faults


def _falsified(
    call: Call, right: Result, wrong: dict[str, Any], views: dict[str, RequestView]
) -> Result | Raised | Odd:
    if "raised" in wrong:
        return Raised(wrong["raised"], "falsified", wrong["raised"] in ("AssertionError", "ValueError"))
    if "refused" in wrong:
        return Raised("AssertionError", "falsified", True)
    if "answered" in wrong:
        return None
    if "tokens" in wrong:
        return Tokens(wrong["tokens"])
    if "hashes" in wrong:
        return Hashes(tuple(bytes.fromhex(text) for text in wrong["hashes"]))
    if isinstance(right, Metadata):
        return _falsified_metadata(right, wrong, views)
    if isinstance(call, TakeOutput):
        return _falsified_rows(call, wrong)
    if isinstance(call, ProcessOutput) and isinstance(right, StepOutput):
        return StepOutput(tuple(_falsified_outputs(call, right, wrong["outputs"])))
    raise ValueError(f"a wrong answer {wrong} to {type(call).__name__}")


def _falsified_outputs(
    call: ProcessOutput, right: StepOutput, wrong: dict[str, Any]
) -> Iterator[tuple[str, RequestOutput]]:
    parts = {part.request_id: part for part in call.parts}
    outputs = dict(right.outputs)
    for name in {**outputs, **wrong}:
        change = wrong.get(name, {})
        if change is None:
            continue
        output = outputs.get(name, RequestOutput(0, ()))
        rows = output.rows
        if "step" in change:
            rows = parts[name].rows
        if "rows" in change:
            rows = tuple(rows[number] for number in change["rows"])
        if "row" in change:
            rows = tuple(_changed(row, change["row"]) for row in rows)
        if "later" in change or "unknown" in change:
            rows = (LATER_ROW if "later" in change else UNKNOWN_ROW,) * len(rows)
        if "rejected" in change:
            part = parts[name]
            rows += part.rows[len(part.rows) - part.num_rejected :]
        start = change.get("token_start", output.token_start)
        yield name, RequestOutput(start, rows, change.get("failed", output.failed))


def _changed(row: Row, fields: dict[str, Any]) -> Row:
    values = row._asdict()
    for name, value in fields.items():
        values[name] = values[name] + value if isinstance(value, int) else value
    return Row(**values)


def _falsified_metadata(right: Metadata, wrong: dict[str, Any], views: dict[str, RequestView]) -> Metadata:
    if "generation" in wrong:
        right = right._replace(generation=wrong["generation"])
    if "requests" in wrong:
        right = right._replace(requests=tuple(wrong["requests"].items()))
    if "finished_requests" in wrong:
        right = right._replace(finished_requests=tuple(wrong["finished_requests"]))
    for field in ("block_hashes", "finished_block_hashes", "replaced_block_hashes"):
        entries = dict(getattr(right, field))
        for request_id, numbers in wrong.get(field, {}).items():
            if numbers is None:
                entries.pop(request_id, None)
            else:
                known = views[request_id].block_hashes
                entries[request_id] = tuple(known[number] for number in numbers)
        right = right._replace(**{field: tuple(entries.items())})
    for field in HELD:
        if field in wrong:
            held = tuple(views[name].block_hashes[number] for name, number in wrong[field])
            right = right._replace(**{field: held})
    return right


def _falsified_rows(call: TakeOutput, wrong: dict[str, Any]) -> Rows | None:
    outputs = dict(call.outputs or ())
    if "rows_of" in wrong:
        own = outputs[call.request.request_id].rows
        return Rows(outputs[wrong["rows_of"]].rows[: len(own)])
    if wrong["rows"] is None:
        return None
    rows = outputs[call.request.request_id].rows
    if wrong["rows"] == "unknown":
        return Rows((UNKNOWN_ROW,) * len(rows))
    return Rows(tuple(rows[number] for number in wrong["rows"]))
