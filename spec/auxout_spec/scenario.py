"""Scenarios: a few engine events that drive any target, as JSON that people read and write.

A counterexample of the explorer, a shrunk failure of Hypothesis, a regression and a known finding are all
scenarios. The file holds one object; each event is an object whose first key is the verb:

    {"auxout": "scenario/1", "block_size": 2, "depth": 2, "events": [
      {"add": "A", "prompt": 4},
      {"launch": {"A": 4}},
      {"land": {"A": 1}},
      {"abort": "A"}]}

Numbers are tokens. A field that is absent has the default of ``engine/events.py``.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast, get_args

from .calls import Exchange
from .engine import events as ev
from .engine.state import EngineConfig, EngineState, initial
from .engine.step import step
from .profiles import PER_REQUEST, SPECIFIED, Profile, named
from .worker import Limits

FORMAT = "scenario/1"


class Scenario(NamedTuple):
    """Events, and the engine they happen in."""

    events: tuple[ev.Event, ...]
    block_size: int = 2
    depth: int = 2
    profile: str = ""
    """The profile it was written for; empty: any."""
    name: str = ""
    clause: str = ""
    """The clause it is about; empty: none in particular."""
    store: int = 0
    """Objects that the worker's store may hold; 0: it is about the scheduler connector alone."""


class Malformed(ValueError):
    """A scenario file that cannot be read; the message says where and what to do."""


VERBS: dict[str, tuple[type[Any], str, dict[str, type]]] = {
    "add": (
        ev.Add,
        "request",
        {"prompt": int, "start": int, "max_tokens": int, "text": str, "session": bool, "cut": int},
    ),
    "launch": (ev.Launch, "tokens", {"drafts": dict, "hits": dict, "external": dict}),
    "land": (ev.Land, "sampled", {"stop": dict, "failed": dict, "recompute": bool}),
    "load": (ev.Load, "request", {"tokens": int}),
    "loaded": (ev.Loaded, "request", {"valid": int}),
    "abort": (ev.Abort, "request", {}),
    "preempt": (ev.Preempt, "request", {}),
    "evict": (ev.Evict, "block", {}),
    "pause": (ev.Pause, "on", {}),
    "reset": (ev.Reset, "running", {"weights": bool, "kept": bool}),
    "chunk": (ev.Chunk, "request", {"tokens": int, "start": int, "max_tokens": int}),
    "end": (ev.End, "request", {}),
    "close": (ev.Close, "restart", {}),
    "tamper": (ev.Tamper, "kind", {"request": str, "amount": int}),
    "unpack": (ev.Unpack, "data", {"item_size": int}),
}
"""The events: verb -> its class, the field that stands under the verb, and the JSON types of the others."""
SUBJECT_TYPES: dict[str, type] = {
    "tokens": dict,
    "sampled": dict,
    "on": bool,
    "running": bool,
    "restart": bool,
}
"""JSON types of the fields that stand under a verb; the others are text."""
_KINDS: tuple[str, ...] = get_args(ev.TamperKind)


def dump(scenario: Scenario, indent: bool = True) -> str:
    """The scenario as JSON, one event a line, or on a single line for a command."""
    head: dict[str, Any] = {"auxout": FORMAT}
    for field in ("name", "clause", "profile"):
        if getattr(scenario, field):
            head[field] = getattr(scenario, field)
    head |= {"block_size": scenario.block_size, "depth": scenario.depth}
    if scenario.store:
        head["store"] = scenario.store
    events = [event_to_json(event) for event in scenario.events]
    if not indent:
        return json.dumps({**head, "events": events}, separators=(",", ":"))
    lines = ",\n".join("    " + json.dumps(event) for event in events)
    return json.dumps(head)[:-1] + ', "events": [\n' + lines + "]}\n"


