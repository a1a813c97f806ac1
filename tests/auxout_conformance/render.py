"""What a person reads: verdicts, violations and tables, as plain lines.

A line that is meant to be copied, a scenario's JSON or a replay command, is one line however long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from rich.text import Text

from auxout_spec import scenario as scenarios
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.representation import in_words

from . import covered
from .tracing import Impossible
from .verdicts import ClauseResult, Report, Verdict, Violation, WrongAnswer

Draw = Callable[[Violation], Sequence[Text]]


def verdict_words(report: Report) -> str:
    """The verdict in a few words, such as ``conforms except known findings F31-1, F31-2``."""
    exceptions: list[str] = []
    if report.known:
        exceptions.append(f"known findings {', '.join(report.known)}")
    if report.expected:
        exceptions.append(f"expected violations {', '.join(report.expected)}")
    if report.verdict is Verdict.CONFORM and exceptions:
        return f"conforms except {' and '.join(exceptions)}"
    return report.verdict.value


def summary_lines(reports: Sequence[Report]) -> list[str]:
    """One line per target, names aligned."""
    width = max((len(printable(report.target)) for report in reports), default=0)
    return [f"{printable(report.target):<{width}}  {'  '.join(_facts(report))}" for report in reports]


def covered_line(report: Report) -> str:
    """How far its plays went."""
    return f"{printable(report.target)} was shown: {covered.in_words(report.covered)}"


def detail_lines(
    report: Report, several: bool = False, draw: Draw = lambda violation: ()
) -> list[str | Text]:
    """Each unexpected violation in full, then the notes; with ``several`` targets their names are repeated.

    Args:
        draw: a picture of a violation, as lines.
    """
    violations, lines = unexpected(report), list[str | Text]()
    name = printable(report.target)
    for number, violation in enumerate(violations, 1):
        lines.append(f"violation {number} of {len(violations)}{f' of {name}' if several else ''}")
        lines += [*violation_lines(violation, draw(violation)), ""]
    for answer in report.wrong_answers:
        lines += [*answer_lines(answer), ""]
    if report.replay:
        lines += [f"{name} broke; replay", printable(report.replay), ""]
    return lines + [f"note: {name}: {printable(note)}" for note in report.notes]


def report_text(report: Report) -> str:
    """What ``auxout conform`` prints for one target, as one text."""
    return "\n".join(map(str, [*detail_lines(report), *summary_lines([report])]))


def violation_lines(violation: Violation, picture: Sequence[Text] = ()) -> list[str | Text]:
    """Everything about one violation, and its picture; the last line is the replay command, alone."""
    clause, num_events = violation.clause, len(violation.scenario.events)
    lines: list[str | Text] = [
        f"{clause}  {ALL_CLAUSES[clause].sentence}" if clause in ALL_CLAUSES else clause
    ]
    lines += field("call", f"{violation.call}, event {violation.event} of {num_events}")
    lines += field("expected", violation.expected)
    lines += field("actual", violation.actual)
    lines += field("found by", found_by_words(violation))
    unusual = in_words(violation.scenario.representation)
    if unusual:
        lines += field("only with", unusual)
    lines += field("scenario", scenarios.dump(violation.scenario).rstrip("\n"))
    if picture:
        lines += ["", *picture]
    return [*lines, "  replay", printable(violation.replay)]


def answer_lines(answer: WrongAnswer) -> list[str]:
    """Everything about a case that was answered wrongly; the last line is the replay command, alone."""
    clause = answer.clause
    lines = [f"{clause}  {ALL_CLAUSES[clause].sentence}" if clause in ALL_CLAUSES else clause]
    lines += field("case", f"{answer.case}: {answer.story}")
    lines += field("expected", answer.expected)
    lines += field("actual", answer.actual)
    return [*lines, "  replay", printable(answer.replay)]


def found_by_words(violation: Violation) -> str:
    """What found it, and how much larger the scenario was then."""
    seed = "" if violation.seed is None else f", seed {violation.seed}"
    number, larger = violation.shrunk_from, ""
    if number is not None:
        fewer = number > len(violation.scenario.events)
        larger = f"; shrunk from {number} events" if fewer else "; its numbers made smaller"
    return f"{violation.found_by}{seed}{larger}"


def unexpected(report: Report) -> tuple[Violation, ...]:
    """The violations that no expectation file announced."""
    return tuple(violation for violation in report.violations if violation.clause not in report.expected)


def said_lines(target: str, said: str) -> list[str]:
    """What a target wrote to standard error."""
    if not said.strip():
        return []
    return [*field("stderr", f"of {target}:"), *field("", said.rstrip()), ""]


def impossible_lines(impossible: Impossible) -> list[str]:
    """The first impossible line of a trace."""
    clause = impossible.clause
    lines = [f"line {impossible.line}: {clause}  {ALL_CLAUSES[clause].sentence}"]
    lines += field("call", impossible.call)
    lines += field("expected", impossible.expected)
    lines += field("recorded", impossible.actual)
    return [*lines, ""]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)) for row in rows)
    return [line.rstrip() for line in lines]


def printable(text: str) -> str:
    """Text without control characters: a target's words must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _facts(report: Report) -> list[str]:
    facts = [verdict_words(report), f"profile {report.profile}" if report.profile else ""]
    if report.version and report.version.replace(" ", "==") != report.target:
        facts.append(report.version)
    facts.append(report.reason)
    if report.verdict in (Verdict.CONFORM, Verdict.VIOLATION):
        drawn = "fixed scenarios" if report.seed is None else f"seed {report.seed}"
        facts += [*_counts(report), drawn if report.profile else ""]
    return [" ".join(printable(fact).split("\n")) for fact in facts if fact]


def _counts(report: Report) -> list[str]:
    facts: list[str] = []
    wrong = (*unexpected(report), *report.wrong_answers)
    violated = list(dict.fromkeys(each.clause for each in wrong))
    judged = [result for result in report.clauses if result.status != "not judged"]
    if report.clauses:
        facts.append(_num_clauses(report.clauses, judged, violated))
    counts = (
        (report.num_cases, "case"),
        (report.num_scenarios, "scenario"),
        (report.num_calls, "call"),
    )
    facts += [f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts if number]
    return [*facts, f"{report.seconds:.1f} s"] if report.seconds else facts


def _num_clauses(results: Sequence[ClauseResult], judged: Sequence[ClauseResult], violated: list[str]) -> str:
    left = len(results) - len(judged)
    not_judged = f" ({left} not judged)" if left else ""
    if violated:
        return f"{len(violated)} of {len(results)} clauses violated{not_judged}: {', '.join(violated)}"
    return f"{len(judged)} clause{'' if len(judged) == 1 else 's'}{not_judged}"


def field(name: str, text: str) -> list[str]:
    """A name and a text of one or more lines beside it."""
    first, *others = printable(text).split("\n")
    return [f"  {name:<9} {first}".rstrip(), *(f"  {'':<9} {line}".rstrip() for line in others)]
