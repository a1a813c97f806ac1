"""The findings of docs/findings.md on vLLM's own scheduler, with its own connectors: each as it is written there.

Blocks have four tokens. A test says what the release does; where it loses or mixes rows without an error, ours too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from auxout_spec.engine import Add, Chunk

from . import pairs, released
from .engine import Engine
from .released import Setting

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.filterwarnings("default")]

SYNC, ASYNC = Setting(), Setting(asynchronous=True)


@pytest.fixture(params=["original", "impl"])
def pair(request: pytest.FixtureRequest) -> Iterator[str]:
    """The pair that the test's engines have."""
    with pairs.bound(pairs.PAIRS[request.param]):
        yield request.param


def only(profile: str) -> None:
    """Skip a test of another release."""
    if released.profile() != profile:
        pytest.skip(f"vLLM {profile} only")


def step(engine: Engine) -> None:
    """One synchronous step."""
    engine.launch()
    if engine.in_flight:
        engine.land()


def wrong_rows(engine: Engine, request_id: str) -> list[int]:
    """How many rows of each output of a request were wrong."""
    return [part.num_wrong for part in engine.oracle.delivered if part.request_id == request_id]


def test_a_session_turns_over_under_asynchronous_scheduling(pair: str) -> None:
    engine = Engine(ASYNC)
    engine.add(Add("A", 5, max_tokens=9, session=True), text=1, stop=1)
    engine.launch()
    engine.launch()
    engine.land()
    engine.chunk(Chunk("A", 3), text=2)
    engine.land()
    engine.launch()
    with pytest.raises(AssertionError, match=r"backwards|WORK-CAPTURE-2"):
        engine.land()


def test_abort_then_a_reset_with_the_step_in_flight(pair: str) -> None:
    engine = Engine(ASYNC)
    engine.add(Add("A", 4), text=1)
    engine.launch()
    engine.abort("A")
    assert engine.reset()
    engine.add(Add("B", 3), text=2)
    with pytest.raises(AssertionError, match=r"in flight|WORK-BEGIN-3"):
        engine.launch()


def test_a_running_reset_with_a_step_in_flight(pair: str) -> None:
    engine = Engine(ASYNC)
    engine.add(Add("A", 4, max_tokens=9), text=1)
    engine.launch()
    if released.profile() == "0.31":
        with pytest.raises(RuntimeError, match="only supports resetting running requests after pause"):
            engine.reset(running=True)
        engine.pause(True)
        with pytest.raises(RuntimeError, match="while model output is in flight"):
            engine.reset(running=True)
        return
    assert engine.reset(running=True)
    with pytest.raises(AssertionError, match=r"in flight|WORK-BEGIN-3"):
        engine.launch()


def test_kv_is_resident_and_its_rows_are_evicted(pair: str) -> None:
    engine = Engine(SYNC._replace(max_objects=4))
    engine.add(Add("A", 9, max_tokens=1), text=1)
    step(engine)
    engine.add(Add("B", 13, max_tokens=1), text=2)
    step(engine)
    engine.add(Add("C", 9, max_tokens=1), text=1)
    assert engine.launch() == 1
    with pytest.raises(Exception, match=r"does not exist|STORE-READ-1"):
        engine.land()


def test_a_chunk_raises_the_prompt_start(pair: str) -> None:
    engine = Engine(SYNC)
    engine.add(Add("A", 4, max_tokens=2, session=True), text=1)
    step(engine)
    step(engine)
    engine.chunk(Chunk("A", 8, start=8), text=2)
    with pytest.raises(AssertionError, match=r"moved ahead|WORK-BEGIN-4"):
        engine.launch()


def test_a_prompt_start_beyond_the_prompt() -> None:
    engine = Engine(SYNC)
    engine.add(Add("A", 6, start=10), text=1)
    engine.launch()
    if released.profile() == "0.31":
        with pytest.raises(AssertionError, match="missing A"):
            engine.land()
        return
    engine.land()
    assert [(part.token_start, part.num_rows) for part in engine.oracle.delivered] == [(6, 0)]


