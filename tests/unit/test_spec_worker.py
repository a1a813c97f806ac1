"""The spec's worker: one request's way through it, and every refusal, with the results written out.

Blocks have two tokens. Rows are named ``A3``: request and position, with ``'`` for a recomputation.
"""

from __future__ import annotations

import pytest

from auxout_spec import calls, worker
from auxout_spec.deviations import Deviation
from auxout_spec.profiles import PROFILES, SPECIFIED
from auxout_spec.store import StoreState
from auxout_spec.values import Metadata, Outputs, Refusal, Row, StepOutput
from auxout_spec.worker import INITIAL, Limits, Part, WorkerRequest, WorkerState

LIMITS = Limits(block_size=2, capacity=8)
H = tuple(bytes([n]) for n in range(8))


def row(name: str) -> Row:
    return Row(name[0], int(name[1]), 0, len(name) - 2)


def rows(*names: str) -> tuple[Row, ...]:
    return tuple(row(name) for name in names)


def meta(
    requests: dict[str, int] | None = None,
    hashes: dict[str, tuple[bytes, ...]] | None = None,
    finished: tuple[str, ...] = (),
    generation: int = 0,
) -> Metadata:
    return Metadata(generation, tuple((requests or {}).items()), tuple((hashes or {}).items()), finished)


def begin(state: WorkerState, metadata: Metadata, limits: Limits = LIMITS) -> WorkerState:
    after, refusal = worker.begin_step(limits, state, metadata)
    assert refusal is None
    return after


def launch(state: WorkerState, metadata: Metadata) -> WorkerState:
    state, refusal = worker.prepare_output(
        begin(state, metadata), tuple(name for name, _ in metadata.requests)
    )
    assert refusal is None
    return state


def land(state: WorkerState, *parts: Part, limits: Limits = LIMITS) -> tuple[WorkerState, Outputs]:
    after, outputs = worker.process_output(limits, state, parts)
    assert not isinstance(outputs, Refusal), outputs
    return after, outputs


def returned(outputs: Outputs) -> dict[str, tuple[int, tuple[Row, ...]]]:
    return {name: (output.token_start, output.rows) for name, output in outputs}


def request(state: WorkerState, name: str = "A") -> WorkerRequest:
    return dict(state.requests)[name]


def prefilled(
    names: tuple[str, ...] = ("A0", "A1", "A2"), hashes: tuple[bytes, ...] = (H[0],)
) -> WorkerState:
    """A request whose prompt was computed and returned."""
    state = launch(INITIAL, meta({"A": 0}, {"A": hashes}))
    return land(state, Part("A", 0, rows(*names), 1, 0))[0]


def test_a_prompt_is_stored_and_returned() -> None:
    state = launch(INITIAL, meta({"A": 0}, {"A": (H[0],)}))
    assert request(state) == WorkerRequest(0, (H[0],), num_in_flight=1)
    assert state.in_flight == (("A",),)
    state, outputs = land(state, Part("A", 0, rows("A0", "A1", "A2"), 1, 0))
    assert returned(outputs) == {"A": (0, rows("A0", "A1", "A2"))}
    assert request(state) == WorkerRequest(3, (H[0],), (), rows("A2"), 3, 3)
    assert state.store == StoreState((((0, H[0]), rows("A0", "A1")),), (((0, H[0]), 1),))
    assert state.in_flight == ()


def test_a_prompt_in_chunks_is_returned_with_the_chunk_that_samples() -> None:
    state = launch(INITIAL, meta({"A": 1}, {"A": (H[0],)}))
    state, outputs = land(state, Part("A", 0, rows("A0"), 0, 0))
    assert outputs == ()
    state = launch(state, meta({"A": 1}))
    state, outputs = land(state, Part("A", 1, rows("A1", "A2"), 1, 0))
    assert returned(outputs) == {"A": (1, rows("A1", "A2"))}  # WORK-EMIT-2: all from the step


def test_earlier_rows_come_from_store_and_tail() -> None:
    state = launch(INITIAL, meta({"A": 0}, {"A": (H[0],)}))
    state, _ = land(state, Part("A", 0, rows("A0", "A1"), 0, 0))
    state = launch(state, meta({"A": 0}))
    state, outputs = land(state, Part("A", 2, rows("A2"), 1, 0))
    assert returned(outputs) == {"A": (0, rows("A0", "A1", "A2"))}
    assert (request(state).tail, request(state).emit_cursor) == (rows("A2"), 3)


