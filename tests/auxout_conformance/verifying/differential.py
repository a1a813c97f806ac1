"""Base against patched code: random scenarios played on both, for changes that the protocol leaves open.

Every call is made on both. Where one answer is right and the other wrong, that is a matter of clauses; what is
looked for here are different answers of which neither is worse than the other: both right, or both wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from auxout_spec import trace
from auxout_spec.calls import BuildConnectorMeta, Call, Exchange, Halves
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.profiles import Profile, named
from auxout_spec.scenario import Scenario
from auxout_spec.values import Metadata, RequestView

from ..cases import Case, cases_in
from ..hosts import Host, TargetBroken
from ..judge import Failure, Play, agrees, describe_call, describe_outcome, play, without_order
from ..judgement import Judgement
from ..machine import Tally
from ..observation import Observation, Raised
from ..searching import search
from ..setups import Setup
from ..shrinking import Shrinker
from ..verdicts import Suite, Violation
from ..violations import violation_of
from .outcome import Change

EXAMPLES: dict[Suite, int] = {"smoke": 40, "default": 150, "deep": 2500}
"""Random scenarios of each suite."""
MAX_ROUNDS = 4
"""Searches after which no further kind of change is looked for."""

NOT_WORSE = "not worse than the base"
"""Stands for a clause where the base is wrong and the patched code is not, or both give the same wrong answer: from
there on the two have different pasts, so that the example ends."""

BOTH = ", both against "
"""Stands in a change between two answers that are both wrong, before the clause."""


class BaseBroken(TargetBroken):
    """The base crashed or hung."""


class Pair:
    """Base and patched code side by side: every call is made on both, the patched answer is returned."""

    def __init__(self, base: Host, patched: Host) -> None:
        self._base, self._patched = base, patched
        self.offer = patched.offer
        self.base_seen: Observation | None = None
        """The base's answer to the last call."""

    def new(self, setup: Setup) -> None:
        for host in (self._base, self._patched):
            host.new(setup)

    def call(self, call: Call) -> Observation:
        try:
            self.base_seen = self._base.call(call)
        except TargetBroken as error:
            raise BaseBroken(str(error), error.said) from None
        return self._patched.call(call)


class DifferentialPlay(Play):
    """A play on a ``Pair``. Its failures are wrong answers where the base's is right, and changes.

    A change's failure has the change in words for its clause, the base's answer as expected one.
    """

    def _judge(self, before: Halves, exchange: Exchange, seen: Observation) -> Failure | None:
        assert isinstance(self.host, Pair)
        base = self.host.base_seen
        assert base is not None  # it was asked first
        base_wrong = super()._judge(before, exchange, base)
        wrong = super()._judge(before, exchange, seen)
        if wrong is not None and base_wrong is None:
            return wrong
        if base_wrong is None:
            what = difference(exchange.call, base, seen)
            if not what:
                return None
        else:
            # How a wrong answer is made is nobody's concern, but that it is another one is.
            what = difference(exchange.call, base, seen._replace(traits=base.traits)) if wrong else ""
            what = what and f"{what}{BOTH}{base_wrong.clause}"
        views = dict(self.ledger.views)
        if isinstance(exchange.call, BuildConnectorMeta):
            views |= {view.request_id: view for view in exchange.call.requests}
        return Failure(
            what or NOT_WORSE,
            self.num_events,
            describe_call(exchange.call),
            described(base, views),
            described(seen, views),
        )

    def _usage_failure(self, exchange: Exchange, after: Halves, seen: Observation) -> Failure | None:
        assert isinstance(self.host, Pair)
        wrong, base = super()._usage_failure(exchange, after, seen), self.host.base_seen
        if wrong is None or base is None:
            return wrong
        base_wrong = super()._usage_failure(exchange, after, base)
        return wrong if base_wrong is None else replace(wrong, clause=NOT_WORSE)

    def _late_failure(self, exchange: Exchange, seen: Observation) -> Failure | None:
        assert isinstance(self.host, Pair)
        base = self.host.base_seen  # of this call: to find out more, others are made
        wrong = super()._late_failure(exchange, seen)
        if wrong is None or base is None or agrees(exchange.result, base.outcome):
            return wrong
        return replace(wrong, clause=NOT_WORSE)


class Compared(NamedTuple):
    """What comparing base and patched code came to."""

    violations: tuple[Violation, ...]
    """Where the base is right and the patched code wrong, of clauses that its judgement did not find."""
    changes: tuple[Change, ...]
    num_scenarios: int


