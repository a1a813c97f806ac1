"""The runner: what a judgement comes to, and that what it prints can be played again."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from auxout_conformance import cli, judgement, runner, solving
from auxout_conformance.cases import cases_in
from auxout_conformance.hosts import TargetBroken
from auxout_conformance.known import Finding, all_findings
from auxout_conformance.machine import Found, Tally
from auxout_conformance.targets import TargetError, resolve
from auxout_conformance.targets.loading import LoadSpec
from auxout_conformance.targets.resolve import Target
from auxout_conformance.verdicts import Interrupted, Progress, Report, Verdict, Violation
from auxout_spec import scenario as scenarios
from auxout_spec.clauses import SCHEDULER, WORKER, in_profile
from auxout_spec.engine import Abort, Add, Impossible, Land, Launch, Reset
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import Scenario

SOURCE = Path(__file__).parents[2] / "reference" / "auxout_reference"
EXAMPLES, PAIR_EXAMPLES = 5, 2
HEAD = (
    "import os\n"
    "from auxout_reference.connector import AuxOutputSchedulerConnector, PackedBlockHashes\n"
    "from auxout_reference.errors import ProtocolViolation\n"
    "class Connector(AuxOutputSchedulerConnector):\n"
)
FINDINGS = {finding.id: finding for finding in all_findings()}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few random scenarios, and no self-check: both have tests of their own."""
    monkeypatch.setitem(judgement.EXAMPLES, "smoke", EXAMPLES)
    monkeypatch.setitem(judgement.PAIR_EXAMPLES, "smoke", PAIR_EXAMPLES)
    monkeypatch.setattr(judgement.selfcheck, "check_all", lambda *_: [])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Make the reference, with methods changed, a target; its name is returned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def own(methods: str, foreign: bool = True, module: str = f"own_{tmp_path.name}") -> str:
        (tmp_path / f"{module}.py").write_text(HEAD + methods)
        name = f"{module}:Connector"
        target = Target(name, LoadSpec("factory", name), "0.32", foreign=foreign)
        plain = runner.resolve
        monkeypatch.setattr(
            runner, "resolve", lambda asked, profile: target if asked == name else plain(asked, profile)
        )
        return name

    return own


