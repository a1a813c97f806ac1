"""The report as JSON lines: what ``--report FILE`` writes, and what reads it back.

The first line says which tool made the report. Then each target has a ``target`` line, one ``clause`` line
per clause, one ``violation`` line per violation (of a client: one ``wrong answer`` line per case), and a ``summary``
line with the verdict, in this order. ``auxout verify`` writes base and patched code as two targets, then one
``verification`` line.
``report.schema.json`` beside this file describes every line. A reader skips fields that it does not know.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from auxout_spec import reading
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.profiles import is_specified
from auxout_spec.reading import Malformed

from .verdicts import ClauseResult, Report, Verdict, Violation, WrongAnswer
from .version import tool_version

FORMAT = "report/1"
KINDS = ("header", "target", "clause", "violation", "wrong answer", "summary", "verification")
"""The kinds of lines."""
_MAX_WORDS = 200
"""Letters of what a message quotes."""


class MalformedReport(ValueError):
    """Text that is not a report of this version; the message says which line."""


class ReportFile(NamedTuple):
    """A report file as it was read."""

    head: dict[str, Any]
    """Its first line."""
    reports: list[Report]
    verification: dict[str, Any] | None
    """The line that ``auxout verify`` adds: base and patched code compared."""


def header(argv: Sequence[str]) -> dict[str, Any]:
    """The first line: the tool, where it ran, and the time."""
    return {
        "line": "header",
        "auxout": FORMAT,
        "tool": f"auxout {tool_version()}",
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "argv": list(argv),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def dump(reports: Iterable[Report], head: dict[str, Any]) -> str:
    """The reports as JSON lines under the given header."""
    lines = [head]
    for report in reports:
        lines += report_lines(report)
    return "".join(json.dumps(line) + "\n" for line in lines)


def report_lines(report: Report) -> list[dict[str, Any]]:
    """One target's lines."""
    return [
        {
            "line": "target",
            "target": report.target,
            "version": report.version,
            "profile": report.profile,
            "suite": report.suite,
            "seed": report.seed,
        },
        *(_clause_line(report.target, result) for result in report.clauses),
        *(_violation_line(report.target, violation) for violation in report.violations),
        *(_answer_line(report.target, answer) for answer in report.wrong_answers),
        {
            "line": "summary",
            "target": report.target,
            "verdict": report.verdict.value,
            "exit_code": report.exit_code,
            "known": list(report.known),
            "expected": list(report.expected),
            "reason": report.reason,
            "replay": report.replay,
            "num_cases": report.num_cases,
            "num_scenarios": report.num_scenarios,
            "num_calls": report.num_calls,
            "seconds": report.seconds,
            "covered": {name: list(bounds) for name, bounds in report.covered.items()},
            "notes": list(report.notes),
        },
    ]


def load(text: str) -> list[Report]:
    """The reports in a file, equal to those that were written; what ``auxout verify`` adds is left out.

    Raises:
        MalformedReport: not a report, or one that ends in the middle of a target.
    """
    return read(text).reports


def read(text: str) -> ReportFile:
    """Everything in a file.

    Raises:
        MalformedReport: not a report, or one that ends in the middle of a target.
    """
    raws = text.split("\n")
    head = _object(1, raws[0])
    if head.get("auxout") != FORMAT:
        raise MalformedReport(f'line 1: expected a header with "auxout": "{FORMAT}"')
    lines = [_line(number, raw) for number, raw in enumerate(raws, 1) if raw.strip()]
    reports: list[Report] = []
    group: list[dict[str, Any]] = []
    verification = None
    for number, line in enumerate(lines[1:], 2):
        if line.get("line") == "verification" and not group:
            verification = line
            continue
        if bool(group) == (line.get("line") == "target"):
            raise MalformedReport(f"line {number}: {line.get('line')!r} stands outside of its target's lines")
        group.append(line)
        if line.get("line") == "summary":
            reports.append(_report(group, number))
            group = []
    if group:
        raise MalformedReport(f"the report ends before the summary of {group[0].get('target')!r}")
    return ReportFile(lines[0], reports, verification)


def _clause_line(target: str, result: ClauseResult) -> dict[str, Any]:
    clause = ALL_CLAUSES[result.clause]
    return {
        "line": "clause",
        "target": target,
        "clause": result.clause,
        "level": clause.level,
        "sentence": clause.sentence,
        "status": result.status,
        "checks": result.checks,
        "findings": list(result.findings),
    }


