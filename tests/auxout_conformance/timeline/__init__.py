"""The timeline of a scenario: what engine, scheduler, channel, worker and store did, one column an event.

``build`` plays a scenario on the spec and returns the timeline as plain values; ``terminal`` and ``picture`` draw them.
"""

from .build import build, of_scenario, of_violation
from .model import LANES, RIGHT_COURSE, Column, Flight, Line, Timeline, Wrong

__all__ = [
    "LANES",
    "RIGHT_COURSE",
    "Column",
    "Flight",
    "Line",
    "Timeline",
    "Wrong",
    "build",
    "of_scenario",
    "of_violation",
]
