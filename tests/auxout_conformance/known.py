"""Known findings: how a released vLLM departs from the spec, each with a scenario that shows it.

A finding names the deviation (``auxout_spec.profiles.Deviation``) that describes the released behaviour exactly.
A release is judged against the spec with its deviations, answer by answer, so nothing hides behind a finding;
and each finding is shown again by its scenario under the spec without it, so that none outlives its cause.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from auxout_spec import scenario as scenarios
from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.deviations import Deviation
from auxout_spec.profiles import is_judged
from auxout_spec.scenario import Scenario

FORMAT = "known/1"


@dataclass(frozen=True)
class Finding:
    """One known fault of one release."""

    id: str
    """Such as ``F31-1``."""
    release: str
    """The vLLM version that has it."""
    clause: str
    deviation: Deviation | None
    """None: the connectors do what they must, and it ends the engine; a finding in the whole design."""
    sentence: str
    scenario: Scenario


def all_findings() -> tuple[Finding, ...]:
    """Every known finding of every release whose profile implementations are judged by."""
    return tuple(finding for finding in recorded_findings() if is_judged(finding.scenario.profile))


@cache
def recorded_findings() -> tuple[Finding, ...]:
    """Every known finding, those included of a release whose profile is still being written."""
    return tuple(finding for data in _records() for finding in _read(data))


@cache
def _records() -> tuple[dict[str, Any], ...]:
    folder = resources.files("auxout_conformance") / "known_findings"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda f: f.name)
    return tuple(json.loads(file.read_text(encoding="utf-8")) for file in files)


def _files() -> dict[str, dict[str, str]]:
    return {data["release"]: data["files"] for data in _records()}


def findings_of(release: str) -> tuple[Finding, ...]:
    """The known findings of one release; none for anything that is not a release."""
    return tuple(finding for finding in recorded_findings() if release and finding.release == release)


def newest_release() -> str:
    """The newest release on record whose profile is one that implementations are judged by."""
    judged = [release for release in _files() if is_judged(release.rpartition(".")[0])]
    return max(judged, key=lambda release: tuple(map(int, release.split("."))))


def release_with(digests: Mapping[str, str]) -> str:
    """The release whose connector package consists of exactly these files, by their SHA-256; empty if there is none."""
    return next((release for release, files in _files().items() if files == digests), "")


def files_of(release: str) -> Mapping[str, str] | None:
    """The files of a release's connector package with their SHA-256; None if it is not on record."""
    return _files().get(release)


def findings_under(profile: str) -> tuple[Finding, ...]:
    """The known findings of the release that a profile describes."""
    return tuple(finding for finding in recorded_findings() if finding.scenario.profile == profile)


def deviations_of(ids: Iterable[str]) -> frozenset[Deviation]:
    """The deviations behind some findings, by their ids."""
    wanted = set(ids)
    named = (finding.deviation for finding in all_findings() if finding.id in wanted)
    return frozenset(deviation for deviation in named if deviation is not None)


def _read(data: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    for entry in data["findings"]:
        fields = {
            **entry["scenario"],
            "auxout": scenarios.FORMAT,
            "name": entry["id"],
            "profile": data["profile"],
        }
        scenario = scenarios.load(json.dumps({**fields, "clause": ALL_CLAUSES[entry["clause"]].id}))
        found.append(
            Finding(
                entry["id"],
                data["release"],
                entry["clause"],
                Deviation(entry["deviation"]) if "deviation" in entry else None,
                entry["sentence"],
                scenario,
            )
        )
    return found
