"""A vLLM plugin that puts our connectors into an installed vLLM.

vLLM calls ``register`` in each of its processes before it makes a scheduler or a worker (entry point group
``vllm.general_plugins``). Without the environment variable ``AUXOUT`` nothing changes; ``AUXOUT=impl`` takes the fast
connectors, ``AUXOUT=reference`` the readable scheduler connector.
"""

from __future__ import annotations

import os
from importlib import import_module

from ._options import ERRORS_VARIABLE, SELF_CHECK_VARIABLE, announce, errors_mode, self_checks
from ._profiles import PROFILES

PACKAGES = {"impl": "auxout", "reference": "auxout_reference"}
"""What ``AUXOUT`` may name, and the package that it stands for."""
RELEASES = tuple(f"{profile}." for profile in PROFILES)
"""vLLM versions whose connectors have this shape."""

_PLACES = {
    "connector": (
        "AuxOutputSchedulerConnector",
        ("vllm.distributed.aux_output_connector.connector", "vllm.v1.core.sched.scheduler"),
    ),
    "worker": ("AuxOutputWorkerConnector", ("vllm.distributed.aux_output_connector.worker",)),
}
"""Our module -> the public name in it, and vLLM's modules that look it up."""


def register() -> None:
    """Do what the environment variable ``AUXOUT`` asks for.

    Raises:
        ValueError: it names nothing that there is, or ``AUXOUT_ERRORS`` or ``AUXOUT_SELF_CHECK`` says what the
            connectors cannot do.
        RuntimeError: this vLLM's connectors have another shape.
    """
    if name := os.environ.get("AUXOUT"):
        errors, checks = errors_mode(), self_checks()
        if name == "reference" and (errors == "request" or checks):
            raise ValueError(
                f"AUXOUT=reference has neither {ERRORS_VARIABLE}=request nor {SELF_CHECK_VARIABLE}=1; AUXOUT=impl has"
            )
        rebind(name)


def rebind(name: str) -> None:
    """Put the connectors of an implementation in the place of vLLM's; what it has not, vLLM keeps.

    Raises:
        ValueError: ``name`` is not in ``PACKAGES``.
        RuntimeError: this vLLM's connectors have another shape.
    """
    if name not in PACKAGES:
        raise ValueError(f"AUXOUT={name} names no implementation; choose one of {', '.join(PACKAGES)}")
    version: str = import_module("vllm").__version__
    if not version.startswith(RELEASES):
        known = " and ".join(release + "x" for release in RELEASES)
        raise RuntimeError(f"AUXOUT is set, and vLLM is {version}; auxout has the connectors of vLLM {known}")
    for module, (attribute, places) in _PLACES.items():
        path = f"{PACKAGES[name]}.{module}"
        ours = getattr(import_module(path), attribute, None)
        if ours is None:
            continue
        for place in places:
            setattr(import_module(place), attribute, ours)
        if name == "reference":  # ours say it themselves, with their mode, when they are made
            announce(ours, f"AUXOUT={name}")
