"""Corrupted inputs: what the connector sees when something else in the system is broken."""

from __future__ import annotations

from collections.abc import Callable

from ..calls import Call
from ..scheduler import NOTHING_SENT
from ..values import Outputs, RequestOutput, RequestView, Result
from .events import Tamper
from .guards import require
from .state import EngineConfig, EngineState

HASH_KINDS = ("shrink_hashes", "replace_hash", "mix_lengths")


def tamper(
    config: EngineConfig, state: EngineState, event: Tamper, call: Callable[[Call], Result]
) -> EngineState:
    """Remember the corruption for the next event."""
    request = state.request(event.request)
    require(request is not None, "ENV-FORM-1", f"there is no request {event.request}")
    if event.kind in HASH_KINDS and request is not None:
        sent = dict(state.connector.active).get(event.request, NOTHING_SENT).num_hashes
        have = sent if event.kind == "replace_hash" else len(request.block_hashes)
        # A hash that was sent is not looked at again, and the only one has no other to differ from.
        unseen = event.kind == "mix_lengths" and (event.amount < sent or have == 1)
        require(not unseen, "ENV-TAMPER-1", f"nobody compares the length of that hash of {event.request}")
        require(
            0 <= event.amount < have, "ENV-TAMPER-1", f"{event.request} has no such block hash {event.amount}"
        )
    return state._replace(tampered=(*state.tampered, event))


def tampered_view(state: EngineState, view: RequestView) -> RequestView:
    """A request with its hash list corrupted."""
    for event in state.tampered:
        if event.request == view.request_id and event.kind in HASH_KINDS:
            hashes, at = view.block_hashes, event.amount
            if event.kind == "shrink_hashes":
                hashes = hashes[:at]
            elif event.kind == "replace_hash":
                # One changed token changes the hash of its block and of every later one.
                hashes = hashes[:at] + tuple(_other(block_hash) for block_hash in hashes[at:])
            else:
                hashes = (*hashes[:at], hashes[at] * 2, *hashes[at + 1 :])
            view = view._replace(block_hashes=hashes)
    return view


def tampered_outputs(state: EngineState, outputs: Outputs) -> Outputs | None:
    """A step's worker output, corrupted."""
    by_request = dict(outputs)
    for event in state.tampered:
        if event.kind == "no_output":
            return None
        output = by_request.get(event.request)
        if event.kind == "no_entry":
            by_request.pop(event.request, None)
        elif output is not None and event.kind == "cut_rows":
            kept = max(len(output.rows) - event.amount, 0)
            by_request[event.request] = RequestOutput(output.token_start, output.rows[:kept])
        elif output is not None and event.kind == "shift_start":
            by_request[event.request] = output._replace(token_start=output.token_start + event.amount)
    return tuple(by_request.items())


def _other(block_hash: bytes) -> bytes:
    return bytes([block_hash[0] ^ 0xFF]) + block_hash[1:]
