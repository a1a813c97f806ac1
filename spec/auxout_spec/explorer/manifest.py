"""What each model must come to: verdict, exact counts, depth and witnesses, pinned in ``manifest.json``.

A changed count is not a fault by itself, but it never goes unnoticed; a witness that is lost makes a model vacuous.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..engine.state import USUAL_BLOCKS
from .model import Model
from .search import Result

FILE = Path(__file__).with_name("manifest.json")
_COUNTED = ("preemptions", "aborts", "evictions", "pauses", "loads", "drafts", "max_running")
_SWITCHES = (
    "stops",
    "skips_hits",
    "waits_for_loads",
    "known_rows",
    "load_failures",
    "recompute",
    "empty_steps",
    "settled_ids",
    "settled_turns",
)
"""Fields of a menu that are named by their own name."""


class Expected(NamedTuple):
    """What a model must come to; counts of 0 are not pinned (models of the nightly set)."""

    bounds: str
    verdict: str
    clause: str = ""
    """The clause that is broken."""
    length: int = 0
    """Events of the shortest way to it."""
    states: int = 0
    transitions: int = 0
    depth: int = 0
    events: tuple[str, ...] = ()
    """Kinds of events that happen."""
    witnesses: tuple[str, ...] = ()


def load() -> dict[str, Expected]:
    """The manifest: model name -> what it must come to."""
    entries: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Expected(**{key: _tuple(value) for key, value in e.items()}) for name, e in entries.items()}


def found(model: Model, result: Result) -> Expected:
    """What a model came to, as the manifest has it."""
    return Expected(
        bounds_of(model),
        result.verdict,
        result.broken.clause if result.broken is not None else "",
        len(result.trace),
        result.states,
        result.transitions,
        result.depth,
        tuple(sorted(result.events)),
        result.witnesses,
    )


def dump(entries: dict[str, Expected]) -> str:
    """The manifest as JSON, one model after the other, what is empty left out."""
    kept = {
        name: {key: value for key, value in entry._asdict().items() if value}
        for name, entry in sorted(entries.items())
    }
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in kept.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def differences(model: Model, result: Result, expected: Expected | None) -> list[str]:
    """In which ways a model came to something else than it must, in words."""
    if expected is None:
        return ["not in the manifest"]
    came_to = found(model, result)
    exact = ["bounds", "verdict", "clause", "length"]
    exact += ["states", "transitions", "depth"] if expected.states else []
    wrong = [
        f"{field}: {getattr(came_to, field)}, expected {getattr(expected, field)}"
        for field in exact
        if getattr(came_to, field) != getattr(expected, field)
    ]
    lost = [name for name in expected.events if name not in came_to.events]
    lost += [name for name in expected.witnesses if name not in came_to.witnesses]
    return wrong + [f"never happened: {name}" for name in lost]


def bounds_of(model: Model) -> str:
    """A model's bounds in a few words: requests as prompt+outputs from the prompt start, then what may happen."""
    menu = model.menu
    adds = [
        f"{add.request}{f'({add.text})' if add.text else ''} {add.prompt}+{add.max_tokens}"
        f"{f' from {add.start}' if add.start else ''}{' session' if add.session else ''}"
        f"{f' cut by {add.cut}' if add.cut else ''}"
        for add in menu.adds
    ]
    limits = [f"block {model.block_size}", f"depth {model.depth}"]
    limits += [f"store {model.capacity}"] if model.bounded else []
    limits += [f"keeps {model.num_blocks}"] if model.num_blocks < USUAL_BLOCKS else []
    limits += [f"looks ahead {model.lookahead}"] if model.lookahead else []
    may = [f"{getattr(menu, field)} {field}" for field in _COUNTED if getattr(menu, field)]
    may += [f"chunks of {size}" for size in menu.prefill_chunks]
    may += [f"external hit {size}" for size in menu.external]
    may += [f"{'drained ' if menu.drained_resets else ''}reset{_flags(reset)}" for reset in menu.resets]
    may += [f"chunk {each.request}+{each.tokens}" for each in menu.chunks]
    may += [field.replace("_", " ") for field in _SWITCHES if getattr(menu, field)]
    may += ["symmetric"] if model.symmetric else []
    may += ["gives up hits"] if model.config.profile.gives_up_hits else []
    return "; ".join((", ".join(adds), ", ".join(limits), ", ".join(may))).rstrip("; ")


def _flags(reset: Any) -> str:
    return "".join(f" {field}" for field in reset._fields if getattr(reset, field))


def _tuple(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value