@pytest.fixture
def only_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """No curated cases and no large plays, so that what is found is found by chance."""
    monkeypatch.setattr(judgement, "cases_in", lambda profile: ())
    monkeypatch.setattr(judgement.large, "plays", lambda *_: iter(()))
    monkeypatch.setitem(judgement.EXAMPLES, "smoke", 30)


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let every target be a release with these known findings."""

    def use(*found: Finding) -> None:
        monkeypatch.setattr(runner, "findings_of", lambda release: found)

    return use


def judge(target: str, **options: Any) -> Report:
    return runner.judge(target, suite="smoke", **options)


def statuses(report: Report) -> dict[str, str]:
    return {result.clause: result.status for result in report.clauses}


def words_of(violation: Violation) -> list[str]:
    words = shlex.split(violation.replay)
    assert words[:2] == ["auxout", "replay"]
    return words[2:]


def played_again(violation: Violation) -> Violation | None:
    """Replay from nothing but the printed command."""
    *flags, text, target = words_of(violation)
    return runner.replay(
        scenarios.load(text), target, known="--known" in flags, optimized="--optimized" in flags
    )


# Conforming.


@pytest.mark.parametrize("profile", PROFILES)
def test_a_conforming_target(profile: str) -> None:
    phases: list[Progress] = []
    report = judge("reference", profile=profile, progress=phases.append)
    assert report.verdict is Verdict.CONFORM
    assert report.exit_code == 0
    assert (report.target, report.profile, report.suite, report.seed) == ("reference", profile, "smoke", None)
    assert (report.violations, report.known, report.reason, report.replay, report.notes) == (
        (),
        (),
        "",
        "",
        (),
    )
    judged = in_profile(profile, (*SCHEDULER, *WORKER))
    assert [result.clause for result in report.clauses] == [clause.id for clause in judged]
    assert set(statuses(report).values()) == {"holds"}
    assert all(result.checks >= 1 for result in report.clauses)
    assert report.num_cases == len(cases_in(profile))
    assert report.num_scenarios >= EXAMPLES + PAIR_EXAMPLES
    assert report.num_calls > 2 * report.num_cases
    assert report.seconds > 0
    seen = [
        each for number, each in enumerate(phases) if not number or phases[number - 1].phase != each.phase
    ]
    assert [(each.phase, each.done) for each in seen] == [
        ("cases", 1), ("refusals under python -O", 1), ("random scenarios", 1),
        ("random scenarios with a worker", 1), ("large plays", 1),
    ]  # fmt: skip
    assert seen[0].total == report.num_cases
    assert seen[2].total == EXAMPLES


def test_there_must_be_such_a_target_and_profile() -> None:
    with pytest.raises(TargetError, match="no target"):
        judge("nope")
    with pytest.raises(TargetError, match="unknown profile"):
        judge("reference", profile="9")


# Violations.


def test_a_violation_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    report = judge("known-bad:generation-kept")
    assert report.verdict is Verdict.VIOLATION
    assert report.exit_code == 1
    (violation,) = report.violations
    right = "generation 1, requests {}, block_hashes {}, finished_requests []"
    wrong = right.replace("1", "0")
    assert violation == Violation(
        clause="SCHED-RESET-1",
        scenario=Scenario((Reset(), Launch()), 1, 1, "0.32"),
        event=2,
        call="build_connector_meta({})",
        expected=right,
        actual=wrong,
        found_by="case sched-meta-7-2",
        seed=None,
        replay=violation.replay,
        shrunk_from=3,
    )
    assert statuses(report)["SCHED-RESET-1"] == "violated"
    assert statuses(report)["SCHED-META-1"] == "holds"
    again = played_again(violation)
    assert again is not None
    assert (again.clause, again.event, again.expected, again.actual) == ("SCHED-RESET-1", 2, right, wrong)
    assert again.replay == violation.replay
    assert cli.main(["replay", *words_of(violation), "reference"]) == 1
    assert "SCHED-RESET-1" in capsys.readouterr().out


def test_every_broken_clause_is_reported_once() -> None:
    clauses = [violation.clause for violation in judge("known-bad:event-needs-hashes").violations]
    assert len(set(clauses)) == len(clauses) > 2
    assert {"SCHED-TERM-1", "SCHED-TERM-7", "SCHED-RESTART-1"} <= set(clauses)


def test_a_clause_whose_cases_failed_on_others_is_not_judged(own: Any) -> None:
    report = judge(own("    def build_connector_meta(self, output, requests):\n        return None\n"))
    assert {violation.clause for violation in report.violations} == {
        "SCHED-META-1", "SCHED-HASH-10",
    }  # fmt: skip
    assert statuses(report)["SCHED-HASH-2"] == "not judged"
    assert statuses(report)["SCHED-ACCEPT-1"] == "holds"
    assert report.verdict is Verdict.VIOLATION


def test_stop_first_stops_at_once() -> None:
    report = judge("known-bad:event-needs-hashes", stop_first=True)
    assert len(report.violations) == 1
    assert report.num_scenarios == 0
    assert "not judged" in statuses(report).values()
    assert report.verdict is Verdict.VIOLATION


def test_stop_first_goes_on_after_what_is_expected() -> None:
    plain = judge("known-bad:event-needs-hashes")
    clauses = [violation.clause for violation in plain.violations]
    expected = judge("known-bad:event-needs-hashes", stop_first=True, expected=frozenset(clauses))
    assert [violation.clause for violation in expected.violations] == clauses
    first = judge("known-bad:event-needs-hashes", stop_first=True, expected=frozenset(clauses[:1]))
    assert [violation.clause for violation in first.violations] == clauses[:2]


@pytest.mark.parametrize("target", ["impl-torch", "tree"])
def test_what_is_offered_and_was_not_judged_makes_it_incomplete(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch a torch worker cannot be judged, which is no pass."""
    from auxout_conformance import isolation

    if target == "tree":
        shutil.copytree(SOURCE, tmp_path / "tree")
        target = str(tmp_path / "tree")
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
    )
    path = isolation.python_path()
    monkeypatch.setattr(isolation, "python_path", lambda: f"{tmp_path / 'without'}:{path}")
    report = judge(target, profile="0.32")
    assert (report.verdict, report.exit_code) == (Verdict.INCOMPLETE, 4)
    assert report.reason.startswith(
        "its worker is not judged: its worker needs torch, which is not installed: pip"
    )
    assert report.violations == ()


