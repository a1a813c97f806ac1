"""The models that are checked: small enough to try everything, each shaped for a kind of fault.

Their verdicts, counts and witnesses are pinned in ``manifest.json``. Scenario shape finds more than size: prompts
that follow up on another, starts at the edge of a prompt and resets after an abort matter more than a fourth request.
Models named ``found-...`` are those in which a released design breaks a clause; each has a neighbour in which the
environment avoids the situation, and nothing breaks.
"""

from __future__ import annotations

from ..deviations import Deviation
from ..engine import Add, Chunk, Reset
from ..profiles import LATEST, PER_REQUEST
from .model import Menu, Model

_FAILING = LATEST + PER_REQUEST
_PLAIN = Reset()
_WEIGHTS = Reset(weights=True)
_RUNNING = Reset(running=True, weights=True)


def _two(prompt: int = 3, max_tokens: int = 3, start: int = 0) -> tuple[Add, ...]:
    return tuple(Add(name, prompt, start, max_tokens) for name in "AB")


def _sizes(*sizes: tuple[int, int]) -> tuple[Add, ...]:
    """Requests of so many prompt and output tokens."""
    return tuple(
        Add(name, prompt, 0, outputs) for name, (prompt, outputs) in zip("ABCD", sizes, strict=False)
    )


_ROUGH = Menu(_two(), stops=True, preemptions=1, aborts=1, resets=(_WEIGHTS,), drained_resets=True)
"""Two requests and one of each interruption."""
_CONVERSATION = (Add("A", 3, 0, 3, text="T"), Add("B", 5, 0, 2, text="T"))
"""The second prompt continues the first: it may hit blocks of the other's prompt and outputs."""
_CONVERSATIONS = (Add("A", 3, 0, 3, text="T"), Add("B", 5, 0, 3, text="T"))
_PROMPTS = (Add("A", 4, 0, 2, text="T"), Add("B", 4, 2, 2, text="T"), Add("C", 5, 0, 1, text="T"))
_SESSION = (Add("A", 3, 0, 2, session=True),)

_EVICTED = (Add("A", 3, 0, 1, text="T"), Add("B", 5, 0, 1), Add("C", 4, 0, 1, text="T"))
"""The first one's blocks are still resident when the last arrives; its rows made room for the second's."""

_ELSEWHERE = Menu(_two(4, 2, 4), preemptions=1, aborts=1, external=(2,), loads=2)
"""KV comes from elsewhere, of rows that nobody asks for."""
_REREAD = (Add("A", 3, 0, 1, text="T"), Add("B", 5, 0, 1, text="T"), Add("C", 5, 0, 2, text="T"))
"""The first one's rows are stored; its KV may come back from elsewhere, for the others."""
_REFILLED = Menu(_REREAD, evictions=1, external=(2, 4), loads=2, known_rows=True)
_PREFILLER = (Add("A", 4, 4, 1, text="T", cut=1), Add("B", 5, 0, 2, text="T"))
"""A disaggregated prefiller drops the last prompt token of the first; the second has the whole text."""
_WAITING = (Add("A", 3, 0, 1, session=True), Add("B", 3, 0, 2))
"""The first one holds KV while it waits for its next chunk."""
_LOADING = Menu(_two(3, 2, 3), external=(2,), loads=1, waits_for_loads=True)

