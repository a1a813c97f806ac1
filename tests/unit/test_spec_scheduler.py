"""The spec's scheduler connector, wire values and arithmetic against values written by hand, clause by clause."""

from __future__ import annotations

import pytest

from auxout_spec import calls, kernel, scheduler, wire
from auxout_spec.clauses import CLAUSES, in_profile
from auxout_spec.profiles import PROFILES, Profile, difference
from auxout_spec.scheduler import INITIAL, SchedulerState, Sent
from auxout_spec.values import (
    Hashes,
    Metadata,
    Outputs,
    Refusal,
    RequestOutput,
    RequestView,
    Result,
    Row,
    Rows,
)

P31, P32 = PROFILES["0.31"], PROFILES["0.32"]
H = tuple(bytes([65 + number]) * 4 for number in range(6))
"""Hashes of four bytes: AAAA, BBBB, ..."""
G = tuple(bytes([97 + number]) * 4 for number in range(6))
"""Other hashes: aaaa, bbbb, ..."""


def view(name: str = "A", hashes: int | tuple[bytes, ...] = 0, **changes: object) -> RequestView:
    """A request of 5 prompt tokens without output; ``hashes`` are the first of H, or given."""
    listed = H[:hashes] if isinstance(hashes, int) else hashes
    return RequestView(name, 5, 5, 0, 0, listed)._replace(**changes)


def build(
    state: SchedulerState, scheduled: str, *views: RequestView, profile: Profile = P32
) -> tuple[SchedulerState, Result]:
    """One step; ``scheduled`` are one-letter ids in order."""
    return scheduler.build_connector_meta(profile, state, tuple((name, 1) for name in scheduled), views)


def meta(
    requests: dict[str, int] | None = None,
    hashes: dict[str, tuple[bytes, ...]] | None = None,
    finished: str = "",
    apart: dict[str, tuple[bytes, ...]] | None = None,
    generation: int = 0,
) -> Metadata:
    return Metadata(
        generation,
        tuple((requests or {}).items()),
        tuple((hashes or {}).items()),
        tuple(finished),
        tuple((apart or {}).items()),
    )


def after(*steps: tuple[str, tuple[RequestView, ...]], profile: Profile = P32) -> SchedulerState:
    """The state after some steps, none of them refused."""
    state = INITIAL
    for scheduled, views in steps:
        state, result = build(state, scheduled, *views, profile=profile)
        assert isinstance(result, Metadata)
    return state


def refused(result: Result) -> str:
    """The clause of a refusal whose message names request A."""
    assert isinstance(result, Refusal)
    assert "request A" in result.message
    return result.clause


# What one step's metadata says.


def test_first_step() -> None:
    """SCHED-META-1, SCHED-META-4, SCHED-HASH-1, SCHED-EMIT-1."""
    state, result = build(INITIAL, "A", view("A", 2, prompt_start=3), view("B", 1))
    assert result == meta({"A": 3}, {"A": H[:2]})
    assert state == SchedulerState(0, (("A", Sent(2, H[1])),), ())


def test_order_is_the_schedule_s() -> None:
    """SCHED-META-2."""
    _, result = build(INITIAL, "BAC", view("A"), view("B", prompt_start=1), view("C"))
    assert result == meta({"B": 1, "A": 0, "C": 0})


def test_empty_step_delivers_what_is_due() -> None:
    """SCHED-META-3, SCHED-HASH-6, SCHED-TERM-1."""
    state = after(("AB", (view("A", 1), view("B", 1))))
    state, _ = scheduler.request_finished(state, view("B", 2, finished=True))
    state, result = build(state, "", view("A", 3))
    assert result == meta({}, {"A": H[1:3], "B": H[1:2]}, "B")
    assert state == SchedulerState(0, (("A", Sent(3, H[2])),), ())
    assert build(state, "", view("A", 3)) == (state, meta())


