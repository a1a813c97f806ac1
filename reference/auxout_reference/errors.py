"""The one public error: a call or a value that the protocol forbids."""

from __future__ import annotations


class ProtocolViolation(AssertionError):
    """A refused call; whatever refused it is as it was before the call.

    It is an ``AssertionError`` because callers of the original connector catch that, and it is raised, not
    asserted, so ``python -O`` changes nothing (SCHED-REFUSE-1, -6).

    Attributes:
        clause: id of the clause that was broken, such as ``"SCHED-TAKE-7"``.
        request_id: the request it is about; None where it is about none.
        what: what is wrong, in words.
    """

    def __init__(self, clause: str, request_id: str | None, what: str) -> None:
        super().__init__(clause, request_id, what)
        self.clause = clause
        self.request_id = request_id
        self.what = what

    def __str__(self) -> str:
        """Request, what is wrong with it, and the clause."""
        subject = "" if self.request_id is None else f"request {self.request_id}: "
        return f"{subject}{self.what} [{self.clause}]"
