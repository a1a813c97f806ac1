"""Values that are solved for: right connectors stay clean, a fault at any one value is found and is a violation."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from auxout_conformance import runner, solving
from auxout_conformance.hosts import Child, InProcess
from auxout_conformance.judge import play
from auxout_conformance.known import findings_of
from auxout_conformance.showing import judged_profile
from auxout_conformance.targets import resolve
from auxout_conformance.targets.loading import load
from auxout_conformance.targets.resolve import Target
from auxout_spec.profiles import PROFILES, Profile
from auxout_spec.scenario import Scenario

P32 = PROFILES["0.32"]
HEAD = """
from auxout_reference.connector import *
from auxout_reference.connector import AuxOutputSchedulerConnector as Right


def hidden(text):
    # Not a number of the source, which would be played around anyway.
    return int(text)


class Wrong(Right):
"""
BUILD = """
    def build_connector_meta(self, scheduler_output, requests):
        metadata = super().build_connector_meta(scheduler_output, requests)
        starts, hashes = metadata.requests, metadata.block_hashes
        for name in list(starts):
            request = requests[name]
            {fault}
        return metadata
"""
FAULTS = {
    "a mask": (BUILD, 'starts[name] &= hidden("32767")', "SCHED-EMIT"),
    "one length": (BUILD, 'starts[name] += request.num_tokens == hidden("77777")', "SCHED-EMIT"),
    "lengths from one on": (BUILD, 'starts[name] *= request.num_tokens < hidden("90210")', "SCHED-EMIT"),
    "one number of outputs": (
        BUILD,
        'starts[name] -= request.num_output_tokens == hidden("333")',
        "SCHED-EMIT",
    ),
    "one distance of the start from the end": (
        BUILD,
        'starts[name] += request.num_prompt_tokens - starts[name] == hidden("4099")',
        "SCHED-EMIT",
    ),
    "bytes of a hash": (
        BUILD,
        'if any(each[:2] == b"A\\x07" for each in hashes.get(name, ())): del hashes[name]',
        "SCHED-HASH",
    ),
    "ids with the same letter": (
        BUILD,
        "if any(other[:1] == name[:1] for other in starts if other != name): starts.pop(name)",
        "SCHED-META",
    ),
    "rows of one request": (
        """
    def take_output(self, request, output):
        rows = super().take_output(request, output)
        return rows if request.num_tokens != hidden("54321") or rows is None else rows[:-1]
""",
        "",
        "SCHED-TAKE",
    ),
    "an end": (
        """
    def request_finished(self, request):
        if request.num_tokens != hidden("65001"):
            super().request_finished(request)
""",
        "",
        "SCHED-TERM",
    ),
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a target with a fault."""
    method, fault, _ = FAULTS[request.param]
    module = f"solved_{list(FAULTS).index(request.param)}"
    source = HEAD + textwrap.indent(method.format(fault=fault), "")
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{module}:Wrong"


def maker(target: Target) -> solving.Make:
    """Makes its scheduler connector."""
    make = load(target.spec).scheduler
    assert make is not None
    return lambda: make("0.32")


@pytest.mark.parametrize("written", FAULTS, indirect=True)
def test_a_fault_at_any_value_is_found_and_shown_to_be_one(
    written: str, request: pytest.FixtureRequest
) -> None:
    clauses = FAULTS[request.node.callspec.params["written"]][2]
    target = resolve(written, "0.32")
    scenario = next(solving.solve(maker(target), P32, "default"))
    host = InProcess(target)
    _, failure = play(host, scenario, P32)
    host.close()
    assert failure is not None
    assert failure.clause.startswith(clauses)


@pytest.mark.parametrize("name", ["reference", "impl"])
def test_a_right_connector_is_clean(name: str) -> None:
    assert not list(solving.solve(maker(resolve(name, None)), P32, "default"))


def test_one_that_lets_requests_fail_is_clean_in_a_process_of_its_own() -> None:
    target = resolve("impl-request", None)
    assert not solved(target, judged_profile(target, ()))


@pytest.mark.parametrize("written", ["one length"], indirect=True)
def test_a_judgement_has_it_with_a_line_that_shows_it_again(written: str) -> None:
    report = runner.judge(written, profile="0.32", suite="default")
    (violation,) = report.violations
    assert violation.clause.startswith("SCHED-EMIT")
    assert violation.found_by == "numbers solved for"
    assert any("77777" in part or "77776" in part for part in violation.replay.split('"prompt":'))
    again = runner.replay(violation.scenario, written, profile="0.32")
    assert again is not None
    assert again.clause == violation.clause


def solved(target: Target, profile: Profile) -> list[Scenario]:
    """What is found for a target, in a process of its own."""
    child = Child(target, call_seconds=300)
    try:
        return child.solve(profile, "default")
    finally:
        child.close()


def test_findings_of_a_release_are_not_accused() -> None:
    target = resolve("vllm==0.32.0", None)
    profile = judged_profile(target, findings_of(target.release))
    found = solved(target, profile)
    host = Child(target)
    failures = [play(host, scenario, profile)[1] for scenario in found]
    host.close()
    assert not any(failures)


def test_what_it_needs_is_installed() -> None:
    assert solving.is_possible()
