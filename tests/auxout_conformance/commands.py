"""The commands: each calls the library and renders what it returned."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence

from rich.text import Text

from auxout_spec.deviations import Deviation
from auxout_spec.profiles import LATEST, named

from . import (
    client,
    completion,
    covering,
    drift,
    expect,
    exploring,
    files,
    init,
    render,
    replaying,
    report,
    rules,
    runner,
    tracing,
    verifying,
)
from .hosts import TargetBroken
from .known import deviations_of
from .mistakes import UserMistake, check_profile, did_you_mean
from .options import build_parser
from .screen import STYLES, Display, Screen, progress_display
from .targets import NoProfile, PatchError, Target, TargetError, list_targets, patched, resolve
from .timeline import of_violation, picture, terminal
from .verdicts import Interrupted, Report, Suite, Verdict, Violation

_WORST_FIRST = (Verdict.VIOLATION, Verdict.BROKEN, Verdict.INCOMPLETE, Verdict.CONFORM)
"""Whose exit code wins: a violation is an answer, and a target that broke must not hide it."""
_UNFINISHED = ("smoke", "conform", "replay")
"""Commands that can be tried with a profile that is still being written."""
_REPORT = "report"
_EXPECT = "expectation file"
_PICTURE = "picture"
_DRIFT = "drift file"


class WithoutProfile(UserMistake):
    """A target that no profile describes; ``target`` is its name."""

    def __init__(self, message: str, target: str) -> None:
        super().__init__(message)
        self.target = target


def run(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the parsed command and return its exit code.

    Raises:
        UserMistake: it cannot be run as given.
    """
    if getattr(args, "profile", None) is not None:
        check_profile(args.profile, whole=args.command not in _UNFINISHED)
    return _COMMANDS[args.command](args, words)


def _smoke(args: argparse.Namespace, words: Sequence[str]) -> int:
    reports, interrupted = _judge(_resolved(args.targets, args.profile), args, suite="smoke")
    return _finish(reports, interrupted)


def _conform(args: argparse.Namespace, words: Sequence[str]) -> int:
    expectations, old = _expectations(args)
    if args.report:
        files.check_writable(args.report, _REPORT)
    try:
        targets = _resolved(args.targets, args.profile, args.patch)
    except WithoutProfile as mistake:
        raise UserMistake(f"{mistake}{_drift_of(mistake.target)}") from None
    for target in targets:
        for given in (expectations, old):
            if given is not None:
                expect.check_same_profile(given, target.profile)
    clauses = frozenset(entry.clause for entry in expectations.entries) if expectations else frozenset[str]()
    reports, interrupted = _judge(targets, args, suite=args.suite, expected=clauses)
    judged = reports
    if expectations is not None:
        reports = [
            expect.apply_expectations(each, expectations, stops_first=args.stop_first) for each in reports
        ]
    if args.report:
        files.write_text(args.report, report.dump(reports, report.header(["auxout", *words])), _REPORT)
    code = _finish(reports, interrupted)
    if args.write_expect:
        _write_expectations(judged[0], old, args.write_expect)
    return code


def _verify(args: argparse.Namespace, words: Sequence[str]) -> int:
    patch, base = _sides(args)
    expectations, old = _expectations(args)
    if args.report:
        files.check_writable(args.report, _REPORT)
    try:
        loaded = verifying.load_base(base, profile=args.profile, suite=args.suite, seed=args.seed)
        for given in (expectations, old):
            if given is not None:
                expect.check_same_profile(given, loaded.target.profile)
        with contextlib.closing(loaded), progress_display() as display:
            verification = verifying.verify(patch, loaded, display.show, allow_unplayed=args.allow_unplayed)
    except TargetError as error:
        raise UserMistake(str(error)) from None
    judged = verifying.broken_report(verification)
    if expectations is not None:
        verification = verifying.apply_expectations(verification, expectations)
    if args.report:
        files.write_text(
            args.report, verifying.dump(verification, report.header(["auxout", *words])), _REPORT
        )
    screen = Screen()
    screen.lines(verifying.detail_lines(verification))
    screen.line(verifying.summary_line(verification), "green" if verification.exit_code == 0 else "bold red")
    if args.write_expect and judged is not None:
        _write_expectations(judged, old, args.write_expect)
    return verification.exit_code