def load(text: str) -> Scenario:
    """Read a scenario.

    Raises:
        Malformed: not JSON, another format, or an unknown or badly typed field.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise Malformed("a scenario is a JSON object with a list of events")
    fields = cast("dict[str, Any]", data)
    if fields.get("auxout") != FORMAT:
        raise Malformed(f'expected "auxout": "{FORMAT}", found {fields.get("auxout")!r}')
    allowed = {
        "auxout": str,
        "events": list,
        "block_size": int,
        "depth": int,
        "store": int,
        "profile": str,
        "name": str,
        "clause": str,
    }
    _check_fields(fields, allowed, "scenario")
    return _checked(fields)


def event_to_json(event: ev.Event) -> dict[str, Any]:
    """One event as a JSON object; defaults are left out."""
    verb = type(event).__name__.lower()
    kind, subject, fields = VERBS[verb]
    out: dict[str, Any] = {verb: _plain(getattr(event, subject))}
    defaults = kind._field_defaults
    for field in fields:
        value = getattr(event, field)
        if field not in defaults or value != defaults[field]:
            out[field] = _plain(value)
    return out


def event_from_json(data: Any, where: str = "event") -> ev.Event:
    """One event from its JSON object."""
    if not isinstance(data, dict) or not data:
        raise Malformed(f'{where}: an event is an object such as {{"abort": "A"}}')
    fields = cast("dict[str, Any]", data)
    verb = next(iter(fields))
    if verb not in VERBS:
        raise Malformed(f"{where}: unknown event {verb!r}; the events are {', '.join(VERBS)}")
    kind, subject, optional = VERBS[verb]
    _check_fields(fields, {verb: SUBJECT_TYPES.get(subject, str), **optional}, where)
    values = {subject if key == verb else key: _value(value, where) for key, value in fields.items()}
    if verb == "tamper" and values["kind"] not in _KINDS:
        raise Malformed(f"{where}: unknown corruption {values['kind']!r}; known are {', '.join(_KINDS)}")
    if verb == "unpack":
        values["data"] = _hex(cast(str, values["data"]), where)
    try:
        return cast("ev.Event", kind(**values))
    except TypeError:
        needed = [f for f in kind._fields if f not in kind._field_defaults and f != subject]
        raise Malformed(f"{where}: {verb} needs {' and '.join(needed)}") from None


def config_of(scenario: Scenario, profile: Profile) -> EngineConfig:
    """The simulated engine a scenario runs in, under one profile."""
    limits = None
    if scenario.store:
        limits = Limits(scenario.block_size, scenario.store, profile.fails_requests)
    return EngineConfig(profile, scenario.block_size, scenario.depth, limits=limits)


def run(scenario: Scenario, profile: Profile | None = None) -> list[tuple[EngineState, tuple[Exchange, ...]]]:
    """Play a scenario against the spec: the state after each event, and the calls it made.

    Raises:
        Impossible: an event that no engine can bring about.
    """
    config = config_of(scenario, profile or named(scenario.profile))
    state = initial()
    played: list[tuple[EngineState, tuple[Exchange, ...]]] = []
    for event in scenario.events:
        state, exchanges = step(config, state, event)
        played.append((state, exchanges))
    return played


def _checked(fields: dict[str, Any]) -> Scenario:
    events = fields.get("events", [])
    profile = fields.get("profile", "")
    if profile and profile.removesuffix(PER_REQUEST) not in SPECIFIED:
        raise Malformed(f"unknown profile {profile!r}; the profiles are {', '.join(SPECIFIED)}")
    for field in ("block_size", "depth"):
        if fields.get(field, 1) < 1:
            raise Malformed(f"{field} is at least 1")
    if fields.get("store", 0) < 0:
        raise Malformed("store is at least 0")
    return Scenario(
        tuple(event_from_json(event, f"event {number}") for number, event in enumerate(events, 1)),
        fields.get("block_size", 2),
        fields.get("depth", 2),
        profile,
        fields.get("name", ""),
        fields.get("clause", ""),
        fields.get("store", 0),
    )


def _check_fields(fields: dict[str, Any], allowed: dict[str, type], where: str) -> None:
    for name, value in fields.items():
        if name not in allowed:
            raise Malformed(f"{where}: unknown field {name!r}; allowed are {', '.join(allowed)}")
        wrong_bool = allowed[name] is int and isinstance(value, bool)
        if wrong_bool or not isinstance(value, allowed[name]):
            raise Malformed(f"{where}: {name} must be {_TYPE_NAMES[allowed[name]]}, found {value!r}")


_TYPE_NAMES: dict[type, str] = {
    int: "a whole number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _value(value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        return value
    pairs = cast("dict[str, Any]", value)
    for name, number in pairs.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise Malformed(f"{where}: the count of {name} must be a whole number, found {number!r}")
    return tuple(pairs.items())


def _hex(text: str, where: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Malformed(f"{where}: data must be hexadecimal") from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return dict(cast("ev.Counts", value)) if isinstance(value, tuple) else value
