"""Compares an older vLLM with a newer one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from .. import known
from ..targets import TargetError
from ..verdicts import Progress
from . import behaviour, comparing, order, trees
from .behaviour import Playing
from .outcome import Drift, Side
from .trees import Tree

OnProgress = Callable[[Progress], None]


def from_the_newest_known(name: str, progress: OnProgress | None = None) -> Drift:
    """How the source of a vLLM without a profile differs from the newest release that has one.

    Raises:
        TargetError: one of the two cannot be read.
    """
    return compare(f"vllm=={known.newest_release()}", name, progress)


def compare(old: str, new: str, progress: OnProgress | None = None, playing: Playing | None = None) -> Drift:
    """What differs in the source, and in what the code does.

    Args:
        old: a vLLM in the forms that a target may have: ``vllm==0.32.0``, ``vllm``, a wheel, a source tree,
            ``DIR@REV``, a connector folder.
        new: the one that is compared with it.
        progress: told how far it is.
        playing: also play the older one's suite on the newer; None: compare the source alone.

    Raises:
        TargetError: one is no vLLM with an auxiliary-output connector.
    """
    started = time.monotonic()
    told = progress or (lambda _: None)
    read: list[Tree] = []
    for name in (old, new):
        told(Progress(name, "reading its source", 0, 0))
        read.append(trees.read(name))
    told(Progress(new, f"comparing with {old}", 0, 0))
    try:
        differences = comparing.compare(*read)
    except RecursionError:
        raise TargetError(
            f"{old} or {new} has an expression that is nested too deeply to be compared"
        ) from None
    alone = [tree.name for tree in read if not tree.whole]
    notes = [f"the engine around it was not compared: {name} is a connector's folder alone" for name in alone]
    before, after = (Side(tree.name, tree.version) for tree in read)
    found = Drift(before, after, differences, notes=tuple(notes))
    if playing is not None:
        found = _ordered(_played(found, read, playing, told), read, playing, told)
    return replace(found, seconds=time.monotonic() - started)


def _played(found: Drift, read: list[Tree], playing: Playing, told: OnProgress) -> Drift:
    """With what the older one's suite says of the newer code."""
    try:
        return replace(found, played=behaviour.play(read[0], read[1], playing, told))
    except TargetError as error:
        return replace(found, notes=(*found.notes, f"no suite was played: {error}"))


def _ordered(found: Drift, read: list[Tree], playing: Playing, told: OnProgress) -> Drift:
    """With the order of connector calls on both schedulers."""
    told(Progress(read[1].name, "connector calls on the real schedulers", 0, 0))
    try:
        order_differs = tuple(order.compare(read[0], read[1], playing.python))
    except order.NotRecorded as error:
        return replace(found, unordered=str(error))
    return replace(found, differences=(*found.differences, *order_differs))
