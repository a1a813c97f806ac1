"""Writes the parts of the pages that are taken from the code: ``python docs/generate.py``.

A page says ``<!-- generated: NAME -->`` where a part begins and ``<!-- end -->`` where it ends; the rest is written by
hand. A test fails when a part is not what the code says now.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

from auxout_conformance.cases import all_cases, judged_cases
from auxout_conformance.known import all_findings
from auxout_conformance.timeline import of_scenario, picture
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import CLAUSES, Clause
from auxout_spec.deviations import Deviation
from auxout_spec.engine.guards import GUARDS
from auxout_spec.profiles import LATEST, PROFILES, Profile, difference
from auxout_spec.representation import HASH_STYLES, ID_STYLES, PLAIN, Representation
from auxout_spec.scenario import VERBS, Scenario

DOCS = Path(__file__).parent
MARKED = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
TIMELINE = "timeline.svg"

_COMPONENTS = {
    "SCHED": "Scheduler connector",
    "WIRE": "What travels to the worker",
    "WORK": "Worker connector",
    "STORE": "Store",
    "ROW": "What the engine gets in the end",
    "HIT": "What the engine takes up from elsewhere",
    "CHAN": "The way between the two halves",
    "CLIENT": "What a client does with the rows",
    "ENGINE": "The engine",
}
_TYPES = {int: "number", str: "text", bool: "true or false", dict: "request → number"}


def clauses() -> str:
    """The clause reference, by component and group."""
    lines: list[str] = []
    for component in dict.fromkeys(clause.component for clause in CLAUSES.values()):
        lines += [f"## {_COMPONENTS.get(component, component)}", ""]
        group = [clause for clause in CLAUSES.values() if clause.component == component]
        lines += table(("clause", "level", "profiles", "sentence", "source"), map(_clause, group))
    return "\n".join(lines)


def guards() -> str:
    """What the engine model holds an engine to."""
    rows = [(f"`{g.id}`", g.sentence, g.source, _WITHOUT[g.role]) for g in GUARDS.values()]
    return "\n".join(table(("guard", "sentence", "where an engine sees to it", "without it"), rows))


_WITHOUT = {
    "needed": "another verdict",
    "bound": "more states, the same verdict",
    "word": "the event has no meaning",
}


def profiles() -> str:
    """What differs between one profile and the next."""
    lines: list[str] = []
    ordered = list(PROFILES.values())
    for old, new in pairwise(ordered):
        lines += [f"## From {old.name} to {new.name}", ""]
        rows = [
            (f"`{name}`", field_docs(Profile)[name], _plain(before), _plain(after))
            for name, (before, after) in difference(old, new).items()
        ]
        lines += table(("parameter", "what it does", old.name, new.name), rows)
        for profile, other in ((old, new), (new, old)):
            only = [
                c for c in CLAUSES.values() if profile.name in c.profiles and other.name not in c.profiles
            ]
            if only:
                lines += [f"Clauses of {profile.name} only:", ""]
                lines += [f"- `{clause.id}`: {clause.sentence}" for clause in only] + [""]
    return "\n".join(lines)


def deviations() -> str:
    """Where releases depart from the rules of their own profile."""
    found: dict[Deviation, list[str]] = {}
    for finding in all_findings():
        found.setdefault(finding.deviation, []).append(f"{finding.id} (vLLM {finding.release})")
    rows = [(each.sentence, ", ".join(found[each])) for each in Deviation if each in found]
    return "\n".join(table(("what releases do", "known finding"), rows))


def scenario_fields() -> str:
    """The fields of a scenario itself."""
    docs = field_docs(Scenario)
    rows = [("`auxout`", "text", "", f"the format, `{scenarios.FORMAT}`")]
    for name, default in [("events", None), *Scenario._field_defaults.items()]:
        kind = {"events": "list", "representation": "object"}.get(name) or _TYPES[type(default)]
        meaning = docs.get(name) or _SCENARIO_WORDS[name]
        shown = {"events": "", "representation": "`{}`"}.get(name, _json(default))
        rows.append((f"`{name}`", kind, shown, meaning))
    return "\n".join(table(("field", "value", "default", "meaning"), rows))


def representation() -> str:
    """The fields of a representation, and the styles of ids and hashes."""
    docs = field_docs(Representation)
    rows = [
        (f"`{name}`", _TYPES[type(default)], _json(default), docs[name])
        for name, default in PLAIN._asdict().items()
    ]
    lines = table(("field", "value", "default", "meaning"), rows)
    for name, styles in (("ids", ID_STYLES), ("hashes", HASH_STYLES)):
        rows = [(f"`{style}`", words) for style, (words, _) in styles.items()]
        lines += ["", *table((f"`{name}`", f"{name} ..."), rows)]
    return "\n".join(lines)


_SCENARIO_WORDS = {
    "events": "what happens, in order; the rest of this page",
    "block_size": "tokens of a hash block",
    "depth": "steps that may be in flight: 1 is synchronous scheduling, 2 asynchronous",
    "name": "what it is called in messages",
}


def scenario_events() -> str:
    """Every event: what it means, its fields, an example that is played by the suite."""
    lines: list[str] = []
    for verb, (kind, subject, optional) in VERBS.items():
        docs = field_docs(kind)
        lines += [f"### `{verb}`", "", inspect.cleandoc(kind.__doc__ or ""), ""]
        rows = [_event_field(kind, subject, verb, _subject_type(kind, subject), docs)]
        rows += [_event_field(kind, name, name, type_, docs) for name, type_ in optional.items()]
        lines += table(("field", "value", "default", "meaning"), rows)
        lines += ["```json", _example(verb), "```", ""]
    return "\n".join(lines)


def _event_field(kind: type[Any], name: str, key: str, type_: type, docs: dict[str, str]) -> tuple[str, ...]:
    default = kind._field_defaults.get(name)
    shown = "" if name not in kind._field_defaults else _json(default)
    return (f"`{key}`", _TYPES[type_], shown, docs.get(name, ""))


def _subject_type(kind: type[Any], subject: str) -> type:
    """The JSON type of an event's subject."""
    return scenarios.SUBJECT_TYPES.get(subject, str)


