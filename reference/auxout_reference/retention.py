"""Rows for resident KV, from profile 0.33 on: what the scheduler keeps of them, and what it lets the engine hit.

When a request ends, those of its computed blocks whose KV stays in the cache are *retained*: the worker's store keeps
their rows until there are more of them than the cache has blocks, and then until they are neither cached nor being
loaded for a request. A hit goes as far as blocks are retained or cached, because their rows are known.

A block of the KV cache may hold several hash blocks; it is named by the hash of its last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .connector import AuxOutputConnectorMetadata
    from .engine import ComputedRequest, Request
    from .store import Key

Block = tuple[bytes, ...]
"""The hashes of one block of the KV cache, in order."""


class Told(NamedTuple):
    """What the next metadata tells the worker."""

    retained: list[bytes]
    released: list[bytes]


class Retention:
    """The blocks whose rows the scheduler keeps."""

    def __init__(self, kv_cache_manager: Any, kv_connector: Any = None) -> None:
        """Nothing is retained.

        Args:
            kv_cache_manager: vLLM's; its sizes are read now, whether a block is cached in each call.
            kv_connector: true if KV may come from elsewhere.
        """
        coordinator, pool = kv_cache_manager.coordinator, kv_cache_manager.block_pool
        self._group = getattr(coordinator, "full_attention_group_id", None) or 0
        self.hash_block_size: int = pool.hash_block_size
        """Tokens per block hash."""
        self._manager = coordinator.single_type_managers[self._group]
        self._block_size: int = self._manager.block_size
        num_blocks: int = kv_cache_manager.kv_cache_config.num_blocks
        self._capacity = num_blocks * (2 if kv_connector else 1)
        # By name, the oldest first.
        self._blocks: dict[bytes, Block] = {}
        # Request -> names of the blocks that are being loaded for it.
        self._loading: dict[str, set[bytes]] = {}
        self._told = Told([], [])

    def ended(self, request: ComputedRequest) -> None:
        """Retain a request's computed blocks that are cached; release what is too much (SCHED-RETAIN, -RELEASE).

        Called before the request's KV is given back, also for one that was never scheduled.
        """
        self._loading.pop(request.request_id, None)
        for block in self._of(request.block_hashes)[: request.num_computed_tokens // self._block_size]:
            if block[-1] not in self._blocks and self._is_cached(block):
                self._blocks[block[-1]] = block
                self._told.retained.extend(block)
        excess = max(len(self._blocks) - self._capacity, 0)
        loading = {name for names in self._loading.values() for name in names}
        free = [b for b in self._blocks.values() if b[-1] not in loading and not self._is_cached(b)]
        for block in free[:excess]:
            del self._blocks[block[-1]]
            self._told.released.extend(block)

    def scheduled(self, request_ids: Iterable[str]) -> None:
        """Loads of these requests are no longer waited for (SCHED-LOAD-1)."""
        for request_id in request_ids:
            self._loading.pop(request_id, None)

    def is_loading(self, request: Request, num_tokens: int) -> None:
        """The KV of a request's first tokens is being loaded (SCHED-LOAD-1)."""
        blocks = self._of(request.block_hashes)[: num_tokens // self._block_size]
        self._loading[request.request_id] = {block[-1] for block in blocks}

    def max_cache_hit(self, request: Request) -> int:
        """Tokens of the longest prefix whose rows are known, and at most all but the last (SCHED-HIT-1, -2).

        A retained block that is looked up becomes the youngest (SCHED-RELEASE-4).
        """
        known = 0
        for block in self._of(request.block_hashes):
            if block[-1] in self._blocks:
                self._blocks[block[-1]] = self._blocks.pop(block[-1])
            elif not self._is_cached(block):
                break
            known += 1
        return min(known * self._block_size, request.num_tokens - 1)

    def cap_external_hit(self, request: Request, num_local: int, num_external: int) -> int:
        """All of the tokens found elsewhere or none (SCHED-HIT-3, -4)."""
        end = num_local + num_external
        if end % self._block_size == 0 and end <= self.max_cache_hit(request):
            return num_external
        return 0

    def reset(self) -> None:
        """Release everything, the oldest first; marks stay (SCHED-RELEASE-5)."""
        for block in self._blocks.values():
            self._told.released.extend(block)
        self._blocks = {}

    def take(self, scheduled: Iterable[str]) -> Told:
        """What was retained and released since it was asked last; loads of scheduled requests are done."""
        self.scheduled(scheduled)
        told, self._told = self._told, Told([], [])
        return told

    def _of(self, hashes: Sequence[bytes]) -> list[Block]:
        """The blocks of a hash list; hashes behind the last whole one belong to none."""
        size = self._block_size // self.hash_block_size
        return [tuple(hashes[end - size : end]) for end in range(size, len(hashes) + 1, size)]

    def _is_cached(self, block: Block) -> bool:
        return bool(self._manager.block_pool.get_cached_block(block[-1], [self._group]))


def held_by_scheduler(
    generation: int, metadata: AuxOutputConnectorMetadata
) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
    """Keys that the scheduler starts and stops holding, from profile 0.33 on (WORK-RETAIN-1).

    Args:
        generation: the worker's before the message, which may begin another one.
    """
    fields = (getattr(metadata, f"{name}_block_hashes", None) for name in ("retained", "released"))
    retain, release = (tuple((generation, block_hash) for block_hash in hashes or ()) for hashes in fields)
    return retain, release
