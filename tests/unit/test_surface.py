"""Every public name of the released connector is ours too, with its parameters and fields, or documented not to be."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# tests/real compares it with the releases' files.
RECORDED: dict[str, dict[str, dict[str, list[str]]]] = json.loads(
    (ROOT / "tests/real/surface.json").read_text(encoding="utf-8")
)
OURS = {"connector": "auxout.connector", "worker": "auxout.worker", "capturer": "auxout.worker"}
NOT_OFFERED = {
    "store": {"BlockObject", "BlockObjectStoreError", "BackgroundBlockObjectStore", "BlockObjectStore"},
    "routed_experts": {
        "RoutedExpertsBuffer",
        "routed_experts_keys",
        "materialize_routed_experts",
        "publish_routed_experts",
    },
    "capturer": {"RoutedExpertsCaptureSource", "RoutedExpertsSink", "bind_routed_experts_capturer"},
}
CASES = [
    (release, module, name)
    for release, modules in RECORDED.items()
    for module, names in modules.items()
    for name in names
    if name.partition(".")[0] not in NOT_OFFERED.get(module, set())
]


@pytest.mark.parametrize(("release", "module", "name"), CASES)
def test_a_public_name_is_ours_too(release: str, module: str, name: str) -> None:
    first, _, member = name.partition(".")
    ours: Any = getattr(import_module(OURS[module]), first)
    if member:
        # Fields that are set when an object is made are no attributes of its class.
        if not hasattr(ours, member):
            assert f"self.{member}" in inspect.getsource(ours)
            return
        ours = getattr(ours, member)
    theirs = RECORDED[release][module][name]
    if not theirs:
        return
    parameters = [each for each in inspect.signature(ours).parameters.values() if each.name != "self"]
    assert [each.name for each in parameters][: len(theirs)] == theirs
    assert all(each.default is not each.empty for each in parameters[len(theirs) :])


def test_what_is_not_offered_is_documented() -> None:
    text = (ROOT / "docs/import.md").read_text(encoding="utf-8")
    missing = {f"`{name}`" for names in NOT_OFFERED.values() for name in names if f"`{name}`" not in text}
    assert not missing
    for release, modules in RECORDED.items():
        for module, names in NOT_OFFERED.items():
            known = {name.partition(".")[0] for name in modules[module]}
            assert names - known <= ({"RoutedExpertsSink"} if release == "0.31.0" else set())
