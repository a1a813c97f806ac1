"""Which representations the plays of a suite get: a few fixed ones in ``smoke``, any for each play otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from auxout_spec.representation import CHOICES, PLAIN, Representation, differing, unusable

from .verdicts import Suite

ROW_FORMATS = (
    (2, 2, 2048), (94, 8, 128), (61, 8, 256), (61, 8, 257), (1, 4, 256), (5, 1, 256), (1, 1, 65536),
    (3, 2, 65536), (48, 4, 127), (2, 8, 129),
)  # fmt: skip
"""Layers, ids of a layer, experts: of real models, and where types and axes end."""
HASH_SIZES = (8, 16, 32, 64)
GENERATIONS = (0, 0, 0, 1, 127, 128, 255, 256, 1000, 65_535)
ID_LENGTHS = (0, 0, 0, 8, 63, 255, 4096)
IDLE = (0, 0, 1, 3, 17)

VARIED = (
    Representation("engine", "zeros", 16, 94, 8, 128, 255, "reused", "reversed", 1, True),
    Representation("alike", "alike", 8, 61, 8, 256, 0, "fresh", "reversed", 3, False),
    Representation("unicode", "ones", 64, 1, 4, 256, 1000, "reused", "arrival", 0, True),
    Representation("prefixes", "same-end", 32, 5, 1, 256, 128, "fresh", "arrival", 17, True),
    Representation("case", "zeros", 8, 1, 1, 65536, 1, "fresh", "arrival", 0, False),
    Representation("alike", "digest", 16, 61, 8, 257, 65_535, "reused", "reversed", 0, False, 4000),
    Representation("same-end", "ones", 32, 3, 2, 65536, 127, "reused", "arrival", 1, False),
    Representation("numeric", "alike", 64, 48, 4, 127, 256, "fresh", "reversed", 0, True),
    Representation("spaces", "same-end", 16, 2, 8, 129, 0, "reused", "reversed", 3, False),
)
"""Every value of every field at least once, and the first three as different as they can be."""
SMOKE = (PLAIN, *VARIED[:3])

_formats = st.sampled_from(ROW_FORMATS)
ANY: SearchStrategy[Representation] = st.builds(
    lambda row, **fields: Representation(layers=row[0], top_k=row[1], experts=row[2], **fields),
    _formats,
    **{name: st.sampled_from(choices) for name, choices in CHOICES.items()},
    hash_size=st.sampled_from(HASH_SIZES),
    generation=st.sampled_from(GENERATIONS),
    idle=st.sampled_from(IDLE),
    writes=st.booleans(),
    id_length=st.sampled_from(ID_LENGTHS),
)
"""Any representation."""


def of_suite(suite: Suite) -> SearchStrategy[Representation]:
    """What the random plays of a suite look like."""
    return st.sampled_from(SMOKE) if suite == "smoke" else ANY


def of_case(suite: Suite, number: int) -> tuple[Representation, ...]:
    """With what the curated case of a number is played besides its own: with one or two."""
    if suite == "smoke":
        return (SMOKE[1 + number % 3],)
    further = 1 + number // len(VARIED) % (len(VARIED) - 1)
    return VARIED[number % len(VARIED)], VARIED[(number + further) % len(VARIED)]


def plainer(representation: Representation) -> Iterator[Representation]:
    """Plainer representations, the plainest first."""
    fields = differing(representation)
    changes: list[dict[str, Any]] = [
        dict(PLAIN._asdict()),
        *({name: getattr(PLAIN, name)} for name in fields),
        *({name: getattr(PLAIN, name) for name in names} for names in combinations(_ROW & fields.keys(), 2)),
        *(
            {name: value}
            for name in ("generation", "idle", "id_length")
            for value in (1, fields.get(name, 0) // 2, fields.get(name, 0) - 1)
            if 0 < value < fields.get(name, 0)
        ),
    ]
    made = [representation._replace(**change) for change in changes if fields]
    yield from (each for each in made if not unusable(each._asdict()))


_ROW = {"layers", "top_k", "experts"}
