"""Shell completion: a script for bash or zsh, made from the parser itself."""

from __future__ import annotations

import argparse

import shtab

_FILES = frozenset(("patch", "report", "expect", "write_expect", "file", "scenario", "base", "targets"))
"""Arguments that may name a file."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a command line.

    Args:
        shell: ``bash`` or ``zsh``.
    """
    _complete_files(parser)
    return shtab.complete(parser, shell)


def _complete_files(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in set(action.choices.values()):
                _complete_files(command)
        elif action.dest in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest == "dir":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