@pytest.mark.parametrize(
    ("profile", "prompt_start", "num_prompt", "num_output", "emit_start"),
    [
        (P32, 0, 5, 0, 0),
        (P32, 2, 5, 0, 2),
        (P32, 5, 5, 0, 5),
        (P32, 6, 5, 0, 5),
        (P32, 9, 5, 2, 6),
        (P32, 0, 5, 1, 5),
        (P32, 5, 5, 1, 5),
        (P31, 2, 5, 0, 2),
        (P31, 6, 5, 0, 6),
        (P31, 9, 5, 2, 9),
        (P31, 0, 5, 1, 5),
        (P31, 6, 5, 2, 6),
    ],
)
def test_emit_start(
    profile: Profile, prompt_start: int, num_prompt: int, num_output: int, emit_start: int
) -> None:
    """SCHED-EMIT-1, -2, -3, -4."""
    request = RequestView("A", num_prompt + num_output, num_prompt, num_output, prompt_start, ())
    assert scheduler.emit_start(profile, request) == emit_start
    assert build(INITIAL, "A", request, profile=profile)[1] == meta({"A": emit_start})


def test_emit_start_follows_the_request() -> None:
    """SCHED-EMIT-5."""
    state = after(("A", (view("A", prompt_start=2),)))
    _, result = build(state, "A", view("A", prompt_start=4, num_tokens=9, num_prompt_tokens=9))
    assert result == meta({"A": 4})


# Which block hashes the worker gets.


def test_hashes_are_sent_once_and_in_order() -> None:
    """SCHED-HASH-2, -3, -4, -5."""
    state = after(("A", (view("A", 1),)))
    state, result = build(state, "A", view("A", 4))
    assert result == meta({"A": 0}, {"A": H[1:4]})
    state, result = build(state, "A", view("A", 4))
    assert result == meta({"A": 0})
    assert state.active == (("A", Sent(4, H[3])),)


def test_request_that_never_ran_sends_nothing() -> None:
    """SCHED-HASH-7."""
    assert build(INITIAL, "", view("A", 3)) == (INITIAL, meta())


def test_active_are_in_order_of_activation() -> None:
    assert after(("BA", (view("A", 1), view("B")))).active == (("B", Sent(0, b"")), ("A", Sent(1, H[0])))


@pytest.mark.parametrize(
    ("hashes", "clause"),
    [
        (H[:1], "SCHED-HASH-8"),
        ((), "SCHED-HASH-8"),
        ((*H[:2], b"CCC"), "SCHED-HASH-10"),
        ((*H[:2], b"CCCC", b""), "SCHED-HASH-10"),
        ((*H[:2], b"CCCCC"), "SCHED-HASH-10"),
    ],
)
@pytest.mark.parametrize("scheduled", ["A", ""])
def test_list_that_does_not_extend_what_was_sent(
    hashes: tuple[bytes, ...], clause: str, scheduled: str
) -> None:
    """SCHED-HASH-8, -10; SCHED-REFUSE-3."""
    state = after(("AB", (view("A", 2), view("B", 1))))
    now, result = build(state, scheduled, view("A", hashes), view("B", 3))
    assert refused(result) == clause
    assert now == state
    clause = "SCHED-TERM-8" if clause == "SCHED-HASH-8" else clause
    now, result = scheduler.request_finished(state, view("A", hashes, finished=True))
    assert refused(result) == clause
    assert now == state


@pytest.mark.parametrize("scheduled", ["A", ""])
def test_a_replaced_history_is_sent_whole_where_it_has_grown(scheduled: str) -> None:
    """SCHED-HASH-9, -12: nothing is refused, and what comes next is an update like any other."""
    state, result = build(after(("A", (view("A", 2),))), scheduled, view("A", (H[0], G[1], G[2])))
    emits = {"A": 0} if scheduled else {}
    again = (("A", (H[0], G[1], G[2])),)
    assert result == meta(emits, {"A": (G[2],)})._replace(replaced_block_hashes=again)
    assert state.active == (("A", Sent(3, G[2])),)
    assert build(state, scheduled, view("A", (H[0], *G[1:4])))[1] == meta(emits, {"A": (G[3],)})