# One row per line: these are read as a table.
# fmt: off
_MODELS = (
    # Two or three private requests.
    Model("default", "one interruption of each kind", Menu(_two(), preemptions=1, aborts=1, resets=(_WEIGHTS,), drained_resets=True)),
    Model("start-0", "every row is asked for", _ROUGH._replace(adds=_two(3, 4), preemptions=2)),
    Model("start-2", "rows from inside the prompt", _ROUGH._replace(adds=_two(3, 4, 2), preemptions=2)),
    Model("start-3", "rows of outputs only", _ROUGH._replace(adds=_two(3, 4, 3), preemptions=2)),
    Model("start-4", "a start beyond the prompt, which 0.32 cuts", _ROUGH._replace(adds=_two(3, 4, 4), preemptions=2)),
    Model("start-2-0.31", "the same under the older profile", _ROUGH._replace(adds=_two(3, 4, 2), preemptions=2), profile="0.31"),
    Model("chunked", "prefills in pieces", _ROUGH._replace(adds=_two(5, 3), prefill_chunks=(2,)), symmetric=True),
    Model("draft", "a draft token, accepted, rejected or cut", _ROUGH._replace(drafts=1)),
    Model("depth-3", "three steps in flight", _ROUGH._replace(preemptions=2), depth=3),
    Model("block-4", "tails that span several steps", _ROUGH._replace(adds=_two(5, 4), preemptions=2), block_size=4),
    Model("three", "a third request", _ROUGH._replace(adds=tuple(Add(name, 3, 0, 2) for name in "ABC")), symmetric=True),
    Model("evicted", "resuming after one's own KV was evicted", _ROUGH._replace(evictions=1, skips_hits=True), symmetric=True),
    # Requests that share text, KV and rows.
    Model("conversation", "a prompt that continues another request", Menu(_CONVERSATION, preemptions=1, stops=True, skips_hits=True)),
    Model("conversation-abort", "a prefix whose owner leaves", Menu(_CONVERSATION, aborts=1, stops=True, prefill_chunks=(2,))),
    Model("conversation-rough", "the same with one of each interruption", _ROUGH._replace(adds=_CONVERSATIONS, skips_hits=True)),
    Model("same-prompt", "one prefix computed twice at a time", Menu((Add("A", 4, 0, 2, text="T"), Add("B", 4, 2, 2, text="T")), preemptions=1, prefill_chunks=(2,))),
    Model("same-prompt-three", "the same with a third request", Menu(_PROMPTS, preemptions=1, aborts=1)),
    Model("recomputed", "shared KV evicted, then computed again", Menu(_CONVERSATION, evictions=1, preemptions=1)),
    Model("bounded", "a store that must make room", Menu((*_two(3, 2), Add("C", 5, 0, 2)), aborts=1, max_running=2), capacity=5),
    Model("bounded-drafts", "room for one request at a time", _ROUGH._replace(adds=_sizes((3, 2), (5, 2), (2, 3)), preemptions=0, drafts=1, max_running=1), capacity=3),
    # Resets, sessions, ids.
    Model("resets", "resets that fail, preempt and update weights", _ROUGH._replace(resets=(_PLAIN, _RUNNING)), symmetric=True),
    Model("resets-0.31", "the same with the older guard and pauses", _ROUGH._replace(resets=(_PLAIN, _RUNNING), pauses=1), profile="0.31", symmetric=True),
    Model("session", "three turns, nothing in flight at their ends", Menu((*_SESSION, Add("B", 3, 0, 3)), chunks=(Chunk("A", 2), Chunk("A", 1)), aborts=1, stops=True, preemptions=1, settled_turns=True), profile="0.31", depth=1),
    Model("session-0.32", "a turn whose last token completes no block", Menu((Add("A", 2, 0, 1, session=True), Add("B", 3, 0, 3)), chunks=(Chunk("A", 2, 0, 1),), aborts=1, preemptions=1, settled_turns=True), depth=1),
    Model("session-replaced", "a turn whose last token completed a block, and a request that has its text", Menu((Add("A", 3, 0, 1, session=True), Add("B", 5, 0, 1, text="A")), chunks=(Chunk("A", 2, 0, 1), Chunk("A", 1, 0, 1)), aborts=1, preemptions=1, settled_turns=True), depth=1),
    Model("id-again", "an id used again after its event was delivered", Menu((*_two(3, 3), Add("A", 2, 0, 3)), aborts=1, preemptions=1, stops=True, settled_ids=True)),
    # KV from elsewhere, and prompts that a prefiller cuts.
    Model("external", "hits on KV whose rows nobody asks for", _ELSEWHERE),
    Model("external-0.31", "the same under the older profile", _ELSEWHERE, profile="0.31"),
    Model("external-known", "hits on KV whose rows are stored", _REFILLED._replace(preemptions=1)),
    Model("external-failed", "loads that fail and end their request", _ELSEWHERE._replace(load_failures=True, preemptions=0)),
    Model("loads", "loads that are waited for, and may fail", _ELSEWHERE._replace(adds=_two(5, 2, 5), external=(2, 4), waits_for_loads=True, load_failures=True, resets=(_PLAIN,), drained_resets=True), symmetric=True),
    Model("cut", "a prompt cut short of its start and of a hashed token", Menu(_PREFILLER, preemptions=1, aborts=1, evictions=1)),
    Model("cut-0.31", "the same, asking for a row of the prompt", Menu((_PREFILLER[0]._replace(start=2), _PREFILLER[1]), preemptions=1, aborts=1, evictions=1), profile="0.31"),
    # Where a released design breaks.
    Model("found-session-in-flight-0.31", "a turn ends with a step in flight", Menu(_SESSION, chunks=(Chunk("A", 3),), stops=True), profile="0.31"),
    Model("found-session-in-flight", "the same", Menu((Add("A", 1, 0, 2, session=True),), chunks=(Chunk("A", 3),), stops=True), block_size=4),
    Model("found-abort-and-reset-0.31", "a reset while an aborted request's step is in flight", Menu(_two(3, 2), aborts=1, resets=(_PLAIN,)), profile="0.31"),
    Model("found-abort-and-reset", "the same", Menu(_two(3, 2), aborts=1, resets=(_PLAIN,))),
    Model("found-running-reset", "a reset of running requests with a step in flight", Menu(_two(3, 2), resets=(_RUNNING,))),
    Model("found-rows-evicted-0.31", "a hit on resident KV whose rows made room", Menu(_EVICTED, max_running=1), capacity=2, profile="0.31"),
    Model("found-rows-evicted", "the same", Menu(_EVICTED, max_running=1), capacity=2),
    Model("found-start-raised-0.31", "a chunk raises the prompt start", Menu((Add("A", 2, 0, 1, session=True),), chunks=(Chunk("A", 2, 4, 1),)), profile="0.31", depth=1),
    Model("found-start-raised", "the same", Menu((Add("A", 2, 0, 1, session=True),), chunks=(Chunk("A", 2, 4, 1),)), depth=1),
    Model("found-start-beyond-0.31", "a prompt start beyond the prompt", Menu((Add("A", 3, 6, 2),)), profile="0.31"),
    Model("found-hashes-truncated", "a turn drops the token that completed a block", Menu((Add("A", 3, 0, 1, session=True),), chunks=(Chunk("A", 1, 0, 1),)), depth=1, deviations=frozenset((Deviation.REPLACED_HASH_UNNOTICED,))),
    Model("found-id-again-0.31", "an id used again before its event was delivered", Menu((Add("A", 3, 0, 1), Add("A", 3, 0, 1))), profile="0.31"),
    Model("found-id-again", "the same", Menu((Add("A", 3, 0, 1), Add("A", 3, 0, 1)))),
    Model("found-kept-reset", "a generation that starts inside a block, were KV kept over a reset", Menu(_two(), resets=(Reset(weights=True, kept=True),))),
    Model("found-hash-kept-0.31", "a hit on a block that is named after a dropped token", Menu((Add("A", 1, 0, 1, session=True), Add("B", 3, 0, 1, text="A")), chunks=(Chunk("A", 1, 0, 1),)), profile="0.31", depth=1),
    Model("found-reset-fails-0.31", "a reset that preempts, then fails because a session holds KV", Menu(_WAITING, resets=(_RUNNING,), pauses=1), profile="0.31"),
    Model("found-reset-fails", "the same", Menu(_WAITING, resets=(_RUNNING,), drained_resets=True)),
    Model("found-reset-fails-loading-0.31", "the same because KV is being loaded", _LOADING._replace(resets=(_RUNNING,), pauses=1), profile="0.31"),
    Model("found-reset-fails-loading", "the same", _LOADING._replace(resets=(_RUNNING,), drained_resets=True)),
    Model("found-session-lost-0.31", "a turn ends while its session is preempted", Menu((Add("A", 2, 0, 1, session=True),), preemptions=1, chunks=(Chunk("A", 1),)), profile="0.31"),
    Model("found-session-lost", "the same", Menu((Add("A", 2, 0, 1, session=True),), preemptions=1, chunks=(Chunk("A", 1),))),
    Model("found-external-inside-block-0.31", "an external hit that ends inside a block", Menu((Add("A", 8),), external=(7,), loads=1), profile="0.31", block_size=4),
    Model("found-external-inside-block", "the same", Menu((Add("A", 8),), external=(7,), loads=1), block_size=4),
    Model("found-whole-prompt-loaded-0.31", "whole blocks are loaded, and the last token is computed again", Menu((Add("A", 8),), external=(8,), loads=1, waits_for_loads=True), profile="0.31", block_size=4),
    Model("found-whole-prompt-loaded", "the same", Menu((Add("A", 8),), external=(8,), loads=1, waits_for_loads=True), block_size=4),
    Model("found-external-rows-0.31", "an external hit on whole blocks, whose rows are not here", Menu((Add("A", 8),), external=(4,), loads=1), profile="0.31", block_size=4),
    Model("found-external-rows", "the same", Menu((Add("A", 8),), external=(4,), loads=1), block_size=4),
    Model("found-load-failed-back-0.31", "a load fails and its request goes back", _ELSEWHERE._replace(load_failures=True, recompute=True), profile="0.31"),
    Model("found-load-failed-back", "the same", _ELSEWHERE._replace(load_failures=True, recompute=True)),
    Model("found-load-failed-rows-0.31", "rows computed on KV that failed to load reach another request", _REFILLED._replace(load_failures=True, max_running=1), profile="0.31"),
    Model("found-load-failed-rows", "the same", _REFILLED._replace(load_failures=True, max_running=1)),
    Model("found-prompt-cut-0.31", "a prompt cut short of its start", Menu(_PREFILLER[:1]), profile="0.31"),
    Model("found-hit-given-up", "KV found elsewhere is loaded whole or not at all", Menu((Add("A", 3, 0, 1, text="T"), Add("B", 5, 0, 1, text="T")), evictions=1, external=(4,), loads=1), profile="0.33"),
    # Rows kept for resident KV.
    Model("kept-conversation", "a prompt follows up on another, both are interrupted", Menu((Add("A", 3, 0, 2, text="T"), Add("B", 5, 0, 1, text="T")), evictions=1, preemptions=1, aborts=1), profile="0.33"),
    Model("kept-over-capacity", "more blocks are kept than the cache has", Menu(_REREAD, evictions=1, aborts=1, max_running=1), profile="0.33", num_blocks=1),
    Model("kept-store-grows", "a hit on resident KV for which a small store has kept the rows", Menu(_EVICTED, max_running=1, preemptions=1), profile="0.33", capacity=2),
    Model("kept-reset", "a reset releases all, with new weights", Menu(_two(3, 2), resets=(_WEIGHTS,), drained_resets=True, preemptions=1, aborts=1), profile="0.33", num_blocks=1),
    Model("kept-loaded", "KV comes back for which rows are kept", Menu(_REREAD, evictions=1, loads=1, external=(2, 4), waits_for_loads=True, max_running=1), profile="0.33", num_blocks=1),
    Model("kept-session", "a session whose turn ends while it is preempted", Menu((Add("A", 3, 0, 2, session=True), Add("B", 3, 0, 1)), chunks=(Chunk("A", 2, 0, 1),), preemptions=1), profile="0.33", depth=1),
    Model("kept-looking-ahead", "a hash comes one token after its block", Menu((Add("A", 3, 0, 2, text="T"), Add("B", 4, 0, 2, text="T")), evictions=1, preemptions=1), profile="0.33", lookahead=1),
    Model("found-rows-without-key", "a first output that needs a block whose hash is not there yet", Menu((Add("A", 3, 0, 1, text="T"), Add("B", 4, 0, 2, text="T"))), profile="0.33", depth=1, lookahead=1, deviations=frozenset({Deviation.UNKEYED_ROWS_UNREAD})),
    # The same where an inconsistent request fails: no engine ends, no row is wrong or out of place.
    Model("request-session-in-flight", "a turn ends with a step in flight", Menu((Add("A", 3, 0, 3, session=True), Add("B", 3, 0, 2)), chunks=(Chunk("A", 3),), stops=True, aborts=1), profile=_FAILING),
    Model("request-session-shared", "a turn ends with a step in flight, and a request has its text", Menu((Add("A", 3, 0, 2, session=True), Add("B", 5, 0, 1, text="A")), chunks=(Chunk("A", 2, 0, 1),), stops=True, aborts=1), profile=_FAILING),
    Model("request-abort-and-reset", "resets with steps in flight, of aborted and of running requests", Menu(_two(3, 2), aborts=1, resets=(_PLAIN, _RUNNING)), profile=_FAILING),
    Model("request-rows-evicted", "a hit on resident KV whose rows made room, preempted and resumed", Menu(_EVICTED, max_running=1, preemptions=1), capacity=2, profile=_FAILING),
    Model("request-start-raised", "a chunk raises the prompt start", Menu((Add("A", 2, 0, 1, session=True), Add("B", 3, 0, 1)), chunks=(Chunk("A", 2, 4, 1), Chunk("A", 2, 0, 1))), depth=1, profile=_FAILING),
    Model("request-id-again", "an id used again before its event was delivered", Menu((Add("A", 3, 0, 1), Add("B", 3, 0, 2), Add("A", 3, 0, 2)), aborts=1), profile=_FAILING),
    Model("request-reset-fails", "a reset that preempts, then fails because a session holds KV", Menu(_WAITING, resets=(_RUNNING,)), profile=_FAILING),
    Model("request-external", "external hits that end anywhere, whose rows are not here", Menu(_two(5, 2), external=(2, 3), loads=2, preemptions=1), profile=_FAILING),
    Model("request-bounded", "a store that does not fit what runs", Menu(_two(5, 2), preemptions=1, aborts=1), capacity=2, profile=_FAILING),
    # Larger bounds.
    Model("nightly-three", "three requests with everything", _ROUGH._replace(adds=tuple(Add(name, 3, 0, 4) for name in "ABC"), preemptions=2), symmetric=True, nightly=True),
    Model("nightly-drafts", "chunks, drafts and three steps in flight", _ROUGH._replace(adds=_two(5, 3), aborts=0, drafts=1, prefill_chunks=(2,)), depth=3, symmetric=True, nightly=True),
    Model("nightly-conversation", "shared text with every interruption", Menu(_CONVERSATION, preemptions=1, aborts=1, evictions=1, stops=True, skips_hits=True, prefill_chunks=(2,)), nightly=True),
    Model("nightly-recomputed", "preempted twice while shared KV is evicted", Menu(_CONVERSATIONS, preemptions=2, aborts=1, evictions=1, stops=True, skips_hits=True), nightly=True),
    Model("nightly-prompts", "a shared prompt, computed in pieces by three", Menu(_PROMPTS, preemptions=1, aborts=1, stops=True, prefill_chunks=(2,)), nightly=True),
    Model("nightly-drafts-2", "two draft tokens, blocks of three", _ROUGH._replace(adds=_two(4, 5), drafts=2), block_size=3, symmetric=True, nightly=True),
    Model("nightly-conversations", "a conversation beside a private request", Menu((*_CONVERSATION, Add("C", 3, 2, 2)), preemptions=1, aborts=1, evictions=1, stops=True, skips_hits=True), nightly=True),
    Model("nightly-store-1", "a store of one object", Menu(_sizes((2, 2), (3, 1), (2, 1), (3, 1)), preemptions=1, stops=True, resets=(_WEIGHTS,), drained_resets=True, max_running=1), capacity=1, nightly=True),
    Model("nightly-store-2", "a store of two objects", Menu(_sizes((3, 2), (2, 3), (4, 1), (5, 1)), aborts=1, stops=True, prefill_chunks=(2,), resets=(_WEIGHTS,), drained_resets=True, max_running=1), capacity=2, nightly=True),
    Model("nightly-store-3", "a store of three objects", _ROUGH._replace(adds=_sizes((3, 2), (5, 2), (2, 3), (3, 2)), preemptions=0, drafts=1, max_running=1), capacity=3, nightly=True),
    Model("nightly-store-6", "a store in which two of four requests just fit", Menu(_sizes((3, 2), (5, 2), (3, 2), (2, 2)), aborts=1, stops=True, max_running=2), capacity=6, nightly=True),
    Model("nightly-store-5", "a store in which two requests just fit", Menu(_sizes((3, 3), (5, 2), (3, 2)), aborts=1, stops=True, max_running=2), capacity=5, nightly=True),
)
# fmt: on

MODELS: dict[str, Model] = {model.name: model for model in _MODELS}
