"""Profile 0.33 is still being written: it can be tried, is listed nowhere, and nothing conforms to it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from auxout_conformance import cli, runner
from auxout_conformance.cases import cases_in
from auxout_conformance.hosts import InProcess
from auxout_conformance.judge import play
from auxout_conformance.known import Finding, all_findings, findings_of, findings_under
from auxout_conformance.targets import TargetError, resolve, wheels
from auxout_conformance.verdicts import Verdict
from auxout_reference.retention import Retention
from auxout_spec.clauses import ALL_CLAUSES, holds_in
from auxout_spec.deviations import OPTIMIZED, Deviation
from auxout_spec.profiles import PROFILES, SPECIFIED


def test_the_reference_answers_as_it_says_and_that_is_not_all() -> None:
    report = runner.judge("reference", profile="0.33", suite="smoke")
    assert (report.verdict, report.reason) == (Verdict.INCOMPLETE, "profile 0.33 is still being written")
    assert (report.violations, report.profile) == ((), "0.33")
    held = {result.clause for result in report.clauses if result.status == "holds"}
    assert {"SCHED-RETAIN-1", "SCHED-RELEASE-4", "SCHED-HIT-3", "STORE-GROW-1", "ROW-RESIDENT-1"} <= held


def test_no_release_is_said_to_have_a_profile_of_it() -> None:
    assert "0.33" not in PROFILES
    with pytest.raises(TargetError, match=r"no profile describes vllm==0\.33\.0 .* \(0\.31 or 0\.32\)"):
        resolve("vllm==0.33.0")


@pytest.mark.parametrize("name", ["impl", "impl-torch", "impl-request"])
def test_our_fast_implementation_does_not_follow_it_yet(name: str) -> None:
    with pytest.raises(TargetError, match=rf"{name} does not follow profile 0\.33 yet"):
        resolve(name, "0.33")


@pytest.mark.parametrize(
    "words",
    [
        ("conform", "reference", "--profile", "0.34"),
        ("explore", "--profile", "0.33"),
        ("clauses", "--profile", "0.33"),
    ],
)
def test_it_is_offered_nowhere(words: tuple[str, ...], capsys: pytest.CaptureFixture[Any]) -> None:
    assert cli.main(words) == 2
    assert "the profiles are 0.31, 0.32" in capsys.readouterr().err


KNOWN = findings_of("0.33.0")
P33 = SPECIFIED["0.33"]


def test_what_is_known_of_its_release_is_listed_nowhere_yet() -> None:
    assert len(KNOWN) == 21
    assert not {finding.release for finding in all_findings()} & {"0.33.0"}
    assert findings_under("0.33") == KNOWN
    assert len({finding.id for finding in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize("finding", KNOWN, ids=lambda finding: finding.id)
def test_a_finding_of_its_release_tells_that_from_the_spec(finding: Finding) -> None:
    """The reference answers rightly; with the finding's deviation the spec says something else, or the engine ends."""
    assert (finding.scenario.profile, finding.scenario.clause) == ("0.33", finding.clause)
    host = InProcess(resolve("reference", "0.33"))
    played, failure = play(host, finding.scenario, P33)
    assert failure is None
    if finding.deviation is None:
        assert played.state.problem is not None
        assert played.state.problem.clause == finding.clause
        return
    if finding.deviation in UNSEEN:
        return
    released = P33._replace(deviations=frozenset((finding.deviation,)))
    _, failure = play(host, finding.scenario, released)
    assert failure is not None


UNSEEN = OPTIMIZED | {
    Deviation.BATCH_KEPT,
    Deviation.WORKER_NOT_ATOMIC,
    Deviation.WORKER_STEP_LOST,
    Deviation.UNKNOWN_REQUEST_CRASHES,
    Deviation.ANY_STEP_ORDER,
    Deviation.MIXED_LENGTHS_PACKED,
}
"""Deviations under which a right answer is not wrong: the engine has ended, they show elsewhere, or looking is free."""


