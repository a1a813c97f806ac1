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
from .deviations import Deviation
from .engine import events as ev
from .engine.state import USUAL_BLOCKS, EngineConfig, EngineState, LargestStep, initial
from .engine.step import step
from .profiles import PER_REQUEST, SPECIFIED, Profile, named
from .reading import Malformed, parse, shown
from .representation import MIN_ROWS, PLAIN, Representation, differing, num_rows, unusable
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
    representation: Representation = PLAIN
    """What it looks like to a connector, see below."""
    kv_blocks: int = USUAL_BLOCKS
    """Blocks of the KV cache; this and the two below mean something from profile 0.33 on."""
    kv_connector: bool = False
    """Whether KV may be loaded from elsewhere."""
    lookahead: int = 0
    """Tokens behind a block that its hash covers, too."""


MAX_TOKENS = 1 << 20
"""Tokens of a request, of a step and of anything else that a number of a scenario counts in tokens."""
MAX_ALL_TOKENS = 1 << 22
"""Tokens of all prompts and chunks together."""
MAX_BLOCKS = 1 << 16
"""Hash blocks of a prompt or a chunk."""
MAX_EVENTS = 1 << 16
MAX_DEPTH = 1 << 10
"""Steps in flight."""
_UNBOUNDED = ("start", "max_tokens", "amount", "valid", "item_size")
"""Numbers that nothing is made of, so that they may be as large as a counter holds."""


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
KV_FIELDS: dict[str, type] = {"kv_blocks": int, "kv_connector": bool, "lookahead": int}
"""Fields about the KV cache, and their JSON types."""
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
    for field in KV_FIELDS:
        if getattr(scenario, field) != Scenario._field_defaults[field]:
            head[field] = getattr(scenario, field)
    if scenario.representation != PLAIN:
        head["representation"] = differing(scenario.representation)
    events = [event_to_json(event) for event in scenario.events]
    if not indent:
        return json.dumps({**head, "events": events}, separators=(",", ":"))
    lines = ",\n".join("    " + json.dumps(event) for event in events)
    return json.dumps(head)[:-1] + ', "events": [\n' + lines + "]}\n"


def load(text: str) -> Scenario:
    """Read a scenario.

    Raises:
        Malformed: not JSON, another format, an unknown or badly typed field, or more than can be played.
    """
    return from_json(parse(text))


