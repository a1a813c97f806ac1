"""The findings of docs/findings.md on vLLM's own scheduler: what each becomes with its own connectors and with ours.

Each is brought about as it is written there, on blocks of four tokens, and led to the end: all requests over and
nothing in flight, or the engine ended. What it then is must be in the table of docs/import.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from auxout import ProtocolViolation
from auxout_spec.engine import Add, Chunk

from . import pairs, released
from .engine import Engine
from .model import tokens_of
from .released import Setting

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.filterwarnings("default")]

SYNC, ASYNC = Setting(), Setting(asynchronous=True)
BOTH = ("0.31", "0.32")
NAMES = ("original", "impl", "impl per request")
PAGE = Path(__file__).parents[2] / "docs" / "import.md"
ENDS = (
    "capture moved backwards",
    "generation changed with output in flight",
    "object does not exist",
    "cannot retain the requested batch",
    "publication failed",
    "emit cursor moved ahead",
    "output is missing",
    "cannot run and finish in one step",
)
"""What the released connectors say when they end an engine."""


class Finding(NamedTuple):
    """A way to bring one about."""

    title: str
    setting: Setting
    profiles: tuple[str, ...]
    """Of the releases that have it."""
    seed: int
    script: Callable[[Engine], None]


FINDINGS: list[Finding] = []


def finding(
    title: str, setting: Setting = SYNC, profiles: tuple[str, ...] = BOTH, seed: int = 0
) -> Callable[[Callable[[Engine], None]], None]:
    """Add one to those that are run."""
    return lambda script: FINDINGS.append(Finding(title, setting, profiles, seed, script))


def step(engine: Engine) -> int:
    """One synchronous step; its tokens."""
    num_tokens = engine.launch()
    if engine.in_flight:
        engine.land()
    return num_tokens


def drain(engine: Engine) -> list[str]:
    """Steps until all that can end has ended; then clients give up what is left. Those that wait for nothing."""
    idle = 0
    while (engine.scheduler.requests or engine.in_flight) and idle < 5:
        num_tokens = engine.launch()
        idle = 0 if num_tokens or engine.in_flight else idle + 1
        while engine.in_flight:
            engine.land()
    left = {name: request.status.name for name, request in engine.scheduler.requests.items()}
    for name in left:
        engine.abort(name)
    engine.launch()
    return [name for name, status in left.items() if status != "WAITING_FOR_STREAMING_REQ"]


def outcome(each: Finding, name: str) -> str:
    """What becomes of it with a pair: how the engine ends, or what its requests were given."""
    with pairs.bound(pairs.PAIRS[name]):
        engine = Engine(each.setting, each.seed, record=False)
    told: list[str] = []
    try:
        each.script(engine)
        told = [f"{name} never runs again" for name in drain(engine)]
    except (AssertionError, RuntimeError) as error:
        told = [how(error)]
    with suppress(RuntimeError):
        engine.close()
    delivered = engine.oracle.delivered
    if wrong := sum(part.num_wrong for part in delivered):
        told.append(f"{wrong} wrong row{'s' * (wrong > 1)}, no error")
    if any(part.misplaced for part in delivered):
        told.append("rows are missing, no error")
    if any(part.again for part in delivered):
        told.append("earlier rows come again")
    told += [f"{life.request_id} fails" for life in engine.oracle.short]
    return "; ".join(told) or "every row"


def how(error: BaseException) -> str:
    """An engine's end in a few words; an error that is none of the connectors' is raised again."""
    if isinstance(error, ProtocolViolation):
        return f"engine ends ({error.clause})"
    for words in ENDS:
        if words in str(error):
            return f"engine ends ({words})"
    raise error


@finding("A session turns over under asynchronous scheduling", ASYNC)
def session_turns_over(engine: Engine) -> None:
    engine.add(Add("A", 5, max_tokens=9, session=True), text=1, stop=1)
    engine.launch()
    engine.launch()
    engine.land()
    engine.chunk(Chunk("A", 3), text=2)
    engine.land()


@finding("The same, and a request shares text with the session", ASYNC)
def session_turns_over_and_shares(engine: Engine) -> None:
    engine.add(Add("A", 3, max_tokens=9, session=True), text=1, stop=1)
    engine.launch()
    engine.launch()
    engine.land()
    # The chunk's first token takes the place of the one whose step is in flight, at the end of a block.
    engine.chunk(Chunk("A", 2, max_tokens=3), text=2)
    engine.land()
    step(engine)
    while engine.in_flight:
        engine.land()
    engine.submit("B", [*tokens_of(1, 0, 3), *tokens_of(2, 0, 1), *tokens_of(3, 0, 1)], max_tokens=1)


@finding("Abort, then a reset with the step in flight", ASYNC)
def abort_and_reset(engine: Engine) -> None:
    engine.add(Add("A", 4), text=1)
    engine.launch()
    engine.abort("A")
    assert engine.reset()
    engine.add(Add("B", 3), text=2)


@finding("A running reset with a step in flight", ASYNC, ("0.32",))
def running_reset(engine: Engine) -> None:
    engine.add(Add("A", 4, max_tokens=9), text=1)
    engine.launch()
    assert engine.reset(running=True)


@finding("KV is resident, its rows are evicted", SYNC._replace(max_objects=4))
def rows_evicted(engine: Engine) -> None:
    engine.add(Add("A", 9, max_tokens=1), text=1)
    step(engine)
    engine.add(Add("B", 13, max_tokens=1), text=2)
    step(engine)
    engine.add(Add("C", 9, max_tokens=1), text=1)
    assert engine.launch() == 1


@finding("A store with less room than the requests need", SYNC._replace(max_objects=2))
def store_too_small(engine: Engine) -> None:
    engine.add(Add("A", 13, max_tokens=3), text=1)


@finding("A chunk raises the prompt start")
def start_raised(engine: Engine) -> None:
    engine.add(Add("A", 4, max_tokens=2, session=True), text=1)
    step(engine)
    step(engine)
    engine.chunk(Chunk("A", 8, start=8), text=2)


@finding("A prompt start beyond the prompt", SYNC, ("0.31",))
def start_beyond(engine: Engine) -> None:
    engine.add(Add("A", 6, start=10), text=1)


def _block_under_another_name(engine: Engine) -> None:
    """A session's dropped token had completed block 1; another token takes its place."""
    engine.add(Add("A", 7, max_tokens=1, session=True), text=1)
    step(engine)
    engine.launch()
    engine.chunk(Chunk("A", 1, max_tokens=1), text=2)
    step(engine)


