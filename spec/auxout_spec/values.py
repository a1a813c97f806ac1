"""The values that cross the scheduler connector's boundary, as immutable Python values.

Everything here is a named tuple of integers, strings, bytes and tuples, so that states can be stored,
compared and hashed by the explorer, drawn by Hypothesis and written to a file without a translation layer.
Mappings are tuples of pairs in their significant order: the order of ``requests`` is the order in which the
engine scheduled them, the order of ``finished_requests`` is the order in which they ended.

Nothing here knows numpy, an engine or a target: adapters translate (``auxout_conformance.objects``).
"""

from __future__ import annotations

from typing import NamedTuple

RequestId = str
BlockHash = bytes
"""Names the whole token prefix up to the end of one hash block. All hashes of a run have one byte length."""


class Row(NamedTuple):
    """The value of one row: which computation of which position it came from.

    A real row is an array ``(num_layers, top_k)`` of expert ids. The spec gives every computation of a
    position a value of its own instead, so that right shape with wrong content is visible.
    """

    request: RequestId
    position: int
    generation: int
    computation: int
    """Counts the request's steps, so recomputing a position yields another value."""
    text: str = ""
    """Names the token prefix up to the position: rows of one text and position are of the same tokens."""


class RequestView(NamedTuple):
    """What a scheduler connector may read of an engine request: the attributes the 0.31.0 API page touches.

    ``prompt_start`` is ``sampling_params.routed_experts_prompt_start``; counts are in tokens.
    """

    request_id: RequestId
    num_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int
    prompt_start: int
    block_hashes: tuple[BlockHash, ...]
    finished: bool = False
    num_computed_tokens: int = 0
    """Tokens whose KV is computed, those of steps in flight included; read from profile 0.33 on."""


class Metadata(NamedTuple):
    """One step's message from the scheduler connector to the worker connector.

    Two fields are ours, and empty in most steps. ``finished_block_hashes``: the last hashes of ids that ended *and*
    run in this very step (SCHED-RESTART-3); there the entry in ``block_hashes`` belongs to the activation that
    starts. ``replaced_block_hashes``: every hash of a request of which hashes that were sent no longer stand
    (SCHED-HASH-12); a worker that knows the field takes these, and leaves the entry in ``block_hashes`` aside.
    """

    generation: int
    requests: tuple[tuple[RequestId, int], ...]
    """Scheduled request -> emit start (a token position)."""
    block_hashes: tuple[tuple[RequestId, tuple[BlockHash, ...]], ...]
    """Newly sent hashes; a request without any has no entry. The order of entries means nothing."""
    finished_requests: tuple[RequestId, ...]
    finished_block_hashes: tuple[tuple[RequestId, tuple[BlockHash, ...]], ...] = ()
    replaced_block_hashes: tuple[tuple[RequestId, tuple[BlockHash, ...]], ...] = ()


class RequestOutput(NamedTuple):
    """What the worker returned for one request of one step: rows for positions from ``token_start``."""

    token_start: int
    rows: tuple[Row, ...]
    failed: bool = False
    """The request has failed, which is told instead of rows (FAIL-TELL-1)."""


Outputs = tuple[tuple[RequestId, RequestOutput], ...]
"""A step's worker output, request -> rows."""


class Refusal(NamedTuple):
    """A call that the protocol forbids: the implementation raises and its state stays as it was."""

    clause: str
    message: str


class Rows(NamedTuple):
    """Rows handed to the engine for one request; may be empty, which is not the same as no output."""

    rows: tuple[Row, ...]


class StepOutput(NamedTuple):
    """What a worker returned for one step."""

    outputs: Outputs


class Hashes(NamedTuple):
    """The hashes that a packed wire value iterates to."""

    hashes: tuple[BlockHash, ...]


Result = Metadata | Rows | StepOutput | Hashes | Refusal | None
"""What a connector call gives back, a refusal included."""