def _violation_line(target: str, violation: Violation) -> dict[str, Any]:
    return {
        "line": "violation",
        "target": target,
        "clause": violation.clause,
        "sentence": ALL_CLAUSES[violation.clause].sentence,
        "event": violation.event,
        "call": violation.call,
        "expected": violation.expected,
        "actual": violation.actual,
        "found_by": violation.found_by,
        "seed": violation.seed,
        "shrunk_from": violation.shrunk_from,
        "scenario": json.loads(scenarios.dump(violation.scenario)),
        "replay": violation.replay,
    }


def _answer_line(target: str, answer: WrongAnswer) -> dict[str, Any]:
    sentence = ALL_CLAUSES[answer.clause].sentence
    return {"line": "wrong answer", "target": target, "sentence": sentence, **answer.__dict__}


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of a report's lines."""
    text = (resources.files("auxout_conformance") / "report.schema.json").read_text(encoding="utf-8")
    return reading.parse(text)


@cache
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{kind.replace(' ', '_')}", "$defs": schema()["$defs"]})


def _object(number: int, raw: str) -> dict[str, Any]:
    try:
        return reading.table(reading.parse(raw), "a line of a report")
    except Malformed as error:
        raise MalformedReport(f"line {number}: {error}") from None


def _line(number: int, raw: str) -> dict[str, Any]:
    """One line as the schema describes it, of a protocol version that is known here."""
    line = _object(number, raw)
    kind = line.get("line")
    if kind not in KINDS:
        raise MalformedReport(
            f'line {number}: "line" is one of {", ".join(KINDS)}, found {reading.shown(kind)}'
        )
    wrong = best_match(_validator(kind).iter_errors(line))
    if wrong is not None:
        raise MalformedReport(f"line {number}: {wrong.json_path}: {wrong.message[:_MAX_WORDS]}")
    try:
        for scenario in _scenarios(line):
            scenarios.from_json(scenario)
    except Malformed as error:
        raise MalformedReport(f"line {number}: a scenario: {error}") from None
    profile = line.get("profile")
    if profile and not is_specified(profile):
        raise MalformedReport(
            f"line {number}: there is no profile {reading.shown(profile)} here; is auxout too old?"
        )
    return line


def _scenarios(line: dict[str, Any]) -> list[Any]:
    """The scenarios of a line that the schema describes."""
    told = [clause["violation"] for clause in line.get("clauses", ()) if clause["violation"] is not None]
    told += [*line.get("moves", ()), *line.get("changes", ())]
    return [each["scenario"] for each in (line, *told) if "scenario" in each]


def _report(group: list[dict[str, Any]], number: int) -> Report:
    first, last = group[0], group[-1]
    try:
        values: dict[str, Any] = {
            **{name: first[name] for name in ("target", "version", "profile", "suite", "seed")},
            **{
                name: last[name]
                for name in ("reason", "replay", "num_cases", "num_scenarios", "num_calls", "seconds")
            },
            **{name: tuple(last[name]) for name in ("known", "expected", "notes")},
            "covered": {name: (least, most) for name, (least, most) in last.get("covered", {}).items()},
            "verdict": Verdict(last["verdict"]),
            "clauses": tuple(_clause(line) for line in group if line["line"] == "clause"),
            "violations": tuple(violation_from(line) for line in group if line["line"] == "violation"),
            "wrong_answers": tuple(_answer(line) for line in group if line["line"] == "wrong answer"),
        }
        return Report(**values)
    except KeyError as error:
        raise MalformedReport(f"the lines of {first.get('target')!r}, up to {number}: {error}") from None


def _clause(line: dict[str, Any]) -> ClauseResult:
    return ClauseResult(line["clause"], line["status"], line["checks"], tuple(line["findings"]))


def _answer(line: dict[str, Any]) -> WrongAnswer:
    return WrongAnswer(**{each.name: line[each.name] for each in fields(WrongAnswer)})


def violation_from(line: dict[str, Any], clause: str = "") -> Violation:
    """A violation from its line, or from what a verification says of ``clause``."""
    names = ("event", "call", "expected", "actual", "found_by", "seed", "replay")
    return Violation(
        clause=clause or line["clause"],
        scenario=scenarios.from_json(line["scenario"]),
        shrunk_from=line.get("shrunk_from"),
        **{name: line[name] for name in names},
    )
