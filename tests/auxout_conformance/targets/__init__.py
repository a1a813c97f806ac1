"""Targets: the implementations under judgement, and how each is found, fetched and loaded.

``resolve`` turns what a user typed into a ``Target``; ``loading`` turns a target into an ``Adapter``, inside the
process that will run it. Nothing of a target is imported while it is resolved.
"""

from .adapter import Adapter, NoProfile, PatchError, TargetError
from .resolve import Listed, Target, list_targets, patched, resolve

__all__ = [
    "Adapter",
    "Listed",
    "NoProfile",
    "PatchError",
    "Target",
    "TargetError",
    "list_targets",
    "patched",
    "resolve",
]
