"""Options that the environment may set, and the log in which our connectors say what they are.

vLLM builds its connectors without options of ours, so an option that is not given is what an environment variable says.
vLLM configures the loggers below ``vllm`` only, so ours is one of them.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, cast

Errors = Literal["raise", "request"]
"""See ``WorkerCore``."""

ERRORS_VARIABLE = "AUXOUT_ERRORS"
"""Environment variable: ``raise`` (default) or ``request``."""
SELF_CHECK_VARIABLE = "AUXOUT_SELF_CHECK"
"""Environment variable: ``1`` looks at the rows of every step for what cannot be right (slow); ``0`` is the default."""

logger = logging.getLogger("vllm.auxout")
"""Of all our modules: it shows in vLLM's log."""


def errors_mode(given: str | None = None) -> Errors:
    """What happens to what is inconsistent: what is given, else what the environment says.

    Raises:
        ValueError: neither ``raise`` nor ``request``.
    """
    return cast("Errors", _one_of("errors", given, ERRORS_VARIABLE, ("raise", "request")))


def self_checks(given: bool | None = None) -> bool:
    """Whether rows are looked at: what is given, else what the environment says.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    written = None if given is None else {False: "0", True: "1"}.get(given, str(given))
    return _one_of("self_check", written, SELF_CHECK_VARIABLE, ("0", "1")) == "1"


def announce(kind: type, *remarks: str) -> None:
    """Say in the log which class is in place, of which version, and in which mode."""
    if logger.isEnabledFor(logging.INFO):
        logger.info(
            "%s is that of %s (auxout %s): %s", kind.__name__, kind.__module__, _version(), ", ".join(remarks)
        )


@cache
def _version() -> str:
    try:
        return version("auxout")
    except PackageNotFoundError:  # imported from a source tree that is not installed
        return "(not installed)"


def _one_of(name: str, given: str | None, variable: str, values: tuple[str, ...]) -> str:
    if given is None:
        name, given = variable, os.environ.get(variable) or values[0]
    if given not in values:
        raise ValueError(f"{name} is {' or '.join(map(repr, values))}, not {given!r}")
    return given
