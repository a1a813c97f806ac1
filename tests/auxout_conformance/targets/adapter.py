"""The bridge from a target's code to the suite: a connector factory and the packed-hash type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from auxout_spec.profiles import LATEST


class TargetError(Exception):
    """A target that cannot be judged; the message is one sentence for the user."""


class PatchError(TargetError):
    """A diff that cannot be read or does not apply."""


class Adapter(NamedTuple):
    """What the suite needs of an implementation."""

    scheduler: Callable[[str], Any]
    """Profile name -> a fresh scheduler connector."""
    packed_block_hashes: Callable[[bytes, int], Any]
    """``PackedBlockHashes(data, item_size)``."""


def from_module(module: Any, name: str) -> Adapter:
    """The adapter of a module that holds the API of vLLM's connector module."""
    missing = [n for n in ("AuxOutputSchedulerConnector", "PackedBlockHashes") if not hasattr(module, n)]
    if missing:
        raise TargetError(
            f"{name} has no {' and no '.join(missing)}; a target offers the names of vLLM's connector module"
        )
    return Adapter(_with_profile(module.AuxOutputSchedulerConnector, name), module.PackedBlockHashes)


def from_factory(factory: Any, module: ModuleType, name: str) -> Adapter:
    """The adapter of a factory: it returns a connector, or an object with the connector module's names."""
    if not callable(factory):
        raise TargetError(f"{name} is not callable; name a function that returns a connector")
    build = _with_profile(factory, name)
    sample = build("")
    if hasattr(sample, "AuxOutputSchedulerConnector"):
        return from_module(sample, name)
    methods = ("build_connector_meta", "take_output", "request_finished", "reset")
    missing = [method for method in methods if not callable(getattr(sample, method, None))]
    if missing:
        raise TargetError(f"{name} returned {type(sample).__name__}, which has no {', '.join(missing)}")
    packed = getattr(module, "PackedBlockHashes", None)
    if packed is None:
        raise TargetError(
            f"module {module.__name__} has no PackedBlockHashes; import or define it beside the factory"
        )
    return Adapter(build, packed)


def _with_profile(factory: Callable[..., Any], name: str) -> Callable[[str], Any]:
    """Pass ``profile=`` to a factory that takes it; the empty profile asks for the factory's default, if it has one."""
    try:
        parameter = inspect.signature(factory).parameters.get("profile")
    except (TypeError, ValueError):
        parameter = None
    usual = LATEST if parameter is not None and parameter.default is parameter.empty else ""

    def build(profile: str) -> Any:
        chosen = profile or usual
        return factory(profile=chosen) if parameter is not None and chosen else factory()

    return build
