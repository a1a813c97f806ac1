"""What a scheduler connector is told of the KV cache from profile 0.33 on, and how it bounds what requests start from.

The cache itself is a set of resident blocks (``EngineState.resident``), any number of them: that a real one is full
shows as evictions and preemptions. The connector reads whether a block is cached in the calls that look, so each of
these calls comes with the names of all that are.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from ..calls import Call, CapExternalHit, MaxCacheHit, RequestFinished
from ..values import BlockHash, Result, Tokens
from .options import num_loaded
from .state import EngineConfig, EngineRequest, EngineState, view
from .tampering import tampered_view

NONE: frozenset[BlockHash] = frozenset()


def resident_names(
    config: EngineConfig, state: EngineState, filled: Set[BlockHash] = NONE
) -> tuple[BlockHash, ...]:
    """The names of the cached blocks, as a connector that reads the KV cache finds them.

    Args:
        filled: hashes of blocks that earlier requests of the same step fill.
    """
    return tuple(sorted(state.resident_hashes | filled)) if config.cache is not None else ()


def finished(
    config: EngineConfig,
    state: EngineState,
    request: EngineRequest,
    *,
    ended: bool = True,
    corrupted: bool = False,
) -> RequestFinished:
    """The call about a request that ends or is preempted, while it still holds its KV.

    Args:
        ended: it does not run again.
        corrupted: what the next event shows corrupted shows here.
    """
    seen = view(request, finished=ended)
    seen = tampered_view(state, seen) if corrupted else seen
    return RequestFinished(seen, preempted=not ended, resident=resident_names(config, state))


def bound_hit(
    config: EngineConfig,
    state: EngineState,
    request: EngineRequest,
    filled: Set[BlockHash],
    call: Callable[[Call], Result],
) -> None:
    """Ask how far a request's hit may go, which marks what is looked up as used (SCHED-RELEASE-4).

    With blocks of one size the answer bounds nothing: a hit goes as far as blocks are cached, and their rows are known.
    """
    if config.cache is not None:
        call(MaxCacheHit(view(request), resident_names(config, state, filled)))


def bound_load(
    config: EngineConfig,
    state: EngineState,
    request: EngineRequest,
    hit: int,
    external: int,
    filled: Set[BlockHash],
    call: Callable[[Call], Result],
) -> int:
    """How many of the ``external`` tokens found elsewhere behind a hit are loaded; asked for none, too."""
    if config.cache is None or not config.kv_connector:
        return num_loaded(config, state, request, hit, external)
    answer = call(CapExternalHit(view(request), hit, external, resident_names(config, state, filled)))
    assert isinstance(answer, Tokens)
    return answer.num_tokens