@pytest.mark.usefixtures("only_random")
def test_stop_first_stops_in_random_scenarios() -> None:
    report = judge("known-bad:waiting-requests-sent", stop_first=True)
    assert len(report.violations) == 1
    assert report.violations[0].found_by == "random"


def test_refusals_that_vanish_under_python_o() -> None:
    report = judge("known-bad:assert-only")
    (violation,) = report.violations
    assert violation.clause == "SCHED-REFUSE-6"
    assert violation.found_by.endswith(" under python -O")
    assert violation.event == len(violation.scenario.events)
    assert words_of(violation)[0] == "--optimized"
    again = played_again(violation)
    assert again is not None
    assert (again.clause, again.replay) == ("SCHED-REFUSE-6", violation.replay)
    assert runner.replay(violation.scenario, "known-bad:assert-only") is None
    assert runner.replay(violation.scenario, "reference", optimized=True) is None


# Random scenarios.


@pytest.mark.usefixtures("only_random")
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("hashes-sorted", 7),
        ("event-delivered-twice", 8),
        ("generation-always-zero", 9),
        ("last-hash-lost", 10),
    ],
)
def test_what_chance_found_plays_again_from_its_command(
    name: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    report = judge(f"known-bad:{name}", seed=seed, stop_first=True)
    (violation,) = report.violations
    assert (report.seed, violation.seed, violation.found_by) == (seed, seed, "random")
    assert len(violation.scenario.events) <= 8
    first, second = played_again(violation), played_again(violation)
    assert first == second
    assert first is not None
    assert (first.clause, first.event, first.call) == (violation.clause, violation.event, violation.call)
    assert (first.expected, first.actual) == (violation.expected, violation.actual)
    command = ["replay", *words_of(violation)]
    outputs = [(cli.main(command), capsys.readouterr().out) for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == 1
    assert violation.clause in outputs[0][1]
    assert runner.replay(violation.scenario, "reference") is None


def counts(report: Report) -> tuple[int, int]:
    return report.num_scenarios, report.num_calls


def test_the_same_seed_judges_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "cases_in", lambda profile: ())
    first, again, other, fixed, fixed_again = (
        judge("reference", seed=seed) for seed in (11, 11, 12, None, None)
    )
    assert counts(first) == counts(again) != counts(other)
    assert counts(fixed) == counts(fixed_again)


def test_deep_draws_a_seed_and_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement.large, "plays", lambda *_: iter(()))
    monkeypatch.setitem(judgement.EXAMPLES, "deep", 2)
    monkeypatch.setitem(solving.EXAMPLES, "deep", 0)
    monkeypatch.setitem(judgement.PAIR_EXAMPLES, "deep", 2)
    monkeypatch.setattr(judgement.secrets, "randbelow", lambda limit: 41)
    monkeypatch.setattr(judgement.Judgement, "_optimized", lambda self, host: None)
    assert runner.judge("reference", suite="deep").seed == 41
    assert runner.judge("reference", suite="deep", seed=3).seed == 3


@pytest.mark.usefixtures("only_random")
def test_a_search_is_repeated_until_nothing_new_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []
    plain = judgement.search

    def search(*args: Any, **options: Any) -> Found | None:
        asked.append(options["ignored"])
        return plain(*args, **options)

    monkeypatch.setattr(judgement, "search", search)
    monkeypatch.setitem(judgement.EXAMPLES, "smoke", 30)
    for phase in ("_optimized", "_large"):
        monkeypatch.setattr(judgement.Judgement, phase, lambda self, host: None)
    report = judge("known-bad:clamped-one-early")
    assert [len(ignored) for ignored in asked] == list(range(len(report.violations) + 1))
    # How many it finds depends on what Hypothesis draws, which depends on the modules that are loaded.
    assert report.violations
    asked.clear()
    monkeypatch.setattr(judgement, "MAX_ROUNDS", 1)
    assert len(judge("known-bad:clamped-one-early").violations) == len(asked) == 1


def test_an_answer_that_is_wrong_only_sometimes_is_wrong(own: Any) -> None:
    """The seventh rows of the process are lost: no scenario shows it again, yet it was seen."""
    name = own(
        "    takes = 0\n"
        "    def take_output(self, request, output):\n"
        "        Connector.takes += 1\n"
        "        rows = super().take_output(request, output)\n"
        "        return rows[:0] if Connector.takes == 7 else rows\n",
        foreign=False,
    )
    report = judge(name)
    assert report.verdict is Verdict.VIOLATION
    (violation,) = report.violations
    assert violation.event == len(violation.scenario.events)
    assert played_again(violation) is None