def test_a_replaced_history_of_the_old_length_is_sent_before_the_first_output() -> None:
    """SCHED-HASH-12: scheduled without output, as a session's next turn is; nowhere else."""
    state = after(("A", (view("A", 2),)))
    replaced = view("A", (H[0], G[1]))
    now, result = build(state, "A", replaced)
    assert result == meta({"A": 0})._replace(replaced_block_hashes=(("A", (H[0], G[1])),))
    assert now.active == (("A", Sent(2, G[1])),)
    assert build(now, "A", replaced)[1] == meta({"A": 0})
    answered = replaced._replace(num_tokens=replaced.num_tokens + 1, num_output_tokens=1)
    assert build(state, "A", answered)[1] == meta({"A": answered.num_tokens - 1})
    assert build(state, "", replaced)[1] == meta()


@pytest.mark.parametrize("hashes", [(H[0], G[1]), (H[0], G[1], G[2])])
def test_a_request_whose_history_was_replaced_ends_like_any_other(hashes: tuple[bytes, ...]) -> None:
    """SCHED-HASH-9: its event carries what its list has beyond what was sent."""
    state, result = scheduler.request_finished(after(("A", (view("A", 2),))), view("A", hashes))
    assert result is None
    assert state.ended == (("A", hashes[2:]),)


@pytest.mark.parametrize("hashes", [(b"AAAA", b"BBB"), (b"",), (b"", b"AAAA"), (b"AAAA", b"")])
def test_first_hashes_of_different_lengths(hashes: tuple[bytes, ...]) -> None:
    """SCHED-HASH-10."""
    state, result = build(INITIAL, "A", view("A", hashes))
    assert refused(result) == "SCHED-HASH-10"
    assert state == INITIAL


def test_a_replaced_hash_shows_only_in_the_last_one_sent() -> None:
    """SCHED-HASH-12: each hash covers its prefix, so the last one is enough."""
    state = after(("A", (view("A", 2),)))
    _, result = build(state, "A", view("A", (G[0], *H[1:3])))
    assert result == meta({"A": 0}, {"A": H[2:3]})


def test_messages_of_refusals() -> None:
    """SCHED-REFUSE-2."""
    state = after(("A", (view("A", 2),)))
    assert build(state, "A", view("A", 1))[1] == Refusal(
        "SCHED-HASH-8", "request A: 1 block hashes, 2 were sent"
    )


# How a request ends.


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "preempted"])
def test_end_is_delivered_once_with_the_hashes_still_owed(finished: bool) -> None:
    """SCHED-TERM-1, -2, -5, -7, -9."""
    state = after(("A", (view("A", 1),)))
    state, result = scheduler.request_finished(state, view("A", 3, finished=finished))
    assert result is None
    assert state == SchedulerState(0, (), (("A", H[1:3]),))
    state, result = build(state, "B", view("A", 4), view("B"))
    assert result == meta({"B": 0}, {"A": H[1:3]}, "A")
    assert build(state, "B", view("A", 5), view("B"))[1] == meta({"B": 0})


def test_end_without_hashes() -> None:
    """SCHED-TERM-1, SCHED-HASH-5."""
    state, _ = scheduler.request_finished(after(("A", (view("A", 1),))), view("A", 1))
    assert build(state, "")[1] == meta({}, {}, "A")


def test_end_of_a_request_that_is_not_active() -> None:
    """SCHED-TERM-3, SCHED-TERM-4."""
    assert scheduler.request_finished(INITIAL, view("A", 2)) == (INITIAL, None)
    state, _ = scheduler.request_finished(after(("A", (view("A", 1),))), view("A", 1))
    assert scheduler.request_finished(state, view("A", 2)) == (state, None)


def test_ends_are_delivered_in_order() -> None:
    """SCHED-TERM-6."""
    state = after(("ABC", (view("A"), view("B"), view("C"))))
    for name in "CAB":
        state, _ = scheduler.request_finished(state, view(name, 1))
    assert build(state, "")[1] == meta({}, {"C": H[:1], "A": H[:1], "B": H[:1]}, "CAB")


# An id that ended and runs again.


