"""Each request stepped by itself: the same search, many times faster.

Requests meet in the scheduler's step, in what an event asks of all of them, and, where they have a common text, in
the blocks they find. So the state is taken apart into a *lane* per request id, a *pool* of blocks and what else they
share, and the spec's own ``step`` is applied to one lane after the other, with a launch or landing reduced to its
part. That was done before for nearly every lane of nearly every state, so it is remembered. If the lanes agree on
the shared part, together they are the state that follows.

If they do not (a reset that one request's KV makes fail), if an event asks for all requests at once, or if something
is refused, the state is put together and stepped in one piece. A store that may evict has an order of objects that
one lane after the other would change: its models are always stepped whole.

What this relies on, that no event reads or changes another lane, is checked by comparing with ``Whole``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, cast

from ..engine import EngineState, Event
from .canonical import Names
from .choices import Choice, Options, choices, event_of, options_of
from .lane import (
    NAME,
    Lane,
    Numbered,
    Pool,
    Shared,
    assembled,
    extended,
    lane_of,
    pool_of,
    private_lanes,
    renamed_lane,
    shared_part,
)
from .model import Left, Model, whole_menu
from .properties import Broken
from .system import Move, is_drained, take


class Local(NamedTuple):
    """What an event makes of one lane: numbers of the shared part, the lane and the pool after it."""

    shared: int
    lane: int
    pool: int
    witnesses: int


UNTOLD = Local(-1, -1, -1, 0)
"""Only the whole state tells what an event makes of a lane."""


Merged = tuple[int, tuple[int, ...], int, int, Broken | None]
"""What an event makes of the whole state: numbers as in ``Local`` but of all lanes, then what it broke."""
Key = tuple[str, int]
"""A kind of choice and the index it picks for one lane."""


class Listed(NamedTuple):
    """A choice as it is looked up: what it asks of each lane, or of one."""

    choice: Choice
    left: int
    """Number of what is left after it."""
    keys: tuple[Key, ...]
    lane: int = -1
    """The only lane it concerns."""


class Table:
    """Everything that becomes of one lane beside one shared part and one pool, as far as it was asked for."""

    def __init__(
        self,
        model: Model,
        parts: tuple[Shared, Lane, Pool],
        numbers: tuple[int, int, int],
        shapes: Numbered[Options],
    ) -> None:
        self.shared, self.lane, pool = parts
        self.numbers, self.pool = numbers, numbers[-1]
        self.engine = assembled(self.shared, (self.lane,), pool)
        self.drained = is_drained(self.engine)
        self.options = options_of(model, self.engine, self.lane.name)._replace(
            resident=bool(self.engine.resident),
            untouched=self.lane._replace(entries=()) == Lane(self.lane.name),
        )
        self.shape = shapes.number(self.options)
        self.found: dict[Key, Local] = {}


State = tuple[int, tuple[int, ...], int, int]
"""Numbers of the shared part, of every lane, of the pool, and of what is left of the menu."""
_OF_ONE = frozenset({"add", "abort", "preempt", "load", "loaded", "chunk", "end"})
"""Choices that concern one request id."""
_OF_EACH = frozenset({"launch", "land"})
"""Choices that pick something for every request id."""


class Lanes:
    """A separable model, its requests stepped one by one."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.names = Names(model.block_size)
        self.shared: Numbered[Shared] = Numbered()
        self.lanes: Numbered[Lane] = Numbered()
        self.pools: Numbered[Pool] = Numbered()
        self.lefts: Numbered[Left] = Numbered()
        self.shapes: Numbered[Options] = Numbered()
        self.tables: dict[tuple[int, int, int], Table] = {}
        self.listed: dict[tuple[int, ...], tuple[Listed, ...]] = {}
        self.named: dict[tuple[Lane, str], Lane] = {}

    def start(self) -> State:
        """Where every trace begins."""
        names = (NAME,) * len(self.model.ids) if self.model.private else self.model.ids
        lanes = tuple(self.lanes.number(Lane(name)) for name in names)
        left = self.lefts.number(whole_menu(self.model.menu))
        return self.shared.number(Shared()), lanes, self.pools.number(Pool()), left

    def moves(self, state: Hashable) -> Iterator[Move]:
        """Everything that may happen in a state, in a fixed order."""
        shared, lanes, pool, left = cast("State", state)
        tables = [self._table(shared, lane, pool) for lane in lanes]
        symmetric = self.model.symmetric
        for listed in self._choices(left, tables):
            merged = self._merged(listed, lanes, tables)
            if merged is not None:
                shared, after, pool, witnesses, broken = merged
                if symmetric:
                    after = tuple(sorted(after))
                yield Move(listed.choice, (shared, after, pool, listed.left), broken, witnesses)

    def drained(self, state: Hashable) -> bool:
        """Whether everything that arrived has ended and nothing is under way."""
        shared, lanes, pool, _ = cast("State", state)
        return all(self._table(shared, lane, pool).drained for lane in lanes)

    def encoded(self, state: Hashable) -> bytes:
        """A state as bytes: equal for equal states only."""
        return repr(state).encode()

    def engine(self, state: Hashable) -> EngineState:
        """The state put together."""
        shared, lanes, pool, _ = cast("State", state)
        return self._in_one_piece([self._table(shared, lane, pool) for lane in lanes], self.model.ids)

    def events(self, taken: Sequence[Choice]) -> tuple[Event, ...]:
        """The engine events of a trace from the start; where ids are interchangeable, those of one such trace."""
        shared, lanes, pool, _ = self.start()
        ids = self.model.ids
        events: list[Event] = []
        for choice in taken:
            tables = [self._table(shared, lane, pool) for lane in lanes]
            given = [table.options for table in tables]
            events.append(event_of(self.model.menu, ids, choice, given))
            merged = self._merged(self._listed(choice), lanes, tables)
            assert merged is not None  # it was taken before
            shared, lanes, pool, _, broken = merged
            if self.model.symmetric and broken is None:
                order = sorted(range(len(ids)), key=lanes.__getitem__)
                ids, lanes = tuple(ids[lane] for lane in order), tuple(lanes[lane] for lane in order)
        return tuple(events)

    def _choices(self, left: int, tables: list[Table]) -> tuple[Listed, ...]:
        """The choices of a state; listed once for states alike."""
        shared = tables[0].shared
        key = (left, shared.paused, len(shared.steps), *[table.shape for table in tables])
        listed = self.listed.get(key)
        if listed is None:
            given = [table.options for table in tables]
            every = choices(self.model, shared.paused, len(shared.steps), self.lefts.values[left], given)
            listed = self.listed[key] = tuple(self._listed(choice) for choice in every)
        return listed

    def _listed(self, choice: Choice) -> Listed:
        kind, picks, left = choice
        number = self.lefts.number(left)
        if kind in _OF_ONE:
            return Listed(choice, number, ((kind, picks[-1]),), picks[0])
        if kind not in _OF_EACH:
            picks = (picks[0] if picks else 0,) * len(self.model.ids)
        return Listed(choice, number, tuple((kind, pick) for pick in picks))

    def _merged(self, listed: Listed, lanes: tuple[int, ...], tables: list[Table]) -> Merged | None:
        """What a choice makes of the state; None if it is impossible."""
        _, _, keys, only = listed
        if only >= 0:
            shared, after, pool, witnesses = local = self._local(tables[only], keys[0])
            if local is UNTOLD:
                return self._stepped_whole(listed.choice, lanes, tables)
            return shared, (*lanes[:only], after, *lanes[only + 1 :]), pool, witnesses, None
        together: list[int] = []
        agreed, pool, met = None, tables[0].pool, 0
        for table, key in zip(tables, keys, strict=True):
            if pool != table.pool:
                if _admits(table, key):
                    return self._stepped_whole(listed.choice, lanes, tables)
                table = self._table(*table.numbers[:2], pool)
            shared, after, pool, witnesses = table.found.get(key) or self._local(table, key)
            if shared != agreed and (agreed is not None or shared < 0):
                return self._stepped_whole(listed.choice, lanes, tables)
            agreed = shared
            met |= witnesses
            together.append(after)
        assert agreed is not None  # there is a lane
        return agreed, tuple(together), pool, met, None

    def _table(self, shared: int, lane: int, pool: int) -> Table:
        numbers = shared, lane, pool
        table = self.tables.get(numbers)
        if table is None:
            parts = self.shared.values[shared], self.lanes.values[lane], self.pools.values[pool]
            table = self.tables[numbers] = Table(self.model, parts, numbers, self.shapes)
        return table

    def _local(self, table: Table, key: Key) -> Local:
        """What a choice makes of one lane, computed once."""
        local = table.found.get(key)
        if local is None:
            local = table.found[key] = self._stepped(table, *key)
        return local

    def _stepped(self, table: Table, kind: str, pick: int) -> Local:
        """What a choice makes of one lane, by the spec's ``step``."""
        private, name = self.model.private, table.lane.name
        if kind == "evict" and not private:
            return UNTOLD  # another lane may hold the blocks
        picks = (pick,) if kind not in _OF_ONE else (0, pick)
        others = kind == "launch" and not pick
        local = Choice("empty" if others else kind, picks, self.lefts.values[0])
        taken = take(self.model, table.engine, event_of(self.model.menu, (name,), local, (table.options,)))
        if taken is None or taken[1] is not None:
            return UNTOLD
        after, _, witnesses = taken
        shared, lane, pool = shared_part(after), lane_of(after, name), pool_of(after)
        if private:
            self.names.learn(after)
            lane, pool = lane._replace(own=pool), Pool()
        if others:
            shared, lane = extended(shared, lane)
        numbers = self.shared.number(shared), self.lanes.number(lane), self.pools.number(pool)
        return Local(*numbers, witnesses)

    def _in_one_piece(self, tables: list[Table], ids: Sequence[str]) -> EngineState:
        lanes = [self._named(table.lane, name) for name, table in zip(ids, tables, strict=True)]
        return assembled(tables[0].shared, lanes, self.pools.values[tables[0].pool])

    def _named(self, lane: Lane, name: str) -> Lane:
        """A lane under the name of its request."""
        if lane.name == name:
            return lane
        named = self.named.get((lane, name))
        if named is None:
            named = self.named[lane, name] = renamed_lane(self.names, lane, {NAME: name})
        return named

    def _stepped_whole(self, choice: Choice, lanes: tuple[int, ...], tables: list[Table]) -> Merged | None:
        """What a choice makes of the state put together; None if it is impossible."""
        engine = self._in_one_piece(tables, self.model.ids)
        given = [table.options for table in tables]
        taken = take(self.model, engine, event_of(self.model.menu, self.model.ids, choice, given))
        if taken is None:
            return None
        after, broken, witnesses = taken
        shared, _, pool = tables[0].numbers
        if broken is not None:
            return -1, (), -1, witnesses, broken
        if after == engine:
            return shared, lanes, pool, witnesses, None
        if self.model.private:
            parts = private_lanes(after, self.model.ids, self.names)
        else:
            parts = tuple(lane_of(after, name) for name in self.model.ids)
            pool = self.pools.number(pool_of(after))
        shared = self.shared.number(shared_part(after))
        return shared, tuple(map(self.lanes.number, parts)), pool, witnesses, None


def _admits(table: Table, key: Key) -> bool:
    """Whether a step starts a request from what it finds: all are admitted before any of the step is computed."""
    kind, pick = key
    request = table.lane.request
    runs = request is not None and request.status == "running" and request.holds_kv
    return kind == "launch" and pick > 0 and not runs