# Targets that break.

CRASH = "    def reset(self):\n        os._exit(7)\n"


def test_a_target_that_crashes_is_broken_and_the_command_shows_it(own: Any) -> None:
    name = own(CRASH)
    report = judge(name)
    assert (report.verdict, report.exit_code) == (Verdict.BROKEN, 3)
    assert report.reason == f"{name} crashed during reset (exit status 7)"
    assert set(statuses(report).values()) == {"not judged"}
    *_, text, target = shlex.split(report.replay)
    assert target == name
    with pytest.raises(TargetBroken, match="exit status 7"):
        runner.replay(scenarios.load(text), name)


def test_a_target_that_does_not_load_is_broken(own: Any) -> None:
    name = own("    pass\n1 / 0\n")
    report = judge(name)
    assert (report.verdict, report.replay) == (Verdict.BROKEN, "")
    assert report.reason == f"{name} does not load: ZeroDivisionError: division by zero"
    with pytest.raises(TargetBroken, match="does not load"):
        runner.replay(Scenario(()), name)


def test_a_violation_found_before_the_crash_counts(own: Any) -> None:
    take = "    def take_output(self, request, output):\n        return super().take_output(request, output)[:0]\n"
    report = judge(own(take + CRASH))
    assert report.verdict is Verdict.VIOLATION
    assert "SCHED-TAKE-3" in {violation.clause for violation in report.violations}
    assert report.reason.endswith("crashed during reset (exit status 7)")


def test_a_crash_under_python_o_only(own: Any) -> None:
    name = own(
        "    def request_finished(self, request):\n"
        "        try:\n"
        "            super().request_finished(request)\n"
        "        except ProtocolViolation:\n"
        "            if not __debug__:\n"
        "                os._exit(8)\n"
        "            raise\n"
    )
    report = judge(name)
    assert (report.verdict, report.violations) == (Verdict.BROKEN, ())
    assert report.reason == f"{name} crashed during request_finished (exit status 8)"
    assert shlex.split(report.replay)[2] == "--optimized"


def test_a_crash_in_a_random_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario((Reset(),), name="x", clause="SCHED-RESET-1")

    def search(*args: Any, tally: Tally, **options: Any) -> None:
        tally.broken = TargetBroken("it crashed"), scenario

    monkeypatch.setattr(judgement, "search", search)
    report = judge("reference")
    assert (report.verdict, report.reason) == (Verdict.BROKEN, "it crashed")
    plain = Scenario((Reset(),), profile="0.32")
    assert report.replay == judgement.replay_command(runner.resolve("reference"), plain)


# Judgements that are cut short.


def interrupt_at(phase: str) -> Callable[[Progress], None]:
    def progress(progress: Progress) -> None:
        if progress.phase == phase:
            raise KeyboardInterrupt

    return progress


def interrupted(target: str, phase: str) -> Report:
    with pytest.raises(Interrupted) as caught:
        judge(target, progress=interrupt_at(phase))
    return caught.value.report


@pytest.mark.parametrize("phase", ["cases", "refusals under python -O", "random scenarios"])
def test_an_interrupted_judgement_is_no_pass(phase: str) -> None:
    report = interrupted("reference", phase)
    assert (report.verdict, report.exit_code) == (Verdict.INCOMPLETE, 4)
    assert report.reason == "interrupted before every check was made"
    assert report.violations == ()
    assert "not judged" in statuses(report).values() or phase != "cases"


def test_an_interrupted_judgement_keeps_what_it_found() -> None:
    report = interrupted("known-bad:empty-is-none", "random scenarios")
    assert report.verdict is Verdict.VIOLATION
    assert [violation.clause for violation in report.violations] == ["SCHED-TAKE-4"]


# Known findings.


def test_a_release_conforms_except_its_known_findings(findings: Any) -> None:
    findings(FINDINGS["F32-7"])
    report = judge("known-bad:ragged-data")
    assert (report.verdict, report.known, report.violations) == (Verdict.CONFORM, ("F32-7",), ())
    (known,) = [result for result in report.clauses if result.status == "known"]
    assert (known.clause, known.findings) == ("WIRE-HASH-3", ("F32-7",))


