"""Reads JSON that may hold anything: scenarios, traces, reports and what a foreign process answers.

Whatever is not as it should be is ``Malformed``, with a sentence of bounded length that says what and where. No other
exception leaves these functions: not for deep nesting, not for a number of a million digits, not for a wrong type.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Sequence
from typing import Any, NoReturn, cast

MAX_DIGITS = 18
"""Digits of a whole number: what fits into 64 bits everywhere."""
MAX_INTEGER = 10**MAX_DIGITS - 1
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 40
_REPR.maxlevel, _REPR.maxdict, _REPR.maxlist = 2, 3, 3


class Malformed(ValueError):
    """Text that is not what it should be; the message says where and what to do."""


def parse(text: str) -> Any:
    """One JSON value.

    Raises:
        Malformed: not JSON, nested too deeply, an object that names a field twice, or a number that no counter holds.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error}") from None


def shown(value: Any) -> str:
    """A value in a message, at most about a line of it."""
    return _REPR.repr(value)


def integer(value: Any, what: str, least: int | None = None) -> int:
    """A whole number, which ``True`` is not."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"{what} must be a whole number, found {shown(value)}")
    if least is not None and value < least:
        raise Malformed(f"{what} is at least {least}, found {value}")
    return value


def text(value: Any, what: str) -> str:
    """A string."""
    return value if isinstance(value, str) else _wrong(value, what, "text")


def boolean(value: Any, what: str) -> bool:
    """True or false."""
    return value if isinstance(value, bool) else _wrong(value, what, "true or false")


def hexadecimal(value: Any, what: str) -> bytes:
    """Bytes that are written as hexadecimal digits."""
    try:
        return bytes.fromhex(text(value, what))
    except ValueError:
        raise Malformed(f"{what} must be hexadecimal, found {shown(value)}") from None


def array(value: Any, what: str) -> list[Any]:
    """A list."""
    return cast("list[Any]", value) if isinstance(value, list) else _wrong(value, what, "a list")


def table(value: Any, what: str) -> dict[str, Any]:
    """An object, whatever its fields are."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else _wrong(value, what, "an object")


def record(value: Any, what: str, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """An object with these fields and no others."""
    fields = table(value, what)
    missing = [name for name in needed if name not in fields]
    if missing:
        raise Malformed(f"{what} lacks {' and '.join(missing)}")
    for name in fields:
        if name not in needed and name not in optional:
            raise Malformed(
                f"{what} has a field {shown(name)}; its fields are {', '.join((*needed, *optional))}"
            )
    return fields


def _wrong(value: Any, what: str, kind: str) -> NoReturn:
    raise Malformed(f"{what} must be {kind}, found {shown(value)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Malformed(f"an object names {shown(twice)} twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + digits.startswith("-"):
        raise Malformed(f"a number has {len(digits.lstrip('-'))} digits; at most {MAX_DIGITS} are read")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Malformed(f"{digits[:40]} is not a finite number")
    return number


def _no_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} is not a finite number")
