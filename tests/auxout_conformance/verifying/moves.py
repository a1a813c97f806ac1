"""Whether patched code follows another profile than its base in some respect.

A profile is a few parameters. For each in which another profile differs, the cases of the clauses that only the
other profile has are played by the base's rules with that one parameter changed: where the base is wrong by
these rules and the patched code is right in every case, the patched code has moved.
"""

from __future__ import annotations

from typing import NamedTuple

from auxout_spec.clauses import ALL_CLAUSES
from auxout_spec.engine import Impossible
from auxout_spec.profiles import PROFILES, Profile, difference

from ..cases import Case, cases_in
from ..hosts import Host
from ..judge import Failure, play
from .outcome import Move


class Moved(NamedTuple):
    """The rules that patched code follows."""

    rules: Profile
    """The base's profile with the parameters that moved on to a later one."""
    moves: tuple[Move, ...]
    """Moves to a later profile."""
    back: tuple[Move, ...]
    """Moves to an earlier one, which break the base's."""


def look_for_moves(base: Host, patched: Host, profile: Profile) -> Moved:
    """The moves of patched code, ``profile`` being its base's."""
    order = list(PROFILES)
    rules, moves, back = profile, list[Move](), list[Move]()
    for other in PROFILES.values():
        later = order.index(other.name) > order.index(profile.name)
        for name in difference(profile, other):
            value = getattr(other, name)
            if name == "deviations" or getattr(rules, name) == value:
                continue
            move = _move(base, patched, profile, profile._replace(**{name: value}), other)
            if move is not None:
                (moves if later else back).append(move)
                rules = rules._replace(**{name: value}) if later else rules
    return Moved(rules, tuple(moves), tuple(back))


def _move(base: Host, patched: Host, profile: Profile, changed: Profile, other: Profile) -> Move | None:
    clauses, shown = list[str](), list[tuple[Case, Failure]]()
    for case in cases_in(other.name):
        if profile.name in ALL_CLAUSES[case.clause].profiles:
            continue
        before = _failure(base, case, changed)
        if before is None or before.clause != case.clause:
            continue
        if _failure(patched, case, changed) is not None:
            return None
        clauses.append(case.clause)
        old = _failure(patched, case, profile)
        if old is not None:
            shown.append((case, old))
    if not shown:
        return None
    instead = dict.fromkeys(failure.clause for _, failure in shown)
    case, failure = shown[0]
    scenario = case.scenario._replace(profile=profile.name, name="", clause="")
    return Move(
        other.name,
        tuple(dict.fromkeys(clauses)),
        tuple(instead),
        scenario,
        failure.call,
        failure.expected,
        failure.actual,
    )


def _failure(host: Host, case: Case, rules: Profile) -> Failure | None:
    try:
        return play(host, case.scenario, rules)[1]
    except Impossible:  # what the case tells of cannot happen in this engine
        return None
