"""Rows for resident KV: which the scheduler connector keeps from profile 0.33 on, and what it lets the engine hit.

Theory of operation. KV that stays in the cache after its request ended may be hit again, and then its rows are wanted.
So when a request ends, its computed blocks that are cached are *retained*: the worker's store keeps their rows by a
reference of the scheduler's. They stay retained until there are more of them than may be; then the oldest go that are
neither cached nor wanted by a request whose KV is being loaded. A hit is bounded by the blocks whose rows are known:
those retained and those cached, whose rows some request or the scheduler holds (ROW-RESIDENT-1).

The KV cache may have larger blocks than hashes do. A *group block* is the run of hashes of one block of the KV cache;
it is named by its last hash, which covers the others, and retained and released with all of them.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from . import kernel
from .values import BlockHash, RequestId, RequestView


class KvCache(NamedTuple):
    """What a scheduler connector is told of the KV cache when it is built."""

    hash_block_size: int
    """Tokens per block hash."""
    block_size: int
    """Tokens per block of the KV cache: a multiple of that."""
    num_blocks: int
    """Blocks of the whole KV cache."""
    kv_connector: bool = False
    """Whether KV may come from elsewhere."""

    @property
    def capacity(self) -> int:
        """Group blocks that may be retained although their KV is gone: twice as many where it may come back."""
        return self.num_blocks * (2 if self.kv_connector else 1)


GroupBlock = tuple[BlockHash, ...]
"""Its hashes, in order; the last is its name."""


class Retention(NamedTuple):
    """Everything remembered of rows for resident KV."""

    blocks: tuple[GroupBlock, ...] = ()
    """Retained, the oldest first."""
    loading: tuple[tuple[RequestId, tuple[BlockHash, ...]], ...] = ()
    """Marks, sorted by request: names of the group blocks whose KV is being loaded for it."""
    retained: tuple[BlockHash, ...] = ()
    """Hashes to retain, as the next metadata tells the worker."""
    released: tuple[BlockHash, ...] = ()
    """Hashes to release, as the next metadata tells it."""


def group_blocks(cache: KvCache, hashes: tuple[BlockHash, ...]) -> tuple[GroupBlock, ...]:
    """The group blocks of a hash list, from its front; a run that is not complete is none."""
    size = cache.block_size // cache.hash_block_size
    return tuple(hashes[end - size : end] for end in range(size, len(hashes) + 1, size))


def ended(cache: KvCache, kept: Retention, view: RequestView, resident: Set[BlockHash]) -> Retention:
    """A request finished or was preempted, or will never run: its cached blocks stay (SCHED-RETAIN, SCHED-RELEASE).

    Args:
        view: the request with the tokens that it had computed, whose blocks it still holds.
        resident: names of the blocks that are cached now.
    """
    names = {block[-1] for block in kept.blocks}
    computed = kernel.num_full_blocks(view.num_computed_tokens, cache.block_size)
    new = tuple(
        block
        for block in group_blocks(cache, view.block_hashes)[:computed]
        if block[-1] in resident and block[-1] not in names
    )
    kept = scheduled(kept, (view.request_id,))
    kept = kept._replace(blocks=kept.blocks + new, retained=kept.retained + _hashes(new))
    return _within_capacity(cache, kept, resident)


def scheduled(kept: Retention, request_ids: tuple[RequestId, ...]) -> Retention:
    """The loads of some requests are no longer waited for (SCHED-LOAD-1)."""
    return kept._replace(loading=tuple(mark for mark in kept.loading if mark[0] not in request_ids))


def told(kept: Retention, request_ids: tuple[RequestId, ...]) -> Retention:
    """A step's metadata took what was queued, and schedules some requests."""
    return scheduled(kept, request_ids)._replace(retained=(), released=())


def marked(cache: KvCache, kept: Retention, view: RequestView, num_tokens: int) -> Retention:
    """The KV of a request's first tokens is being loaded; an earlier mark is replaced (SCHED-LOAD-1)."""
    full = kernel.num_full_blocks(num_tokens, cache.block_size)
    names = tuple(block[-1] for block in group_blocks(cache, view.block_hashes)[:full])
    others = scheduled(kept, (view.request_id,)).loading
    return kept._replace(loading=tuple(sorted((*others, (view.request_id, names)))))


def reset(kept: Retention) -> Retention:
    """All retained blocks are released, the oldest first; marks and queued hashes stay (SCHED-RELEASE-5)."""
    return kept._replace(blocks=(), released=kept.released + _hashes(kept.blocks))


def max_cache_hit(
    cache: KvCache, kept: Retention, view: RequestView, resident: Set[BlockHash]
) -> tuple[Retention, int]:
    """Up to how many tokens, from the first, a request may start from KV: those whose rows are known (SCHED-HIT-1, -2).

    Being looked up makes a retained block the youngest (SCHED-RELEASE-4), so it is no question without effect.
    """
    retained = {block[-1]: block for block in kept.blocks}
    known = 0
    for block in group_blocks(cache, view.block_hashes):
        name = block[-1]
        if name in retained:
            retained[name] = retained.pop(name)
        elif name not in resident:
            break
        known += 1
    tokens = min(known * cache.block_size, view.num_tokens - 1)
    return kept._replace(blocks=tuple(retained.values())), tokens


def cap_external_hit(
    cache: KvCache,
    kept: Retention,
    view: RequestView,
    num_local: int,
    num_external: int,
    resident: Set[BlockHash],
) -> tuple[Retention, int]:
    """How many of the tokens found elsewhere behind a local hit are loaded: all or none (SCHED-HIT-3, -4)."""
    end = num_local + num_external
    if end % cache.block_size:
        return kept, 0
    kept, known = max_cache_hit(cache, kept, view, resident)
    return kept, num_external if end <= known else 0


def _within_capacity(cache: KvCache, kept: Retention, resident: Set[BlockHash]) -> Retention:
    """Release what is over the capacity, the oldest first, as far as it may go (SCHED-RELEASE-1 to -4)."""
    excess = max(len(kept.blocks) - cache.capacity, 0)
    loading = {name for _, names in kept.loading for name in names}
    free = [block for block in kept.blocks if block[-1] not in loading and block[-1] not in resident]
    gone = tuple(free[:excess])
    left = tuple(block for block in kept.blocks if block not in gone)
    return kept._replace(blocks=left, released=kept.released + _hashes(gone))


def _hashes(blocks: tuple[GroupBlock, ...]) -> tuple[BlockHash, ...]:
    return tuple(block_hash for block in blocks for block_hash in block)
