"""docs/findings.md: each finding of the whole design has a model, a scenario of minimal length and a line for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from auxout_conformance import cli
from auxout_spec.engine import EngineConfig, initial
from auxout_spec.explorer.manifest import load
from auxout_spec.explorer.model import Menu, Model
from auxout_spec.explorer.models import MODELS
from auxout_spec.explorer.system import take
from auxout_spec.profiles import PROFILES
from auxout_spec.scenario import event_from_json
from auxout_spec.worker import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
APART = {"found-kept-reset", "found-hit-given-up", "found-rows-without-key"}
"""What no release does, and what one does whose profile is still being written."""


class Row(NamedTuple):
    """One line of the table."""

    title: str
    profile: str
    end: str
    events: int
    model: str


def rows() -> list[Row]:
    pattern = r"^\| (.*?)\| (0\.\d+) \| ([A-Z0-9-]+) \| (\d+) \| `auxout explore ([\w.-]+)` \|$"
    found: list[Row] = []
    for title, profile, end, events, model in re.findall(pattern, PAGE, re.MULTILINE):
        found.append(Row(title.strip() or found[-1].title, profile, end, int(events), model))
    return found


class Section(NamedTuple):
    """A finding with its scenario."""

    title: str
    profiles: tuple[str, ...]
    end: str
    events: list[dict[str, object]]
    model: Model


def sections() -> list[Section]:
    found: list[Section] = []
    pattern = r"^### ([^\n]*) \(([\d., ]+): ([A-Z0-9-]+)\)\n\n```text\n(.*?)```"
    for title, profiles, end, text in re.findall(pattern, PAGE, re.MULTILINE | re.DOTALL):
        blocks, objects = re.search(r"blocks of (\d+)", text), re.search(r"store of (\d+)", text)
        sizes = {"block_size": int(blocks[1])} if blocks else {}
        sizes |= {"capacity": int(objects[1])} if objects else {}
        known = next((MODELS[row.model].deviations for row in ROWS if row.title == title), frozenset())
        model = Model("page", "", Menu(()), deviations=known, **sizes)
        found.append(Section(title, tuple(profiles.split(", ")), end, list(events_in(text)), model))
    return found


def events_in(text: str) -> list[dict[str, object]]:
    decoder, events = json.JSONDecoder(), []
    for line in text.splitlines():
        while (line := line.lstrip()).startswith("{"):
            event, end = decoder.raw_decode(line)
            events.append(event)
            line = line[end:]
    return events


ROWS = rows()
SECTIONS = sections()


def test_the_table_is_what_the_models_come_to() -> None:
    pinned = load()
    broken = {name for name, entry in pinned.items() if entry.verdict != "OK"} - APART
    assert {row.model for row in ROWS} == broken
    for row in ROWS:
        entry = pinned[row.model]
        assert (row.end, row.events) == (entry.clause or entry.verdict, entry.length), row.model
        assert row.profile == MODELS[row.model].profile


def test_every_finding_of_the_table_is_told() -> None:
    told = {section.title: (section.profiles, section.end) for section in SECTIONS}
    titles = dict.fromkeys(row.title for row in ROWS)
    assert list(told) == list(titles)
    for title, (profiles, end) in told.items():
        assert profiles == tuple(row.profile for row in ROWS if row.title == title), title
        assert {end} == {row.end for row in ROWS if row.title == title}


@pytest.mark.parametrize("model", APART)
def test_others_are_told_apart(model: str) -> None:
    assert f"`auxout explore {model}`" in PAGE


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_its_scenario_is_as_short_as_can_be_and_breaks_the_clause_at_its_end(section: Section) -> None:
    assert len(section.events) == max(row.events for row in ROWS if row.title == section.title)
    for profile in section.profiles:
        known = section.model.deviations
        config = EngineConfig(PROFILES[profile]._replace(deviations=known), section.model.block_size, 2)
        config = config._replace(limits=Limits(section.model.block_size, section.model.capacity))
        model, engine, broken = section.model._replace(profile=profile), initial(), None
        assert model.config == config
        for event in section.events:
            assert broken is None
            taken = take(model, engine, event_from_json(event))
            assert taken is not None, event
            engine, broken, _ = taken
        if section.end == "DEADLOCK":
            assert (broken, [request.status for request in engine.requests]) == (None, ["lost"])
        else:
            assert broken is not None
            assert broken.clause == section.end


def test_the_line_of_every_finding_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", *(row.model for row in ROWS), "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{row.end} in {row.events}" in shown for row in ROWS)
