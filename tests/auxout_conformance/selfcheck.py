"""Checks the judge itself: every wrong answer of the curated cases must be rejected by its case's clause.

A wrong answer changes the spec's answer to the first call of one event: ``{"event": 4, "finished_requests": []}``.
Fields of metadata replace those fields; in ``block_hashes`` and ``finished_block_hashes`` a list of numbers
stands for hashes of the request's list and null for no entry. ``rows`` numbers the rows of the worker's output
(null: None, ``"unknown"``: rows nobody made), ``rows_of`` hands out another request's rows, ``hashes`` is what a
packed value iterates to, ``raised`` names an exception, ``refused`` refuses a legal call and ``answered``
accepts a forbidden one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from auxout_spec import calls
from auxout_spec.calls import BuildConnectorMeta, Call, RequestFinished, TakeOutput
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import config_of
from auxout_spec.scheduler import INITIAL
from auxout_spec.values import Hashes, Metadata, Refusal, RequestView, Result, Row, Rows

from .cases import Case, all_cases
from .judge import Play
from .observation import Observation, Odd, Raised

UNKNOWN = Row("<no such row>", -1, -1, -1)


class SpecHost:
    """Answers every call as the spec does, except for one."""

    def __init__(self) -> None:
        self.wrong: dict[str, Any] | None = None
        """The wrong answer to give to the next call."""

    def new(self, profile: str) -> None:
        self._profile, self._state = PROFILES[profile], INITIAL
        self._views: dict[str, RequestView] = {}

    def call(self, call: Call) -> Observation:
        if isinstance(call, BuildConnectorMeta):
            self._views.update((view.request_id, view) for view in call.requests)
        elif isinstance(call, RequestFinished):
            self._views[call.request.request_id] = call.request
        self._state, right = calls.apply(self._profile, self._state, call)
        wrong, self.wrong = self.wrong, None
        if wrong is not None:
            return Observation(_falsified(call, right, wrong, self._views))
        if isinstance(right, Refusal):
            return Observation(Raised("AssertionError", right.message, True))
        return Observation(right)


def check(case: Case, profile: str) -> str:
    """What is wrong with the judge, according to one case; empty if nothing is."""
    for wrong in case.wrong:
        host = SpecHost()
        play = Play.start(host, config_of(case.scenario, PROFILES[profile]))
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


def check_all(on_case: Callable[[], None] = lambda: None) -> list[str]:
    """Every fault of the judge that the cases show."""
    faults: list[str] = []
    for case in all_cases():
        faults += [fault for profile in case.profiles if (fault := check(case, profile))]
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
    if "hashes" in wrong:
        return Hashes(tuple(bytes.fromhex(text) for text in wrong["hashes"]))
    if isinstance(right, Metadata):
        return _falsified_metadata(right, wrong, views)
    if isinstance(call, TakeOutput):
        return _falsified_rows(call, wrong)
    raise ValueError(f"a wrong answer {wrong} to {type(call).__name__}")


def _falsified_metadata(right: Metadata, wrong: dict[str, Any], views: dict[str, RequestView]) -> Metadata:
    if "generation" in wrong:
        right = right._replace(generation=wrong["generation"])
    if "requests" in wrong:
        right = right._replace(requests=tuple(wrong["requests"].items()))
    if "finished_requests" in wrong:
        right = right._replace(finished_requests=tuple(wrong["finished_requests"]))
    for field in ("block_hashes", "finished_block_hashes"):
        entries = dict(getattr(right, field))
        for request_id, numbers in wrong.get(field, {}).items():
            if numbers is None:
                entries.pop(request_id, None)
            else:
                known = views[request_id].block_hashes
                entries[request_id] = tuple(known[number] for number in numbers)
        right = right._replace(**{field: tuple(entries.items())})
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
        return Rows((UNKNOWN,) * len(rows))
    return Rows(tuple(rows[number] for number in wrong["rows"]))
