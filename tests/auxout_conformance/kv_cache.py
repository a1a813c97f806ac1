"""A stand-in for the KV cache manager that a scheduler connector is built with from profile 0.33 on.

It offers what the connector reads of vLLM's: sizes, when it is built, and whether a block is cached now, which each
call that looks says anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from auxout_spec.retention import KvCache
from auxout_spec.values import BlockHash


class KvCacheManager:
    """One full-attention group of one KV cache."""

    def __init__(self, cache: KvCache) -> None:
        self.block_pool = BlockPool(cache.hash_block_size)
        group = SimpleNamespace(block_size=cache.block_size, block_pool=self.block_pool)
        self.coordinator = SimpleNamespace(full_attention_group_id=0, single_type_managers=(group,))
        self.kv_cache_config = SimpleNamespace(num_blocks=cache.num_blocks)


class BlockPool:
    """Which blocks are cached."""

    def __init__(self, hash_block_size: int) -> None:
        self.hash_block_size = hash_block_size
        self.resident: frozenset[BlockHash] = frozenset()

    def get_cached_block(self, block_hash: BlockHash, group_ids: Sequence[int]) -> list[Any] | None:
        """A block for each group, or None where one has none."""
        return [object() for _ in group_ids] if block_hash in self.resident else None
