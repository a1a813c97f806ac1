"""What every kind of report shows, in the order in which it shows it: plain values, no layout."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from auxout_spec import scenario as scenarios
from auxout_spec.clauses import ALL_CLAUSES

from .. import known
from ..render import found_by_words, printable, unexpected, verdict_words
from ..report import ReportFile, violation_from
from ..timeline import RIGHT_COURSE, Timeline, of_violation, picture, terminal
from ..timeline.contrast import Part, differing
from ..verdicts import ClauseResult, Report, Violation, WrongAnswer

TEXT_WIDTH = 110
"""Letters in a line of a timeline as text."""
STATUSES = ("violated", "known", "not judged", "holds")
"""What became of a clause, what needs attention first."""
OUTCOMES = ("broken", "expected", "moved", "fixed", "still violated", "not judged", "kept")
"""What a patch does to a clause, what needs attention first."""


class Trouble(NamedTuple):
    """One violation, or one wrong answer of a client, as it is shown."""

    clause: str
    sentence: str
    call: str
    """The call and its place in the scenario; of a client: what happens in the conversation."""
    expected: tuple[Part, ...]
    actual: tuple[Part, ...]
    found_by: str
    scenario: str
    """JSON, an event a line; of a client: the conversation."""
    replay: str
    timeline: Timeline | None
    """None: of a client, which has none."""
    announced: bool = False
    """An expectation file listed it."""

    @property
    def happened(self) -> str:
        """What ``call`` is, in a word."""
        return "story" if self.timeline is None else "call"

    @property
    def text(self) -> str:
        """The timeline as text; empty if there is none."""
        if self.timeline is None:
            return ""
        return "\n".join(line.plain for line in terminal.draw(self.timeline, TEXT_WIDTH)).rstrip()

    def svg(self, name: str) -> str:
        """The timeline as a picture; empty if there is none."""
        if self.timeline is None:
            return ""
        return picture.draw(self.timeline, name, legend=False)

    @property
    def caption(self) -> str:
        """What the picture does not say itself."""
        if self.timeline is None:
            return ""
        notes = [RIGHT_COURSE, self.timeline.note] if self.timeline.wrong else [self.timeline.note]
        return "; ".join(printable(note) for note in notes if note)


class ClauseRow(NamedTuple):
    """A line of the clause table."""

    clause: str
    level: str
    sentence: str
    status: str
    checks: int
    findings: tuple[str, ...]


class Section(NamedTuple):
    """One target."""

    target: str
    verdict: str
    """In words, such as ``conforms except known findings F31-1``."""
    exit_code: int
    facts: tuple[tuple[str, str], ...]
    """What was judged and how: name and value."""
    reason: str
    replay: str
    """For a target that broke: the command that plays its scenario again."""
    troubles: tuple[Trouble, ...]
    clauses: tuple[ClauseRow, ...]
    counts: tuple[tuple[str, int], ...]
    """Clauses by status, in the order of ``STATUSES``."""
    notes: tuple[str, ...]


class Patch(NamedTuple):
    """What a verification says beside its two targets."""

    title: str
    result: str
    exit_code: int
    reason: str
    replay: str
    outcomes: tuple[tuple[str, tuple[str, ...]], ...]
    """Outcome and its clauses, in the order of ``OUTCOMES``."""
    moves: tuple[str, ...]
    changes: tuple[tuple[str, ...], ...]
    """Changes that the protocol leaves open: what, call, base, patched."""
    troubles: tuple[Trouble, ...]
    notes: tuple[str, ...]


class Document(NamedTuple):
    """A whole report."""

    tool: str
    time: str
    where: str
    command: str
    sections: tuple[Section, ...]
    patch: Patch | None


def document(file: ReportFile) -> Document:
    """The document of a report file."""
    head = file.head
    where = f"Python {head.get('python', '')}, {head.get('platform', '')}"
    words = " ".join(map(printable, head.get("argv", ())))
    patch = patch_of(file.verification) if file.verification else None
    told = {each.clause for each in patch.troubles} if patch else set[str]()
    sections = tuple(_section(report, told) for report in file.reports)
    return Document(
        printable(str(head.get("tool", "auxout"))),
        str(head.get("time", "")).replace("T", " ").replace("+00:00", " UTC"),
        printable(where),
        words,
        sections,
        patch,
    )


def _section(report: Report, told: set[str]) -> Section:
    """One target; what is told of the patch already is left out."""
    deviations = known.deviations_of(name for result in report.clauses for name in result.findings)
    expected = {each.clause for each in report.violations} - {each.clause for each in unexpected(report)}
    counts = Counter(result.status for result in report.clauses)
    order = sorted(report.clauses, key=lambda result: STATUSES.index(result.status))
    return Section(
        printable(report.target),
        verdict_words(report),
        report.exit_code,
        tuple(_facts(report)),
        printable(report.reason),
        printable(report.replay),
        tuple(
            _trouble(each, each.clause in expected, deviations)
            for each in report.violations
            if each.clause not in told
        )
        + tuple(map(_wrong_answer, report.wrong_answers)),
        tuple(map(_clause_row, order)),
        tuple((status, counts[status]) for status in STATUSES if counts[status]),
        tuple(map(printable, report.notes)),
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    facts = [("target", report.target), ("version", report.version), ("profile", report.profile)]
    if report.profile:
        drawn = "fixed scenarios" if report.seed is None else str(report.seed)
        facts += [("suite", report.suite), ("seed", drawn)]
    for name, number in (
        ("cases", report.num_cases),
        ("random scenarios", report.num_scenarios),
        ("calls", report.num_calls),
    ):
        facts.append((name, f"{number:,}" if number else ""))
    facts.append(("duration", f"{report.seconds:.1f} s" if report.seconds else ""))
    return [(name, printable(value)) for name, value in facts if value]


def _trouble(violation: Violation, announced: bool, deviations: frozenset[Any]) -> Trouble:
    expected, actual = differing(printable(violation.expected), printable(violation.actual))
    num_events = len(violation.scenario.events)
    return Trouble(
        violation.clause,
        ALL_CLAUSES[violation.clause].sentence if violation.clause in ALL_CLAUSES else "",
        printable(f"{violation.call}, event {violation.event} of {num_events}"),
        tuple(expected),
        tuple(actual),
        printable(found_by_words(violation)),
        printable(scenarios.dump(violation.scenario).rstrip("\n")),
        printable(violation.replay),
        of_violation(violation, deviations),
        announced,
    )


def _wrong_answer(answer: WrongAnswer) -> Trouble:
    expected, actual = differing(printable(answer.expected), printable(answer.actual))
    return Trouble(
        answer.clause,
        ALL_CLAUSES[answer.clause].sentence if answer.clause in ALL_CLAUSES else "",
        printable(answer.story),
        tuple(expected),
        tuple(actual),
        printable(f"case {answer.case}"),
        printable(json.dumps(answer.conversation)),
        printable(answer.replay),
        None,
    )


def _clause_row(result: ClauseResult) -> ClauseRow:
    clause = ALL_CLAUSES.get(result.clause)
    level, sentence = (clause.level, clause.sentence) if clause else ("", "")
    return ClauseRow(result.clause, level, sentence, result.status, result.checks, result.findings)


def patch_of(line: dict[str, Any]) -> Patch:
    """What a verification's line says."""
    clauses: Sequence[dict[str, Any]] = line.get("clauses", ())
    outcomes = tuple(
        (outcome, tuple(_named(each) for each in clauses if each["outcome"] == outcome))
        for outcome in OUTCOMES
    )
    broken = [each for each in clauses if each["outcome"] == "broken" and each.get("violation")]
    return Patch(
        printable(f"{line['patch']} on {line['base']}"),
        line["result"],
        line["exit_code"],
        printable(line.get("reason", "")),
        printable(line.get("replay", "")),
        tuple(pair for pair in outcomes if pair[1]),
        tuple(_move(each) for each in line.get("moves", ())),
        tuple(_change(each) for each in line.get("changes", ())),
        tuple(_trouble(violation_from(e["violation"], e["clause"]), False, frozenset()) for e in broken),
        tuple(map(printable, line.get("notes", ()))),
    )


def _named(each: dict[str, Any]) -> str:
    findings = f" ({', '.join(each['findings'])})" if each.get("findings") else ""
    return f"{each['clause']}{findings}"


def _move(move: dict[str, Any]) -> str:
    instead = f" instead of {', '.join(move['instead_of'])}" if move["instead_of"] else ""
    return f"now behaves as profile {move['profile']} in {', '.join(move['clauses'])}{instead}"


def _change(change: dict[str, Any]) -> tuple[str, ...]:
    return tuple(printable(str(change[name])) for name in ("what", "call", "base", "patched"))
