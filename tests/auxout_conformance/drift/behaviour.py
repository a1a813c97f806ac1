"""Plays the older release's suite on the newer code: which clauses it answers otherwise, with an example of each.

Scheduler connector and worker are played apart, each with the specification in the other's place, so that a difference
in one does not end every scenario of the other. Both sides are loaded alike (``targets.newer``).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, get_args

from .. import verifying
from ..targets import Target, newer, resolve
from ..targets.adapter import CONNECTOR, OF_ENGINE, SCHEDULER_NAMES
from ..targets.drivers import WORKER_PARAMETERS
from ..targets.loading import NEEDS_TORCH, LoadSpec
from ..verdicts import Progress, Suite
from . import code
from .outcome import Half, Played
from .trees import Tree

OnProgress = Callable[[Progress], None]
_KINDS: dict[Half, str] = {"scheduler": newer.SCHEDULER, "worker": newer.WORKER}
_CLASSES: dict[Half, str] = {"scheduler": SCHEDULER_NAMES[0], "worker": CONNECTOR}
_GIVEN: dict[Half, frozenset[str]] = {
    "scheduler": frozenset(OF_ENGINE),
    "worker": frozenset(WORKER_PARAMETERS),
}


class Playing(NamedTuple):
    """How the older one's suite is played on the newer."""

    suite: Suite = "smoke"
    seed: int | None = None
    """None: the fixed scenarios."""
    profile: str | None = None
    """The older one's protocol version; None: that of its version."""
    python: str | None = None
    """One with what vLLM imports, for the real schedulers; None: that of ``make real``."""


def play(old: Tree, new: Tree, playing: Playing, progress: OnProgress) -> tuple[Played, ...]:
    """What each half of the newer code does otherwise; nothing if the package is the same.

    Raises:
        TargetError: the older one has no profile.
    """
    if [old.texts[path] for path in old.package] == [new.texts[path] for path in new.package]:
        return ()
    older = resolve(old.name, playing.profile)
    targets = older, resolve(new.name, older.profile)
    try:
        return tuple(_half(half, (old, new), targets, playing, progress) for half in get_args(Half))
    finally:
        for target in targets:
            if target.scratch is not None:
                target.scratch.remove()


def _half(
    half: Half,
    trees: tuple[Tree, Tree],
    targets: tuple[Target, Target],
    playing: Playing,
    progress: OnProgress,
) -> Played:
    before, after = (unbound(tree, half) for tree in trees)
    older, newer_target = (
        replace(target, spec=LoadSpec(_KINDS[half], target.spec.where), scratch=None) for target in targets
    )
    if before:
        return Played(half, older.profile, reason=f"of the older one, {before}")
    if after:
        return Played(half, older.profile, unbound=after)
    if half == "worker" and importlib.util.find_spec("torch") is None:
        return Played(half, older.profile, reason=NEEDS_TORCH)
    base = verifying.Base(older, playing.suite, playing.seed)
    return Played(half, older.profile, verifying.play_newer(newer_target, base, progress))


def unbound(tree: Tree, half: Half) -> str:
    """Why the suite cannot build a half of some code; empty if it can.

    Told from its source, so that it is a finding and no crash.
    """
    name = _CLASSES[half]
    paths = [path for path in tree.package if name in tree.classes(path)]
    if not paths:
        return f"there is no class {name} in the package"
    init = tree.functions(paths[0]).get(f"{name}.__init__")
    left = [each for each in code.needed(init)[1:] if each not in _GIVEN[half]] if init is not None else []
    return f"{name} is built with {', '.join(left)}, for which the suite has nothing" if left else ""