def test_a_late_key_publishes_a_waiting_block() -> None:
    state = launch(prefilled(), meta({"A": 3}))
    state, outputs = land(state, Part("A", 3, rows("A3"), 1, 0))
    assert returned(outputs) == {"A": (3, rows("A3"))}
    assert request(state).pending == ((1, rows("A2", "A3")),)
    state = begin(state, meta(hashes={"A": (H[1],)}))
    assert request(state).pending == ()
    assert dict(state.store.objects)[0, H[1]] == rows("A2", "A3")  # WORK-PUBLISH-1


def test_a_prefix_hit_reads_what_another_request_stored() -> None:
    state = launch(prefilled(), meta({"B": 0}, {"B": (H[0],)}))
    state, outputs = land(state, Part("B", 2, rows("B2"), 1, 0))
    assert returned(outputs) == {"B": (0, rows("A0", "A1", "B2"))}
    assert dict(state.store.references)[0, H[0]] == 2


def test_a_step_may_read_what_it_stores_itself() -> None:
    state = launch(INITIAL, meta({"A": 0, "B": 0}, {"A": (H[0],), "B": (H[0],)}))
    parts = (Part("B", 2, rows("B2"), 1, 0), Part("A", 0, rows("A0", "A1"), 1, 0))
    _, outputs = land(state, *parts)
    assert returned(outputs) == {"B": (0, rows("A0", "A1", "B2")), "A": (0, rows("A0", "A1"))}


def test_emitting_from_the_middle_of_a_stored_block() -> None:
    state = launch(prefilled(), meta({"B": 1}, {"B": (H[0],)}))
    _, outputs = land(state, Part("B", 2, rows("B2"), 1, 0))
    assert returned(outputs) == {"B": (1, rows("A1", "B2"))}


def test_emitting_from_the_tail_alone() -> None:
    state = launch(INITIAL, meta({"A": 2}, {"A": (H[0],)}))
    state, _ = land(state, Part("A", 0, rows("A0", "A1", "A2"), 0, 0))
    state = launch(state, meta({"A": 2}, {"A": (H[1],)}))
    _, outputs = land(state, Part("A", 3, rows("A3"), 1, 0))
    assert returned(outputs) == {"A": (2, rows("A2", "A3"))}


def test_emitting_from_the_middle_of_the_tail() -> None:
    state = launch(INITIAL, meta({"A": 1}))
    state, _ = land(state, Part("A", 0, rows("A0", "A1"), 0, 0), limits=Limits(4, 8))
    state = launch(state, meta({"A": 1}))
    _, outputs = land(state, Part("A", 2, rows("A2"), 1, 0), limits=Limits(4, 8))
    assert returned(outputs) == {"A": (1, rows("A1", "A2"))}


def test_keys_that_are_ahead_of_the_rows_name_nothing_yet() -> None:
    state = launch(INITIAL, meta({"A": 0}, {"A": H[:3]}))
    state, _ = land(state, Part("A", 0, rows("A0", "A1"), 0, 0))
    state = launch(state, meta({"A": 0}))
    state, outputs = land(state, Part("A", 2, rows("A2"), 1, 0))
    assert returned(outputs) == {"A": (0, rows("A0", "A1", "A2"))}
    assert request(state).keys == H[:3]


def test_rejected_drafts_are_dropped_and_the_next_step_attaches() -> None:
    state = launch(prefilled(), meta({"A": 3}))
    state = launch(state, meta({"A": 3}))
    state, outputs = land(state, Part("A", 3, rows("A3", "A4", "A5"), 1, 2))
    assert returned(outputs) == {"A": (3, rows("A3"))}  # WORK-CAPTURE-1
    assert (request(state).capture_cursor, request(state).scheduled_cursor) == (4, 6)
    state, outputs = land(state, Part("A", 6, rows("A4'"), 1, 0))
    assert returned(outputs) == {"A": (4, rows("A4'"))}  # WORK-CAPTURE-3
    assert request(state).tail == rows("A4'")


def test_an_emit_start_ahead_of_the_rows_waits() -> None:
    state = launch(INITIAL, meta({"A": 4}))
    state, outputs = land(state, Part("A", 0, rows("A0", "A1"), 1, 0))
    assert outputs == ()
    assert request(state).emit_cursor == 4


def test_an_emit_start_at_the_end_returns_no_row_but_an_output() -> None:
    state = launch(INITIAL, meta({"A": 2}))
    _, outputs = land(state, Part("A", 0, rows("A0", "A1"), 1, 0))
    assert returned(outputs) == {"A": (2, ())}


