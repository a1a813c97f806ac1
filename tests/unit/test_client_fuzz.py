"""Conversations at random: spec and library agree, nothing is lost in silence, and every mutant fails a case."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import auxout
from auxout.client import conversation as library
from auxout_conformance import client
from auxout_conformance.verdicts import Verdict
from auxout_spec.client import conversation as spec
from client_tools import fuzz
from client_tools.mutants import MUTANTS, TORCH_MUTANTS, Mutant

RESULTS = (
    {"as": "array", "length": 30},
    {"as": "array", "missing": "refuse"},
    {"as": "array", "missing": "arange"},
    {"as": "array", "missing": -1},
    {"as": "array", "layers": "moe"},
    {"as": "array", "layers": [0]},
    {"as": "array", "length": 32, "shard": {"rank": 1, "size": 2, "how": "zigzag"}},
    {"as": "array", "shard": {"rank": 0, "size": 3, "how": "contiguous"}},
    {"as": "pack", "align": 4},
    {"as": "pack", "dtype": "int16"},
    {"as": "pad", "length": 30, "side": "left"},
    {"as": "pad"},
)


@given(st.randoms(use_true_random=False), st.sampled_from(RESULTS))
@settings(max_examples=300, deadline=None)
def test_spec_and_library_give_the_same_answer(rng: random.Random, result: dict[str, object]) -> None:
    conversation = fuzz.build(rng).conversation | {"result": result}
    assert library.play(conversation) == spec.play(conversation)


@given(st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_no_row_is_lost_in_silence(rng: random.Random) -> None:
    built = fuzz.build(rng)
    assert fuzz.fault(built, library.play(built.conversation)) == ""
    assert fuzz.fault(built, spec.play(built.conversation)) == ""


def test_the_fuzz_damages_in_every_way_and_leaves_much_alone() -> None:
    built = [fuzz.build(random.Random(seed)) for seed in range(3000)]
    damages = Counter(each.damage for each in built)
    assert len(damages) == 18
    assert min(damages.values()) >= 10
    refused = sum(each.rows is None for each in built)
    assert 300 < refused < 2000


@pytest.mark.parametrize(
    "change",
    [
        lambda played: played["rows"].__setitem__(0, [[9]]),
        lambda played: played["mask"].__setitem__(0, False),
        lambda played: played["mask"].__setitem__(-1, True),
        lambda played: played.update(error="GapError"),
    ],
)
def test_the_fuzz_notices(change: object) -> None:
    schema = {"num_layers": 1, "top_k": 1, "num_experts": 8}
    call = {"prompt": [1, 2], "output": [3], "start": 0, "rows": [[[1]], [[2]]]}
    built = fuzz.Built({"schema": schema, "samples": [[{"call": call}]]}, {0: [[1]], 1: [[2]]}, 3, "")
    played = library.play(built.conversation)
    assert fuzz.fault(built, played) == ""
    change(played)  # type: ignore[operator]
    assert fuzz.fault(built, played)
    assert fuzz.fault(built._replace(rows=None), library.play(built.conversation))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS + TORCH_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fails_a_case(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "auxout"
    shutil.copytree(Path(auxout.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / "client" / f"{mutant.module}.py"
    source = module.read_text()
    assert source.count(mutant.old) == 1
    module.write_text(source.replace(mutant.old, mutant.new))
    monkeypatch.syspath_prepend(str(tmp_path))
    played = "client_tools.tensors:play" if mutant in TORCH_MUTANTS else "auxout.client.conversation:play"
    checked = client.check(played)
    assert checked.verdict is Verdict.VIOLATION, client.summary(checked)
