"""Expectation files: the violations an implementation admits to, each with its reason.

    {"auxout": "expect/1", "profile": "0.32", "expected": [
      {"clause": "SCHED-REFUSE-3", "reason": "fixed in the next release"}]}

A run whose violated clauses are exactly these conforms. One more is a violation; one fewer is an error as
well, so that an entry does not outlive its fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from auxout_spec import reading
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.reading import Malformed

from . import files
from .mistakes import UserMistake, check_clause, check_profile
from .verdicts import Report, Verdict

FORMAT = "expect/1"
TODO = "TODO: say why"
"""The reason that ``--write-expect`` leaves for its reader to fill in."""
_WHAT = "expectation file"


class Expectation(NamedTuple):
    """One clause that is violated, and why that is so."""

    clause: str
    reason: str


class Expectations(NamedTuple):
    """An expectation file."""

    profile: str
    entries: tuple[Expectation, ...] = ()
    source: str = ""
    """The file, for messages."""


def read(path: str) -> Expectations:
    """Read an expectation file.

    Raises:
        UserMistake: it cannot be read, or it is not an expectation file.
    """
    return load(files.read_text(path, _WHAT), path)


def read_if_there(path: str) -> Expectations | None:
    """``read``, or nothing when there is no such file yet."""
    return read(path) if Path(path).exists() else None


def load(text: str, source: str = "") -> Expectations:
    """Expectations from the text of a file; raises ``UserMistake`` as ``read`` does."""
    try:
        return _parse(text, source)
    except UserMistake as mistake:
        where = f"{_WHAT} {source}" if source else _WHAT
        raise UserMistake(f"{where}: {mistake}") from None


def dump(expectations: Expectations) -> str:
    """The text of an expectation file, one entry a line."""
    head = json.dumps({"auxout": FORMAT, "profile": expectations.profile})[:-1]
    entries = (json.dumps(entry._asdict(), ensure_ascii=False) for entry in expectations.entries)
    body = ",".join(f"\n  {entry}" for entry in entries)
    return f'{head}, "expected": [{body}]}}\n'


def apply_expectations(report: Report, expectations: Expectations, *, stops_first: bool = False) -> Report:
    """The report as it reads when these violations are expected.

    Args:
        stops_first: the judgement stopped at the first violation that is not expected, if there is one.

    A judgement that did not finish stays as it is: nothing can be said about entries that did not occur.

    Raises:
        UserMistake: the expectations are for another profile.
    """
    check_same_profile(expectations, report.profile)
    violated = [violation.clause for violation in report.violations]
    met = tuple(entry for entry in expectations.entries if entry.clause in violated)
    notes = tuple(f"expected: {entry.clause}: {entry.reason}" for entry in met)
    report = replace(report, expected=tuple(entry.clause for entry in met), notes=report.notes + notes)
    if report.verdict not in (Verdict.CONFORM, Verdict.VIOLATION):
        return report
    unexpected = set(violated) - set(report.expected)
    stale = () if stops_first and unexpected else _stale(report, expectations)
    if stale:
        sentence = _stale_sentence(stale, expectations.source)
        return replace(
            report, verdict=Verdict.VIOLATION, reason="; ".join(filter(None, (report.reason, sentence)))
        )
    clean = not unexpected and not report.reason
    return replace(report, verdict=Verdict.CONFORM if clean else Verdict.VIOLATION)


def updated(report: Report, old: Expectations | None, source: str = "") -> Expectations:
    """The expectations that this report meets; reasons already written are kept.

    An old entry goes only when its clause was judged and holds.

    Raises:
        UserMistake: the old file is for another profile, or the judgement did not finish.
    """
    if report.verdict not in (Verdict.CONFORM, Verdict.VIOLATION):
        raise UserMistake(f"{report.target} was not judged to the end; {source or _WHAT} stays as it is")
    old = old or Expectations(report.profile)
    check_same_profile(old, report.profile)
    gone = set(_stale(report, old))
    reasons = {entry.clause: entry.reason for entry in old.entries if entry.clause not in gone}
    for violation in report.violations:
        reasons.setdefault(violation.clause, TODO)
    entries = tuple(Expectation(clause, reasons[clause]) for clause in ALL_CLAUSES if clause in reasons)
    return Expectations(report.profile, entries, source)


def check_same_profile(expectations: Expectations, profile: str) -> None:
    """Raises ``UserMistake`` when a file for one profile is used under another."""
    if expectations.profile != profile:
        raise UserMistake(
            f"{_WHAT} {expectations.source} is for profile {expectations.profile}, but the run is under "
            f"{profile}: give --profile {expectations.profile} or another file"
        )


def _stale(report: Report, expectations: Expectations) -> tuple[str, ...]:
    """Expected clauses that were judged and not violated."""
    judged = {result.clause for result in report.clauses if result.status != "not judged"}
    judged -= {violation.clause for violation in report.violations}
    return tuple(entry.clause for entry in expectations.entries if entry.clause in judged)


def _stale_sentence(stale: tuple[str, ...], source: str) -> str:
    several = len(stale) > 1
    return (
        f"stale expectation: {_listed(stale)} {'are' if several else 'is'} no longer violated; "
        f"remove {'these entries' if several else 'this entry'}{f' from {source}' if source else ''}"
    )


def _listed(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _parse(text: str, source: str) -> Expectations:
    try:
        data = reading.parse(text)
    except Malformed as error:
        raise UserMistake(str(error)) from None
    fields = _object(data, ("auxout", "profile", "expected"), "the file")
    if fields["auxout"] != FORMAT:
        raise UserMistake(f'expected "auxout": "{FORMAT}", found {reading.shown(fields["auxout"])}')
    profile = check_profile(str(fields["profile"]))
    if not isinstance(fields["expected"], list):
        raise UserMistake('"expected" must be a list of {"clause": ..., "reason": ...}')
    entries: list[Expectation] = []
    for number, item in enumerate(cast("list[Any]", fields["expected"]), 1):
        entry = _entry(item, f"entry {number}", profile)
        if entry.clause in {known.clause for known in entries}:
            raise UserMistake(f"entry {number}: {entry.clause} is listed twice")
        entries.append(entry)
    return Expectations(profile, tuple(entries), source)


def _entry(data: Any, where: str, profile: str) -> Expectation:
    fields = _object(data, ("clause", "reason"), where)
    try:
        clause = check_clause(str(fields["clause"]))
    except UserMistake as mistake:
        raise UserMistake(f"{where}: {mistake}") from None
    if profile not in ALL_CLAUSES[clause].profiles:
        raise UserMistake(f"{where}: {clause} is no clause of profile {profile}")
    if not isinstance(fields["reason"], str) or not fields["reason"].strip():
        raise UserMistake(f"{where}: {clause} needs a reason, in words")
    return Expectation(clause, fields["reason"])


def _object(data: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if set(fields) != set(names):
        raise UserMistake(f"{where} must be an object with exactly {_listed(names)}")
    return fields
