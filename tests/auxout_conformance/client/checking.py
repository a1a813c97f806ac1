"""Runs a function over the cases, in a process of its own, and says what each shows."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from .. import isolation
from ..render import answer_lines, columns, field, printable
from ..verdicts import ClauseResult, Report, Verdict, WrongAnswer
from .cases import Case, all_cases
from .judging import Wrong, judge

CASE_SECONDS = 20
"""For one conversation."""
ALL_SECONDS = 600
"""For all cases, loading included."""
LAST_WORDS = 2000
"""Letters of standard error that are kept."""


class Result(NamedTuple):
    """What one case shows."""

    case: Case
    status: Literal["holds", "violated", "not offered"]
    wrong: Wrong | None = None


class Checked(NamedTuple):
    """A function's judgement."""

    function: str
    verdict: Verdict
    results: tuple[Result, ...] = ()
    reason: str = ""
    """For a function that is broken or offers nothing: one sentence."""
    said: str = ""
    """The end of what it wrote to standard error, if it is broken."""
    seconds: float = 0.0

    def report(self) -> Report:
        """The judgement as every other one is reported."""
        judged = [result for result in self.results if result.status != "not offered"]
        return Report(
            target=self.function,
            version="",
            profile="",
            suite="default",
            seed=None,
            verdict=self.verdict,
            clauses=tuple(_clause_results(self.results)),
            wrong_answers=tuple(_wrong_answers(self)),
            reason=self.reason,
            num_cases=len(judged),
            seconds=self.seconds,
            notes=_notes(len(self.results), len(judged)),
        )


def _clause_results(results: Sequence[Result]) -> Iterator[ClauseResult]:
    """What each clause's cases show, in the order of the registry."""
    for clause in dict.fromkeys(result.case.clause for result in results):
        counts = Counter(result.status for result in results if result.case.clause == clause)
        checks = counts["violated"] + counts["holds"]
        status = "violated" if counts["violated"] else "holds" if checks else "not judged"
        yield ClauseResult(clause, status, checks)


def _wrong_answers(checked: Checked) -> Iterator[WrongAnswer]:
    for case, _, wrong in checked.results:
        if wrong is not None:
            words = ["auxout", "client-check", checked.function, "--case", case.name]
            yield WrongAnswer(
                case.clause,
                case.name,
                case.story,
                case.conversation,
                wrong.expected,
                wrong.actual,
                shlex.join(words),
            )


def _notes(num_asked: int, num_judged: int) -> tuple[str, ...]:
    left = num_asked - num_judged
    return (f"{left} of {num_asked} cases ask for what it does not offer",) if left else ()


def check(function: str, cases: Sequence[Case] | None = None) -> Checked:
    """Judge ``module:function`` by the cases, all of them by default."""
    chosen = all_cases() if cases is None else tuple(cases)
    started = time.monotonic()
    checked = _checked(function, chosen)
    return checked._replace(seconds=time.monotonic() - started)


def _checked(function: str, chosen: Sequence[Case]) -> Checked:
    answers, said, broken = _answers(function, chosen)
    results = tuple(_result(case, answer) for case, answer in zip(chosen, answers, strict=False))
    if broken:
        return Checked(function, Verdict.BROKEN, results, broken, said)
    statuses = {result.status for result in results}
    if "violated" in statuses:
        return Checked(function, Verdict.VIOLATION, results)
    if "holds" in statuses:
        return Checked(function, Verdict.CONFORM, results)
    return Checked(function, Verdict.INCOMPLETE, results, "it offers nothing that was asked of it")


def _result(case: Case, answer: dict[str, Any]) -> Result:
    if "not_offered" in answer:
        return Result(case, "not offered")
    wrong = judge(case.want, answer)
    return Result(case, "violated" if wrong else "holds", wrong)


def _answers(function: str, cases: Sequence[Case]) -> tuple[list[dict[str, Any]], str, str]:
    """The answers, what was written to standard error, and why there are no more answers, if there are not."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.child", function],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": isolation.python_path()},
        start_new_session=True,
    )
    asked = "".join(json.dumps(case.conversation) + "\n" for case in cases)
    late = False
    try:
        out, said = process.communicate(asked, timeout=ALL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, said = process.communicate()
        late = True
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    first, *answers = lines or [{}]
    said = said[-LAST_WORDS:]
    if "broken" in first:
        return [], said, f"{function} does not load: {first['broken']}"
    if answers and "hung" in answers[-1]:
        return (
            answers[:-1],
            said,
            f"{function} took over {CASE_SECONDS} s in case {cases[len(answers) - 1].name}",
        )
    if late or len(answers) < len(cases):
        where = f"in case {cases[len(answers)].name}" if first else "while it was loaded"
        how = f"took over {ALL_SECONDS} s" if late else f"ended with exit status {process.returncode}"
        return answers, said, f"{function} {how} {where}"
    return answers, said, ""


def lines(checked: Checked) -> list[str]:
    """Everything but the last line: each case that shows a violation, in full."""
    found: list[str] = []
    for answer in _wrong_answers(checked):
        found += [*answer_lines(answer), ""]
    if checked.said:
        found += [*field("stderr", checked.said.rstrip()), ""]
    return found


def summary(checked: Checked) -> str:
    """The verdict and the numbers, in one line."""
    facts = [checked.function, checked.verdict.value, checked.reason]
    if checked.verdict in (Verdict.CONFORM, Verdict.VIOLATION):
        violated = list(dict.fromkeys(r.case.clause for r in checked.results if r.status == "violated"))
        judged = {r.case.clause for r in checked.results if r.status != "not offered"}
        left = sum(result.status == "not offered" for result in checked.results)
        total = len(checked.results)
        failed = sum(result.status == "violated" for result in checked.results)
        facts.append(
            f"{total - left} of {total} cases, {failed} failed" if left else f"{total} cases, {failed} failed"
        )
        facts.append(
            f"{len(violated)} of {len(judged)} clauses violated" if violated else f"{len(judged)} clauses"
        )
        facts[-1] += f": {', '.join(violated)}" if violated else ""
    return printable("  ".join(fact for fact in facts if fact)).replace("\n", " ")


def table(checked: Checked) -> list[str]:
    """Every case and what it shows."""
    rows = [(r.case.name, r.case.clause, r.status) for r in checked.results]
    return columns([("case", "clause", "status"), *rows])
