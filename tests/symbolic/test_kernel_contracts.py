"""The protocol's arithmetic, proved over all inputs: the spec's kernels, the fast ones, and that they agree."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import pytest

from symbolic import prover


class Kernels(NamedTuple):
    """The same functions, written twice."""

    spec: str
    fast: str
    stated: dict[str, prover.Contract]
    """What the spec's promise."""
    at_least: int
    """Functions, so that an empty list proves nothing by accident."""

    @property
    def spec_file(self) -> Path:
        return file_of(self.spec)

    @property
    def fast_file(self) -> Path:
        return file_of(self.fast)


def file_of(module: str) -> Path:
    """A module's source file."""
    found = importlib.util.find_spec(module)
    assert found is not None, f"there is no module {module}"
    assert found.origin is not None
    return Path(found.origin)


def stated(module: str) -> dict[str, prover.Contract]:
    return prover.contracts(file_of(module).read_text())


PROTOCOL = Kernels("auxout_spec.kernel", "auxout._kernel", stated("auxout_spec.kernel"), 7)
CLIENT = Kernels(
    "auxout_spec.client.kernel",
    "auxout.client._kernel",
    stated("auxout_spec.client.kernel"),
    6,
)
BOTH = pytest.mark.parametrize("kernels", [PROTOCOL, CLIENT], ids=["protocol", "client"])
FUNCTIONS = [
    pytest.param(kernels, name, id=name) for kernels in (PROTOCOL, CLIENT) for name in kernels.stated
]


@BOTH
def test_spec_kernel_is_proved(kernels: Kernels) -> None:
    assert len(kernels.stated) >= kernels.at_least
    assert prover.unproved(kernels.spec_file) == []


@BOTH
def test_fast_kernel_proves_its_own_contracts(kernels: Kernels) -> None:
    assert prover.unproved(kernels.fast_file) == []


@BOTH
def test_fast_kernel_has_the_same_functions(kernels: Kernels) -> None:
    fast = prover.contracts(kernels.fast_file.read_text())
    assert {name: contract.parameters for name, contract in fast.items()} == {
        name: contract.parameters for name, contract in kernels.stated.items()
    }


@BOTH
def test_fast_kernel_keeps_the_contracts_of_the_spec(kernels: Kernels, tmp_path: Path) -> None:
    package, _, module = kernels.fast.rpartition(".")
    wrappers = [prover.under_contract(contract, module) for contract in kernels.stated.values()]
    wrapped = tmp_path / "fast_under_contract.py"
    wrapped.write_text(f"from {package} import {module}\n\n\n" + "\n\n".join(wrappers))
    assert prover.unproved(wrapped) == []


@pytest.mark.parametrize(("kernels", "name"), FUNCTIONS)
def test_both_kernels_are_equal(kernels: Kernels, name: str, tmp_path: Path) -> None:
    for side, where in (("spec", kernels.spec), ("fast", kernels.fast)):
        package, _, module = where.rpartition(".")
        wrapper = prover.on_domain(kernels.stated[name], module)
        (tmp_path / f"{side}_on_domain.py").write_text(f"from {package} import {module}\n\n\n{wrapper}")
    assert not prover.differences(f"spec_on_domain.{name}", f"fast_on_domain.{name}", tmp_path)