def test_an_end_with_nothing_in_flight_tears_down_at_once() -> None:
    state = begin(prefilled(), meta(finished=("A",)))
    assert (state.requests, state.store.references) == ((), ())
    assert [key for key, _ in state.store.objects] == [(0, H[0])]


def test_an_end_waits_for_the_last_step_in_flight() -> None:
    state = launch(prefilled(), meta({"A": 3}))
    state = begin(state, meta(hashes={"A": (H[1],)}, finished=("A",)))
    assert request(state).finished
    state, outputs = land(state, Part("A", 3, rows("A3"), 1, 0))
    assert returned(outputs) == {"A": (3, rows("A3"))}
    assert (state.requests, state.store.references) == ((), ())  # WORK-TEAR-1
    assert [key for key, _ in state.store.objects] == [(0, H[1]), (0, H[0])]  # released last first


def test_a_generation_drops_everything_but_the_objects() -> None:
    state = begin(prefilled(), meta({"A": 0}, {"A": (H[0],)}, generation=1))
    assert state.generation == 1
    assert request(state) == WorkerRequest(0, (H[0],))
    assert state.store.references == (((1, H[0]), 1),)


@pytest.mark.parametrize(
    ("metadata", "clause"),
    [
        (meta({"A": 0}, finished=("A",)), "WORK-BEGIN-1"),
        (meta({"A": 4}), "WORK-BEGIN-4"),
    ],
)
def test_metadata_is_refused(metadata: Metadata, clause: str) -> None:
    before = prefilled()
    after, refusal = worker.begin_step(LIMITS, before, metadata)
    assert refusal is not None
    assert (after, refusal.clause) == (before, clause)


def test_the_generation_never_goes_back() -> None:
    state = begin(INITIAL, meta(generation=2))
    assert worker.begin_step(LIMITS, state, meta(generation=1)) == (
        state,
        Refusal("WORK-BEGIN-2", "generation 1 follows 2"),
    )


def test_a_generation_waits_for_the_steps_in_flight() -> None:
    state = launch(INITIAL, meta({"A": 0}))
    refusal = Refusal("WORK-BEGIN-3", "a generation starts with 1 steps in flight")
    assert worker.begin_step(LIMITS, state, meta(generation=1)) == (state, refusal)


def test_the_emit_start_of_a_request_in_flight_is_not_compared() -> None:
    state = launch(INITIAL, meta({"A": 0}))
    assert request(begin(state, meta({"A": 9}))).emit_cursor == 0


@pytest.mark.parametrize(
    ("part", "clause"),
    [
        (Part("A", 2, rows("A2"), 1, 0), "WORK-CAPTURE-2"),
        (Part("A", 4, rows("A4"), 1, 0), "WORK-CAPTURE-3"),
    ],
)
def test_a_capture_is_refused(part: Part, clause: str) -> None:
    before = launch(prefilled(), meta({"A": 3}))
    after, refusal = worker.process_output(LIMITS, before, (part,))
    assert isinstance(refusal, Refusal)
    assert (after, refusal.clause) == (before, clause)


def test_the_first_capture_is_at_a_block_boundary() -> None:
    before = launch(INITIAL, meta({"A": 0}))
    after, refusal = worker.process_output(LIMITS, before, (Part("A", 3, rows("A3"), 1, 0),))
    assert refusal == Refusal("WORK-CAPTURE-4", "A: capture starts at 3, inside a block")
    assert after == before


def test_rows_without_a_key_cannot_be_returned_later() -> None:
    state = launch(INITIAL, meta({"A": 0}))
    state, _ = land(state, Part("A", 0, rows("A0", "A1"), 0, 0))
    before = launch(state, meta({"A": 0}))
    after, refusal = worker.process_output(LIMITS, before, (Part("A", 2, rows("A2"), 1, 0),))
    assert refusal == Refusal("WORK-EMIT-3", "A: rows [0, 2) have no key yet")
    assert after == before


def test_a_block_that_was_evicted_cannot_be_returned() -> None:
    before = launch(INITIAL, meta({"B": 0}, {"B": (H[0],)}))
    after, refusal = worker.process_output(LIMITS, before, (Part("B", 2, rows("B2"), 1, 0),))
    assert isinstance(refusal, Refusal)
    assert (after, refusal.clause) == (before, "STORE-READ-1")