def _sides(args: argparse.Namespace) -> tuple[str, str]:
    """The changed code and the base, as ``verify`` names them."""
    base = f"{args.base}@{args.base_rev}" if args.base_rev else args.base
    if args.patch and args.rev:
        raise UserMistake("give a patch or --rev, not both")
    if args.rev:
        return f"{args.base}@{args.rev}", base
    if not args.patch and not args.base_rev:
        raise UserMistake("name a patch, or revisions of the base with --base-rev and --rev")
    return args.patch or args.base, base


def _drift(args: argparse.Namespace, words: Sequence[str]) -> int:
    if args.json:
        files.check_writable(args.json, _DRIFT)
    try:
        with progress_display() as display:
            playing = None if args.source else drift.Playing(args.suite, args.seed, args.profile, args.python)
            found = drift.compare(args.old, args.new, display.show, playing)
    except TargetError as error:
        raise UserMistake(str(error)) from None
    if args.json:
        files.write_text(args.json, drift.dump(found, report.header(["auxout", *words])), _DRIFT)
    screen = Screen()
    screen.lines(drift.lines(found))
    screen.line(drift.summary_line(found), "green" if found.exit_code == 0 else "bold red")
    return found.exit_code


def _drift_of(name: str) -> str:
    """What ends the sentence that a vLLM has no profile: how its source differs; empty if that cannot be told."""
    try:
        with progress_display() as display:
            return f". {drift.in_one_line(drift.from_the_newest_known(name, display.show))}"
    except TargetError:
        return ""


def _completion(args: argparse.Namespace, words: Sequence[str]) -> int:
    print(completion.script(build_parser(), args.shell))
    return 0


def _replay(args: argparse.Namespace, words: Sequence[str]) -> int:
    scenario = replaying.read_scenario(args.scenario)
    if args.svg:
        files.check_writable(args.svg, _PICTURE)
    targets = _resolved(args.targets, args.profile or scenario.profile or None, args.patch)
    for target in targets:
        replaying.check_possible(scenario, args.profile or scenario.profile or target.profile)
    screen = Screen()
    how = replaying.how_to_show(args.scenario, replaying.How(args.known, args.optimized))
    answers = [replaying.play(screen, scenario, target, how) for target in targets]
    shown = next((each for each in answers if each.verdict is Verdict.VIOLATION), answers[0])
    if shown.verdict is Verdict.CONFORM:
        screen.lines(terminal.draw(shown.timeline, screen.width))
    if args.svg:
        files.write_text(args.svg, picture.draw(shown.timeline), _PICTURE)
    table = [(render.printable(answer.target.title), *answer.words) for answer in answers]
    for line, answer in zip(render.columns(table), answers, strict=True):
        screen.line(line, STYLES[answer.verdict])
    return _worst(answer.verdict for answer in answers)


def _clauses(args: argparse.Namespace, words: Sequence[str]) -> int:
    found = rules.find(args.id, args.profile)
    if isinstance(found, list):
        Screen().table(rules.HEAD, rules.rows(found))
    else:
        Screen().lines(rules.lines(found))
    return 0


def _targets(args: argparse.Namespace, words: Sequence[str]) -> int:
    Screen().lines(render.columns([(render.printable(each.name), each.what) for each in list_targets()]))
    return 0


def _init(args: argparse.Namespace, words: Sequence[str]) -> int:
    for name in init.start(args.dir):
        print(f"wrote {name}")
    where = "" if args.dir in (".", "./") else f"cd {args.dir} && "
    print(f"Next: fill in my_connector.py; `{where}auxout smoke my_connector:make` tells how far it is.")
    print("A worker: my_worker.py and my_worker:make.")
    return 0


def _explore(args: argparse.Namespace, words: Sequence[str]) -> int:
    screen = Screen()
    if not (args.models or args.every or args.nightly):
        screen.table(("model", "profile", "verdict", "what it is for"), exploring.listing(args.profile))
        return 0
    if args.svg:
        files.check_writable(args.svg, _PICTURE)
    models = exploring.chosen(args.models, args.every, args.nightly, args.profile)
    jobs = max(1, args.jobs or exploring.default_jobs())
    with progress_display() as display:
        explored = list(exploring.explore_all(models, jobs, args.max_states, display.show))
    explored.sort(key=lambda each: models.index(each.model))
    if args.freeze:
        exploring.freeze(explored)
    screen.table(exploring.HEAD, [exploring.row(each) for each in explored])
    for each in explored:
        if each.differences or args.models:
            screen.lines(["", *exploring.detail_lines(each)])
            if each.result.trace:
                screen.lines(["", *terminal.draw(exploring.timeline_of(each), screen.width)])
    if args.svg:
        found = next((each for each in explored if each.result.trace), None)
        if found is None:
            raise UserMistake("no counterexample was found, so there is nothing to draw")
        files.write_text(args.svg, picture.draw(exploring.timeline_of(found)), _PICTURE)
    return exploring.exit_code(explored)


