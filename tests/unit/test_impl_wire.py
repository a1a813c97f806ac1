"""The compact metadata: what it reads like, and that any of it survives pickling."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxout._wire import EmitStarts, NewHashes, Roster
from auxout.connector import AuxOutputConnectorMetadata, AuxOutputSchedulerConnector, PackedBlockHashes


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        pytest.fail(f"got {actual!r}, expected {expected!r}")


request_ids = st.text(max_size=4) | st.sampled_from(["", "\0", "a\0b", "\ud800"])
packed_hashes = st.builds(PackedBlockHashes, st.binary(max_size=12), st.integers(-1, 2**70))
hash_tables = st.dictionaries(request_ids, packed_hashes, max_size=4)


@given(
    generation=st.integers(0),
    starts=st.dictionaries(request_ids, st.integers(-(2**70), 2**70)),
    hashes=hash_tables,
    finished=st.lists(request_ids).map(tuple),
    apart=hash_tables,
    own=st.booleans(),
)
def test_any_metadata_survives_pickling(
    generation: int, starts: dict[str, int], hashes: Any, finished: Any, apart: Any, own: bool
) -> None:
    requests: Any = EmitStarts(Roster(tuple(starts)), list(starts.values())) if own else starts
    before = AuxOutputConnectorMetadata(generation, requests, hashes, finished, apart)
    after = pickle.loads(pickle.dumps(before, 5))
    expect(after, before)
    expect(list(after.requests.items()), list(starts.items()))
    expect(list(after.block_hashes.items()), list(hashes.items()))
    expect(pickle.loads(pickle.dumps(after, 5)), before)


def test_long_hashes_are_not_copied_into_one_buffer() -> None:
    hashes = {"A": PackedBlockHashes(bytes(4096), 32), "B": PackedBlockHashes(b"x" * 32, 32)}
    metadata = AuxOutputConnectorMetadata(0, {"A": 0}, hashes, ())
    expect(pickle.loads(pickle.dumps(metadata, 5)), metadata)


def test_emit_starts_read_like_a_dictionary() -> None:
    starts = EmitStarts(Roster(("B", "A")), [3, 4])
    expect(starts, {"A": 4, "B": 3})
    expect([list(starts), list(starts.keys()), list(starts.values())], [["B", "A"], ["B", "A"], [3, 4]])
    expect((len(starts), starts["A"], starts.get("C"), "C" in starts), (2, 4, None, False))
    expect(starts.keys() & ("A", "C"), {"A"})
    expect(repr(starts), "EmitStarts({'B': 3, 'A': 4})")
    with pytest.raises(TypeError):
        starts["A"] = 5  # pyright: ignore[reportIndexIssue]
    expect(pickle.loads(pickle.dumps(starts)), starts)
    expect(copy.deepcopy(starts), starts)


def test_new_hashes_read_like_a_dictionary() -> None:
    empty = NewHashes([], [], [])
    expect(empty, {})
    expect(pickle.loads(pickle.dumps(empty)), {})
    hashes = NewHashes(["B", "A"], [b"xxyy", b"zz"], [2, 2])
    expect({name: list(packed) for name, packed in hashes.items()}, {"B": [b"xx", b"yy"], "A": [b"zz"]})
    expect([list(hashes), len(hashes), list(hashes["A"])], [["B", "A"], 2, [b"zz"]])
    if "PackedBlockHashes" not in repr(hashes):
        pytest.fail(repr(hashes))
    expect(pickle.loads(pickle.dumps(hashes)), hashes)


def test_a_batch_is_joined_once() -> None:
    roster = Roster(("A", "B"))
    expect(roster.pack() is roster.pack(), True)


def test_a_batch_that_comes_again_is_taken_apart_once() -> None:
    for ids in (("A", "B"), ("A",), ("",)):
        packed = Roster(ids).pack()
        first, again = Roster.unpack(packed), Roster.unpack(f"{packed}")
        expect((first.ids, first.pack(), first.key), (ids, packed, packed))
        expect(again is first, True)
    odd = Roster(("A\0", "B")).pack()
    expect((odd, Roster.unpack(odd).ids), (("A\0", "B"), ("A\0", "B")))


def test_the_invariant_check_can_fail() -> None:
    connector = AuxOutputSchedulerConnector()
    connector._check()
    connector._sent["A"] = 1, b""
    with pytest.raises(RuntimeError, match="count and last hash"):
        connector._check()