def _example(verb: str) -> str:
    """The richest event of that kind in the curated cases, else one made up of what it must have."""
    found = [
        scenarios.event_to_json(event)
        for case in judged_cases()
        for event in case.scenario.events
        if type(event).__name__.lower() == verb
    ]
    if not found:
        kind = VERBS[verb][0]
        needed = {name: 1 for name in kind._fields if name not in kind._field_defaults}
        made = kind(**{name: "A" if name == "request" else value for name, value in needed.items()})
        found = [scenarios.event_to_json(made)]
    return json.dumps(max(found, key=lambda each: (len(each), json.dumps(each))))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table and an empty line."""
    cells = ["| " + " | ".join(_cell(text) for text in row) + " |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *cells, ""]


def field_docs(kind: type) -> dict[str, str]:
    """The docstrings under the fields of a class, by name."""
    tree = ast.parse(dedent(inspect.getsource(kind)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    names: list[str] = []
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and names:
            found[names[-1]] = " ".join(str(node.value.value).split())
    return found


def _clause(clause: Clause) -> tuple[str, ...]:
    everywhere = set(clause.profiles) == set(PROFILES)
    profiles = "all" if everywhere else ", ".join(clause.profiles)
    return (f"`{clause.id}`", clause.level, profiles, clause.sentence, clause.source)


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _json(value: object) -> str:
    """A default as it stands in JSON; request -> number mappings are empty by default."""
    return f"`{json.dumps({} if value == () else value)}`"


def _cell(text: str) -> str:
    """Text in a table: code in single backticks, as Markdown has it, and no pipe of its own."""
    return text.replace("``", "`").replace("|", "\\|")


PARTS: dict[str, Callable[[], str]] = {
    "clauses": clauses,
    "guards": guards,
    "profiles": profiles,
    "deviations": deviations,
    "scenario-fields": scenario_fields,
    "scenario-events": scenario_events,
    "representation": representation,
}


def updated(text: str) -> str:
    """A page with its generated parts as the code says now."""
    return MARKED.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]().rstrip()}\n\n{match[3]}", text)


def timeline() -> str:
    """The picture of the tutorial: output in flight outlives a preemption."""
    case = next(case for case in all_cases() if case.name == "sched-take-12-1")
    return picture.draw(of_scenario(case.scenario, LATEST))


def stale() -> Iterator[tuple[Path, str]]:
    """Files whose generated parts are not what the code says, with what they should hold."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if updated(text) != text:
            yield path, updated(text)
    drawn = DOCS / TIMELINE
    if not drawn.exists() or drawn.read_text(encoding="utf-8") != timeline():
        yield drawn, timeline()


def main() -> int:
    """Write what is stale."""
    for path, text in list(stale()):
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
