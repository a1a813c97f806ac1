"""A judgement: the judge checks itself, then cases, known findings, ``python -O``, random, large and solved plays."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from auxout_spec import scenario as scenarios
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.deviations import Deviation
from auxout_spec.engine import Impossible
from auxout_spec.profiles import Profile, named
from auxout_spec.representation import Representation
from auxout_spec.scenario import Scenario
from auxout_spec.values import Refusal

from . import large, representing, selfcheck
from .cases import Case, all_cases, cases_in
from .covered import Covered
from .hosts import Host, TargetBroken, open_host
from .judge import Failure, play
from .known import Finding
from .machine import Tally
from .results import clause_results
from .searching import search
from .showing import judged_profile, occurs, remaining, visible
from .shrinking import Shrinker
from .solver import Solver
from .targets import Target
from .targets.adapter import Offer
from .verdicts import ClauseResult, Interrupted, Progress, Report, Suite, Verdict, Violation, unfinished
from .violations import replay_command, violation_of

EXAMPLES: dict[Suite, int] = {"smoke": 60, "default": 300, "deep": 5000}
"""Random scenarios of each suite for a scheduler connector."""
PAIR_EXAMPLES: dict[Suite, int] = {"smoke": 40, "default": 200, "deep": 4000}
"""Random scenarios of each suite that drive a worker, too."""
MAX_ROUNDS = 8
"""Searches after which the random judge stops looking for further clauses."""

OnProgress = Callable[[Progress], None]


def optimized_clause(scenario: Scenario) -> str:
    """What a target breaks whose refusals vanish under ``python -O``."""
    return "WORK-REFUSE-4" if scenario.store else "SCHED-REFUSE-6"


class Judgement:
    """One target's judgement in progress."""

    def __init__(
        self,
        target: Target,
        suite: Suite,
        seed: int | None,
        findings: tuple[Finding, ...],
        *,
        settled: bool = True,
        rules: Profile | None = None,
        host: Host | None = None,
        tolerated: frozenset[str] | None = None,
        progress: OnProgress | None = None,
    ) -> None:
        """Prepare a judgement.

        Args:
            findings: the findings it is known for.
            settled: one that no longer occurs is an error; otherwise it counts as fixed.
            rules: judge it by these rules instead of those of its profile.
            host: where the target runs already; it stays open.
            tolerated: stop at the first violation of any other clause; None: go on to the end.
        """
        if seed is None and suite == "deep":
            seed = secrets.randbelow(1 << 32)
        self.target, self.seed, self._tolerated = target, seed, tolerated
        self.suite: Suite = suite
        self._settled, self._progress = settled, progress or (lambda _: None)
        self._rules = rules or named(target.profile)
        self._host = host
        self._know(findings)
        self.cases = cases_in(target.profile)
        self.offer = Offer(scheduler=True, worker=False)
        """Which halves are judged; its host knows."""
        self.violations: list[Violation] = []
        self.shown: list[str] = []
        """Known findings that occurred again."""
        self.reason = self.replay = ""
        self.broken: TargetBroken | None = None
        """Why the target could not be judged."""
        self.advice: dict[str, str] = {}
        self.held: set[str] = set()
        """Clauses of which a case passed."""
        self.tally = Tally()
        self.covered = Covered()
        self.num_calls = 0
        self._solver: Solver | None = None
        self._started = time.monotonic()

    def _know(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        self.profile = self._rules._replace(deviations=judged_profile(self.target, findings).deviations)

    def run(self, *, random_only: bool = False) -> Report:
        """Everything, in order of cost; what breaks the target ends it.

        Args:
            random_only: leave out what does not depend on the seed.
        """
        phases = (
            self._cases,
            self._known_findings,
            self._optimized,
            self._random,
            self._large,
            self._solved,
        )
        if random_only:
            phases = (self._random,)
        else:
            self._selfcheck()
        host = self._host
        try:
            host = host or open_host(self.target)
            self._offered(host.offer)
            if not self._settled:
                self._know(remaining(self.findings, self.target, host))
            if self._solved in phases and host.offer.scheduler:
                self._solver = Solver(self.target, self.profile, self.suite)
                self._solver.start()
            for phase in phases:
                phase(host)
                if self._stops:
                    break
        except TargetBroken as error:
            self.broken, self.reason = error, str(error)
            return self._report(Verdict.BROKEN)
        except KeyboardInterrupt:
            self.reason = "interrupted before every check was made"
            raise Interrupted(self._report(Verdict.INCOMPLETE)) from None
        finally:
            if host is not None and host is not self._host:
                host.close()
            if self._solver is not None:
                self._solver.close()
        return self._report(Verdict.CONFORM)

    @property
    def _stops(self) -> bool:
        """Whether a violation was found at which the judgement stops."""
        return self._tolerated is not None and not {v.clause for v in self.violations} <= self._tolerated

    def _offered(self, offer: Offer) -> None:
        """Judge what the target has."""
        self.offer = offer
        self.cases = tuple(case for case in self.cases if offer.has(ALL_CLAUSES[case.clause].component))

    def _selfcheck(self) -> None:
        counted = self._counter("checking the judge", len(all_cases()))
        faults = selfcheck.check_all(counted, self.target.profile)
        if faults:
            raise RuntimeError(f"the suite itself is broken: {faults[0]}")

    def _cases(self, host: Host) -> None:
        counted = self._counter("cases", len(self.cases))
        for number, looks in self._looks():
            case = self.cases[number]
            is_well = self._case(host, case, looks)
            if looks == case.scenario.representation:
                counted()
                if is_well:
                    self.held.add(case.clause)
            if not is_well and self._stops:
                return

    def _looks(self) -> Iterator[tuple[int, Representation]]:
        """Each case as it is, then each with others, so that what needs none of these is told without them."""
        for number, case in enumerate(self.cases):
            yield number, case.scenario.representation
        for number in range(len(self.cases)):
            for looks in representing.of_case(self.suite, number):
                yield number, looks

    def _case(self, host: Host, case: Case, representation: Representation) -> bool:
        """Play a case; whether all is well."""
        scenario = case.scenario._replace(representation=representation)
        return self._played(host, scenario, f"case {case.name}")

    def _played(self, host: Host, scenario: Scenario, found_by: str) -> bool:
        """Play a scenario; whether all is well."""
        try:
            done, failure = play(host, scenario, self.profile)
        except TargetBroken as error:
            raise self._broken(error, scenario) from None
        self.num_calls += done.num_calls
        self.covered.merge(done.covered.bounds)
        self._advise(done.advice)
        if failure is not None:
            self._found(host, scenario, failure, found_by)
        return failure is None

    def _known_findings(self, host: Host) -> None:
        """Show each known finding again; only under the release's own profile are its scenarios possible.

        Of a changed release only those that it shows are known.
        """
        here = [finding for finding in self.findings if visible(finding, host)]
        findings = [f for f in here if f.scenario.profile == self.target.profile]
        counted = self._counter("known findings", len(findings))
        for finding in findings:
            if not self._settled or occurs(finding, host, self.profile):
                self.shown.append(finding.id)
            else:
                self.reason = f"known finding {finding.id} no longer occurs; remove it from known_findings"
            counted()

    def _optimized(self, host: Host) -> None:
        """Refusals must not be assert statements: play the cases that have one under ``python -O``."""
        refusing = [case for case in self.cases if self._must_refuse(case)]
        if not refusing:
            return
        counted = self._counter("refusals under python -O", len(refusing))
        for case in refusing:
            try:
                _, failure = play(host.optimized(), case.scenario, self.profile)
            except TargetBroken as error:
                raise self._broken(error, case.scenario, ["--optimized"]) from None
            counted()
            if failure is not None and play(host, case.scenario, self.profile)[1] is None:
                found_by = f"case {case.name} under python -O"
                ended = case.scenario._replace(events=case.scenario.events[: failure.event])
                self._add(failure, ended, found_by, None, ["--optimized"], optimized_clause(case.scenario))
                return

    def _large(self, host: Host) -> None:
        """Play at the sizes of real engines."""
        suite, profile, offer = self.suite, named(self.target.profile), host.offer
        halves = [half for half in (False, True) if (offer.worker if half else offer.scheduler)]
        total = sum(large.num_plays(suite, offer.numbers, half) for half in halves)
        counted = self._counter("large plays", total)
        made = (large.plays(suite, profile, offer.numbers, half) for half in halves)
        for scenario in itertools.chain.from_iterable(made):
            self._played(host, scenario, scenario.name)
            counted()
            if self._stops:
                return

    def _solved(self, host: Host) -> None:
        """Play what was solved for meanwhile."""
        if self._solver is None:
            return
        counted = self._counter("plays that were solved for", 0)
        for scenario in self._solver.found():
            self._played(host, scenario, scenario.name)
            counted()
            if self._stops:
                return

    def _must_refuse(self, case: Case) -> bool:
        """Whether a case has a refusal that is not known to be an assert statement."""
        known = Deviation.WORKER_ASSERT_ONLY if case.scenario.store else Deviation.ASSERT_ONLY
        if known in self.profile.deviations:
            return False
        try:
            played = scenarios.run(case.scenario, self.profile)
        except Impossible:  # under the deviations of a release
            return False
        return any(isinstance(exchange.result, Refusal) for _, exchanges in played for exchange in exchanges)

    def _random(self, host: Host) -> None:
        if self.offer.scheduler:
            self._search(host, "random scenarios", EXAMPLES[self.suite], with_worker=False)
        if self.offer.worker and not self._stops:
            self._search(host, "random scenarios with a worker", PAIR_EXAMPLES[self.suite], with_worker=True)

    def _search(self, host: Host, phase: str, examples: int, with_worker: bool) -> None:
        for _ in range(MAX_ROUNDS):
            broken_clauses = frozenset(violation.clause for violation in self.violations)
            counted = self._counter(phase, examples)
            self.tally.found = None
            found = search(
                host,
                self.profile,
                examples=examples,
                seed_number=self.seed,
                ignored=broken_clauses,
                tally=self.tally,
                on_example=counted,
                with_worker=with_worker,
                representations=representing.of_suite(self.suite),
            )
            if self.tally.broken is not None:
                raise self._broken(*self.tally.broken)
            if found is None:
                break
            self._found(host, found.scenario, found.failure, "random")
            if self._stops:
                break
        self._advise(self.tally.advice)

    def _found(self, host: Host, scenario: Scenario, failure: Failure, found_by: str) -> None:
        """Add a violation of a clause that was not broken yet, with its scenario made small."""
        ignored = frozenset(violation.clause for violation in self.violations)
        if failure.clause in ignored:
            return
        counted = self._counter("shrinking", 0)
        small, failure = Shrinker(host, self.profile, ignored, counted).shrink(scenario, failure)
        unnamed = {
            "name": scenario.name,
            "clause": scenario.clause,
            "representation": scenario.representation,
        }
        as_found = small._replace(**unnamed) == scenario
        seed = self.seed if found_by == "random" else None
        self._add(failure, small, found_by, seed, [], "", None if as_found else len(scenario.events))

    def _add(
        self,
        failure: Failure,
        scenario: Scenario,
        found_by: str,
        seed: int | None,
        flags: list[str],
        clause: str,
        shrunk_from: int | None = None,
    ) -> None:
        if self.findings:
            flags = [*flags, "--known"]
        violation = violation_of(self.target, failure, scenario, found_by, seed, flags, clause)
        self.violations.append(replace(violation, shrunk_from=shrunk_from))

    def _broken(
        self, error: TargetBroken, scenario: Scenario, flags: list[str] | None = None
    ) -> TargetBroken:
        """Keep the scenario in which the target broke."""
        plain = scenario._replace(profile=self.target.profile, name="", clause="")
        self.replay = replay_command(self.target, plain, flags or ())
        return error

    def _advise(self, advice: list[tuple[str, str]]) -> None:
        for clause, text in advice:
            self.advice.setdefault(clause, text)

    def _counter(self, phase: str, total: int) -> Callable[[], None]:
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            self._progress(Progress(self.target.title, phase, done, total))

        return count

    def _report(self, verdict: Verdict) -> Report:
        """The report; a violation found shows whatever else happened."""
        stale = verdict is Verdict.CONFORM and self.reason
        if self.violations or stale:
            verdict = Verdict.VIOLATION
        self.covered.merge(self.tally.covered.bounds)
        unjudged = (*self._missing(), *unfinished(self.target.profile))
        if verdict is Verdict.CONFORM and unjudged:
            verdict, self.reason = Verdict.INCOMPLETE, unjudged[0]
        return Report(
            target=self.target.title,
            version=self.target.version,
            profile=self.target.profile,
            suite=self.suite,
            seed=self.seed,
            verdict=verdict,
            clauses=self._clause_results(broken=verdict is Verdict.BROKEN),
            violations=tuple(self.violations),
            known=tuple(self.shown),
            reason=self.reason,
            replay=self.replay,
            num_cases=len(self.cases),
            num_scenarios=self.tally.scenarios,
            num_calls=self.num_calls + self.tally.calls,
            seconds=time.monotonic() - self._started,
            covered=self.covered.bounds,
            notes=(
                *self.target.notes,
                *self._missing(),
                *([self._solver.note] if self._solver is not None and self._solver.note else ()),
                *(_note(clause, text) for clause, text in self.advice.items()),
            ),
        )

    def _missing(self) -> tuple[str, ...]:
        """What the target has and cannot be judged here."""
        return (f"its worker is not judged: {self.offer.missing}",) if self.offer.missing else ()

    def _clause_results(self, broken: bool) -> tuple[ClauseResult, ...]:
        return clause_results(
            self.target.profile,
            self.offer,
            self.cases,
            self.findings,
            violated={violation.clause for violation in self.violations} | self.advice.keys(),
            held=() if broken else self.held,
        )


def _note(clause: str, text: str) -> str:
    """A SHOULD clause that does not hold."""
    return f"{clause} should hold, but need not: {ALL_CLAUSES[clause].sentence} But {text}."
