"""What the engine remembers: requests, steps in flight, resident KV, and the connector's own state.

The counters carry vLLM's names and mean what they mean there: ``num_computed_tokens`` counts steps in flight
optimistically, ``num_output_placeholders`` are the output tokens those steps will bring.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from hashlib import sha256
from typing import Literal, NamedTuple

from .. import kernel
from ..profiles import LATEST, PROFILES, Profile
from ..representation import PLAIN, Representation
from ..scheduler import INITIAL, SchedulerState
from ..values import BlockHash, RequestId, RequestView, Row
from ..worker import INITIAL as NO_WORKER
from ..worker import Limits, WorkerState
from .events import Chunk, Tamper

Status = Literal["waiting", "running", "preempted", "waiting_for_chunk", "waiting_for_kv", "lost"]
"""``lost``: a session that a released engine has dropped from its queues."""
Text = tuple[tuple[str, int], ...]
"""A token sequence as runs: ``(("A", 5), ("A'", 9))`` is five tokens of text A, then four of text A'."""


class LargestStep(NamedTuple):
    """What a step may hold at most; a worker is built for it."""

    requests: int = 8
    tokens: int = 256


class EngineConfig(NamedTuple):
    """The parameters of one simulated engine."""

    profile: Profile = PROFILES[LATEST]
    block_size: int = 2
    """Tokens per hash block."""
    depth: int = 2
    """Steps that may be in flight: 1 is synchronous scheduling, 2 asynchronous."""
    removed_guards: frozenset[str] = frozenset()
    limits: Limits | None = None
    """Run the spec's worker and store too, with these sizes; None: assume a right worker."""
    representation: Representation = PLAIN
    """What all of this looks like to a connector."""
    largest_step: LargestStep = LargestStep()


class Problem(NamedTuple):
    """What went wrong in the system under the engine; the run ends here."""

    clause: str
    message: str


class EngineRequest(NamedTuple):
    """One live request. Counts are tokens; ``tokens`` covers the prompt and every accepted output."""

    request_id: RequestId
    tokens: Text
    num_prompt_tokens: int
    num_output_tokens: int
    prompt_start: int
    max_tokens: int
    session: bool
    block_hashes: tuple[BlockHash, ...]
    status: Status = "waiting"
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    num_in_flight_tokens: int = 0
    num_stale_output_tokens: int = 0
    drop_stale_output: bool = False
    has_drafts: bool = False
    """A step of this activation samples, so draft tokens may follow it."""
    queue: tuple[Chunk | None, ...] = ()
    """Chunks that arrived while the turn ran; None closes the session."""
    activation: int = -1
    """Number of its activation in the worker; -1 while it has none."""
    num_launches: int = 0
    """Steps it was scheduled in; numbers the computations of its rows."""
    kv_rows: tuple[Row, ...] = ()
    """The rows behind the KV that it holds before an activation: of a hit, of a load, or kept over a reset."""
    num_external_tokens: int = 0
    """Tokens of that KV that are loaded from elsewhere, until the step with the load is launched."""

    @property
    def num_tokens(self) -> int:
        """Tokens it has: prompt and sampled ones."""
        return self.tokens[-1][1]

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens still to schedule, drafts not counted."""
        return self.num_tokens + self.num_output_placeholders - self.num_computed_tokens

    @property
    def drops_output(self) -> bool:
        """Whether the output of its oldest step in flight is of tokens that it no longer has."""
        return self.num_stale_output_tokens > 0 and self.drop_stale_output

    @property
    def holds_kv(self) -> bool:
        """Whether KV blocks are allocated to it."""
        return self.num_computed_tokens > 0


class Activation(NamedTuple):
    """What a right worker knows of one activation: the measure of every implementation's rows."""

    request_id: RequestId
    number: int
    """Tells the activations of one id apart while steps of an earlier one are in flight."""
    emit_cursor: int
    """Next position to emit."""
    rows: tuple[Row, ...]
    """The rows behind the request's KV: of a prefix hit those that came with the resident blocks, then its own."""


class Entry(NamedTuple):
    """One request's part of a step in flight."""

    request_id: RequestId
    token_start: int
    num_tokens: int
    num_drafts: int
    samples: bool
    activation: int
    computation: int
    num_external_tokens: int = 0
    """Tokens before ``token_start`` that are loaded with this step."""
    on_invalid_kv: bool = False
    """An earlier step showed that a load of the request failed."""
    fills_up: bool = False
    """Its drafts only fill the batch up; the model rejects them."""
    skipped: int = 0
    """Positions that a corrupted batch skips."""
    tokens: Text = ()
    """The request's up to its end, as it was launched; those that are not settled continue the last run."""

    @property
    def reported_start(self) -> int:
        """Where the model runner says that its rows begin."""
        return self.token_start + self.skipped

    @property
    def most_sampled(self) -> int:
        """The most tokens that it may sample: one, and one for each draft that the model may accept."""
        return 1 if self.fills_up else 1 + self.num_drafts