@finding("A chunk replaces a block whose hash was sent", SYNC, ("0.32",))
def block_replaced(engine: Engine) -> None:
    _block_under_another_name(engine)
    # B hits block 0 and computes block 1, but the released worker has other rows under that name already.
    engine.add(Add("B", 9, max_tokens=1), text=1)
    assert engine.launch() == 5


@finding("The same, and a request hits the block that took its place", SYNC, ("0.32",))
def block_replaced_and_hit(engine: Engine) -> None:
    _block_under_another_name(engine)
    # The KV cache has block 1 under its new name, the released worker under the old one.
    engine.submit("B", [*tokens_of(1, 0, 7), *tokens_of(2, 0, 1), *tokens_of(3, 0, 1)], max_tokens=1)
    assert engine.launch() == 1


@finding("Another request hits a session's block of dropped tokens", SYNC, ("0.31",))
def dropped_tokens_hit(engine: Engine) -> None:
    engine.add(Add("A", 3, max_tokens=1, session=True), text=1)
    step(engine)
    engine.chunk(Chunk("A", 1, max_tokens=1), text=2)
    step(engine)
    engine.add(Add("B", 5, max_tokens=1), text=1)
    assert engine.launch() == 1, "B hits KV that was computed from another token"


@finding("A request preempted by a reset that fails resumes at once")
def reset_fails(engine: Engine) -> None:
    engine.add(Add("S", 3, max_tokens=1, session=True), text=1)
    step(engine)
    engine.add(Add("A", 4, max_tokens=9), text=2)
    step(engine)
    engine.pause(True)
    with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
        engine.reset(running=True)
    engine.pause(False)


@finding("An id comes back before its end was delivered")
def id_again(engine: Engine) -> None:
    engine.add(Add("A", 3, max_tokens=9), text=1)
    step(engine)
    engine.abort("A")
    engine.add(Add("A", 3), text=2)


def _session_preempted_in_flight(engine: Engine) -> None:
    """Three blocks: A needs a third for its second output, and takes it from S, whose last step is in flight."""
    engine.add(Add("A", 7, max_tokens=9), text=1)
    engine.add(Add("S", 3, max_tokens=2, session=True), text=2)
    engine.launch()
    engine.launch()
    engine.land()
    engine.launch()
    assert engine.counts["preemptions"] == 1


