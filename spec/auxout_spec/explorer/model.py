"""A model: one engine configuration and a menu of what may happen, small enough to try everything.

The menu bounds the environment: which requests arrive, how prompts are cut, how often things go wrong. What of it
is possible in a state is listed by ``choices``; nothing else decides what is explored.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from ..deviations import Deviation
from ..engine import Add, Chunk, EngineConfig, Reset
from ..engine.state import USUAL_BLOCKS
from ..profiles import LATEST, named
from ..values import RequestId
from ..worker import Limits

UNBOUNDED = 1 << 20
"""Objects of a store that never evicts."""


class Menu(NamedTuple):
    """What the environment may do, and how often."""

    adds: tuple[Add, ...]
    """Requests, in order of arrival; each arrives at any moment."""
    prefill_chunks: tuple[int, ...] = ()
    """Sizes in which a longer prefill may be cut."""
    drafts: int = 0
    """Draft tokens of a decode: none or so many."""
    stops: bool = False
    """A stop rule may end a request after its first token."""
    aborts: int = 0
    preemptions: int = 0
    evictions: int = 0
    resets: tuple[Reset, ...] = ()
    """Each may come once."""
    drained_resets: bool = False
    """A reset comes only when no step is in flight; the released worker fails otherwise (WORK-BEGIN-3)."""
    settled_ids: bool = False
    """An id is used again only when its terminal event was delivered."""
    settled_turns: bool = False
    """A session is preempted only with nothing in flight; one whose turn ends while it is preempted is lost."""
    pauses: int = 0
    chunks: tuple[Chunk, ...] = ()
    """Next inputs of sessions, in order."""
    max_running: int = 0
    """Requests that may run at once, as a small KV cache would have it; 0: any number."""
    skips_hits: bool = False
    """An admitted request may ignore its prefix hit."""
    loads: int = 0
    """How often KV is loaded from elsewhere for an admitted request."""
    external: tuple[int, ...] = ()
    """Tokens up to which KV may be found there."""
    waits_for_loads: bool = False
    """A load is done before its request is scheduled, instead of with its first step."""
    known_rows: bool = False
    """Only whole blocks whose rows are stored are loaded, which is how a right engine caps an external hit."""
    load_failures: bool = False
    """A load may fail, from any of its blocks on."""
    recompute: bool = False
    """A request whose load failed goes back to what is valid instead of ending (``kv_load_failure_policy``)."""
    empty_steps: bool = False
    """A step without requests may be built at any time; otherwise only when it has something to say."""


class ModelFields(NamedTuple):
    """The fields of a model."""

    name: str
    about: str
    """What it is for."""
    menu: Menu
    profile: str = LATEST
    block_size: int = 2
    depth: int = 2
    """Steps that may be in flight."""
    capacity: int = UNBOUNDED
    """Objects of the store."""
    symmetric: bool = False
    """Requests that arrive alike are interchangeable: states that differ in their names only are one."""
    whole: bool = False
    """Take the state as one piece, although each request could be stepped by itself (see ``lanes``)."""
    nightly: bool = False
    """Too large for every change."""
    removed_guards: frozenset[str] = frozenset()
    deviations: frozenset[Deviation] = frozenset()
    """In which ways the connectors depart from the rules, as a release does."""
    num_blocks: int = USUAL_BLOCKS
    """Blocks of the KV cache; this and the next mean something from profile 0.33 on."""
    lookahead: int = 0
    """Tokens behind a block that its hash covers too."""


class Model(ModelFields):
    """One model."""

    @cached_property
    def config(self) -> EngineConfig:
        """The engine with its worker and store."""
        limits = Limits(self.block_size, self.capacity, named(self.profile).fails_requests)
        return EngineConfig(
            named(self.profile)._replace(deviations=self.deviations),
            self.block_size,
            self.depth,
            self.removed_guards,
            limits,
            num_blocks=self.num_blocks,
            kv_connector=self.kv_connector,
            lookahead=self.lookahead,
        )

    @cached_property
    def kv_connector(self) -> bool:
        """Whether a KV connector loads KV; before profile 0.33 none has to be there for that."""
        return named(self.profile).reads_kv_cache and self.menu.loads > 0

    @cached_property
    def ids(self) -> tuple[RequestId, ...]:
        """Every request id that arrives, sorted."""
        return tuple(sorted({add.request for add in self.menu.adds}))

    @cached_property
    def bounded(self) -> bool:
        """Whether the store may evict, so that the order of its objects means something."""
        return self.capacity < UNBOUNDED

    @cached_property
    def private(self) -> bool:
        """Whether each request has a text of its own, so that no rows and no KV are shared."""
        return not any(add.text or add.cut for add in self.menu.adds)

    @cached_property
    def separable(self) -> bool:
        """Whether each request can be stepped by itself: none takes room from another, or leaves blocks to it."""
        profile = self.config.profile
        return not (self.bounded or self.whole or profile.fails_requests or profile.reads_kv_cache)


class Left(NamedTuple):
    """What of the menu is left."""

    adds: int
    aborts: int
    preemptions: int
    evictions: int
    resets: tuple[int, ...]
    """Indices into the menu."""
    pauses: int
    chunks: tuple[int, ...]
    """Indices into the menu."""
    loads: int = 0


def whole_menu(menu: Menu) -> Left:
    """What is left at the start."""
    return Left(
        len(menu.adds),
        menu.aborts,
        menu.preemptions,
        menu.evictions,
        tuple(range(len(menu.resets))),
        menu.pauses,
        tuple(range(len(menu.chunks))),
        menu.loads,
    )
