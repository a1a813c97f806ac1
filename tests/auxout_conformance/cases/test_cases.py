"""Each curated case as one pytest test of the connector that ``--auxout-target`` names.

    pytest --pyargs auxout_conformance.cases --auxout-target my_module:make

Without the option the module is skipped as a whole: pytest then reports that it ran no tests, which is no pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from _auxout_pytest import NO_TARGET
from auxout_conformance import expect, render
from auxout_conformance.cases import Case, cases_in
from auxout_conformance.expect import Expectations
from auxout_conformance.hosts import Host, TargetBroken, open_host
from auxout_conformance.judge import Failure, play
from auxout_conformance.known import findings_of
from auxout_conformance.showing import judged_profile
from auxout_conformance.targets import Target, resolve
from auxout_conformance.targets.adapter import Offer
from auxout_conformance.verdicts import Violation
from auxout_conformance.violations import replay_command
from auxout_spec.clauses import ALL_CLAUSES, WORKER

OPTION = "--auxout-target"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per case of the profile that judges the target."""
    target = metafunc.config.getoption(OPTION, default=None)
    if target is None:
        pytest.skip(NO_TARGET, allow_module_level=True)
    profile = resolve(target, metafunc.config.getoption("--auxout-profile")).profile
    metafunc.parametrize("case", cases_in(profile), ids=lambda case: case.name)


class Connector:
    """The target under judgement; started anew after it crashed or hung."""

    def __init__(self, target: Target, expectations: Expectations | None) -> None:
        self.target = target
        self._expected = {each.clause: each.reason for each in expectations.entries} if expectations else {}
        self._findings = findings_of(target.release)
        self._host: Host | None = None

    def complaint(self, case: Case) -> str:
        """What is wrong in one case, for people; empty if nothing is.

        A case that is about a half which the target lacks is skipped, and one of an expected clause is an expected
        failure.
        """
        try:
            self._host = self._host or open_host(self.target)
            self._skip_inapplicable(case, self._host.offer)
            _, failure = play(self._host, case.scenario, judged_profile(self.target, self._findings))
            if failure is None:
                return ""
            if failure.clause in self._expected:
                pytest.xfail(f"{failure.clause} is expected: {self._expected[failure.clause]}")
            return self._explain(case, failure)
        except TargetBroken as error:
            self.close()
            return f"target broken: {render.printable(str(error))}\n  replay\n{self._replay(case)}"

    def _skip_inapplicable(self, case: Case, offer: Offer) -> None:
        """As the command leaves such cases out."""
        if offer.has(ALL_CLAUSES[case.clause].component):
            return
        half = "worker" if ALL_CLAUSES[case.clause].component in WORKER else "scheduler connector"
        why = offer.missing or f"{self.target.name} has no {half}"
        pytest.skip(f"{case.clause} is about the {half}: {why}")

    def _explain(self, case: Case, failure: Failure) -> str:
        plain = case.scenario._replace(profile=self.target.profile, name="", clause="")
        violation = Violation(
            clause=failure.clause,
            scenario=plain,
            event=failure.event,
            call=failure.call,
            expected=failure.expected,
            actual=failure.actual,
            found_by=f"case {case.name}: {case.story}",
            seed=None,
            replay=self._replay(case),
        )
        return "\n".join(map(str, render.violation_lines(violation)))

    def _replay(self, case: Case) -> str:
        plain = case.scenario._replace(profile=self.target.profile, name="", clause="")
        return replay_command(self.target, plain, ["--known"] if self._findings else [])

    def close(self) -> None:
        """Stop the target."""
        if self._host is not None:
            self._host.close()
        self._host = None


@pytest.fixture(scope="module")
def connector(
    auxout_target: str, auxout_profile: str | None, pytestconfig: pytest.Config
) -> Iterator[Connector]:
    """The connector, shared by all cases; each case starts a fresh session in it."""
    file = pytestconfig.getoption("--auxout-expect")
    running = Connector(resolve(auxout_target, auxout_profile), expect.read(file) if file else None)
    yield running
    running.close()


def test_case(case: Case, connector: Connector) -> None:
    """The connector answers as the specification does."""
    complaint = connector.complaint(case)
    if complaint:
        pytest.fail(complaint, pytrace=False)
