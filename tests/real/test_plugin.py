"""Our connectors in a real vLLM: bound by the plugin, which vLLM finds by its entry point, and by hand."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest

import auxout

from . import pairs
from .engine import Engine
from .released import Setting

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vLLM's own connectors are in place, and are again afterwards."""
    for name in ("AUXOUT", "AUXOUT_ERRORS", "AUXOUT_SELF_CHECK"):
        monkeypatch.delenv(name, raising=False)
    with pairs.bound(pairs.PAIRS["original"]):
        yield


@pytest.fixture
def log(original: None) -> Iterator[Callable[[], list[str]]]:
    """New lines about auxout in vLLM's log, configured by vLLM as it is by default."""
    from vllm import logger

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_LOGGING_LEVEL", "INFO")
        logger._configure_vllm_root_logger()
    stream = io.StringIO()
    handlers = [each for each in logging.getLogger("vllm").handlers if each.get_name() == "vllm"]
    handlers[0].setStream(stream)

    def lines() -> list[str]:
        found = [line for line in stream.getvalue().splitlines() if "auxout" in line or "request " in line]
        stream.truncate(stream.seek(0))
        return found

    yield lines
    logger._configure_vllm_root_logger()


def by_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As each of vLLM's processes does it."""
    from vllm import plugins

    monkeypatch.setattr(plugins, "plugins_loaded", False)
    plugins.load_general_plugins()


def with_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUXOUT", "impl")
    by_plugin(monkeypatch)


def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = import_module("vllm.v1.core.sched.scheduler")
    worker = import_module("vllm.distributed.aux_output_connector.worker")
    scheduler.AuxOutputSchedulerConnector = auxout.AuxOutputSchedulerConnector
    worker.AuxOutputWorkerConnector = auxout.AuxOutputWorkerConnector


BINDINGS = pytest.mark.parametrize("bind", [with_plugin, by_hand])


@pytest.mark.parametrize(("value", "ours"), [("", False), ("impl", True)])
@pytest.mark.usefixtures("original")
def test_vllm_takes_our_connectors(monkeypatch: pytest.MonkeyPatch, value: str, ours: bool) -> None:
    monkeypatch.setenv("AUXOUT", value)
    by_plugin(monkeypatch)
    engine = Engine(Setting())
    assert isinstance(engine.connector, auxout.AuxOutputSchedulerConnector) == ours
    assert type(engine.worker).__module__.startswith("auxout." if ours else "vllm.")


@BINDINGS
def test_options_of_the_environment_reach_both_and_show_in_vllms_log(
    log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, bind: Callable[[Any], None]
) -> None:
    monkeypatch.setenv("AUXOUT_ERRORS", "request")
    monkeypatch.setenv("AUXOUT_SELF_CHECK", "1")
    bind(monkeypatch)
    log()
    engine = Engine(Setting())
    scheduler, worker = log()
    place = f"(auxout {version('auxout')}): errors=request, "
    assert "INFO" in scheduler
    assert f"AuxOutputSchedulerConnector is that of auxout.connector {place}profile 0.32" in scheduler
    assert "INFO" in worker
    assert f"AuxOutputWorkerConnector is that of auxout.worker {place}self_check=1, max_objects=96" in worker
    assert engine.worker._checked_layers
    request: Any = SimpleNamespace(request_id="A", num_tokens=2, is_finished=lambda: False)
    assert engine.connector.take_output(request, None) is None
    engine.worker.begin_step(auxout.AuxOutputConnectorMetadata(0, {}, {}, ("B",)))
    failed = log()
    assert ["request A" in failed[0], "request B" in failed[1]] == [True, True]
    assert all("ERROR" in line for line in failed)


@BINDINGS
@pytest.mark.usefixtures("original")
def test_without_options_an_engine_is_strict(
    monkeypatch: pytest.MonkeyPatch, bind: Callable[[Any], None]
) -> None:
    bind(monkeypatch)
    engine = Engine(Setting())
    with pytest.raises(auxout.ProtocolViolation, match="WORK-BEGIN-5"):
        engine.worker.begin_step(auxout.AuxOutputConnectorMetadata(0, {}, {}, ("B",)))
    request: Any = SimpleNamespace(request_id="A", num_tokens=2, is_finished=lambda: False)
    with pytest.raises(auxout.ProtocolViolation, match="SCHED-TAKE-1"):
        engine.connector.take_output(request, None)


@BINDINGS
@pytest.mark.parametrize(("variable", "value"), [("AUXOUT_ERRORS", "nonsense"), ("AUXOUT_SELF_CHECK", "yes")])
@pytest.mark.usefixtures("original")
def test_a_wrong_value_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, bind: Callable[[Any], None], variable: str, value: str
) -> None:
    def start() -> None:
        bind(monkeypatch)
        Engine(Setting())

    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"^{variable} is '.*' or '.*', not '{value}'$"):
        start()
