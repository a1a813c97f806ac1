"""What a play looks like: images are injective and lead back, files hold them, plainer ones are found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from auxout_conformance import representing, runner
from auxout_conformance.hosts import InProcess
from auxout_conformance.judge import Failure, play
from auxout_conformance.render import violation_lines
from auxout_conformance.shrinking import Shrinker
from auxout_conformance.targets import resolve
from auxout_spec import scenario as scenarios
from auxout_spec.engine import Add, Launch
from auxout_spec.engine.state import LargestStep
from auxout_spec.profiles import PROFILES
from auxout_spec.representation import (
    BOUNDS,
    CHOICES,
    HASH_STYLES,
    ID_STYLES,
    PLAIN,
    UNKNOWN,
    Image,
    Representation,
    differing,
    in_words,
    unusable,
)
from auxout_spec.scenario import Malformed, Scenario
from auxout_spec.values import Metadata

NAMES = ["A", "B", "C", "id with spaces", "\u8acb\u6c42"] + [f"R{number}" for number in range(300)]
DIGESTS = [bytes([number % 256, number // 256]) * 16 for number in range(300)]
P32 = PROFILES["0.32"]
LONGEST = Scenario((Add("A", 300), Add("B", 1), Launch((("A", 300), ("B", 1)))))


@pytest.mark.parametrize("style", ID_STYLES)
def test_ids_are_of_one_request_each_and_lead_back(style: str) -> None:
    image = Image(Representation(ids=style))
    ids = [image.request_id(name) for name in NAMES]
    assert len(set(ids)) == len(NAMES)
    assert [image.name(each) for each in ids] == NAMES
    assert ids == [image.request_id(name) for name in NAMES]
    if style != "plain":
        assert image.name(ids[0] + "?") == f"{UNKNOWN}{ids[0]}?"
        assert image.name("A") not in NAMES
    assert image.named(f"odd: {ids[0]}") == "odd: A"


@pytest.mark.parametrize("style", ID_STYLES)
def test_ids_are_as_long_as_asked_for(style: str) -> None:
    image = Image(Representation(ids=style, id_length=1000))
    ids = [image.request_id(name) for name in NAMES]
    assert [len(each) for each in ids] == list(range(1000, 1000 + len(NAMES)))
    assert [image.name(each) for each in ids] == NAMES


@pytest.mark.parametrize("size", [8, 16, 32, 64])
@pytest.mark.parametrize("style", HASH_STYLES)
def test_hashes_have_one_size_and_lead_back(style: str, size: int) -> None:
    image = Image(Representation(hashes=style, hash_size=size))
    hashes = [image.block_hash(digest) for digest in DIGESTS]
    assert {len(each) for each in hashes} == {size}
    assert len(set(hashes)) == len(DIGESTS)
    assert [image.digest(each) for each in hashes] == DIGESTS
    assert hashes != sorted(hashes)
    if (style, size) != ("digest", 32):
        assert image.digest(hashes[0][:-1]).startswith(UNKNOWN.encode())
        assert image.digest(hashes[0][::-1] + b"?") not in DIGESTS


def test_a_hash_that_is_corrupted_is_the_image_of_its_parts() -> None:
    image = Image(Representation(hash_size=16))
    first, second = map(image.block_hash, DIGESTS[:2])
    assert image.block_hash(DIGESTS[0] * 2) == first * 2
    assert image.digest(first + second) == DIGESTS[0] + DIGESTS[1]
    assert image.block_hash(b"") == image.digest(b"") == b""


def test_metadata_there_and_back() -> None:
    image = Image(Representation("engine", "zeros", 8, generation=255))
    abstract = Metadata(1, (("A", 3),), (("A", tuple(DIGESTS[:2])),), ("B",), (("A", tuple(DIGESTS[2:3])),))
    concrete = image.metadata(abstract)
    assert image.abstract(concrete) == abstract
    assert concrete.generation == 256
    assert concrete.finished_requests[0].startswith("cmpl-")


def test_styles_do_what_they_say() -> None:
    def ids(style: str) -> list[str]:
        image = Image(Representation(ids=style))
        return [image.request_id(name) for name in ("A", "B", "C")]

    import unicodedata

    first, second, third = ids("prefixes")
    assert second.startswith(first)
    assert third.startswith(second)
    assert len({each.lower() for each in ids("case")}) == 1
    assert len({unicodedata.normalize("NFC", each) for each in ids("unicode")}) == 1
    assert len({each.strip() for each in ids("spaces")}) == 1
    assert len({int(each) for each in ids("numeric")}) == 1
    assert len({each[:-2] for each in ids("alike")}) == len({each[4:] for each in ids("same-end")}) == 1


EVERY: dict[str, Any] = {
    "ids": "engine", "hashes": "ones", "hash_size": 64, "layers": 61, "top_k": 8, "experts": 256,
    "generation": 65536, "buffers": "reused", "order": "reversed", "idle": 3, "writes": True, "id_length": 9,
}  # fmt: skip


def test_a_scenario_file_holds_what_is_not_plain() -> None:
    scenario = Scenario((Launch(),), representation=Representation(**EVERY))
    assert differing(scenario.representation) == EVERY
    for indent in (False, True):
        assert scenarios.load(scenarios.dump(scenario, indent)) == scenario
    assert json.loads(scenarios.dump(scenario))["representation"] == EVERY
    assert "representation" not in scenarios.dump(Scenario(()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "engine"}, "representation: unknown field 'id'; allowed are ids, hashes, "),
        ({"ids": 3}, "representation: ids must be text, found 3"),
        ({"ids": "short"}, "representation: ids is one of plain, engine, "),
        ({"hash_size": 7}, "representation: hash_size is from 8 to 64, found 7"),
        ({"layers": True}, "representation: layers must be a whole number, found True"),
        ({"writes": 1}, "representation: writes must be true or false, found 1"),
        ({"top_k": 9, "experts": 8}, "representation: a layer has 9 different ids of 8 experts"),
        (
            {"layers": 1, "top_k": 1, "experts": 256},
            "representation: there are 256 different rows, ",
        ),
    ],
)
def test_what_is_wrong_with_a_representation(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Malformed) as caught:
        scenarios.load(json.dumps({"auxout": scenarios.FORMAT, "representation": fields}))
    assert str(caught.value).startswith(message)


@given(representing.ANY)
def test_whatever_is_drawn_can_be_written_and_read(made: Representation) -> None:
    assert not unusable(made._asdict())
    scenario = Scenario((), representation=made)
    assert scenarios.load(scenarios.dump(scenario)) == scenario
    assert bool(in_words(made)) == (made != PLAIN)
    assert all(not unusable(each._asdict()) for each in representing.plainer(made))


def test_the_varied_ones_have_every_word_and_differ_from_one_another() -> None:
    for name, choices in CHOICES.items():
        assert {getattr(made, name) for made in (PLAIN, *representing.VARIED)} == set(choices), name
    for name in BOUNDS:
        assert len({getattr(made, name) for made in representing.VARIED}) >= (
            2 if name == "id_length" else 4
        ), name
    assert len({made.writes for made in representing.VARIED}) == 2


def test_a_worker_is_built_for_the_largest_step() -> None:
    assert scenarios.config_of(LONGEST, P32).largest_step == (8, 301)
    assert scenarios.config_of(Scenario(()), P32).largest_step == LargestStep() == (8, 256)


def test_steps_of_any_size_are_played() -> None:
    """The suite's own limit was once a violation of the target."""
    scenario = LONGEST._replace(store=600, events=(*LONGEST.events, *scenarios.load(LANDED).events))
    for name in ("reference", "impl", "impl-torch"):
        assert play(InProcess(resolve(name)), scenario, P32)[1] is None


