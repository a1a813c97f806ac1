"""Whether an answer is the wanted one, and in words what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .cases import Json, is_batch, mask_of

MAX_SHOWN = 6
"""Places that are named one by one."""


class Wrong(NamedTuple):
    """What was wanted and what came, as texts."""

    expected: str
    actual: str


def judge(want: Json, answer: Json) -> Wrong | None:
    """What is wrong with an answer; None: nothing.

    Args:
        answer: ``rows``, ``mask`` and the fields that ``want`` has; or ``raised``, the name of an exception. Without
            ``mask`` nothing may be missing but the last row of a sample; ``dtype`` and ``versions`` are judged where
            they are told.
    """
    raised = answer.get("raised")
    if "error" in want:
        return None if raised else Wrong(f"a refusal ({want['error']})", _shown(answer))
    if raised:
        return Wrong(_shown(want | {"mask": mask_of(want)}), f"{raised}: {answer.get('message', '')}")
    if is_batch(want["rows"]):
        return _first(_judge_batch(want, answer)) or _other_fields(want, answer)
    wrong = _judge_places(want["rows"], mask_of(want), answer.get("rows"), answer.get("mask"))
    return wrong or _other_fields(want, answer)


def _first(found: Iterator[Wrong | None]) -> Wrong | None:
    return next(filter(None, found), None)


def _judge_batch(want: Json, answer: Json) -> Iterator[Wrong | None]:
    rows, mask = answer.get("rows"), answer.get("mask")
    if not isinstance(rows, list) or len(rows) != len(want["rows"]):
        yield Wrong(f"{len(want['rows'])} samples", _count(rows))
        return
    for number, (wanted, known) in enumerate(zip(want["rows"], mask_of(want), strict=True)):
        told = mask[number] if isinstance(mask, list) and number < len(mask) else None
        wrong = _judge_places(wanted, known, rows[number], told)
        yield wrong and Wrong(*(f"sample {number}: {text}" for text in wrong))


def _judge_places(wanted: Sequence[Any], known: Sequence[bool], rows: Any, mask: Any) -> Wrong | None:
    if not isinstance(rows, list) or len(rows) != len(wanted):
        return Wrong(f"{len(wanted)} places", _count(rows))
    if mask is None:
        # Such an answer has a filler in the place of the last row and of padding, which it leaves to its trainer.
        lost = [place for place in range(_last_known(known)) if not known[place]]
        if lost:
            return Wrong(f"places {_places(lost)} told as missing", "no mask")
    elif list(mask) != list(known):
        return Wrong(f"rows known at {_ranges(known)}", f"rows known at {_ranges(mask)}")
    differ = [at for at, row in enumerate(wanted) if row is not None and rows[at] != row]
    if not differ:
        return None
    at = differ[0]
    more = f" (and at {_places(differ[1:])})" if differ[1:] else ""
    return Wrong(f"place {at}: {wanted[at]}", f"place {at}: {rows[at]}{more}")


def _other_fields(want: Json, answer: Json) -> Wrong | None:
    for name in ("dtype", "offsets", "versions"):
        # Rows of another dtype are no loss by themselves, and most functions know no versions.
        told = name == "offsets" or answer.get(name) is not None
        if name in want and told and answer.get(name) != want[name]:
            return Wrong(f"{name} {want[name]}", f"{name} {answer.get(name)}")
    return None


def _last_known(known: Sequence[bool]) -> int:
    return max((place + 1 for place, is_known in enumerate(known) if is_known), default=0)


def _count(rows: Any) -> str:
    return f"{len(rows)} places" if isinstance(rows, list) else f"no rows but {type(rows).__name__}"


def _shown(answer: Json) -> str:
    rows, mask = answer.get("rows"), answer.get("mask")
    told = "" if mask is None or is_nested(mask) else f", known at {_ranges(mask)}"
    return f"{_count(rows)}{told}"


def is_nested(mask: Any) -> bool:
    """Whether a mask is that of a padded batch."""
    return isinstance(mask, list) and bool(mask) and isinstance(mask[0], list)


def _places(places: Sequence[int]) -> str:
    shown = ", ".join(map(str, places[:MAX_SHOWN]))
    return f"{shown}, ..." if len(places) > MAX_SHOWN else shown


def _ranges(mask: Any) -> str:
    """A mask as ranges, such as ``[0, 4) [5, 8)``."""
    if not isinstance(mask, (list, tuple)):
        return f"no mask but {type(mask).__name__}"
    edges = [
        place
        for place in range(len(mask) + 1)
        if (place < len(mask) and bool(mask[place])) != (place > 0 and bool(mask[place - 1]))
    ]
    return " ".join(f"[{edges[i]}, {edges[i + 1]})" for i in range(0, len(edges), 2)) or "no place"
