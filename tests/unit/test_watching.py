"""Watching what was handed out, and opening pickles in another process."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from auxout_conformance.elsewhere import Elsewhere, Unopened, can_fork
from auxout_conformance.watching import LATEST, MOST, OTHERS, Watch

TABLE: list[str] = []


class Ends:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


def looked_up(number: int) -> str:
    return TABLE[number]


class LooksUp:
    def __reduce__(self) -> tuple[Any, ...]:
        TABLE.append("entry")
        return looked_up, (len(TABLE) - 1,)


@pytest.mark.parametrize("number", range(3 * (LATEST + OTHERS)))
def test_whatever_changes_is_noticed_within_a_few_looks_and_once(number: int) -> None:
    things = [[each] for each in range(3 * (LATEST + OTHERS))]
    watch = Watch()
    for thing in things:
        watch.keep(lambda thing=thing: list(thing))
        assert not watch.changed()
    things[number].append(0)
    assert sum(watch.changed() for _ in things) == 1


def test_what_can_no_longer_be_read_has_changed() -> None:
    thing, watch = SimpleNamespace(text="a"), Watch()
    watch.keep(lambda: thing.text)
    del thing.text
    assert watch.changed()


@pytest.mark.parametrize("small", [True, False])
def test_large_things_are_looked_at_too_and_hide_no_small_ones(small: bool) -> None:
    watch, changing = Watch(), [0]
    watch.keep(lambda: list(changing), 1 if small else 3 * MOST)
    for _ in range(2 * LATEST):
        watch.keep(lambda: "large", 2 * MOST + 1)
    changing.append(1)
    assert sum(watch.changed() for _ in range(100)) == 1


def test_what_is_read_again_is_bounded() -> None:
    watch, read = Watch(), [0]

    def reads() -> None:
        read[0] += 1

    for _ in range(50):
        watch.keep(reads, 10 * MOST)
    read[0] = 0
    for _ in range(100):
        watch.changed()
    assert 10 <= read[0] <= 20


@pytest.mark.parametrize("place", [-1, -2, -LATEST, 0])
def test_a_large_thing_among_large_ones_is_looked_at_within_bounds(place: int) -> None:
    things = [[each] for each in range(3 * LATEST)]
    watch = Watch()
    for thing in things:
        watch.keep(lambda thing=thing: list(thing), 10 * MOST)
    things[place].append(0)
    assert sum(watch.changed() for _ in range(10 * len(things))) == 1


FORKS = pytest.mark.skipif(not can_fork(), reason="pickles are opened here")


@FORKS
def test_a_pickle_is_opened_where_nothing_has_happened_since() -> None:
    there = Elsewhere(lambda opened: opened)
    assert there.open(pickle.dumps({"a": 1})) == {"a": 1}
    data = pickle.dumps(LooksUp())
    assert pickle.loads(data) == "entry"
    with pytest.raises(Unopened, match="another process cannot unpickle it: IndexError"):
        there.open(data)
    assert there.open(pickle.dumps(2)) == 2
    there.close()


@FORKS
def test_a_process_that_ends_is_not_waited_for() -> None:
    there = Elsewhere(lambda opened: opened)
    for _ in range(2):
        with pytest.raises(Unopened, match="another process ended or hung"):
            there.open(pickle.dumps(Ends()))


@FORKS
def test_it_ends_with_the_host() -> None:
    there = Elsewhere(lambda opened: opened)
    pid = there.open(pickle.dumps(GetPid()))
    assert pid != os.getpid()
    there.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class GetPid:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.getpid, ()