LANDED = '{"auxout": "scenario/1", "events": [{"land": {}}]}'


# What of it matters.


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("hashes-lose-zeros", {"hashes": "zeros"}, "hashes with zero bytes at both ends"),
        ("hashes-of-32-bytes", {"hash_size": 16}, "hashes of 16 bytes"),
        ("ids-normalised", {"ids": "unicode"}, "ids of any Unicode, equal once normalised"),
        ("generation-in-a-byte", {"generation": 256}, "after 256 resets"),
        ("worker-keeps-starts", {"buffers": "reused"}, "the runner's arrays used again"),
        ("worker-stores-what-it-returns", {"writes": True}, "an engine that writes into its rows"),
        ("worker-cuts-bytes-at-127", {"experts": 129}, "rows (2, 2) of 256 experts"),
        ("worker-squeezes", {"layers": 1}, "rows (1, 2) of 2048 experts"),
        ("every-known-request-is-sent", {"idle": 3}, "3 idle requests"),
    ],
)
def test_a_report_says_which_part_matters_and_the_line_shows_it_again(
    name: str, part: dict[str, Any], words: str
) -> None:
    report = runner.judge(f"known-bad:{name}", stop_first=True)
    violation = report.violations[0]
    assert differing(violation.scenario.representation).keys() == part.keys()
    assert any(str(line).startswith("  only with") for line in violation_lines(violation))
    again = runner.replay(scenarios.load(scenarios.dump(violation.scenario)), f"known-bad:{name}")
    assert again is not None
    assert (again.clause, again.call) == (violation.clause, violation.call)
    assert runner.replay(violation.scenario, "reference") is None
    made = replace(violation, scenario=violation.scenario._replace(representation=PLAIN._replace(**part)))
    assert words.split()[0] in " ".join(map(str, violation_lines(made)))


