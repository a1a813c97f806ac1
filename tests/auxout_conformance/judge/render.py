"""Calls and answers as short text for people; block hashes are shown by their place in the request's list."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from auxout_spec.calls import (
    BeginStep,
    BuildConnectorMeta,
    Call,
    CapExternalHit,
    HitCall,
    MaxCacheHit,
    PrepareOutput,
    ProcessOutput,
    RequestFinished,
    Reset,
    TakeOutput,
    Unpack,
    WorkerCall,
)
from auxout_spec.values import (
    BlockHash,
    Hashes,
    Metadata,
    Refusal,
    RequestView,
    Result,
    Row,
    Rows,
    StepOutput,
    Tokens,
)

from ..observation import Odd, Raised, Usage

Views = dict[str, RequestView]
MOST_IN_A_ROW = 6
"""Hashes of consecutive places that are told one by one."""


def describe_call(call: Call) -> str:
    """A call on one line."""
    if isinstance(call, BuildConnectorMeta):
        return f"build_connector_meta({_mapping(call.scheduled)})"
    if isinstance(call, TakeOutput):
        return f"take_output({call.request.request_id})"
    if isinstance(call, RequestFinished):
        return f"request_finished({call.request.request_id})"
    if isinstance(call, HitCall):
        return _describe_hit_call(call)
    if isinstance(call, Reset):
        return "reset()"
    if isinstance(call, Unpack):
        return f"list(PackedBlockHashes({call.data.hex()!r}, {call.item_size}))"
    return _describe_worker_call(call)


def _describe_hit_call(call: HitCall) -> str:
    name = call.request.request_id
    if isinstance(call, MaxCacheHit):
        return f"max_cache_hit({name})"
    if isinstance(call, CapExternalHit):
        return f"cap_external_hit({name}, {call.num_local}, {call.num_external})"
    return f"request_loading({name}, {call.num_tokens})"


def _describe_worker_call(call: WorkerCall) -> str:
    if isinstance(call, BeginStep):
        return f"begin_step({_metadata(call.metadata, {})})"
    if isinstance(call, PrepareOutput):
        return f"prepare_output({_spans((name, start, count) for name, start, count in call.batch)})"
    if isinstance(call, ProcessOutput):
        spans = _spans((part.request_id, part.token_start, len(part.rows)) for part in call.parts)
        sampled = ", ".join(
            f"{part.request_id} sampled {part.num_sampled}"
            + (f", rejected {part.num_rejected}" if part.num_rejected else "")
            for part in call.parts
        )
        return f"process_output({spans}; {sampled})"
    return "close()"


def _spans(parts: Iterable[tuple[str, int, int]]) -> str:
    return ", ".join(f"{name}[{start}, {start + count})" for name, start, count in parts)


def describe_usage(usage: Usage) -> str:
    """What a worker holds, on one line."""
    return ", ".join(f"{name} {value}" for name, value in usage._asdict().items())


def describe_outcome(outcome: Result | Raised | Odd, views: Views) -> str:
    """What a call returned or must return, on one line."""
    if isinstance(outcome, Metadata):
        return _metadata(outcome, views)
    if isinstance(outcome, Rows):
        return _rows(outcome.rows)
    if isinstance(outcome, StepOutput):
        parts = (f"{name} from {out.token_start}: {_rows(out.rows)}" for name, out in outcome.outputs)
        return "; ".join(parts) or "no output"
    if isinstance(outcome, Hashes):
        return "[" + ", ".join(block_hash.hex() for block_hash in outcome.hashes) + "]"
    if isinstance(outcome, Tokens):
        return f"{outcome.num_tokens} tokens"
    if isinstance(outcome, Refusal):
        return f"refused ({outcome.message})"
    if isinstance(outcome, Raised):
        return f"raised {outcome.type}: {outcome.message}"
    return outcome.text if isinstance(outcome, Odd) else "None"


def _metadata(metadata: Metadata, views: Views) -> str:
    parts = [f"generation {metadata.generation}", f"requests {_mapping(metadata.requests)}"]
    parts.append(f"block_hashes {_hash_entries(metadata.block_hashes, views)}")
    parts.append(f"finished_requests [{', '.join(metadata.finished_requests)}]")
    rare = ("finished_block_hashes", "replaced_block_hashes")
    parts += [
        f"{field} {_hash_entries(entries, views)}" for field in rare if (entries := getattr(metadata, field))
    ]
    parts += [
        f"{field} [{', '.join(_named(block_hash, views) for block_hash in hashes)}]"
        for field in ("retained_block_hashes", "released_block_hashes")
        if (hashes := getattr(metadata, field))
    ]
    return ", ".join(parts)


def _mapping(pairs: tuple[tuple[str, int], ...]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in pairs) + "}"


def _hash_entries(entries: tuple[tuple[str, tuple[BlockHash, ...]], ...], views: Views) -> str:
    texts = [f"{name}: {_hash_list(name, hashes, views)}" for name, hashes in sorted(entries)]
    return "{" + ", ".join(texts) + "}"


def _hash_list(name: str, hashes: tuple[BlockHash, ...], views: Views) -> str:
    places = {h: place for place, h in enumerate(views[name].block_hashes)} if name in views else {}
    texts: list[str] = []
    for _, group in groupby(
        enumerate(hashes), key=lambda item: (item[1] in places, places.get(item[1], 0) - item[0])
    ):
        found = [h for _, h in group]
        if len(found) > MOST_IN_A_ROW and found[0] in places:
            texts.append(f"#{places[found[0]]}..#{places[found[-1]]}")
        else:
            texts += [f"#{places[h] if h in places else h.hex()[:8]}" for h in found]
    return f"[{', '.join(texts)}]"


def _named(block_hash: BlockHash, views: Views) -> str:
    """A hash of no request in particular: a request that has it, and its place there."""
    for name, view in sorted(views.items()):
        if block_hash in view.block_hashes:
            return f"{name}#{view.block_hashes.index(block_hash)}"
    return f"#{block_hash.hex()[:8]}"


class RowRange(NamedTuple):
    """Rows of consecutive positions of one request and generation; without a name those computed elsewhere."""

    request: str
    start: int
    end: int
    generation: int = 0

    def __str__(self) -> str:
        if self.start < 0:
            return f"{self.end - self.start} unknown"
        suffix = f" of generation {self.generation}" if self.generation else ""
        return f"{self.request or 'elsewhere '}[{self.start}, {self.end}){suffix}"


def row_ranges(rows: tuple[Row, ...]) -> list[RowRange]:
    """Rows as ranges, in their order; rows that nobody made have positions below 0."""
    groups = groupby(
        enumerate(rows),
        key=lambda item: (item[1].request, item[1].generation, max(item[1].position, -1) - item[0]),
    )
    ranges: list[RowRange] = []
    for (request, generation, _), group in groups:
        found = [row for _, row in group]
        first = found[0].position
        ranges.append(RowRange(request, first, first + len(found), generation))
    return ranges


def _rows(rows: tuple[Row, ...]) -> str:
    if not rows:
        return "0 rows"
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} " + " ".join(map(str, row_ranges(rows)))
