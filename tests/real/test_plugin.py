"""The plugin in a real vLLM: found by its entry point, called by vLLM."""

from __future__ import annotations

import pytest

import auxout

from . import pairs
from .engine import Engine
from .released import Setting

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(("value", "ours"), [("", False), ("impl", True)])
def test_vllm_takes_our_connectors(monkeypatch: pytest.MonkeyPatch, value: str, ours: bool) -> None:
    with pairs.bound(pairs.PAIRS["original"]):
        from vllm import plugins

        monkeypatch.setattr(plugins, "plugins_loaded", False)
        monkeypatch.setenv("AUXOUT", value)
        plugins.load_general_plugins()
        engine = Engine(Setting())
    assert isinstance(engine.connector, auxout.AuxOutputSchedulerConnector) == ours
    assert type(engine.worker).__module__.startswith("auxout." if ours else "vllm.")