def _block_under_another_name(engine: Engine) -> None:
    """A session's dropped token had completed block 1; another token takes its place."""
    engine.add(Add("A", 7, max_tokens=1, session=True), text=1)
    step(engine)
    engine.launch()
    engine.chunk(Chunk("A", 1, max_tokens=1), text=2)


def test_a_chunk_replaces_a_block_whose_hash_was_sent(pair: str) -> None:
    only("0.32")
    engine = Engine(SYNC)
    _block_under_another_name(engine)
    step(engine)
    # B hits block 0 and computes block 1; the released worker has other rows under that name already.
    engine.add(Add("B", 9, max_tokens=1), text=1)
    assert engine.launch() == 5
    engine.land()
    assert wrong_rows(engine, "A") == [0, 0]
    assert wrong_rows(engine, "B") == [1 if pair == "original" else 0]


def test_another_request_hits_a_block_of_dropped_tokens(pair: str) -> None:
    only("0.31")
    engine = Engine(SYNC)
    engine.add(Add("A", 3, max_tokens=1, session=True), text=1)
    step(engine)
    engine.chunk(Chunk("A", 1, max_tokens=1), text=2)
    step(engine)
    engine.add(Add("B", 5, max_tokens=1), text=1)
    assert engine.launch() == 1, "B hits KV that was computed from another token"
    engine.land()
    assert wrong_rows(engine, "B") == [1]


def test_a_request_preempted_by_a_reset_that_fails_resumes_at_once(pair: str) -> None:
    engine = Engine(SYNC)
    engine.add(Add("S", 3, max_tokens=1, session=True), text=1)
    step(engine)
    engine.add(Add("A", 4, max_tokens=9), text=2)
    step(engine)
    engine.pause(True)
    with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
        engine.reset(running=True)
    engine.pause(False)
    with pytest.raises(AssertionError, match=r"run and finish in one step|WORK-BEGIN-1"):
        engine.launch()


def test_an_id_comes_back_before_its_end_was_delivered(pair: str) -> None:
    engine = Engine(SYNC)
    engine.add(Add("A", 3, max_tokens=9), text=1)
    step(engine)
    engine.abort("A")
    engine.add(Add("A", 3), text=2)
    with pytest.raises(AssertionError, match=r"run and finish in one step|WORK-BEGIN-1"):
        engine.launch()


@pytest.mark.parametrize("queued", [False, True])
def test_a_preempted_session_whose_stale_output_ends_its_turn_loses_its_tokens(queued: bool) -> None:
    engine = _session_preempted_in_flight()
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
    assert [engine.launch() for _ in range(3)] == [0, 0, 0], "nobody ever schedules the session again"


def _session_preempted_in_flight() -> Engine:
    """Three blocks: A needs a third for its second output, and takes it from S, whose last step is in flight."""
    engine = Engine(ASYNC._replace(num_blocks=4))
    engine.add(Add("A", 7, max_tokens=9), text=1)
    engine.add(Add("S", 3, max_tokens=2, session=True), text=2)
    engine.launch()
    engine.launch()
    engine.land()
    engine.launch()
    assert engine.counts["preemptions"] == 1
    return engine


def test_a_session_preempted_in_a_later_turn_gets_earlier_rows_again(pair: str) -> None:
    engine = Engine(SYNC._replace(num_blocks=10, max_num_seqs=4, max_num_batched_tokens=10))
    engine.add(Add("A", 8, max_tokens=30), text=1)
    engine.add(Add("S", 2, max_tokens=3, session=True), text=2)
    for _ in range(3):
        step(engine)
    assert [part[1:3] for part in engine.oracle.delivered if part.request_id == "S"] == [
        (0, 2),
        (2, 1),
        (3, 1),
    ]
    engine.chunk(Chunk("S", 20, max_tokens=2), text=3)
    while not engine.counts["preemptions"]:
        step(engine)
    engine.abort("A")
    while "S" not in [part.request_id for part in engine.oracle.delivered[-1:]]:
        step(engine)
    part = engine.oracle.delivered[-1]
    assert (part.due, part.token_start, part.num_rows, part.num_wrong) == (4, 0, 24, 0)
