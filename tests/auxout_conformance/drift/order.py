"""The order of connector calls on the real schedulers of both: twenty engine events, played where a vLLM can run.

That takes a checkout (``tests/real/events.py`` plays them) and a Python with what vLLM imports, as ``make real`` makes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import auxout_conformance
from auxout_spec import reading
from auxout_spec.reading import Malformed

from .. import isolation
from ..leftovers import Scratch
from .outcome import Difference, Part, told
from .trees import Tree

TESTS = Path(auxout_conformance.__file__).parents[1]
PYTHON = TESTS.parent / ".venv-real" / "bin" / "python"
SECONDS = 300.0
"""How long one of the two may take."""
Events = Sequence[tuple[str, Sequence[str]]]


class NotRecorded(Exception):
    """The calls could not be recorded; the message says why, in half a sentence."""


def compare(old: Tree, new: Tree, python: str | None) -> list[Difference]:
    """The events whose calls differ.

    Args:
        python: one with what vLLM imports; None: that of ``make real``.

    Raises:
        NotRecorded: there is none, or one of the two does not run there.
    """
    if not (TESTS / "real" / "events.py").is_file():
        raise NotRecorded("that takes a checkout of auxout, with its folder tests/real")
    if python is None and not PYTHON.is_file():
        raise NotRecorded(
            "there is no Python with what vLLM imports; `make real` makes one, --python names another"
        )
    if not (old.whole and new.whole):
        raise NotRecorded("a connector's folder has no scheduler")
    sides = [_events(tree, python or str(PYTHON)) for tree in (old, new)]
    found: list[Difference] = []
    for number, ((name, before), (_, after)) in enumerate(zip(*sides, strict=True), 1):
        found += told(Part.ORDER, f"event {number}", name, before, after, context=True)
    return found


def _events(tree: Tree, python: str) -> Events:
    with Scratch() as scratch:
        root, home = scratch / "root", scratch / "home"
        home.mkdir()
        _unpack(tree, root)
        environment = isolation.environment(str(home)) | {"PYTHONPATH": f"{TESTS}:{root}"}
        try:
            done = subprocess.run(
                [python, "-m", "real.events"],
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise NotRecorded(f"{tree.name} took over {SECONDS:g} s") from None
        except OSError as error:
            raise NotRecorded(f"cannot run {python}: {(error.strerror or str(error)).lower()}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise NotRecorded(f"{tree.name} does not run with {python}: {said[-1]}")
    return _read(tree.name, done.stdout)


def _unpack(tree: Tree, root: Path) -> None:
    for path, text in tree.texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


def _read(name: str, text: str) -> Events:
    try:
        told = reading.table(reading.parse(text), "the events")
        pairs = [reading.array(each, "an event") for each in reading.array(told.get("events"), "events")]
        return [
            (
                reading.text(event, "a name"),
                [reading.text(each, "a call") for each in reading.array(calls, "calls")],
            )
            for event, calls in pairs
        ]
    except (Malformed, ValueError):
        raise NotRecorded(f"{name} answered with something unreadable") from None