def test_a_step_that_does_not_fit_the_store_changes_nothing() -> None:
    small = Limits(block_size=2, capacity=1)
    before = launch(INITIAL, meta({"A": 0}, {"A": (H[0], H[1])}))
    after, refusal = worker.process_output(small, before, (Part("A", 0, rows("A0", "A1", "A2", "A3"), 1, 0),))
    assert isinstance(refusal, Refusal)
    assert (after, refusal.clause) == (before, "STORE-PUT-3")


def test_late_keys_that_do_not_fit_the_store_change_nothing() -> None:
    small = Limits(block_size=2, capacity=1)
    state = launch(INITIAL, meta({"A": 0}, {"A": (H[0],)}))
    before, _ = land(state, Part("A", 0, rows("A0", "A1", "A2", "A3"), 1, 0))
    after, refusal = worker.begin_step(small, before, meta(hashes={"A": (H[1],)}))
    assert refusal is not None
    assert (after, refusal.clause) == (before, "STORE-PUT-3")


@pytest.mark.parametrize(("deviations", "kept"), [((), "A"), ((Deviation.LAST_OF_STEP_KEPT,), "B")])
def test_of_two_requests_that_fill_a_block_in_one_step_one_is_stored(
    deviations: tuple[Deviation, ...], kept: str
) -> None:
    """The first, whose KV block the prefix cache keeps; a release keeps the last, and emits from it."""
    profile = PROFILES["0.32"]._replace(deviations=frozenset(deviations))
    state = launch(INITIAL, meta({"A": 0, "B": 1}, {"A": H[:1], "B": H[:1]}))
    state, _ = land(state, Part("A", 0, rows("A0"), 0, 0), Part("B", 0, rows("B0"), 0, 0))
    state = launch(state, meta({"A": 0, "B": 1}))
    parts = (Part("A", 1, rows("A1"), 1, 0), Part("B", 1, rows("B1", "B2"), 1, 0))
    state, outputs = calls.apply_worker(profile, LIMITS, state, calls.ProcessOutput(parts))
    assert dict(state.store.objects) == {(0, H[0]): rows(f"{kept}0", f"{kept}1")}
    assert isinstance(outputs, StepOutput)
    assert [name for name, _ in outputs.outputs] == ["A", "B"]
    assert returned(outputs.outputs)["A"] == (0, rows(f"{kept}0", f"{kept}1"))


def test_nobody_unknown_is_in_a_batch() -> None:
    before = begin(INITIAL, meta({"A": 0}))
    refusal = Refusal("WORK-STEP-2", "B is in the batch, but no step began with it")
    assert worker.prepare_output(before, ("A", "B")) == (before, refusal)


def test_only_the_oldest_step_is_processed() -> None:
    before = launch(launch(INITIAL, meta({"A": 0})), meta({"A": 0}))
    part = Part("A", 0, rows("A0"), 1, 0)
    refusal = Refusal("WORK-STEP-1", "the step of A is not the oldest in flight")
    assert worker.process_output(LIMITS, before, (part,), step=1) == (before, refusal)
    landed, _ = land(before, part)
    assert landed.in_flight == (("A",),)


def test_a_step_is_processed_with_all_of_its_requests_and_no_other() -> None:
    idle, busy = prefilled(), launch(INITIAL, meta({"A": 0, "B": 0}))
    a, b, c = (Part(name, 0, rows(f"{name}0"), 1, 0) for name in "ABC")
    for before, parts in ((idle, (a,)), (busy, (a,)), (busy, (c, b, a))):
        names = ", ".join(sorted(part.request_id for part in parts))
        refusal = Refusal("WORK-STEP-1", f"the step of {names} is not the oldest in flight")
        assert worker.process_output(LIMITS, before, parts) == (before, refusal)


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        (meta(hashes={"B": (H[1],)}), "B"),
        (meta(finished=("B",)), "B"),
        (meta({"B": 0}, finished=("A",), generation=1), "A"),
    ],
    ids=["hashes", "an end", "an end of the generation before"],
)
def test_metadata_of_nobody_is_refused(metadata: Metadata, name: str) -> None:
    before = prefilled()
    refusal = Refusal("WORK-BEGIN-5", f"{name} gets hashes or ends, but no step began with it")
    assert worker.begin_step(LIMITS, before, metadata) == (before, refusal)