@pytest.mark.slow
def test_its_release_departs_from_it_as_known_and_not_otherwise() -> None:
    """As ``auxout conform vllm==0.33.0 --profile 0.33``, if the release was fetched."""
    if "0.33.0" not in wheels.cached_versions():
        pytest.skip("vllm==0.33.0 has not been fetched")
    report = runner.judge("vllm==0.33.0", profile="0.33", suite="smoke")
    assert (report.violations, report.verdict) == ((), Verdict.INCOMPLETE)
    assert report.known == tuple(finding.id for finding in KNOWN)


Change = Callable[[pytest.MonkeyPatch], None]


def _without(name: str) -> Change:
    """A method of the retained blocks that does nothing."""
    return lambda patch: patch.setattr(Retention, name, lambda *_: None)


def _instead(name: str, new: Callable[..., Any]) -> Change:
    """A method that is changed: ``new`` is given what it was, and its arguments."""
    old = getattr(Retention, name)
    return lambda patch: patch.setattr(Retention, name, lambda *args: new(old, *args))


def _untouched(old: Callable[..., int], kept: Retention, request: Any) -> int:
    """Looking up changes no age."""
    blocks = dict(kept._blocks)
    found = old(kept, request)
    kept._blocks = blocks
    return found


def _all_computed(old: Callable[..., None], kept: Retention, request: Any) -> None:
    """Everything that is cached counts as computed."""
    everything = SimpleNamespace(**{name: getattr(request, name) for name in ("request_id", "block_hashes")})
    old(kept, SimpleNamespace(**vars(everything), num_computed_tokens=1 << 20))


def _up_to_a_block(old: Callable[..., int], kept: Retention, request: Any, local: int, external: int) -> int:
    """As much is loaded as may be, in whole blocks."""
    known = kept.max_cache_hit(request)
    return max(min(local + external, known) // kept.hash_block_size * kept.hash_block_size - local, 0)


FAULTS: dict[str, tuple[Change, str]] = {
    "nothing is retained": (_without("ended"), "SCHED-RETAIN-1"),
    "a reset keeps everything": (_without("reset"), "SCHED-RELEASE-5"),
    "loads are not marked": (_without("is_loading"), "SCHED-RELEASE-2"),
    "marks stay": (_without("scheduled"), ""),
    "looking up changes no age": (_instead("max_cache_hit", _untouched), "SCHED-RELEASE-4"),
    "what is not computed is retained": (_instead("ended", _all_computed), "SCHED-RETAIN-4"),
    "hits are not bounded": (_instead("max_cache_hit", lambda _, __, r: r.num_tokens - 1), "SCHED-HIT-2"),
    "loads are not bounded": (_instead("cap_external_hit", lambda *args: args[-1]), "SCHED-HIT-3"),
    "a hit elsewhere is cut": (_instead("cap_external_hit", _up_to_a_block), "SCHED-HIT-3"),
}
"""Ways in which a connector may be wrong, and the clause that a case finds broken.

Marks that stay while their request runs change nothing: it holds the KV, and when it ends they are dropped anyway.
"""


@pytest.mark.parametrize("name", FAULTS)
def test_a_connector_that_is_wrong_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, clause = FAULTS[name]
    change(monkeypatch)
    host = InProcess(resolve("reference", "0.33"))
    played = (play(host, case.scenario, P33)[1] for case in cases_in("0.33"))
    found = {failure.clause for failure in played if failure is not None}
    assert clause in found if clause else not found


OPEN = {"SCHED-HASH-9", "SCHED-HASH-12", "WORK-KEYS-2", "STORE-PUT-5"}
"""No event of its engine replaces hashes that were sent, or brings a release without a reference about."""


def test_every_rule_of_it_has_a_case() -> None:
    told = {case.clause for case in cases_in("0.33")}
    judged = ("SCHED", "WIRE", "WORK", "STORE", "ROW")
    due = {
        c.id
        for c in ALL_CLAUSES.values()
        if c.component in judged and c.level == "MUST" and holds_in(c, "0.33")
    }
    assert due - told == OPEN
