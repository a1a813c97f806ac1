"""Compares an older vLLM with a newer one."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..verdicts import Progress
from . import comparing, trees
from .outcome import Drift, Side

OnProgress = Callable[[Progress], None]


def compare(old: str, new: str, progress: OnProgress | None = None) -> Drift:
    """What differs in the source.

    Args:
        old: a vLLM in the forms that a target may have: ``vllm==0.32.0``, ``vllm``, a wheel, a source tree,
            ``DIR@REV``, a connector folder.
        new: the one that is compared with it.
        progress: told how far it is.

    Raises:
        TargetError: one is no vLLM with an auxiliary-output connector.
    """
    started = time.monotonic()
    told = progress or (lambda _: None)
    read: list[trees.Tree] = []
    for name in (old, new):
        told(Progress(name, "reading its source", 0, 0))
        read.append(trees.read(name))
    told(Progress(new, f"comparing with {old}", 0, 0))
    differences = comparing.compare(*read)
    alone = [tree.name for tree in read if not tree.whole]
    notes = (f"the engine around it was not compared: {' and '.join(alone)} is the connector's folder alone",)
    before, after = (Side(tree.name, tree.version) for tree in read)
    return Drift(before, after, differences, notes if alone else (), time.monotonic() - started)
