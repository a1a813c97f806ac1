"""The bridge from a target's code to the suite: makers of its connectors, and the packed-hash type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from auxout_spec.clauses import EITHER, SCHEDULER, WORKER
from auxout_spec.profiles import LATEST, PER_REQUEST, named
from auxout_spec.retention import KvCache

from ..kv_cache import KvCacheManager
from .drivers import MakeDriver, connector_maker, core_maker, errors_of
from .drivers import signature as _signature

SCHEDULER_NAMES = ("AuxOutputSchedulerConnector", "PackedBlockHashes")
OF_ENGINE = ("kv_cache_manager", "kv_connector")
"""What a scheduler connector may be built with besides a profile."""
CORE, CONNECTOR = "WorkerCore", "AuxOutputWorkerConnector"


class TargetError(Exception):
    """A target that cannot be judged; the message is one sentence for the user."""


class NoProfile(TargetError):
    """A vLLM that no profile describes; ``name`` is how the user named it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class PatchError(TargetError):
    """A diff that cannot be read or does not apply."""


class Offer(NamedTuple):
    """Which halves a target has, as its host tells."""

    scheduler: bool
    worker: bool
    writes_behind: bool = False
    missing: str = ""
    numbers: tuple[int, ...] = ()
    """Those in its source."""

    def has(self, component: str) -> bool:
        """Whether a component's clauses can be judged."""
        if component in EITHER:
            return True
        return self.worker if component in WORKER else self.scheduler

    @property
    def components(self) -> tuple[str, ...]:
        """The components whose clauses can be judged."""
        return tuple(component for component in (*SCHEDULER, *WORKER, *EITHER) if self.has(component))


class Adapter(NamedTuple):
    """What the suite needs of an implementation: a scheduler connector, a worker, or both."""

    scheduler: Callable[..., Any] | None = None
    """Profile name, KV cache manager and KV connector of the engine -> a fresh scheduler connector."""
    packed_block_hashes: Callable[[bytes, int], Any] | None = None
    """``PackedBlockHashes(data, item_size)``; comes with the scheduler connector."""
    worker: MakeDriver | None = None
    writes_behind: bool = False
    """The worker's store writes in the background: that it fails may show at a later call."""
    missing: str = ""
    """Why the worker that the target has cannot be judged here."""

    @property
    def offer(self) -> Offer:
        """What can be judged."""
        return Offer(self.scheduler is not None, self.worker is not None, self.writes_behind, self.missing)


def from_module(namespace: Any, name: str) -> Adapter:
    """The adapter of a module, or of any object, that holds the names of vLLM's connector or worker module."""
    missing = [n for n in SCHEDULER_NAMES if not hasattr(namespace, n)]
    worker = _worker_of(namespace)
    if worker is not None and len(missing) == len(SCHEDULER_NAMES):
        return Adapter(worker=worker, writes_behind=hasattr(namespace, CONNECTOR))
    if missing:
        raise TargetError(
            f"{name} has no {' and no '.join(missing)}; a target offers the names of vLLM's connector module, "
            f"{CORE} or {CONNECTOR}"
        )
    scheduler = _with_profile(namespace.AuxOutputSchedulerConnector, name)
    return Adapter(scheduler, namespace.PackedBlockHashes, worker, hasattr(namespace, CONNECTOR))


def from_factory(factory: Any, module: ModuleType, name: str) -> Adapter:
    """The adapter of a factory.

    It returns a scheduler connector, a worker core (then it has the parameters of ``WorkerCore``), vLLM's worker
    connector (then it has those), or an object with the names of their modules.
    """
    if not callable(factory):
        raise TargetError(f"{name} is not callable; name a function that returns a connector")
    parameters = _parameters(factory)
    if {"block_size", "max_objects"} <= parameters:
        return Adapter(worker=core_maker(factory))
    if {"vllm_config", "model"} <= parameters:
        return Adapter(worker=connector_maker(factory), writes_behind=True)
    build = _with_profile(factory, name)
    sample = build("")
    if any(hasattr(sample, each) for each in (*SCHEDULER_NAMES, CORE, CONNECTOR)):
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


def _worker_of(namespace: Any) -> MakeDriver | None:
    if hasattr(namespace, CONNECTOR):
        return connector_maker(getattr(namespace, CONNECTOR))
    return core_maker(getattr(namespace, CORE)) if hasattr(namespace, CORE) else None


def _with_profile(factory: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Pass ``profile=``, the KV cache manager and the KV connector to a factory that takes them.

    The empty profile asks for the factory's default, if it has one. A variant in which requests fail asks for
    ``errors="request"``. What the engine has is for a factory that needs it, and for profiles that read it.
    """
    parameters = _signature(factory)
    parameter = parameters.get("profile")
    usual = LATEST if parameter is not None and parameter.default is parameter.empty else ""
    needed = any(
        parameters[each].default is inspect.Parameter.empty for each in OF_ENGINE if each in parameters
    )

    def build(profile: str, manager: Any = None, kv_connector: Any = None) -> Any:
        chosen = profile.removesuffix(PER_REQUEST) or usual
        more = errors_of(profile, factory, name)
        if parameter is not None and chosen:
            more = {**more, "profile": chosen}
        given: dict[str, Any] = {}
        if needed or (chosen and named(chosen).reads_kv_cache):
            has = manager or KvCacheManager(KvCache(1, 1, 1)), kv_connector
            given = {key: each for key, each in zip(OF_ENGINE, has, strict=True) if key in parameters}
        return factory(**given, **more)

    return build


def _parameters(factory: Any) -> set[str]:
    return set(_signature(factory))