@pytest.mark.parametrize(("names", "rejected"), [(("A0",), 2), (("A0",), -1), ((), 0)])
def test_no_more_rows_are_rejected_than_there_are(names: tuple[str, ...], rejected: int) -> None:
    before = launch(INITIAL, meta({"A": 0}))
    refusal = Refusal("WORK-CAPTURE-5", f"A: {rejected} of {len(names)} rows are rejected")
    assert worker.process_output(LIMITS, before, (Part("A", 0, rows(*names), 1, rejected),)) == (
        before,
        refusal,
    )


def test_all_rows_of_a_step_may_be_rejected() -> None:
    state, outputs = land(launch(INITIAL, meta({"A": 0})), Part("A", 0, rows("A0"), 0, 1))
    assert outputs == ()
    assert (request(state).capture_cursor, request(state).scheduled_cursor) == (0, 1)


# Profile 0.33: the scheduler holds blocks too, and blocks may wait for their key when they are returned.

NEXT = LIMITS._replace(profile=SPECIFIED["0.33"])


def held(state: WorkerState) -> dict[tuple[int, bytes], int]:
    return dict(state.store.references)


def kept(metadata: Metadata, retained: tuple[bytes, ...] = (), released: tuple[bytes, ...] = ()) -> Metadata:
    return metadata._replace(retained_block_hashes=retained, released_block_hashes=released)


def test_what_the_scheduler_holds_is_of_the_generation_before_the_message() -> None:
    """WORK-RETAIN-1."""
    state = begin(INITIAL, kept(meta(), H[:2]), NEXT)
    assert held(state) == {(0, H[0]): 1, (0, H[1]): 1}
    state = begin(state, kept(meta({"A": 0}, {"A": H[:1]}, generation=1), H[2:3], H[:2]), NEXT)
    assert held(state) == {(0, H[2]): 1, (1, H[0]): 1}


def test_a_block_passes_from_a_request_to_the_scheduler_without_a_gap() -> None:
    """WORK-RETAIN-2: in a store of one object it would be gone in between."""
    small = NEXT._replace(capacity=1)
    state = launch(INITIAL, meta({"A": 0}, {"A": H[:1]}))
    state, _ = land(state, Part("A", 0, rows("A0", "A1"), 1, 0), limits=small)
    state = begin(state, kept(meta(finished=("A",)), H[:1]), small)
    assert held(state) == {(0, H[0]): 1}
    assert dict(state.store.objects) == {(0, H[0]): rows("A0", "A1")}
    assert state.requests == ()


def test_what_the_scheduler_does_not_hold_it_cannot_release() -> None:
    """STORE-PUT-4, STORE-PUT-5."""
    before = begin(INITIAL, kept(meta(), H[:1]), NEXT)
    after, refusal = worker.begin_step(NEXT, before, kept(meta({"A": 0}), H[1:2], (H[0], H[0])))
    assert refusal is not None
    assert (after, refusal.clause) == (before, "STORE-PUT-4")


@pytest.mark.parametrize(("limits", "clause"), [(LIMITS, "WORK-EMIT-3"), (NEXT, "")])
def test_rows_are_returned_from_blocks_that_wait_for_their_key(limits: Limits, clause: str) -> None:
    """The first block was hit, the second is full and has no key yet, and the third has one row."""
    state = prefilled(("A0", "A1"), H[:1])
    state = launch(state, meta({"B": 0}, {"B": H[:1]}))
    state, _ = land(state, Part("B", 2, rows("B2", "B3"), 0, 0))
    state = launch(state, meta({"B": 0}))
    after, outputs = worker.process_output(limits, state, (Part("B", 4, rows("B4"), 1, 0),))
    if clause:
        assert isinstance(outputs, Refusal)
        assert (after, outputs.clause) == (state, clause)
    else:
        assert not isinstance(outputs, Refusal)
        assert returned(outputs) == {"B": (0, rows("A0", "A1", "B2", "B3", "B4"))}
        assert request(after, "B").pending == ((1, rows("B2", "B3")),)


def test_of_two_blocks_that_a_growing_store_would_take_the_last_of_the_worker_gives_the_first() -> None:
    state = launch(INITIAL, meta({"A": 0, "B": 0}, {"A": H[:1], "B": H[:1]}))
    parts = (Part("A", 0, rows("A0", "A1"), 1, 0), Part("B", 0, rows("B0", "B1"), 1, 0))
    state, _ = land(state, *parts, limits=NEXT)
    assert dict(state.store.objects) == {(0, H[0]): rows("A0", "A1")}
