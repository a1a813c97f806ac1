"""What an engine owes its connectors, as far as the calls that it makes show it (ENGINE).

The connectors are judged by their answers; this is the other direction, for traces of running engines. The state is
what the engine still owes. It follows the calls of both connectors in the order in which they were made, with two
notes that no call shows: that the engine reset its prefix cache, and that it discards output.

A request that ended, that was preempted or whose turn ended may have steps in flight; the engine delivers their output
or drops it, so neither is held against it.
"""

from __future__ import annotations

from typing import NamedTuple

from .calls import (
    BeginStep,
    BuildConnectorMeta,
    Call,
    Close,
    PrepareOutput,
    ProcessOutput,
    RequestFinished,
    Reset,
    TakeOutput,
)
from .scheduler import SchedulerState
from .values import Metadata, Refusal, RequestId, RequestView, Result, StepOutput


class CacheReset(NamedTuple):
    """The engine reset its prefix cache, or tried to."""

    succeeded: bool


class Discarded(NamedTuple):
    """The engine discards the output of requests that is in flight: their KV failed to load."""

    requests: tuple[RequestId, ...]


Note = CacheReset | Discarded


class Owed(NamedTuple):
    """What an engine owes."""

    begun: Metadata | None = None
    """Of the step that began last, until its forward pass."""
    excused: tuple[frozenset[RequestId], ...] = ()
    """For each step in flight the requests whose output need not be delivered."""
    due: frozenset[RequestId] = frozenset()
    """Whose output of the step processed last must still be taken."""
    taken: frozenset[RequestId] = frozenset()
    """Whose output of that step was taken."""
    ended: tuple[tuple[RequestId, RequestView], ...] = ()
    """Requests that finished and were not seen since, as they were."""
    num_cache_resets: int = 0
    """Since the last step was built."""
    num_told_resets: int = 0


NOTHING = Owed()


def noted(owed: Owed, note: Note) -> Owed:
    """What is owed after a note."""
    if isinstance(note, Discarded):
        return _excuse(owed, frozenset(note.requests))
    return owed._replace(num_cache_resets=owed.num_cache_resets + note.succeeded)


def breach(owed: Owed, connector: SchedulerState, call: Call, notes_resets: bool) -> Refusal | None:
    """The duty that an engine breaks by making a call; None if it is in order.

    Args:
        connector: the scheduler connector's state before the call.
        notes_resets: whether resets of the prefix cache are noted, so that they can be compared.
    """
    if isinstance(call, BuildConnectorMeta):
        return _shown_twice(call) or _resets(owed, notes_resets) or _untold_end(connector, call)
    if isinstance(call, TakeOutput) and call.request.request_id in owed.taken:
        return Refusal("ENGINE-TAKE-1", f"the output of {call.request.request_id} was taken before")
    if isinstance(call, RequestFinished):
        return _second_end(owed, call.request)
    if isinstance(call, ProcessOutput) and owed.due:
        return Refusal("ENGINE-TAKE-1", f"the last step's output of {_names(owed.due)} was not taken")
    if isinstance(call, PrepareOutput):
        return _wrong_step(owed, call)
    return None


def after(owed: Owed, call: Call, right: Result) -> Owed:
    """What is owed after a call that was in order, ``right`` being what it must return."""
    if isinstance(call, Close):
        return NOTHING
    if isinstance(right, Refusal):
        return owed
    if isinstance(call, BuildConnectorMeta):
        seen = {view.request_id for view in call.requests if not view.finished}
        ended = tuple(entry for entry in owed.ended if entry[0] not in seen)
        return owed._replace(ended=ended, num_cache_resets=0, num_told_resets=0)
    if isinstance(call, Reset):
        return owed._replace(num_told_resets=owed.num_told_resets + 1)
    if isinstance(call, BeginStep):
        return owed._replace(begun=call.metadata)
    if isinstance(call, PrepareOutput):
        return owed._replace(begun=None, excused=(*owed.excused, frozenset()))
    if isinstance(right, StepOutput):
        due = frozenset(name for name, _ in right.outputs) - owed.excused[0]
        return owed._replace(excused=owed.excused[1:], due=due, taken=frozenset())
    return _after_request(owed, call)


def _after_request(owed: Owed, call: Call) -> Owed:
    if isinstance(call, TakeOutput):
        name = frozenset((call.request.request_id,))
        owed = owed._replace(taken=owed.taken | name, due=owed.due - name)
        return _excuse(owed, name) if call.request.finished else owed
    if isinstance(call, RequestFinished):
        view = call.request
        owed = _excuse(owed, frozenset((view.request_id,)))
        others = tuple(entry for entry in owed.ended if entry[0] != view.request_id)
        return owed._replace(ended=(*others, (view.request_id, view)) if view.finished else others)
    return owed


def _excuse(owed: Owed, names: frozenset[RequestId]) -> Owed:
    return owed._replace(due=owed.due - names, excused=tuple(step | names for step in owed.excused))


def _resets(owed: Owed, noted: bool) -> Refusal | None:
    if not noted or owed.num_cache_resets == owed.num_told_resets:
        return None
    resets = f"{owed.num_cache_resets} successful, {owed.num_told_resets} told"
    return Refusal("ENGINE-RESET-1", f"resets since the last step was built: {resets}")


def _shown_twice(call: BuildConnectorMeta) -> Refusal | None:
    names = [view.request_id for view in call.requests]
    twice = (
        frozenset(name for name in names if names.count(name) > 1) if len(set(names)) < len(names) else None
    )
    return Refusal("ENGINE-TABLE-1", f"{_names(twice)} is shown twice") if twice else None


def _untold_end(connector: SchedulerState, call: BuildConnectorMeta) -> Refusal | None:
    """An active request that finished."""
    finished = {view.request_id for view in call.requests if view.finished}
    gone = frozenset(name for name, _ in connector.active if name in finished)
    return Refusal("ENGINE-END-1", f"{_names(gone)} ended, and no call told so") if gone else None


def _second_end(owed: Owed, view: RequestView) -> Refusal | None:
    """An end told again; a request without output may be another one that came and went between two steps."""
    before = dict(owed.ended).get(view.request_id)
    if before is None or not view.finished or not view.num_output_tokens:
        return None
    if (before.num_tokens, before.num_output_tokens) != (view.num_tokens, view.num_output_tokens):
        return None
    return Refusal("ENGINE-END-1", f"the end of {view.request_id} was told before")


def _wrong_step(owed: Owed, call: PrepareOutput) -> Refusal | None:
    batch = frozenset(name for name, _, _ in call.batch)
    if owed.begun is None:
        return Refusal("ENGINE-STEP-1", f"the step of {_names(batch)} ran, and none had begun")
    scheduled = frozenset(name for name, _ in owed.begun.requests)
    if batch == scheduled:
        return None
    return Refusal("ENGINE-STEP-1", f"the step began with {_names(scheduled)} and ran with {_names(batch)}")


def _names(names: frozenset[RequestId]) -> str:
    return ", ".join(sorted(names)) or "no request"
