"""The errors that users of ``auxout`` may catch, and what the log says of a request that fails instead."""

from __future__ import annotations

from ._options import logger


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


def misplaced(request_id: str, start: int, end: int, accepted_end: int) -> ProtocolViolation:
    """The refusal of output whose rows do not reach the accepted tokens, or of which none is accepted."""
    problem = f"output rows [{start}, {end}) and accepted end {accepted_end}: "
    if accepted_end < start:
        return ProtocolViolation("SCHED-TAKE-6", request_id, problem + "a finished request gets no row")
    return ProtocolViolation("SCHED-TAKE-7", request_id, problem + "rows are missing")


def log_failure(violation: ProtocolViolation) -> None:
    """Tell the log that a request failed alone."""
    logger.error("no more routed-experts rows for a request that failed: %s", violation)