class Step(NamedTuple):
    """A launched step whose output was not consumed yet."""

    generation: int
    entries: tuple[Entry, ...]


class Block(NamedTuple):
    """A resident KV block: its hash, its name for people (``text:index``), and the rows computed with it."""

    block_hash: BlockHash
    name: str
    rows: tuple[Row, ...]


class EngineState(NamedTuple):
    """The whole simulated engine with the connector it drives."""

    connector: SchedulerState = INITIAL
    requests: tuple[EngineRequest, ...] = ()
    in_flight: tuple[Step, ...] = ()
    activations: tuple[Activation, ...] = ()
    resident: tuple[Block, ...] = ()
    num_weight_updates: int = 0
    paused: bool = False
    preempted: frozenset[RequestId] = frozenset()
    """Preempted since the last launch, so not resumed by the next."""
    tampered: tuple[Tamper, ...] = ()
    worker: WorkerState = NO_WORKER
    """The spec's worker; at rest unless the engine has limits."""
    problem: Problem | None = None

    @property
    def resident_hashes(self) -> Set[BlockHash]:
        """Names of the resident KV blocks."""
        return {block.block_hash for block in self.resident}

    def request(self, request_id: RequestId) -> EngineRequest | None:
        """The request in use under an id, if there is one."""
        for request in self.requests:
            if request.request_id == request_id:
                return request
        return None

    def with_request(self, request: EngineRequest) -> EngineState:
        """The state with a request's record replaced."""
        ids = [each.request_id for each in self.requests]
        at = ids.index(request.request_id)
        return self._replace(requests=(*self.requests[:at], request, *self.requests[at + 1 :]))


def initial() -> EngineState:
    """An engine that has just started."""
    return EngineState()


def view(request: EngineRequest, finished: bool = False) -> RequestView:
    """What the connector sees of a request."""
    return RequestView(
        request.request_id,
        request.num_tokens,
        request.num_prompt_tokens,
        request.num_output_tokens,
        request.prompt_start,
        request.block_hashes,
        finished,
        request.num_computed_tokens,
    )


@lru_cache(maxsize=1 << 16)
def block_hash(tokens: Text) -> BlockHash:
    """The 32-byte name of a token prefix that ends at a block's end."""
    return sha256(repr(tokens).encode()).digest()


def prefix(tokens: Text, end: int) -> Text:
    """The first ``end`` tokens of a sequence."""
    runs: list[tuple[str, int]] = []
    for text, run_end in tokens:
        runs.append((text, min(run_end, end)))
        if run_end >= end:
            break
    return tuple(runs)


def scheduled_tokens(tokens: Text, end: int) -> Text:
    """The first ``end`` tokens of a sequence, of which some may not be settled: they continue the last run."""
    known = prefix(tokens, end)
    return (*known[:-1], (known[-1][0], end))


def append(tokens: Text, text: str, count: int) -> Text:
    """A sequence with ``count`` more tokens of ``text``."""
    last_text, end = tokens[-1]
    kept = tokens[:-1] if last_text == text else tokens
    return (*kept, (text, end + count))


def with_new_hashes(request: EngineRequest, block_size: int) -> EngineRequest:
    """Append the hashes of blocks that the request's tokens completed; existing ones are never recomputed."""
    full = kernel.num_full_blocks(request.num_tokens, block_size)
    have = len(request.block_hashes)
    new = tuple(block_hash(prefix(request.tokens, (block + 1) * block_size)) for block in range(have, full))
    return request._replace(block_hashes=request.block_hashes + new) if new else request


def block_name(tokens: Text, block: int, block_size: int) -> str:
    """A block's name: the text its last token belongs to, and its index."""
    return f"{prefix(tokens, (block + 1) * block_size)[-1][0]}:{block}"


def longest_hit(request: EngineRequest, resident: Set[BlockHash], block_size: int) -> int:
    """Tokens of the longest resident prefix, in whole blocks, leaving at least the last token.

    Args:
        resident: hashes of the resident blocks.
    """
    blocks = 0
    limit = kernel.num_full_blocks(request.num_tokens - 1, block_size)
    while blocks < min(limit, len(request.block_hashes)) and request.block_hashes[blocks] in resident:
        blocks += 1
    return blocks * block_size