def _cover(args: argparse.Namespace, words: Sequence[str]) -> int:
    (target,) = _resolved(args.targets, args.profile)
    models = covering.models_for(args.models, target.profile)
    screen, covered = Screen(), list[covering.Covered]()
    broken: TargetBroken | None = None
    with progress_display() as display:
        try:
            covered.extend(covering.cover_all(models, target, args.max_states, display.show))
        except TargetBroken as error:
            broken = error
    wrong = [each.violation for each in covered if each.violation is not None]
    for violation in wrong:
        picture = terminal.draw(of_violation(violation), screen.width)
        screen.lines([*render.violation_lines(violation, picture), ""])
    if covered:
        screen.table(covering.HEAD, [covering.row(each) for each in covered])
    verdict = Verdict.VIOLATION if wrong else Verdict.CONFORM if broken is None else Verdict.BROKEN
    facts = [
        target.title,
        verdict.value,
        f"profile {target.profile}",
        str(broken or covering.counts(covered)),
    ]
    screen.line(render.printable("  ".join(facts)), STYLES[verdict])
    return verdict.exit_code


def _trace(args: argparse.Namespace, words: Sequence[str]) -> int:
    screen = Screen()
    try:
        recorded = tracing.read(files.read_text(args.file, "trace").splitlines())
    except tracing.MalformedTrace as error:
        raise UserMistake(f"{args.file}: {error}") from None
    profile = args.profile or recorded.profile or LATEST
    check_profile(profile)
    checked = tracing.check(recorded, named(profile))
    verdict = Verdict.CONFORM if checked.impossible is None else Verdict.VIOLATION
    if checked.impossible is not None:
        screen.lines(render.impossible_lines(checked.impossible))
    count = f"{checked.num_calls} call{'' if checked.num_calls == 1 else 's'}"
    screen.line(f"{args.file}  {verdict.value}  profile {profile}  {count}", STYLES[verdict])
    return verdict.exit_code


def _report(args: argparse.Namespace, words: Sequence[str]) -> int:
    text = sys.stdin.read() if args.file == "-" else files.read_text(args.file, _REPORT)
    try:
        read = report.read(text)
    except report.MalformedReport as error:
        raise UserMistake(f"{args.file} is not a report: {error}") from None
    if args.format == "terminal":
        if args.output:
            raise UserMistake("-o goes with --format markdown, junit or html")
        screen = Screen()
        _show(screen, read.reports)
        if read.verification is not None:
            from .reports import document, plain

            screen.lines(plain.lines(document.patch_of(read.verification)))
        return 0
    # Judging needs no template library.
    from .reports import FORMATS

    made = FORMATS[args.format](read)
    if args.output:
        files.write_text(args.output, made, _REPORT)
    else:
        sys.stdout.write(made)
    return 0


def _client_check(args: argparse.Namespace, words: Sequence[str]) -> int:
    for function in args.functions:
        if ":" not in function:
            raise UserMistake(f"{function!r} is no function; the form is module:function")
    cases = client.named(args.case) if args.case else None
    if args.report:
        files.check_writable(args.report, _REPORT)
    checked = [client.check(function, cases) for function in args.functions]
    if args.report:
        reports = [each.report() for each in checked]
        files.write_text(args.report, report.dump(reports, report.header(["auxout", *words])), _REPORT)
    screen = Screen()
    for each in checked:
        screen.lines(client.lines(each))
        if args.table:
            screen.lines([*client.table(each), ""])
    for each in checked:
        screen.line(client.summary(each), STYLES[each.verdict])
    return _worst(each.verdict for each in checked)


_COMMANDS: dict[str, Callable[[argparse.Namespace, Sequence[str]], int]] = {
    "smoke": _smoke,
    "completion": _completion,
    "conform": _conform,
    "replay": _replay,
    "explore": _explore,
    "cover": _cover,
    "trace": _trace,
    "report": _report,
    "clauses": _clauses,
    "targets": _targets,
    "init": _init,
    "verify": _verify,
    "drift": _drift,
    "client-check": _client_check,
}


def _resolved(names: Iterable[str], profile: str | None, patch: str | None = None) -> list[Target]:
    """Every target, before anything is judged, so that a misspelt one costs no time."""
    return [_resolve(name, profile, patch) for name in names]


