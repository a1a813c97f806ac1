"""Calls and answers as short text for people; block hashes are shown by their place in the request's list."""

from __future__ import annotations

from itertools import groupby

from auxout_spec.calls import BuildConnectorMeta, Call, RequestFinished, Reset, TakeOutput
from auxout_spec.values import BlockHash, Hashes, Metadata, Refusal, RequestView, Result, Row, Rows

from ..observation import Odd, Raised

Views = dict[str, RequestView]


def describe_call(call: Call) -> str:
    """A call on one line."""
    if isinstance(call, BuildConnectorMeta):
        return f"build_connector_meta({_mapping(call.scheduled)})"
    if isinstance(call, TakeOutput):
        return f"take_output({call.request.request_id})"
    if isinstance(call, RequestFinished):
        return f"request_finished({call.request.request_id})"
    if isinstance(call, Reset):
        return "reset()"
    return f"list(PackedBlockHashes({call.data.hex()!r}, {call.item_size}))"


def describe_outcome(outcome: Result | Raised | Odd, views: Views) -> str:
    """What a call returned or must return, on one line."""
    if isinstance(outcome, Metadata):
        return _metadata(outcome, views)
    if isinstance(outcome, Rows):
        return _rows(outcome.rows)
    if isinstance(outcome, Hashes):
        return "[" + ", ".join(block_hash.hex() for block_hash in outcome.hashes) + "]"
    if isinstance(outcome, Refusal):
        return f"refused ({outcome.message})"
    if isinstance(outcome, Raised):
        return f"raised {outcome.type}: {outcome.message}"
    return outcome.text if isinstance(outcome, Odd) else "None"


def _metadata(metadata: Metadata, views: Views) -> str:
    parts = [f"generation {metadata.generation}", f"requests {_mapping(metadata.requests)}"]
    parts.append(f"block_hashes {_hash_entries(metadata.block_hashes, views)}")
    parts.append(f"finished_requests [{', '.join(metadata.finished_requests)}]")
    if metadata.finished_block_hashes:
        parts.append(f"finished_block_hashes {_hash_entries(metadata.finished_block_hashes, views)}")
    return ", ".join(parts)


def _mapping(pairs: tuple[tuple[str, int], ...]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in pairs) + "}"


def _hash_entries(entries: tuple[tuple[str, tuple[BlockHash, ...]], ...], views: Views) -> str:
    texts = [f"{name}: {_hash_list(name, hashes, views)}" for name, hashes in sorted(entries)]
    return "{" + ", ".join(texts) + "}"


def _hash_list(name: str, hashes: tuple[BlockHash, ...], views: Views) -> str:
    known = views[name].block_hashes if name in views else ()
    names = [str(known.index(h)) if h in known else h.hex()[:8] for h in hashes]
    return "[" + ", ".join(f"#{text}" for text in names) + "]"


def _rows(rows: tuple[Row, ...]) -> str:
    """Rows as ranges of positions."""
    if not rows:
        return "0 rows"
    texts: list[str] = []
    for (request, generation, _), group in groupby(
        enumerate(rows), key=lambda item: (item[1].request, item[1].generation, item[1].position - item[0])
    ):
        positions = [row.position for _, row in group]
        if positions[0] < 0:
            texts.append(f"{len(positions)} unknown")
            continue
        suffix = f" of generation {generation}" if generation else ""
        texts.append(f"{request}[{positions[0]}, {positions[-1] + 1}){suffix}")
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} " + " ".join(texts)
