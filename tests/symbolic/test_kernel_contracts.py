"""The protocol's arithmetic, proved over all inputs: the spec's kernel, the fast one, and that they agree."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from auxout_spec import kernel
from symbolic import prover

SPEC_FILE = Path(kernel.__file__)
STATED = prover.contracts(SPEC_FILE.read_text())
IMPLEMENTATION = "auxout._kernel"


@pytest.fixture(scope="module")
def fast_file() -> Path:
    """The fast kernel's source file."""
    spec = importlib.util.find_spec(IMPLEMENTATION)
    assert spec is not None, f"there is no module {IMPLEMENTATION}"
    assert spec.origin is not None
    return Path(spec.origin)


def test_spec_kernel_is_proved() -> None:
    assert len(STATED) >= 7
    assert prover.unproved(SPEC_FILE) == []


def test_fast_kernel_proves_its_own_contracts(fast_file: Path) -> None:
    assert prover.unproved(fast_file) == []


def test_fast_kernel_has_the_same_functions(fast_file: Path) -> None:
    fast = prover.contracts(fast_file.read_text())
    assert {name: contract.parameters for name, contract in fast.items()} == {
        name: contract.parameters for name, contract in STATED.items()
    }


@pytest.mark.usefixtures("fast_file")
def test_fast_kernel_keeps_the_contracts_of_the_spec(tmp_path: Path) -> None:
    wrappers = [prover.under_contract(contract, "_kernel") for contract in STATED.values()]
    wrapped = tmp_path / "fast_under_contract.py"
    wrapped.write_text("from auxout import _kernel\n\n\n" + "\n\n".join(wrappers))
    assert prover.unproved(wrapped) == []


@pytest.mark.usefixtures("fast_file")
@pytest.mark.parametrize("name", STATED)
def test_both_kernels_are_equal(name: str, tmp_path: Path) -> None:
    for package, module in (("auxout_spec", "kernel"), ("auxout", "_kernel")):
        wrapper = prover.on_domain(STATED[name], module)
        (tmp_path / f"{package}_on_domain.py").write_text(f"from {package} import {module}\n\n\n{wrapper}")
    assert not prover.differences(f"auxout_spec_on_domain.{name}", f"auxout_on_domain.{name}", tmp_path)