def test_a_finding_that_shows_under_python_o_only(findings: Any) -> None:
    findings(FINDINGS["F32-8"])
    report = judge("known-bad:assert-only")
    assert (report.verdict, report.known) == (Verdict.CONFORM, ("F32-8",))
    assert statuses(report)["SCHED-REFUSE-6"] == "known"


def test_a_finding_that_no_longer_occurs_is_a_violation(findings: Any) -> None:
    findings(FINDINGS["F32-8"])
    report = judge("reference")
    assert (report.verdict, report.exit_code) == (Verdict.VIOLATION, 1)
    assert (report.violations, report.known) == ((), ())
    assert report.reason == "known finding F32-8 no longer occurs; remove it from known_findings"


def test_a_wrong_answer_beside_a_known_finding_is_a_violation(findings: Any) -> None:
    findings(FINDINGS["F32-7"])
    report = judge("known-bad:negative-item-size")
    assert {violation.clause for violation in report.violations} >= {"WIRE-HASH-2"}
    (violation,) = [each for each in report.violations if each.clause == "WIRE-HASH-2"]
    assert words_of(violation)[0] == "--known"
    again = played_again(violation)
    assert again is not None
    assert again.replay == violation.replay


def test_known_findings_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(release: str) -> Iterable[Finding]:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(runner, "findings_of", asked)
    report = judge("known-bad:negative-item-size", known=False)
    assert [violation.clause for violation in report.violations] == ["WIRE-HASH-2"]


def test_under_another_profile_findings_are_not_shown_again(findings: Any) -> None:
    """Their scenarios may be impossible there; the deviations still describe the release."""
    findings(FINDINGS["F32-7"])
    report = judge("known-bad:ragged-data", profile="0.31")
    assert (report.verdict, report.known, report.reason) == (Verdict.CONFORM, (), "")


# SHOULD clauses.


def test_advice_changes_no_verdict(own: Any) -> None:
    name = own(
        "    def request_finished(self, request):\n"
        "        try:\n"
        "            super().request_finished(request)\n"
        "        except ProtocolViolation:\n"
        "            raise ValueError('no') from None\n",
        foreign=False,
    )
    report = judge(name)
    assert (report.verdict, report.violations) == (Verdict.CONFORM, ())
    (note,) = report.notes
    assert note == (
        "SCHED-REFUSE-2 should hold, but need not: The message of a refusal names the request. "
        "But request_finished(A) was refused with 'no'."
    )
    assert statuses(report)["SCHED-REFUSE-2"] == "violated"


# Replay.


def test_replay_of_a_right_answer() -> None:
    assert runner.replay(Scenario((Add("A", 4), Launch((("A", 4),)), Abort("A"), Launch())), "impl") is None


def test_replay_is_under_the_scenario_s_profile_unless_told() -> None:
    beyond = Scenario((Add("A", 4, 6), Launch((("A", 4),))), profile="0.31")
    found = runner.replay(beyond, "known-bad:clamped-in-0.31")
    assert found is not None
    assert (found.clause, found.scenario.profile) == ("SCHED-EMIT-3", "0.31")
    assert runner.replay(beyond, "known-bad:clamped-in-0.31", "0.32") is None
    assert runner.replay(beyond._replace(profile=""), "known-bad:not-clamped") is not None


def test_replay_of_something_impossible() -> None:
    with pytest.raises(Impossible):
        runner.replay(Scenario((Land(),)), "reference")


def test_all_known_findings_of_a_scenario_are_named(own: Callable[..., str]) -> None:
    name = own(
        "    pass\n"
        "class PackedBlockHashes(PackedBlockHashes):\n"
        "    def __iter__(self):\n"
        "        for start in range(0, len(self.data), self.item_size):\n"
        "            yield self.data[start : start + self.item_size]\n"
    )
    empty, short = (FINDINGS[identifier].scenario.events for identifier in ("F32-6", "F32-7"))
    both = Scenario((*empty, *short), profile="0.32")
    assert [finding.id for finding in runner.known_in(both, name)] == ["F32-6", "F32-7"]
    assert [finding.id for finding in runner.known_in(Scenario(short, profile="0.32"), name)] == ["F32-7"]
    assert runner.known_in(both, "reference") == ()


def test_a_judgement_of_what_depends_on_the_seed_alone() -> None:
    judged = judgement.Judgement(resolve("known-bad:hashes-sorted"), "smoke", 1, ())
    report = judged.run(random_only=True)
    assert judged.held == set()
    assert {violation.found_by for violation in report.violations} == {"random"}