def from_json(data: Any) -> Scenario:
    """A scenario from the JSON object that its file holds; raises ``Malformed`` as ``load`` does."""
    if not isinstance(data, dict):
        raise Malformed("a scenario is a JSON object with a list of events")
    fields = cast("dict[str, Any]", data)
    if fields.get("auxout") != FORMAT:
        raise Malformed(f'expected "auxout": "{FORMAT}", found {shown(fields.get("auxout"))}')
    allowed = {
        "auxout": str,
        "events": list,
        "block_size": int,
        "depth": int,
        "store": int,
        "profile": str,
        "name": str,
        "clause": str,
        "representation": dict,
        **KV_FIELDS,
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
        raise Malformed(f"{where}: unknown event {shown(verb)}; the events are {', '.join(VERBS)}")
    kind, subject, optional = VERBS[verb]
    _check_fields(fields, {verb: SUBJECT_TYPES.get(subject, str), **optional}, where)
    values = {subject if key == verb else key: _value(value, where) for key, value in fields.items()}
    if verb == "tamper" and values["kind"] not in _KINDS:
        raise Malformed(f"{where}: unknown corruption {shown(values['kind'])}; known are {', '.join(_KINDS)}")
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
    looks = scenario.representation
    if Deviation.BATCH_KEPT in profile.deviations:
        looks = looks._replace(buffers=PLAIN.buffers)
    return EngineConfig(
        profile,
        scenario.block_size,
        scenario.depth,
        limits=limits,
        representation=looks,
        largest_step=_largest_step(scenario.events),
        num_blocks=scenario.kv_blocks,
        kv_connector=scenario.kv_connector,
        lookahead=scenario.lookahead if profile.reads_kv_cache else 0,
    )


def _largest_step(events: tuple[ev.Event, ...]) -> LargestStep:
    """The most requests and tokens that a step of these has, where that is more than usual."""
    steps = [event.tokens for event in events if isinstance(event, ev.Launch)]
    requests = max((len(tokens) for tokens in steps), default=0)
    rows = max((sum(count for _, count in tokens) for tokens in steps), default=0)
    return LargestStep(max(requests, LargestStep().requests), max(rows, LargestStep().tokens))


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
        raise Malformed(f"unknown profile {shown(profile)}; the profiles are {', '.join(SPECIFIED)}")
    _check_sizes(fields, len(events))
    read = tuple(event_from_json(event, f"event {number}") for number, event in enumerate(events, 1))
    _check_tokens(read, fields.get("block_size", 2))
    named_so = ("block_size", "depth", "name", "clause", "store", *KV_FIELDS)
    plain = {name: fields[name] for name in named_so if name in fields}
    looks = _representation(fields.get("representation", {}))
    scenario = Scenario(read, profile=profile, representation=looks, **plain)
    _require_enough_rows(scenario)
    return scenario


def _check_sizes(fields: dict[str, Any], num_events: int) -> None:
    for field in ("block_size", "depth"):
        if fields.get(field, 1) < 1:
            raise Malformed(f"{field} is at least 1")
    if fields.get("depth", 1) > MAX_DEPTH:
        raise Malformed(f"depth is at most {MAX_DEPTH:,}")
    for field in ("store", "kv_blocks", "lookahead"):
        if fields.get(field, 0) < 0:
            raise Malformed(f"{field} is at least 0")
    if fields.get("lookahead", 0) and fields.get("kv_connector", False):
        raise Malformed("lookahead is 0 where there is a kv_connector")
    if num_events > MAX_EVENTS:
        raise Malformed(f"a scenario has at most {MAX_EVENTS:,} events")


def _require_enough_rows(scenario: Scenario) -> None:
    """Each row that is computed has a value of its own."""
    steps = [event.tokens for event in scenario.events if isinstance(event, ev.Launch)]
    needed = 2 * sum(count for tokens in steps for _, count in tokens)
    there_are = num_rows(scenario.representation)
    if max(needed, MIN_ROWS) > there_are:
        raise Malformed(
            f"representation: there are {there_are} different rows of that format, {max(needed, MIN_ROWS)} are needed"
        )


def _check_size(value: int, name: str, where: str) -> None:
    if abs(value) > MAX_TOKENS:
        raise Malformed(f"{where}: {name} is {value:,}; at most {MAX_TOKENS:,} can be played")


def _check_tokens(events: tuple[ev.Event, ...], block_size: int) -> None:
    """Refuse what would take hours to play."""
    added = [event.prompt for event in events if isinstance(event, ev.Add)]
    added += [event.tokens for event in events if isinstance(event, ev.Chunk)]
    if sum(added) > MAX_ALL_TOKENS:
        raise Malformed(f"the requests have {sum(added):,} tokens; at most {MAX_ALL_TOKENS:,} can be played")
    if max(added, default=0) > MAX_BLOCKS * block_size:
        raise Malformed(f"a request has more than {MAX_BLOCKS:,} blocks of {block_size} tokens")


def _representation(fields: dict[str, Any]) -> Representation:
    """What a scenario looks like, from the fields that are not plain."""
    _check_fields(fields, {name: type(value) for name, value in PLAIN._asdict().items()}, "representation")
    wrong = unusable(fields)
    if wrong:
        raise Malformed(f"representation: {wrong}")
    return Representation(**fields)


def _check_fields(fields: dict[str, Any], allowed: dict[str, type], where: str) -> None:
    for name, value in fields.items():
        if name not in allowed:
            raise Malformed(f"{where}: unknown field {shown(name)}; allowed are {', '.join(allowed)}")
        wrong_bool = allowed[name] is int and isinstance(value, bool)
        if isinstance(value, int) and name not in _UNBOUNDED:
            _check_size(value, name, where)
        if wrong_bool or not isinstance(value, allowed[name]):
            raise Malformed(f"{where}: {name} must be {_TYPE_NAMES[allowed[name]]}, found {shown(value)}")


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
            count = f"the count of {name[:40]}"
            raise Malformed(f"{where}: {count} must be a whole number, found {shown(number)}")
        _check_size(number, f"the count of {name[:40]}", where)
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
