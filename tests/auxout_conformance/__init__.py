"""The conformance suite of the auxiliary-output protocol.

Judge an implementation in four lines::

    from auxout_conformance import run

    report = run("my_package.adapter:connector")
    assert report.exit_code == 0, report
"""

from .runner import judge as run
from .runner import replay
from .targets import TargetError
from .verdicts import Report, Verdict, Violation

__all__ = ["Report", "TargetError", "Verdict", "Violation", "replay", "run"]
