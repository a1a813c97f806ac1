"""The report as JSON lines: what ``--report FILE`` writes, and what reads it back.

The first line says which tool made the report. Then each target has a ``target`` line, one ``clause`` line
per clause, one ``violation`` line per violation, and a ``summary`` line with the verdict, in this order. ``auxout
verify`` writes base and patched code as two targets, then one ``verification`` line.
``report.schema.json`` beside this file describes every line. A reader skips fields that it does not know.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple, cast

from auxout_spec import scenario as scenarios
from auxout_spec.clauses import CLAUSES

from .verdicts import ClauseResult, Report, Verdict, Violation
from .version import tool_version

FORMAT = "report/1"


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
    lines = [_line(number, raw) for number, raw in enumerate(text.splitlines(), 1) if raw.strip()]
    if not lines or lines[0].get("auxout") != FORMAT:
        raise MalformedReport(f'line 1: expected a header with "auxout": "{FORMAT}"')
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
    clause = CLAUSES[result.clause]
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
        "sentence": CLAUSES[violation.clause].sentence,
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


def _line(number: int, raw: str) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except json.JSONDecodeError as error:
        raise MalformedReport(f"line {number}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise MalformedReport(f"line {number}: expected an object")
    return cast("dict[str, Any]", data)


def _report(group: list[dict[str, Any]], number: int) -> Report:
    first, last = group[0], group[-1]
    try:
        fields: dict[str, Any] = {
            **{name: first[name] for name in ("target", "version", "profile", "suite", "seed")},
            **{
                name: last[name]
                for name in ("reason", "replay", "num_cases", "num_scenarios", "num_calls", "seconds")
            },
            **{name: tuple(last[name]) for name in ("known", "expected", "notes")},
            "verdict": Verdict(last["verdict"]),
            "clauses": tuple(_clause(line) for line in group if line["line"] == "clause"),
            "violations": tuple(violation_from(line) for line in group if line["line"] == "violation"),
        }
        return Report(**fields)
    except (KeyError, ValueError) as error:
        raise MalformedReport(f"the lines of {first.get('target')!r}, up to {number}: {error}") from None


def _clause(line: dict[str, Any]) -> ClauseResult:
    return ClauseResult(line["clause"], line["status"], line["checks"], tuple(line["findings"]))


def violation_from(line: dict[str, Any], clause: str = "") -> Violation:
    """A violation from its line, or from what a verification says of ``clause``."""
    names = ("event", "call", "expected", "actual", "found_by", "seed", "replay")
    return Violation(
        clause=clause or line["clause"],
        scenario=scenarios.load(json.dumps(line["scenario"])),
        shrunk_from=line.get("shrunk_from"),
        **{name: line[name] for name in names},
    )
