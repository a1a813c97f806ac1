"""Which changed statements did not run: read from the files, measured in the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from auxout_conformance.hosts import open_host
from auxout_conformance.setups import Setup
from auxout_conformance.targets import resolve
from auxout_conformance.verifying.executed import Span, changed_lines, spans, unplayed
from auxout_spec.calls import Reset

SOURCE = '''"""Docstring."""
from __future__ import annotations
import typing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
else:
    numpy = None


@staticmethod
@classmethod
def function(
    a,
    b=(1,
       2),
) -> int:
    """Docstring."""
    global state
    declared: int
    set_too: int = 1
    try:
        value = call(
            a,
            b,
        )
    except ValueError:
        raise
    finally:
        pass
    for x in a: print(x)
    if a and \\
            b:
        return 1
    elif b:
        return 2
    ...
    with open(a) as c, \\
            open(b) as d:
        return 3


class Class(object):
    field = 1
'''  # fmt: skip


def test_what_can_run() -> None:
    found = {tuple(span) for span in spans(SOURCE)}
    assert found == {
        (2, 2), (3, 3), (4, 4), (9, 9), (12, 18), (22, 22), (24, 27), (28, 28), (29, 29), (32, 32), (33, 34), (35, 35),
        (36, 36), (37, 37), (39, 40), (41, 41), (44, 44), (45, 45),
    }  # fmt: skip


def test_a_file_that_does_not_parse_has_nothing_to_run() -> None:
    assert list(spans("def\n")) == []
    assert list(spans("x = \x00")) == []


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("a\nb\n", "a\nb\n", (set(), ())),
        ("a\nb\n", "a\nc\n", ({2}, ())),
        ("a\nb\n", "a\nx\ny\nb\n", ({2, 3}, ())),
        ("a\n  b\nc\n", "a\nc\n", (set(), ((1, 2),))),
        ("a\n# b\n\nc\n", "a\nc\n", (set(), ())),
        ("", "a\nb\n", ({1, 2}, ())),
    ],
)
def test_changed_lines(old: str, new: str, lines: tuple[set[int], tuple[tuple[int, int], ...]]) -> None:
    assert changed_lines(old, new) == lines


def folders(tmp_path: Path, old: str | None, new: str | None) -> tuple[Path, Path]:
    for name, text in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "x.py").write_text(text)
    return tmp_path / "old", tmp_path / "new"


OLD = "def f(a):\n    b = a\n    return b\n"


@pytest.mark.parametrize(
    ("new", "ran", "left"),
    [
        (OLD.replace("b = a", "b = -a"), [1, 2, 3], ()),
        (OLD.replace("b = a", "b = -a"), [1], ("x.py:2",)),
        (OLD.replace("b = a", "if a:\n        b = (\n            1\n        )"), [1, 2, 6], ("x.py:3-5",)),
        (OLD.replace("b = a", "if a:\n        b = (\n            1\n        )"), [1, 2, 4, 6], ()),
        (OLD.replace("b = a", "# why\n    b = a"), [1], ()),
        (f"{OLD}def g():\n    return 1\n\n\n# why\ndef h():\n    return 2\n", [1, 2, 3, 4, 9], ("x.py:5", "x.py:10")),
        (OLD.replace("b = a", "b = 1\n    b = 2\n    b = 3"), [1], ("x.py:2-4",)),
    ],
)  # fmt: skip
def test_what_did_not_run(tmp_path: Path, new: str, ran: list[int], left: tuple[str, ...]) -> None:
    assert unplayed(*folders(tmp_path, OLD, new), ["x.py"], {"x.py": ran}) == left


BRANCH = "def f(a):\n    if a:\n        check(a)\n        use(a)\n    return a\n"


@pytest.mark.parametrize(
    ("gone", "ran", "left"),
    [
        ("        check(a)\n", [1, 2, 4], ("x.py:3",)),
        ("        check(a)\n", [1, 2, 3, 4], ()),
        ("        use(a)\n", [1, 2, 4], ("x.py:3",)),
        ("        use(a)\n", [1, 2, 3, 4], ()),
        ("    return a\n", [1, 2], ()),
    ],
)
def test_what_is_gone_from_where_no_play_came(
    tmp_path: Path, gone: str, ran: list[int], left: tuple[str, ...]
) -> None:
    assert unplayed(*folders(tmp_path, BRANCH, BRANCH.replace(gone, "")), ["x.py"], {"x.py": ran}) == left


@pytest.mark.parametrize(
    ("old", "new", "ran", "left"),
    [
        ("KeyError", "Exception", [1, 2], ("x.py:3",)),
        ("KeyError", "Exception", [1, 2, 3, 4], ()),
        ("case 2", "case 3", [1, 2, 5, 6, 7], ("x.py:8",)),
        ("case 2", "case 3", [1, 2, 5, 6, 8], ()),
    ],
)
def test_handlers_and_cases_are_looked_at_by_themselves(
    tmp_path: Path, old: str, new: str, ran: list[int], left: tuple[str, ...]
) -> None:
    source = "try:\n    a = f()\nexcept KeyError:\n    a = 1\nmatch a:\n  case 1:\n    b = 1\n  case 2:\n    b = 2\n"
    assert unplayed(*folders(tmp_path, source, source.replace(old, new)), ["x.py"], {"x.py": ran}) == left


def test_a_new_file_and_one_that_is_gone(tmp_path: Path) -> None:
    assert unplayed(*folders(tmp_path, None, OLD), ["x.py"], {}) == ("x.py:1-3",)
    (tmp_path / "more").mkdir()
    assert unplayed(*folders(tmp_path / "more", OLD, None), ["x.py"], {}) == ()


def test_spans_are_of_lines() -> None:
    assert list(spans("x = 1\n")) == [Span(1, 1)]


def test_the_process_tells_which_lines_ran(tmp_path: Path) -> None:
    """Also those of its import, and only those of the folder."""
    (tmp_path / "helper.py").write_text("def used():\n    return 1\ndef unused():\n    return 2\n")
    (tmp_path / "connector.py").write_text(
        "from auxout_reference.connector import AuxOutputSchedulerConnector as Plain, PackedBlockHashes\n"
        "from .helper import used\n"
        "class AuxOutputSchedulerConnector(Plain):\n"
        "    def reset(self):\n"
        "        return super().reset() if used() else None\n"
        "    def request_finished(self, request):\n"
        "        return super().request_finished(request)\n"
    )
    target = resolve(str(tmp_path), "0.32")
    host = open_host(target, watched=True)
    try:
        host.new(Setup("0.32"))
        assert host.lines() == {"connector.py": [1, 2, 3, 4, 6], "helper.py": [1, 3]}
        host.call(Reset())
        assert host.lines() == {"connector.py": [1, 2, 3, 4, 5, 6], "helper.py": [1, 2, 3]}
    finally:
        host.close()
    unwatched = open_host(target)
    assert unwatched.lines() == {}
    unwatched.close()
    here = open_host(resolve("reference"))
    assert here.lines() == {}
    here.close()
