"""What happens where a request is inconsistent: the errors that users may catch, or that the request fails alone."""

from __future__ import annotations

import logging
import os
from typing import Any, Literal

Errors = Literal["raise", "request"]
"""Whether an inconsistent request ends the call, and with it an engine, or fails alone."""
ERRORS_VARIABLE = "AUXOUT_ERRORS"
"""The environment variable that says so where the caller does not."""

_logger = logging.getLogger(__name__)


def chosen(errors: str | None) -> Errors:
    """What the caller says, else what the environment says, else ``"raise"``.

    Raises:
        ValueError: it is neither ``"raise"`` nor ``"request"``.
    """
    said: Any = os.environ.get(ERRORS_VARIABLE, "raise") if errors is None else errors
    if said not in ("raise", "request"):
        name = ERRORS_VARIABLE if errors is None else "errors"
        raise ValueError(f"{name} is 'raise' or 'request', not {said!r}")
    return said


class ProtocolViolation(AssertionError):
    """Raised for a call or a wire value that the protocol forbids. The refusing object is unchanged.

    Code written for the original connector catches ``AssertionError`` and so catches this; unlike an assert
    statement it does not depend on the interpreter's ``-O`` flag.

    Attributes:
        clause: which rule, by its id in the protocol's clause registry: ``"SCHED-HASH-8"``.
        request_id: whose call it was; None for wire values.
    """

    def __init__(self, clause: str, request_id: str | None, problem: str) -> None:
        # All three go to args, so that the error survives pickling between processes.
        super().__init__(clause, request_id, problem)
        self.clause = clause
        self.request_id = request_id

    def __str__(self) -> str:
        clause, request_id, problem = self.args
        prefix = "" if request_id is None else f"request {request_id}: "
        return f"{prefix}{problem} [{clause}]"


class StoreError(RuntimeError):
    """A store failed in a way that the protocol does not know, or is closed."""


def log_failure(violation: ProtocolViolation) -> None:
    """Tell the log that a request failed alone."""
    _logger.error("no more routed-experts rows for a request that failed: %s", violation)