def test_restart_before_the_event_was_delivered() -> None:
    """SCHED-RESTART-1, -2, -3; SCHED-HASH-11."""
    state = after(("A", (view("A", 1),)))
    state, _ = scheduler.request_finished(state, view("A", 3))
    state, result = build(state, "A", view("A", G[:2]))
    assert result == meta({"A": 0}, {"A": G[:2]}, "A", {"A": H[1:3]})
    assert state == SchedulerState(0, (("A", Sent(2, G[1])),), ())


def test_restart_without_final_hashes() -> None:
    """SCHED-RESTART-3: nothing owed, no entry."""
    state, _ = scheduler.request_finished(after(("A", (view("A", 1),))), view("A", 1))
    assert build(state, "A", view("A", 1))[1] == meta({"A": 0}, {"A": H[:1]}, "A")


def test_restart_keeps_other_ends_together() -> None:
    """SCHED-RESTART-3: only a running id's final hashes travel apart."""
    state = after(("AB", (view("A"), view("B"))))
    for name in "BA":
        state, _ = scheduler.request_finished(state, view(name, 1))
    _, result = build(state, "A", view("A", G[:1]))
    assert result == meta({"A": 0}, {"A": G[:1], "B": H[:1]}, "BA", {"A": H[:1]})


# Resets.


def test_reset() -> None:
    """SCHED-RESET-1, -2, -3, -4."""
    state = after(("AB", (view("A", 1), view("B", 1))))
    state, _ = scheduler.request_finished(state, view("B", 2))
    state = scheduler.reset(state)
    assert state == SchedulerState(1, (), ())
    assert scheduler.request_finished(state, view("A", 2)) == (state, None)
    assert build(state, "", view("A", 2))[1] == meta(generation=1)
    state, result = build(state, "A", view("A", 2))
    assert result == meta({"A": 0}, {"A": H[:2]}, generation=1)
    assert scheduler.reset(state) == SchedulerState(2, (), ())


# What the engine gets back.


def output(start: int, count: int, name: str = "A") -> tuple[str, RequestOutput]:
    return name, RequestOutput(start, tuple(Row(name, start + n, 0, 7) for n in range(count)))


ROWS = output(2, 4)[1].rows


@pytest.mark.parametrize(
    ("num_tokens", "finished", "expected"),
    [
        (7, True, Rows(ROWS)),
        (7, False, Rows(ROWS)),
        (6, False, Rows(ROWS[:3])),
        (5, True, Rows(ROWS[:2])),
        (4, False, Rows(ROWS[:1])),
        (3, False, Rows(())),
        (3, True, Rows(())),
        (2, False, None),
        (1, False, None),
        (2, True, "SCHED-TAKE-6"),
        (8, False, "SCHED-TAKE-7"),
        (8, True, "SCHED-TAKE-7"),
    ],
)
def test_rows_of_accepted_tokens(num_tokens: int, finished: bool, expected: Rows | str | None) -> None:
    """SCHED-TAKE-3, -4, -5, -6, -7, -8, -11."""
    outputs: Outputs = (output(0, 9, "B"), output(2, 4))
    result = scheduler.take_output(view("A", num_tokens=num_tokens, finished=finished), outputs)
    assert (refused(result) if isinstance(expected, str) else result) == expected


def test_output_that_is_missing() -> None:
    """SCHED-TAKE-1, SCHED-TAKE-2."""
    assert refused(scheduler.take_output(view("A"), None)) == "SCHED-TAKE-1"
    assert refused(scheduler.take_output(view("A"), ())) == "SCHED-TAKE-2"
    assert refused(scheduler.take_output(view("A"), (output(0, 4, "B"),))) == "SCHED-TAKE-2"


def test_messages_of_refused_output() -> None:
    """SCHED-REFUSE-2."""
    short = scheduler.take_output(view("A", num_tokens=8), (output(2, 4),))
    assert short == Refusal("SCHED-TAKE-7", "request A: rows [2, 6) end before the accepted end 7")
    ahead = scheduler.take_output(view("A", num_tokens=1, finished=True), (output(2, 4),))
    assert ahead == Refusal(
        "SCHED-TAKE-6", "request A: rows [2, 6) start beyond the accepted end 0 of a finished request"
    )


# Wire values.


