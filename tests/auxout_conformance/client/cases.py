"""The cases, what must come of them, and wrong answers by which the judge is checked itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from auxout_spec.clauses import CLAUSES

from ..mistakes import UserMistake, did_you_mean

Json = dict[str, Any]
FILE = "cases.json"


class Case(NamedTuple):
    """One conversation."""

    name: str
    clause: str
    story: str
    conversation: Json
    """``schema``, ``samples`` and ``result``: what the function under judgement gets."""
    want: Json
    """``error``, or ``rows`` with None where no row is known, and perhaps more."""
    wrong: tuple[Json, ...] = ()
    """Changes of the right answer, each of which the judge must reject."""

    @property
    def right_answer(self) -> Json:
        """An answer that the judge must accept; places without a row hold zeros."""
        answer = {name: value for name, value in self.want.items() if name != "error"}
        answer["mask"] = mask_of(self.want)
        answer["rows"] = _without_gaps(self.want["rows"], self.conversation["schema"])
        return answer

    def wrong_answers(self) -> Iterator[Json]:
        """The right answer, changed in each way that ``wrong`` names."""
        for change in self.wrong:
            yield _changed(self.right_answer, change)


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, in the order of the clauses."""
    text = resources.files("auxout_conformance.client").joinpath(FILE).read_text(encoding="utf-8")
    order = {clause: place for place, clause in enumerate(CLAUSES)}
    found = [_case(data) for data in json.loads(text)["cases"]]
    return tuple(sorted(found, key=lambda case: order[case.clause]))


def named(names: Sequence[str]) -> tuple[Case, ...]:
    """The cases of these names.

    Raises:
        UserMistake: there is no such case.
    """
    known = {case.name: case for case in all_cases()}
    for name in names:
        if name not in known:
            raise UserMistake(f"there is no case {name!r}{did_you_mean(name, known)}")
    return tuple(known[name] for name in names)


def _case(data: Json) -> Case:
    conversation = {name: data[name] for name in ("schema", "samples", "result") if name in data}
    name, clause, story = data["name"], data["clause"], data["story"]
    return Case(name, clause, story, conversation, data["want"], tuple(data.get("wrong", ())))


def mask_of(want: Json) -> list[Any]:
    """Which places have a row: ``mask``, else those of ``rows`` that are not None."""
    return want.get("mask") or _known(want["rows"])


def is_batch(rows: list[Any]) -> bool:
    """Whether the places are those of several samples: a row is a list of lists of numbers."""
    return _depth(rows) == 4


def _depth(value: Any) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _known(rows: list[Any]) -> list[Any]:
    if is_batch(rows):
        return [_known(sample) for sample in rows]
    return [row is not None for row in rows]


def _without_gaps(rows: list[Any], schema: Json) -> list[Any]:
    if is_batch(rows):
        return [_without_gaps(sample, schema) for sample in rows]
    filler = [[0] * schema["top_k"]] * schema["num_layers"]
    return [filler if row is None else row for row in rows]


def _changed(answer: Json, change: Json) -> Json:
    """An answer with another row or mask at ``at``, fewer places (``drop``), or another field."""
    changed = copy.deepcopy(answer)
    fields = dict(change)
    if "drop" in fields:
        number = fields.pop("drop")
        for name in ("rows", "mask"):
            changed[name] = changed[name][: len(changed[name]) - number]
    if "at" in fields:
        place = fields.pop("at")
        *samples, at = place if isinstance(place, list) else [place]
        for name, key in (("rows", "row"), ("mask", "known")):
            where = changed[name]
            for sample in samples:
                where = where[sample]
            if key in fields:
                where[at] = fields.pop(key)
    return changed | fields
