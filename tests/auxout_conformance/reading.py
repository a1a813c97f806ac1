"""What a target returned, in the spec's values, and what another process reads of it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from auxout_spec.reading import MAX_INTEGER
from auxout_spec.values import Metadata

from .elsewhere import Elsewhere
from .observation import Odd

HELD = ("retained_block_hashes", "released_block_hashes")
"""Fields of metadata that come with profile 0.33."""


def read_metadata(returned: Any) -> Metadata | Odd:
    """A metadata object in the spec's values, or what is wrong with its shape.

    Entries of ``block_hashes`` that iterate to nothing are kept: they are not the same as no entry.
    """
    try:
        generation, requests = returned.generation, dict(returned.requests.items())
        finished = tuple(returned.finished_requests)
        packed = dict(returned.block_hashes.items())
        packed_apart = dict(getattr(returned, "finished_block_hashes", {}).items())
        packed_again = dict(getattr(returned, "replaced_block_hashes", {}).items())
        held = [tuple(getattr(returned, name, None) or ()) for name in HELD]
    except (AttributeError, TypeError, ValueError) as error:
        return Odd(f"the metadata has not the fields of AuxOutputConnectorMetadata: {error}")
    ints = [generation, *requests.values()]
    if not all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in ints):
        return Odd("generation and emit starts must be whole numbers")
    if any(abs(int(value)) > MAX_INTEGER for value in ints):
        return Odd("generation or an emit start is larger than any counter")
    if not all(
        isinstance(name, str) for name in (*requests, *packed, *packed_apart, *packed_again, *finished)
    ):
        return Odd("requests are named by something that is not text")
    hashes, apart, again = map(_read_hashes, (packed, packed_apart, packed_again))
    listed = [*(items for _, items in (*hashes, *apart, *again)), *held]
    if not all(isinstance(item, bytes) for items in listed for item in items):
        return Odd("block hashes iterate to something that is not bytes")
    starts = tuple((request_id, int(start)) for request_id, start in requests.items())
    return Metadata(int(generation), starts, hashes, finished, apart, again, *held)


def _read_hashes(entries: dict[str, Any]) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    return tuple((request_id, tuple(packed)) for request_id, packed in entries.items())


def contents(opened: Any) -> Any:
    """What another process tells of what it unpickled, in values that need no code of the target."""
    if not isinstance(opened, Mapping):
        return read_metadata(opened)
    return {name: _plain(each) for name, each in opened.items()}


def _plain(output: Any) -> SimpleNamespace:
    """A request's output without the target's class."""
    return SimpleNamespace(**{name: getattr(output, name) for name in _FIELDS if hasattr(output, name)})


_FIELDS = ("token_start", "rows", "error")


def reopened(data: bytes, elsewhere: Elsewhere | None) -> Any:
    """What a pickle holds where it is opened, which is in another process if there is one.

    Raises:
        Exception: it cannot be unpickled.
    """
    return pickle.loads(data) if elsewhere is None else elsewhere.open(data)