@pytest.mark.parametrize(
    ("data", "size", "hashes"),
    [(b"aabbcc", 2, (b"aa", b"bb", b"cc")), (b"abc", 3, (b"abc",)), (b"", 4, ()), (b"ab", 1, (b"a", b"b"))],
)
def test_packed_value(data: bytes, size: int, hashes: tuple[bytes, ...]) -> None:
    """WIRE-HASH-1, WIRE-HASH-4."""
    assert wire.unpack(data, size) == Hashes(hashes)


@pytest.mark.parametrize(
    ("data", "size", "clause"),
    [
        (b"", 0, "WIRE-HASH-2"),
        (b"ab", 0, "WIRE-HASH-2"),
        (b"ab", -1, "WIRE-HASH-2"),
        (b"ab", -2, "WIRE-HASH-2"),
        (b"abc", 2, "WIRE-HASH-3"),
        (b"a", 2, "WIRE-HASH-3"),
    ],
)
def test_malformed_packed_value(data: bytes, size: int, clause: str) -> None:
    """WIRE-HASH-2, WIRE-HASH-3."""
    result = wire.unpack(data, size)
    assert isinstance(result, Refusal)
    assert result.clause == clause


# The calls as values.


def test_apply() -> None:
    request = view("A", 1)
    state, result = calls.apply_scheduler(P32, INITIAL, calls.BuildConnectorMeta((("A", 5),), (request,)))
    assert result == meta({"A": 0}, {"A": H[:1]})
    assert calls.apply_scheduler(P32, state, calls.TakeOutput(request, (output(0, 4),))) == (
        state,
        Rows(output(0, 4)[1].rows),
    )
    ended, result = calls.apply_scheduler(P32, state, calls.RequestFinished(request))
    assert (ended, result) == (SchedulerState(0, (), (("A", ()),)), None)
    assert calls.apply_scheduler(P32, state, calls.Reset()) == (SchedulerState(1), None)
    assert calls.apply_scheduler(P32, state, calls.Unpack(b"ab", 1)) == (state, Hashes((b"a", b"b")))
    assert calls.RequestFinished(request).preempted is False


# Arithmetic; tests/symbolic proves the contracts for all inputs.


def test_kernel() -> None:
    assert [kernel.num_full_blocks(n, 4) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert kernel.block_range(3, 4) == (12, 16)
    assert kernel.block_range(0, 4) == (0, 4)
    assert kernel.num_unsent(5, 3) == 2
    assert kernel.num_unsent(3, 5) == -2
    assert kernel.num_accepted_rows(8, 2) == 5
    assert kernel.num_accepted_rows(3, 5) == -3
    assert [kernel.num_packed(n, 4) for n in (0, 3, 4, 8)] == [0, -1, 1, 2]
    assert [kernel.num_packed(4, size) for size in (-4, -1, 0, 1, 5)] == [-1, -1, -1, 4, -1]
    assert kernel.emit_start_unclamped(7, 2, 6) == 7
    assert kernel.emit_start_clamped(7, 4, 0, 4) == 4


# Clauses and profiles.


def test_clauses() -> None:
    assert CLAUSES["SCHED-META-1"].component == "SCHED"
    assert CLAUSES["WIRE-HASH-1"].component == "WIRE"
    only_31 = {clause.id for clause in in_profile("0.31")} - {clause.id for clause in in_profile("0.32")}
    only_32 = {clause.id for clause in in_profile("0.32")} - {clause.id for clause in in_profile("0.31")}
    assert (only_31, only_32) == ({"SCHED-EMIT-3"}, {"SCHED-EMIT-4", "SCHED-HASH-9", "SCHED-HASH-12"})
    assert [clause.id for clause in in_profile("0.31")[:2]] == ["SCHED-META-1", "SCHED-META-2"]


def test_profiles() -> None:
    assert difference(P31, P31) == {}
    assert difference(P31, P32) == {
        "clamps_prompt_start": (False, True),
        "truncates_session_hashes": (False, True),
        "guards_running_reset": (True, False),
    }
    assert P31.name == "0.31"
    assert not P31.deviations | P32.deviations
