"""The vLLM plugin, with modules that look like vLLM's; tests/real has it in a real one."""

from __future__ import annotations

import importlib
import logging
from importlib.metadata import version
from types import ModuleType, SimpleNamespace

import pytest

import auxout
import auxout_reference
from auxout import vllm_plugin

CONNECTOR = "vllm.distributed.aux_output_connector.connector"
SCHEDULER = "vllm.v1.core.sched.scheduler"
WORKER = "vllm.distributed.aux_output_connector.worker"


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, SimpleNamespace]:
    modules = {
        "vllm": SimpleNamespace(__version__="0.32.0"),
        CONNECTOR: SimpleNamespace(AuxOutputSchedulerConnector="theirs"),
        SCHEDULER: SimpleNamespace(AuxOutputSchedulerConnector="theirs"),
        WORKER: SimpleNamespace(AuxOutputWorkerConnector="theirs"),
    }
    # Ours need torch for the worker connector; here it is enough that there is one.
    modules["auxout.worker"] = SimpleNamespace(AuxOutputWorkerConnector="ours")

    def found(name: str) -> ModuleType | SimpleNamespace:
        return modules[name] if name in modules else importlib.import_module(name)

    monkeypatch.setattr(vllm_plugin, "import_module", found)
    return modules


@pytest.mark.parametrize("value", [None, ""])
def test_nothing_changes_unless_it_is_asked_for(
    vllm: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("AUXOUT", raising=False)
    if value is not None:
        monkeypatch.setenv("AUXOUT", value)
    vllm_plugin.register()
    assert vllm[SCHEDULER].AuxOutputSchedulerConnector == "theirs"


def test_the_fast_connectors_take_the_place_of_vllms(
    vllm: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUXOUT", "impl")
    vllm_plugin.register()
    for module in (CONNECTOR, SCHEDULER):
        assert vllm[module].AuxOutputSchedulerConnector is auxout.AuxOutputSchedulerConnector
    assert vllm[WORKER].AuxOutputWorkerConnector == "ours"


def test_what_an_implementation_has_not_stays(vllm: dict[str, SimpleNamespace]) -> None:
    vllm_plugin.rebind("reference")
    connector = auxout_reference.AuxOutputSchedulerConnector
    assert vllm[SCHEDULER].AuxOutputSchedulerConnector is connector
    assert vllm[WORKER].AuxOutputWorkerConnector == "theirs"


def test_the_log_says_that_the_reference_is_in_place(
    vllm: dict[str, SimpleNamespace], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "vllm"):
        vllm_plugin.rebind("reference")
        vllm_plugin.rebind("impl")  # whose connectors say it when they are made
    (record,) = caplog.records
    assert record.name == "vllm.auxout"
    assert record.message == (
        f"AuxOutputSchedulerConnector is that of auxout_reference.connector (auxout {version('auxout')}): "
        "AUXOUT=reference"
    )


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("AUXOUT_ERRORS", "nonsense", "AUXOUT_ERRORS is 'raise' or 'request', not 'nonsense'"),
        ("AUXOUT_ERRORS", "Raise", "AUXOUT_ERRORS is 'raise' or 'request', not 'Raise'"),
        ("AUXOUT_SELF_CHECK", "yes", "AUXOUT_SELF_CHECK is '0' or '1', not 'yes'"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_changes(
    vllm: dict[str, SimpleNamespace],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    sentence: str,
) -> None:
    monkeypatch.setenv("AUXOUT", "impl")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        vllm_plugin.register()
    assert vllm[SCHEDULER].AuxOutputSchedulerConnector == "theirs"


@pytest.mark.parametrize(("variable", "value"), [("AUXOUT_ERRORS", "request"), ("AUXOUT_SELF_CHECK", "1")])
def test_an_option_that_the_reference_has_not_is_refused(
    vllm: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("AUXOUT", "impl")
    vllm_plugin.register()
    monkeypatch.setenv("AUXOUT", "reference")
    with pytest.raises(
        ValueError, match=f"^AUXOUT=reference has neither .*{variable}={value}.*; AUXOUT=impl has$"
    ):
        vllm_plugin.register()


def test_another_name_is_refused(vllm: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUXOUT", "fast")
    with pytest.raises(
        ValueError, match="AUXOUT=fast names no implementation; choose one of impl, reference"
    ):
        vllm_plugin.register()


def test_another_vllm_is_refused(vllm: dict[str, SimpleNamespace]) -> None:
    vllm["vllm"].__version__ = "0.33.0"
    with pytest.raises(
        RuntimeError, match=r"vLLM is 0\.33\.0; auxout has the connectors of vLLM 0\.31\.x and"
    ):
        vllm_plugin.rebind("impl")
    assert vllm[SCHEDULER].AuxOutputSchedulerConnector == "theirs"