def compare(
    base: Host,
    patched: Host,
    rules: Profile,
    *,
    judged: Judgement,
    progress: Callable[[str, int, int], None],
    random_only: bool = False,
) -> Compared:
    """Play the curated cases, then random scenarios, on both.

    Args:
        rules: the profile that judges both, without deviations.
        judged: the judgement of the patched code: its suite, its seed, and what it found already.
        progress: told phase, number done and total.
        random_only: leave out the cases.

    Raises:
        BaseBroken: the base crashed or hung.
        TargetBroken: the patched code did.
    """
    cases = () if random_only else cases_in(rules.name)
    return _Comparing(Pair(base, patched), rules, judged, progress).run(cases)


class _Comparing:
    """A comparison in progress."""

    def __init__(
        self, pair: Pair, rules: Profile, judged: Judgement, progress: Callable[[str, int, int], None]
    ) -> None:
        self._pair, self._rules, self._judged, self._progress = pair, rules, judged, progress
        self._done = {NOT_WORSE} | {each.clause for each in judged.violations}
        self._violations: list[Violation] = []
        self._changes: list[Change] = []
        self._tally = Tally()

    def run(self, cases: Sequence[Case]) -> Compared:
        for number, case in enumerate(cases, 1):
            _, failure = play(self._pair, case.scenario, self._rules, DifferentialPlay)
            self._found(case.scenario, failure)
            self._progress("comparing on cases", number, len(cases))
        for _ in range(MAX_ROUNDS):
            if not self._search():
                break
        changes = self._changes
        moved = self._rules != named(self._rules.name)
        if moved or self._violations or self._judged.violations:
            # What has moved or is broken makes wrong answers other wrong answers too.
            changes = [change for change in changes if BOTH not in change.what]
        return Compared(tuple(self._violations), tuple(changes), self._tally.scenarios)

    def _search(self) -> bool:
        """Look for one more difference in random scenarios."""
        examples, done = EXAMPLES[self._judged.suite], 0

        def count() -> None:
            nonlocal done
            done += 1
            self._progress("comparing on random scenarios", done, examples)

        self._tally.found = None
        found = search(
            self._pair,
            self._rules,
            examples=examples,
            seed_number=self._judged.seed,
            ignored=frozenset(self._done),
            tally=self._tally,
            on_example=count,
            kind=DifferentialPlay,
        )
        if self._tally.broken is not None:
            raise self._tally.broken[0]
        if found is not None:
            self._found(found.scenario, found.failure)
        return found is not None

    def _found(self, scenario: Scenario, failure: Failure | None) -> None:
        """Make a new difference small and keep it."""
        if failure is None or failure.clause in self._done:
            return
        ignored = frozenset(self._done)
        shrinker = Shrinker(self._pair, self._rules, ignored, kind=DifferentialPlay)
        scenario, failure = shrinker.shrink(scenario, failure)
        scenario = scenario._replace(profile=self._rules.name, name="", clause="")
        self._done.add(failure.clause)
        if failure.clause in ALL_CLAUSES:
            self._violations.append(
                violation_of(self._judged.target, failure, scenario, "comparison", self._judged.seed)
            )
        else:
            self._changes.append(
                Change(
                    failure.clause, scenario, failure.event, failure.call, failure.expected, failure.actual
                )
            )


def described(seen: Observation, views: Mapping[str, RequestView]) -> str:
    """An answer with what else was noticed about it."""
    return "; ".join([describe_outcome(seen.outcome, dict(views)), *seen.traits])


def difference(call: Call, base: Observation, patched: Observation) -> str:
    """How two answers to a call differ, in words that do not depend on the scenario; empty if they do not."""
    what = _difference(base, patched)
    return f"{trace.call_to_json(call)['call']}: {what}" if what else ""


def _difference(base: Observation, patched: Observation) -> str:
    old, new = base.outcome, patched.outcome
    if isinstance(old, Raised) and isinstance(new, Raised):
        if old.type != new.type:
            return f"refused with {new.type} instead of {old.type}"
        return "a refusal is worded differently" if old.message != new.message else ""
    if isinstance(old, Metadata) and isinstance(new, Metadata) and old != new:
        if without_order(old) == without_order(new):
            return "hash entries in another order"
        return "other metadata"
    if old != new:
        return "another answer"
    changed = [(a, b) for a, b in zip(base.traits, patched.traits, strict=False) if a != b]
    return "; ".join(f"{b} instead of {a}" for a, b in changed)
