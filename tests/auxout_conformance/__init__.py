"""The conformance suite of the auxiliary-output protocol.

Judge an implementation in four lines::

    from auxout_conformance import run

    report = run("my_package.adapter:connector")
    assert report.exit_code == 0, report
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .targets import TargetError
from .verdicts import Report, Verdict, Violation

if TYPE_CHECKING:
    from .runner import judge as run
    from .runner import replay

__all__ = ["Report", "TargetError", "Verdict", "Violation", "replay", "run"]


def __getattr__(name: str) -> Any:
    """The judge needs hypothesis, so it is imported when it is asked for: ``auxout`` can then say what is missing."""
    if name in ("run", "replay"):
        from . import runner

        return runner.judge if name == "run" else runner.replay
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
