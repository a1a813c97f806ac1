"""Where released code departs: each deviation changes one answer of the spec, and nothing else."""

from __future__ import annotations

import pytest

from auxout_spec import calls
from auxout_spec.deviations import OPTIMIZED, Deviation, crashes, looks, released, spoils
from auxout_spec.profiles import PROFILES, Profile
from auxout_spec.scheduler import INITIAL, SchedulerState, Sent, build_connector_meta
from auxout_spec.values import Hashes, Metadata, Refusal, RequestView, Result

P32 = PROFILES["0.32"]
H = tuple(bytes([65 + number]) * 4 for number in range(6))
"""Hashes of four bytes: AAAA, BBBB, ..."""
G = tuple(bytes([97 + number]) * 4 for number in range(6))
"""Other hashes: aaaa, bbbb, ..."""


def deviating(*deviations: Deviation) -> Profile:
    return P32._replace(deviations=frozenset(deviations))


def view(name: str = "A", hashes: int | tuple[bytes, ...] = 0) -> RequestView:
    """A request of 5 prompt tokens without output; ``hashes`` are the first of H, or given."""
    return RequestView(name, 5, 5, 0, 0, H[:hashes] if isinstance(hashes, int) else hashes)


def build(
    profile: Profile, state: SchedulerState, scheduled: str, *views: RequestView
) -> tuple[SchedulerState, Result]:
    """One step; ``scheduled`` are one-letter ids in order."""
    step = calls.BuildConnectorMeta(tuple((name, 1) for name in scheduled), views)
    return calls.apply_scheduler(profile, state, step)


def finish(profile: Profile, state: SchedulerState, request: RequestView) -> tuple[SchedulerState, Result]:
    return calls.apply_scheduler(profile, state, calls.RequestFinished(request))


def unpacked(profile: Profile, data: bytes, size: int) -> Result:
    return calls.apply_scheduler(profile, INITIAL, calls.Unpack(data, size))[1]


def meta(
    requests: dict[str, int], hashes: dict[str, tuple[bytes, ...]], finished: str = "", **apart: tuple[bytes]
) -> Metadata:
    return Metadata(0, tuple(requests.items()), tuple(hashes.items()), tuple(finished), tuple(apart.items()))


def after(scheduled: str, *views: RequestView, profile: Profile = P32) -> SchedulerState:
    """The state after a step that is not refused."""
    state, result = build(profile, INITIAL, scheduled, *views)
    assert isinstance(result, Metadata)
    return state


def refused(result: Result) -> str:
    """The clause of a refusal whose message names request A."""
    assert isinstance(result, Refusal)
    assert "request A" in result.message
    return result.clause


def test_restart_overwritten() -> None:
    profile = deviating(Deviation.RESTART_OVERWRITTEN)
    state, _ = finish(profile, after("A", view("A", 1)), view("A", 3))
    assert build(profile, state, "A", view("A", G[:2]))[1] == meta({"A": 0}, {"A": H[1:3]}, "A")
    state, _ = finish(profile, after("A", view("A", 1)), view("A", 1))
    assert build(profile, state, "A", view("A", G[:2]))[1] == meta({"A": 0}, {"A": G[:2]}, "A")


def test_replaced_hash() -> None:
    profile = deviating(Deviation.REPLACED_HASH_UNNOTICED)
    state = after("A", view("A", 2))
    assert build(profile, state, "A", view("A", G[:3]))[1] == meta({"A": 0}, {"A": G[2:3]})
    assert refused(build(profile, state, "A", view("A", 1))[1]) == "SCHED-HASH-8"
    told = build(P32, state, "A", view("A", G[:3]))[1]
    assert told == meta({"A": 0}, {"A": G[2:3]})._replace(replaced_block_hashes=(("A", G[:3]),))


@pytest.mark.parametrize(
    ("hashes", "read"),
    [
        ((b"AAAA", b"BB", b"CCC"), (b"AAAA", b"BBCC", b"C")),
        ((b"AA", b"BBB"), (b"AA", b"BB", b"B")),
        ((b"AAA", b"BBB"), (b"AAA", b"BBB")),
    ],
)
def test_mixed_lengths(hashes: tuple[bytes, ...], read: tuple[bytes, ...]) -> None:
    profile = deviating(Deviation.MIXED_LENGTHS_PACKED)
    state, result = build(profile, INITIAL, "A", view("A", hashes))
    assert result == meta({"A": 0}, {"A": read})
    assert state.active == (("A", Sent(len(hashes), hashes[-1])),)
    state, _ = finish(profile, after("A", view("A", 0)), view("A", hashes))
    assert state.ended == (("A", hashes),)
    assert build(profile, state, "")[1] == meta({}, {"A": read}, "A")
    assert build(profile, state, "A", view("A", H[:1]))[1] == meta({"A": 0}, {"A": H[:1]}, "A", A=read)


