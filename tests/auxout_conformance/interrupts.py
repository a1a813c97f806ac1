"""Ctrl-C, which must not get lost: Python drops the exception where it cannot pass, as in a callback of its collector.

So it is remembered as well, and raised again with the next progress of a long run.
"""

from __future__ import annotations

import signal
from types import FrameType, SimpleNamespace

_CTRL_C = SimpleNamespace(pending=False)


def install() -> None:
    """Remember Ctrl-C from now on, unless this process was told to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def check() -> None:
    """Raise ``KeyboardInterrupt`` if one came since, and may have been lost."""
    if _CTRL_C.pending:
        _CTRL_C.pending = False
        raise KeyboardInterrupt


def _interrupted(number: int, frame: FrameType | None) -> None:
    _CTRL_C.pending = True
    raise KeyboardInterrupt
