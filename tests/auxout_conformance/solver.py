"""Solving for a target beside its judgement, in a process of its own; the plays that it finds are judged last."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from auxout_spec.profiles import Profile
from auxout_spec.reading import Malformed
from auxout_spec.scenario import Scenario

from . import solving
from .hosts import Child, TargetBroken
from .targets import Target
from .verdicts import Suite

SECONDS = 300.0
"""How long solving may take; what was not found then is not."""
NOT_INSTALLED = "numbers, ids and hashes were drawn, not solved for: that needs auxout[symbolic]"


class Solver:
    """Looks for plays in which a target's scheduler connector may be wrong.

    Args:
        profile: the rules it is judged by, with a release's deviations.
    """

    def __init__(self, target: Target, profile: Profile, suite: Suite) -> None:
        self._target, self._profile = target, profile
        self._suite: Suite = suite
        self._executor = ThreadPoolExecutor(1)
        self._child: Child | None = None
        self._is_closed = False
        self._found: Future[list[Scenario]] | None = None
        self.note = ""
        """Why nothing, or not everything, was solved for."""

    def start(self) -> None:
        """Begin, if the suite solves anything and what that needs is installed."""
        if not solving.EXAMPLES[self._suite]:
            return
        if solving.is_possible():
            self._found = self._executor.submit(self._solve)
        else:
            self.note = NOT_INSTALLED

    def found(self) -> list[Scenario]:
        """Wait for the plays."""
        if self._found is None:
            return []
        try:
            return self._found.result()
        except (TargetBroken, Malformed, CancelledError) as error:
            self.note = f"numbers, ids and hashes were not solved for: {error}"
            return []

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        if self._child is not None:
            self._child.close()
        self._executor.shutdown(cancel_futures=True)

    def _solve(self) -> list[Scenario]:
        self._child = Child(self._target, call_seconds=SECONDS)
        try:
            return [] if self._is_closed else self._child.solve(self._profile, self._suite)
        finally:
            self._child.close()
