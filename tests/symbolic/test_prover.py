"""The prover must be able to fail: planted bugs, unprovable contracts, and counterexamples that are none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from auxout_spec import kernel
from symbolic import prover

SOURCE = Path(kernel.__file__).read_text()


class Planted(NamedTuple):
    """A bug in the kernel: source text replaced in one function."""

    function: str
    right: str
    wrong: str


PLANTED = (
    Planted(
        "emit_start_unclamped",
        "num_output_tokens == 0 else num_tokens - 1",
        "num_output_tokens == 0 else num_tokens",
    ),
    Planted("emit_start_unclamped", "max(prompt_start, resumed)", "min(prompt_start, resumed)"),
    Planted("emit_start_clamped", "(min(prompt_start, num_prompt_tokens), ", "(prompt_start, "),
    Planted("emit_start_clamped", "num_prompt_tokens), num_output", "num_prompt_tokens - 1), num_output"),
    Planted("num_accepted_rows", "num_tokens - 1 - token_start", "num_tokens - token_start"),
    Planted("num_unsent", "return num_hashes - num_sent", "return max(num_hashes - num_sent, 0)"),
    Planted("num_full_blocks", "num_tokens // block_size", "-(-num_tokens // block_size)"),
    Planted("num_full_blocks", "return num_tokens // block_size", "return (num_tokens - 1) // block_size"),
    Planted("block_range", "(block + 1) * block_size", "(block + 1) * block_size - 1"),
    Planted(
        "num_packed", "item_size <= 0 or num_bytes % item_size:", "item_size < 0 or num_bytes % item_size:"
    ),
    Planted("num_packed", "item_size <= 0 or num_bytes % item_size:", "item_size <= 0:"),
)


def load(file: Path) -> Any:
    """Import a file as a module of its own."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plant(bug: Planted, folder: Path) -> Path:
    """A kernel with one bug; ``right`` must stand exactly once in the function's body."""
    start = SOURCE.index(f"def {bug.function}(")
    end = SOURCE.find("\ndef ", start) if "\ndef " in SOURCE[start:] else len(SOURCE)
    body = SOURCE[start:end]
    assert body.count(bug.right) == 1, f"{bug.function} does not contain {bug.right!r} once"
    file = folder / "planted.py"
    file.write_text(SOURCE[:start] + body.replace(bug.right, bug.wrong) + SOURCE[end:])
    return file


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: f"{bug.function}: {bug.wrong}")
def test_a_planted_bug_is_found_and_is_real(bug: Planted, tmp_path: Path) -> None:
    file = plant(bug, tmp_path)
    contract = prover.contracts(file.read_text())[bug.function]
    verdicts = prover.check(file, contract.post[0][0])
    refuted = {line: verdict for line, verdict in verdicts.items() if verdict != prover.CONFIRMED}
    assert refuted, "CrossHair proved a wrong kernel"
    for line, verdict in refuted.items():
        prover.rerun(contract, line, verdict, getattr(load(file), bug.function))


def test_a_planted_bug_fails_the_gate(tmp_path: Path) -> None:
    problems = prover.unproved(plant(PLANTED[0], tmp_path))
    assert [problem.split(":")[0] for problem in problems] == ["emit_start_unclamped"]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: f"{bug.function}: {bug.wrong}")
def test_a_planted_difference_is_found(bug: Planted, tmp_path: Path) -> None:
    plant(bug, tmp_path)
    contract = prover.contracts(SOURCE)[bug.function]
    for side, imports in (("right", "from auxout_spec import kernel"), ("wrong", "import planted as kernel")):
        source = f"{imports}\n\n\n{prover.on_domain(contract, 'kernel')}"
        (tmp_path / f"{side}.py").write_text(source)
    assert prover.differences(f"right.{bug.function}", f"wrong.{bug.function}", tmp_path, seconds=2)


def test_outside_the_domain_is_no_difference(tmp_path: Path) -> None:
    contract = prover.Contract("f", (("x", "int"),), "int", ((3, "x >= 0"),), ())
    (tmp_path / "first.py").write_text("def f(x: int) -> int:\n    return x\n")
    (tmp_path / "second.py").write_text("def f(x: int) -> int:\n    return abs(x)\n")
    for side in ("first", "second"):
        source = f"import {side} as kernel\n\n\n{prover.on_domain(contract, 'kernel')}"
        (tmp_path / f"{side}_on_domain.py").write_text(source)
    assert prover.differences("first.f", "second.f", tmp_path)
    assert not prover.differences("first_on_domain.f", "second_on_domain.f", tmp_path)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('"""pre: x > x\n    post: False\n    """\n    return x', "False: "),
        ('"""No contract."""\n    return x', "f has no postcondition"),
        ("return x", "f has no postcondition"),
        ('"""\n    post: __return__ > 0\n    """\n    raise KeyError("x")', "KeyError"),
    ],
    ids=["precondition nobody meets", "docstring without contract", "no docstring", "exception"],
)
def test_what_is_not_proved_is_reported(body: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "unproved.py"
    file.write_text(f"def f(x: int) -> int:\n    {body}\n")
    assert any(problem in line for line in prover.unproved(file))


def test_a_crash_of_the_tool_is_loud(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="CrossHair failed"):
        prover.check(tmp_path / "missing.py")


def test_a_counterexample_that_is_none_is_refused() -> None:
    contract = prover.contracts(
        'def f(x: int) -> int:\n    """\n    pre: x > 0\n    post: __return__ > 0\n    """\n'
    )["f"]
    assert (
        prover.rerun(contract, 4, "false when calling f(3) (which returns -3)", lambda x: -x)
        == "f(3) returns -3"
    )
    assert prover.rerun(contract, 4, "false when calling f(x = 3)", lambda x: -x) == "f(3) returns -3"
    assert prover.rerun(contract, 5, "ZeroDivisionError: when calling f(3)", lambda x: x // 0) == (
        "f(3) raises ZeroDivisionError"
    )
    with pytest.raises(AssertionError, match="no exception"):
        prover.rerun(contract, 5, "ZeroDivisionError: when calling f(3)", lambda x: x)
    with pytest.raises(AssertionError, match="holds"):
        prover.rerun(contract, 4, "false when calling f(3) (which returns 3)", lambda x: x)
    with pytest.raises(AssertionError, match="outside the domain"):
        prover.rerun(contract, 4, "false when calling f(-3) (which returns 3)", lambda x: -x)
    with pytest.raises(AssertionError, match="no counterexample"):
        prover.rerun(contract, 4, prover.CONFIRMED, lambda x: x)