def _resolve(name: str, profile: str | None, patch: str | None = None) -> Target:
    try:
        target = resolve(name, profile)
        return patched(target, patch) if patch else target
    except PatchError as error:
        raise UserMistake(str(error)) from None
    except NoProfile as error:
        raise WithoutProfile(str(error), error.name) from None
    except TargetError as error:
        known = [each.name for each in list_targets()]
        one_word = name.replace("-", "_").isidentifier() and name not in known
        raise UserMistake(f"{error}{did_you_mean(name, known) if one_word else ''}") from None


def _judge(
    targets: Sequence[Target], args: argparse.Namespace, suite: Suite, expected: frozenset[str] = frozenset()
) -> tuple[list[Report], bool]:
    """The reports, and whether Ctrl-C cut them short; then the targets left over read as incomplete."""
    reports: list[Report] = []
    interrupted = False
    with progress_display() as display:
        try:
            reports.extend(_judge_one(target, args, suite, expected, display) for target in targets)
        except Interrupted as stopped:
            reports.append(stopped.report)
            interrupted = True
        except KeyboardInterrupt:
            interrupted = True
    left = targets[len(reports) :]
    return [*reports, *(_interrupted(target, suite) for target in left)], interrupted


def _judge_one(
    target: Target, args: argparse.Namespace, suite: Suite, expected: frozenset[str], display: Display
) -> Report:
    try:
        return runner.judge(
            target.name,
            profile=args.profile,
            suite=suite,
            seed=getattr(args, "seed", None),
            known=getattr(args, "known", True),
            stop_first=getattr(args, "stop_first", False),
            expected=expected,
            patch=getattr(args, "patch", None) or "",
            progress=display.show,
        )
    except TargetError as error:
        raise UserMistake(str(error)) from None


def _interrupted(target: Target, suite: Suite) -> Report:
    reason = "interrupted before it was judged to the end"
    return Report(
        target.title, target.version, target.profile, suite, None, Verdict.INCOMPLETE, reason=reason
    )


def _finish(reports: Sequence[Report], interrupted: bool) -> int:
    """Show the reports, verdicts last, and return the exit code."""
    _show(Screen(), reports)
    if interrupted:
        print("auxout: interrupted; what was judged until then stands above.", file=sys.stderr)
        return Verdict.INCOMPLETE.exit_code
    return _worst(each.verdict for each in reports)


def _show(screen: Screen, reports: Sequence[Report]) -> None:
    for each in reports:
        deviations = deviations_of(each.known)

        def draw(violation: Violation, deviations: frozenset[Deviation] = deviations) -> list[Text]:
            timeline = of_violation(violation, deviations)
            return terminal.draw(timeline, screen.width) if terminal.fits(timeline, screen.width) else []

        screen.lines(render.detail_lines(each, several=len(reports) > 1, draw=draw))
    for each in reports:
        if each.covered:
            screen.line(render.covered_line(each))
    for each, line in zip(reports, render.summary_lines(reports), strict=True):
        screen.line(line, STYLES[each.verdict])


def _worst(verdicts: Iterable[Verdict]) -> int:
    return min(verdicts, key=_WORST_FIRST.index).exit_code


def _expectations(
    args: argparse.Namespace,
) -> tuple[expect.Expectations | None, expect.Expectations | None]:
    """What ``--expect`` says, and what the file of ``--write-expect`` said so far."""
    used = args.expect or args.write_expect
    if args.write_expect and getattr(args, "stop_first", False):
        raise UserMistake(
            "-x stops at the first violation, so the rest cannot be written; leave out -x or the file"
        )
    if used and len(getattr(args, "targets", ())) > 1:
        raise UserMistake("an expectation file describes one target; judge the targets one by one")
    expectations = expect.read(args.expect) if args.expect else None
    old = None
    if args.write_expect:
        files.check_writable(args.write_expect, _EXPECT)
        old = expect.read_if_there(args.write_expect)
    return expectations, old


def _write_expectations(judged: Report, old: expect.Expectations | None, path: str) -> None:
    try:
        new = expect.updated(judged, old, path)
    except UserMistake as reason:
        print(f"auxout: {reason}", file=sys.stderr)
        return
    kept = {entry.clause for entry in new.entries}
    for entry in old.entries if old else ():
        if entry.clause not in kept:
            print(f"dropped from {path}: {entry.clause}, which holds now ({entry.reason})", file=sys.stderr)
    files.write_text(path, expect.dump(new), _EXPECT)
    todo = sum(entry.reason == expect.TODO for entry in new.entries)
    print(f"wrote {path}: {len(new.entries)} expected, {todo} without a reason yet", file=sys.stderr)
