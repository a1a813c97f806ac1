"""The version of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def tool_version() -> str:
    """``0.1.0``, or ``unknown`` when the source tree is used without being installed."""
    try:
        return version("auxout")
    except PackageNotFoundError:
        return "unknown"
