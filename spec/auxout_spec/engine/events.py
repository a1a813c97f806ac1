"""Engine events: the words in which scenarios, counterexamples and regressions are written.

One event is one thing an engine decides or is told. Numbers are tokens unless said otherwise. ``scenario.py``
gives each its JSON form, ``step.py`` its meaning.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..values import RequestId

Counts = tuple[tuple[RequestId, int], ...]
"""Request -> a number, in order."""


class Add(NamedTuple):
    """A new request arrives."""

    request: RequestId
    """Its id."""
    prompt: int
    """Tokens of the prompt."""
    start: int = 0
    """``routed_experts_prompt_start``: the first position whose row is wanted."""
    max_tokens: int = 2
    """Output tokens after which it ends."""
    text: str = ""
    """Names the token sequence; requests with one text share every prefix. Empty: the request's own."""
    session: bool = False
    """A streaming session: after a stop it waits for its next chunk."""
    cut: int = 0
    """Tokens that the prefiller of a disaggregated setup drops at the prompt's end; what is hashed stays hashed."""


class Launch(NamedTuple):
    """Schedule a step: request -> tokens, of these ``drafts``; waiting requests may skip ``hits``, or load more."""

    tokens: Counts = ()
    """Requests of the step, in order, with the tokens scheduled for each; none: an empty step."""
    drafts: Counts = ()
    """Draft tokens among them."""
    hits: Counts = ()
    """Prefix-hit tokens of requests that are admitted; by default the longest resident prefix."""
    external: Counts = ()
    """Tokens behind the hit whose KV a KV connector loads from elsewhere before the forward pass."""


class Land(NamedTuple):
    """Consume the output of the oldest step in flight."""

    sampled: Counts = ()
    """Tokens the model returned; by default 1 for each request that sampled."""
    stop: Counts = ()
    """A stop rule ends the request after so many of them; the rest is cut."""
    failed: Counts = ()
    """The external load of the step failed: only so many tokens of the request have valid KV."""
    recompute: bool = False
    """Requests whose load failed go back to what is valid; otherwise they end with an error."""


class Load(NamedTuple):
    """A KV connector starts to load the KV of a waiting request's next tokens; it is scheduled when that is done."""

    request: RequestId
    """The request."""
    tokens: int
    """Tokens behind its prefix hit."""


class Loaded(NamedTuple):
    """The load is done."""

    request: RequestId
    """The request."""
    valid: int = -1
    """It failed, and only so many tokens of the request have valid KV; -1: all do."""


class Abort(NamedTuple):
    """A client cancels a request, at any moment."""

    request: RequestId
    """The request."""


class Preempt(NamedTuple):
    """A running request loses its KV and goes back to the queue."""

    request: RequestId
    """The request."""


class Evict(NamedTuple):
    """Unreferenced KV blocks are evicted: the one named ``text:index``, or all with ``*``."""

    block: str = "*"
    """Name of a block, or ``*``."""


class Pause(NamedTuple):
    """The engine is told to stop (or again to start) scheduling, keeping its requests."""

    on: bool = True
    """False: schedule again."""


class Reset(NamedTuple):
    """Reset the prefix cache. It fails, without an effect on the connector, while KV is still held."""

    running: bool = False
    """Preempt the running requests first."""
    weights: bool = False
    """The reset accompanies a weight update."""
    kept: bool = False
    """Requests keep their KV and go on: only the cache's names are forgotten."""


class Chunk(NamedTuple):
    """The next input of a streaming session; queued while the turn still runs."""

    request: RequestId
    """The session."""
    tokens: int
    """Tokens of the input."""
    start: int = 0
    """The prompt start of the turn that begins."""
    max_tokens: int = 2
    """Output tokens after which that turn ends."""


class End(NamedTuple):
    """The client closes a streaming session."""

    request: RequestId
    """The session."""


class Close(NamedTuple):
    """The engine shuts down, whatever is in flight; another one starts in its place."""

    restart: bool = True
    """Always: another engine starts."""


TamperKind = Literal[
    "no_output", "no_entry", "cut_rows", "shift_start", "shrink_hashes", "mix_lengths",
    "old_generation", "new_generation", "run_and_end", "late_start", "unknown_end", "unknown_hashes",
    "unknown_batch", "skip_ahead", "reject_more", "other_step",
]  # fmt: skip


class Tamper(NamedTuple):
    """Corrupt what a connector sees at the next event only; the engine itself stays sound.

    ``no_output``: the step returns no output at all. ``no_entry``: none for this request. ``cut_rows``:
    ``amount`` rows are missing at the end. ``shift_start``: the output claims to start ``amount`` positions
    later. ``shrink_hashes``: only ``amount`` hashes are left. ``mix_lengths``: hash number ``amount`` is twice as
    long as the others.

    The worker is shown a corrupted call, which it must refuse, and then the sound one. Its metadata:
    ``old_generation``, ``new_generation``: of ``amount`` generations before or later. ``run_and_end``: the
    request also ends. ``late_start``: its emit start is ``amount`` positions later. ``unknown_end``,
    ``unknown_hashes``: somebody unknown ends, or gets hashes. Its batch: ``unknown_batch``: somebody unknown is in
    it. The report of a step: ``reject_more``: ``amount`` more drafts rejected than the request has rows.
    ``other_step``: that of a later step.

    One corruption only shows when the step is processed, which ends the engine. ``skip_ahead``: in the batch the
    request's rows begin ``amount`` positions later, though it has nothing in flight and all before was accepted.
    """

    kind: TamperKind
    """How it is corrupted."""
    request: RequestId
    """Whose part of it."""
    amount: int = 0
    """What it means depends on the kind."""


class Unpack(NamedTuple):
    """Read a packed wire value, well formed or not."""

    data: bytes
    """The packed hashes; hexadecimal in JSON."""
    item_size: int
    """Bytes of a hash."""


Event = (
    Add
    | Launch
    | Land
    | Load
    | Loaded
    | Abort
    | Preempt
    | Evict
    | Pause
    | Reset
    | Chunk
    | End
    | Close
    | Tamper
    | Unpack
)