def test_mixed_lengths_say_truly_what_was_replaced() -> None:
    profile = deviating(Deviation.MIXED_LENGTHS_PACKED)
    told = build(profile, after("A", view("A", 2), profile=profile), "A", view("A", G[:3]))[1]
    assert told == meta({"A": 0}, {"A": G[2:3]})._replace(replaced_block_hashes=(("A", G[:3]),))


@pytest.mark.parametrize(("profile", "is_told"), [("0.31", False), ("0.32", True)])
def test_a_corrupted_list_that_is_sound_again(profile: str, is_told: bool) -> None:
    rules = PROFILES[profile]._replace(deviations=frozenset({Deviation.MIXED_LENGTHS_PACKED}))
    state = after("A", view("A", (H[0], H[1] * 2)), profile=rules)
    told = build(rules, state, "A", view("A", 3))[1]
    again = (("A", H[:3]),) if is_told else ()
    assert told == meta({"A": 0}, {"A": H[2:3]})._replace(replaced_block_hashes=again)


def test_build_not_atomic() -> None:
    profile = deviating(Deviation.BUILD_NOT_ATOMIC)
    state = after("BA", view("A", 2), view("B"), profile=profile)
    now, result = build(profile, state, "CAB", view("A", 1), view("B", 3), view("C", 1))
    assert refused(result) == "SCHED-HASH-8"
    assert now.active == (("B", Sent(0, b"")), ("A", Sent(2, H[1])), ("C", Sent(1, H[0])))
    assert now._replace(active=()) == state._replace(active=())


def test_how_far_a_build_got_depends_on_what_else_goes_unnoticed() -> None:
    """A's lengths and its replaced hash are not looked at, so that it counts before B is refused."""
    profile = deviating(*Deviation)
    state = after("AB", view("A", 1), view("B", 2), profile=profile)
    mixed = (G[0], b"short")
    now, result = build(profile, state, "AB", view("A", mixed), view("B", 1))
    assert isinstance(result, Refusal)
    assert now.active == (("A", Sent(2, b"short")), ("B", Sent(2, H[1])))


def test_finish_not_atomic() -> None:
    profile = deviating(Deviation.FINISH_NOT_ATOMIC)
    state = after("AB", view("A", 2), view("B"))
    now, result = finish(profile, state, view("A", 1))
    assert refused(result) == "SCHED-TERM-8"
    assert now == SchedulerState(0, (("B", Sent(0, b"")),), ())


def test_wire_values() -> None:
    negative = deviating(Deviation.NEGATIVE_ITEM_SIZE_EMPTY)
    ragged = deviating(Deviation.RAGGED_DATA_SHORT_HASH)
    assert unpacked(negative, b"abc", -1) == Hashes(())
    assert unpacked(ragged, b"abc", 2) == Hashes((b"ab", b"c"))
    assert unpacked(ragged, b"abcd", 2) == Hashes((b"ab", b"cd"))
    for profile, data, size, clause in (
        (negative, b"abc", 0, "WIRE-HASH-2"),
        (negative, b"abc", 2, "WIRE-HASH-3"),
        (ragged, b"abc", 0, "WIRE-HASH-2"),
        (ragged, b"abc", -2, "WIRE-HASH-2"),
    ):
        result = unpacked(profile, data, size)
        assert isinstance(result, Refusal)
        assert result.clause == clause


def test_what_a_release_does_after_and_instead_of_a_refusal() -> None:
    assert [spoils(deviating(Deviation.WORKER_STEP_LOST), f"WORK-REFUSE-{n}") for n in (2, 3)] == [
        False,
        True,
    ]
    unknown, order = deviating(Deviation.UNKNOWN_REQUEST_CRASHES), deviating(Deviation.ANY_STEP_ORDER)
    for profile, clause, told in (
        (unknown, "WORK-BEGIN-5", (True, False)),
        (unknown, "WORK-STEP-1", (False, True)),
        (order, "WORK-STEP-1", (False, False)),
        (P32, "WORK-BEGIN-5", (False, True)),
    ):
        assert (crashes(profile, clause), looks(profile, clause)) == told


def test_a_deviation_reads_well() -> None:
    for deviation in Deviation:
        assert Deviation(deviation.value) is deviation
        assert deviation.sentence.endswith((".", ")."))
    assert all(not deviation.wrappers for deviation in OPTIMIZED)
    assert released(P32, build_connector_meta) is build_connector_meta
