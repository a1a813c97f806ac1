"""A user's mistake, told in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from auxout_spec.clauses import CLAUSES
from auxout_spec.engine.guards import GUARDS
from auxout_spec.profiles import PROFILES, is_judged, is_specified
from auxout_spec.reading import shown


class UserMistake(Exception):
    """What the user asked for cannot be done; the message is shown without a traceback."""


_MAX_MESSAGE = 1000
"""Letters: what a file holds may stand in a message, and can be of any length."""


def shortened(message: str) -> str:
    """A message that fits on a screen."""
    return message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 4]} ..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that ends a sentence, such as ``; did you mean SCHED-META-1?``, or nothing."""
    close = get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def check_clause(name: str) -> str:
    """The id of a clause, however it was capitalized.

    Raises:
        UserMistake: there is no such clause.
    """
    clause_id = name.upper()
    if clause_id not in CLAUSES:
        hint = did_you_mean(clause_id, CLAUSES) or "; `auxout clauses` lists them"
        raise UserMistake(f"there is no clause {shown(name)}{hint}")
    return clause_id


def check_rule(name: str) -> str:
    """The id of a clause or an environment guard, however it was capitalized.

    Raises:
        UserMistake: there is neither.
    """
    return name.upper() if name.upper() in GUARDS else check_clause(name)


def check_profile(name: str, *, whole: bool = True) -> str:
    """The name of a profile.

    Args:
        whole: it has to be one by which implementations are judged, and not one that is still being written.

    Raises:
        UserMistake: there is no such profile.
    """
    if not (is_judged(name) if whole else is_specified(name)):
        raise UserMistake(f"there is no profile {shown(name)}; the profiles are {', '.join(PROFILES)}")
    return name
