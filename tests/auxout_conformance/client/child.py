"""The process that runs a function under judgement: a conversation a line in, an answer a line out.

``python -m auxout_conformance.client.child MODULE:FUNCTION``. What the function prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checking import CASE_SECONDS


class TooLong(BaseException):
    """Raised in a function that does not return; not an ``Exception``, which it might catch."""


def main(argv: list[str]) -> int:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        function = load(argv[0])
    except BaseException as error:  # A module may fail in any way when it is imported.
        say({"broken": f"{type(error).__name__}: {error}"})
        return 1
    say({"loaded": True})
    signal.signal(signal.SIGALRM, _stop)
    for line in sys.stdin:
        signal.alarm(CASE_SECONDS)
        try:
            answer = answer_of(function, json.loads(line))
        except TooLong:
            say({"hung": True})
            return 1
        finally:
            signal.alarm(0)
        say(answer)
    return 0


def load(where: str) -> Callable[[dict[str, Any]], Any]:
    """A function of an importable module, also one in the folder where the command was typed."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    name, _, attribute = where.partition(":")
    found: Any = importlib.import_module(name)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{where} is not a function")
    return found


def answer_of(function: Callable[[dict[str, Any]], Any], conversation: dict[str, Any]) -> dict[str, Any]:
    """What the function makes of a conversation, as JSON."""
    try:
        returned = function(conversation)
    except NotImplementedError as error:
        return {"not_offered": str(error)}
    except Exception as error:  # A refusal may be of any type.
        return {"raised": type(error).__name__, "message": str(error)[:300]}
    if not isinstance(returned, dict):
        return {"rows": f"{type(returned).__name__}"}
    if isinstance(returned.get("error"), str):
        return {"raised": returned["error"], "message": ""}
    return {str(name): _plain(value) for name, value in returned.items()}


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists, dtypes as their names; anything else that JSON lacks as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _stop(*_: object) -> None:
    raise TooLong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