def test_the_shrinker_leaves_what_is_needed() -> None:
    host = InProcess(resolve("known-bad:hashes-lose-zeros"))
    scenario = Scenario(
        (Add("A", 4), Launch((("A", 4),))), representation=Representation(**EVERY | {"hashes": "zeros"})
    )
    _, failure = play(host, scenario, P32)
    assert isinstance(failure, Failure)
    small, _ = Shrinker(host, P32, frozenset()).shrink(scenario, failure)
    assert small.representation == Representation(hashes="zeros")


# Ids and hashes that are given.


def test_ids_and_hashes_that_are_given_come_first_and_lead_back() -> None:
    first = ["\x1c\u2028", "R1", "x"]
    given_hashes = [bytes([number]) * 8 for number in (0, 255)]
    made = Representation(
        hashes="alike",
        hash_size=8,
        first_ids="\n".join(first),
        first_hashes=" ".join(h.hex() for h in given_hashes),
    )
    image = Image(made)
    ids = [image.request_id(name) for name in NAMES]
    assert ids[:3] == first
    assert len(set(ids)) == len(NAMES)
    assert [image.name(each) for each in ids] == NAMES
    hashes = [image.block_hash(digest) for digest in DIGESTS]
    assert hashes[:2] == given_hashes
    assert len(set(hashes)) == len(DIGESTS)
    assert [image.digest(each) for each in hashes] == DIGESTS


def test_a_hash_that_is_given_is_no_further_one() -> None:
    plain = Image(Representation(hash_size=8))
    taken = [plain.block_hash(digest) for digest in DIGESTS]
    image = Image(Representation(hash_size=8, first_hashes=taken[2].hex()))
    hashes = [image.block_hash(digest) for digest in DIGESTS]
    assert hashes[0] == taken[2]
    assert len(set(hashes)) == len(DIGESTS)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"first_ids": "a\na"}, "first_ids has an id twice"),
        ({"first_ids": "a\n"}, "or an empty one"),
        ({"first_hashes": "zz"}, "are hexadecimal digits, found 'zz'"),
        ({"first_hashes": "00"}, "are of 32 bytes"),
        ({"first_hashes": f"{'00' * 32} {'00' * 32}"}, "has a hash twice"),
    ],
)
def test_what_cannot_be_given_is_refused(fields: dict[str, str], wrong: str) -> None:
    document = json.loads(scenarios.dump(LONGEST)) | {"representation": fields}
    with pytest.raises(Malformed, match=wrong):
        scenarios.from_json(document)


def test_what_is_given_is_in_a_file_is_told_and_is_left_out_where_it_does_not_matter() -> None:
    made = Representation(first_ids="zz\nq", first_hashes="41" * 32)
    scenario = LONGEST._replace(representation=made)
    assert scenarios.load(scenarios.dump(scenario)) == scenario
    assert in_words(made) == f"ids 'zz', 'q', hashes {'41' * 32}"
    assert PLAIN in representing.plainer(made)
    assert Representation(first_ids="zz\nq") in representing.plainer(made)