def _lose_session(engine: Engine, queued: bool) -> None:
    _session_preempted_in_flight(engine)
    session = engine.scheduler.requests["S"]
    if queued:
        engine.chunk(Chunk("S", 4), text=3)
    engine.land()
    if not queued:
        assert session.num_computed_tokens == 0
        engine.chunk(Chunk("S", 4), text=3)
    # Three tokens of the prompt and one of two outputs were to be kept before the chunk's four.
    assert session.num_tokens == 4
    assert session.num_prompt_tokens == 7
    assert session.status.name == "WAITING"
    assert session not in engine.scheduler.waiting
    assert session not in engine.scheduler.kv_holding_waiting
    engine.abort("A")
    while engine.in_flight:
        engine.land()
    assert [engine.launch() for _ in range(3)] == [0, 0, 0], "the session is never scheduled again"


@finding("A turn ends while its session is preempted", ASYNC._replace(num_blocks=4))
def session_lost(engine: Engine) -> None:
    _lose_session(engine, queued=False)


@finding("The same, and the next chunk was queued before", ASYNC._replace(num_blocks=4))
def session_lost_queued(engine: Engine) -> None:
    _lose_session(engine, queued=True)


@finding(
    "A session is preempted in a later turn",
    SYNC._replace(num_blocks=10, max_num_seqs=4, max_num_batched_tokens=10),
)
def session_again(engine: Engine) -> None:
    engine.add(Add("A", 8, max_tokens=30), text=1)
    engine.add(Add("S", 2, max_tokens=3, session=True), text=2)
    for _ in range(3):
        step(engine)
    given = [part[1:3] for part in engine.oracle.delivered if part.request_id == "S"]
    assert given == [(0, 2), (2, 1), (3, 1)]
    engine.chunk(Chunk("S", 20, max_tokens=2), text=3)
    while not engine.counts["preemptions"]:
        step(engine)
    engine.abort("A")
    while "S" not in [part.request_id for part in engine.oracle.delivered[-1:]]:
        step(engine)
    assert engine.oracle.delivered[-1][:5] == ("S", 0, 24, 0, 4)


@finding("A session's turn ends among accepted drafts", SYNC._replace(num_drafts=3), seed=3)
def turn_ends_among_drafts(engine: Engine) -> None:
    engine.add(Add("S", 3, max_tokens=2, session=True), text=1)
    step(engine)
    step(engine)
    session = engine.scheduler.requests["S"]
    # One of three accepted tokens was delivered, all are counted as computed.
    assert (engine.counts["accepted drafts"], session.num_tokens, session.num_computed_tokens) == (3, 5, 7)
    engine.chunk(Chunk("S", 8, max_tokens=1), text=2)


@pytest.mark.parametrize("each", FINDINGS, ids=lambda each: each.title)
def test_it_becomes_what_the_page_says(each: Finding, capfd: pytest.CaptureFixture[str]) -> None:
    if released.profile() not in each.profiles:
        pytest.skip(f"vLLM {', '.join(each.profiles)} only")
    cells = [outcome(each, name) for name in NAMES]
    with capfd.disabled():
        print(f"\n| {each.title} | {released.profile()} | {' | '.join(cells)} |")
    assert cells == written(each.title)


def written(title: str) -> list[str]:
    """What docs/import.md says of a finding in this release."""
    rows = [
        line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")
    ]
    (row,) = [row for row in rows if row[0] == title and released.profile() in row[1].split(", ")]
    return row[2:]


def test_running_resets_wait_for_steps_in_flight_in_0_31() -> None:
    if released.profile() != "0.31":
        pytest.skip("vLLM 0.31 only")
    engine = Engine(ASYNC)
    engine.add(Add("A", 4, max_tokens=9), text=1)
    engine.launch()
    with pytest.raises(RuntimeError, match="only supports resetting running requests after pause"):
        engine.reset(running=True)
    engine.pause(True)
    with pytest.raises(RuntimeError, match="while model output is in flight"):
        engine.reset(running=True)


def test_a_prompt_start_beyond_the_prompt_is_cut_in_0_32() -> None:
    if released.profile() != "0.32":
        pytest.skip("vLLM 0.32 only")
    engine = Engine(SYNC)
    engine.add(Add("A", 6, start=10), text=1)
    step(engine)
    assert [(part.token_start, part.num_rows) for part in engine.oracle.delivered] == [(6, 0)]
