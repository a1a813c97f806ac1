"""The spec's store, with every result written out."""

from __future__ import annotations

from auxout_spec import store
from auxout_spec.store import EMPTY, StoreState
from auxout_spec.values import Refusal, Row

K1, K2, K3, K4 = ((0, bytes([n])) for n in (1, 2, 3, 4))


def block(name: str) -> tuple[Row, ...]:
    return (Row(name, 0, 0, 0), Row(name, 1, 0, 0))


def keys(state: StoreState | Refusal) -> list[tuple[int, bytes]]:
    assert isinstance(state, StoreState)
    return [key for key, _ in state.objects]


def filled(
    *names: tuple[int, bytes], references: tuple[tuple[tuple[int, bytes], int], ...] = ()
) -> StoreState:
    return StoreState(tuple((key, block(str(key[1]))) for key in names), references)


def test_an_object_is_written_once() -> None:
    first = store.put(EMPTY, 2, ((K1, block("a")), (K2, block("b"))))
    again = store.put(first, 2, ((K1, block("other")),)) if isinstance(first, StoreState) else first
    assert isinstance(again, StoreState)
    assert again.objects == (
        (K2, block("b")),
        (K1, block("a")),
    )  # STORE-PUT-1: the first rows, now the youngest


def test_the_oldest_unreferenced_objects_make_room() -> None:
    state = filled(K1, K2, K3, references=((K1, 1),))
    after = store.put(state, 3, ((K4, block("d")),))
    assert keys(after) == [K1, K3, K4]  # STORE-PUT-3: K1 is older, but referenced


def test_a_batch_that_cannot_fit_changes_nothing() -> None:
    state = filled(K1, K2, references=((K1, 1), (K2, 1)))
    refusal = store.put(state, 2, ((K3, block("c")),))
    assert refusal == Refusal("STORE-PUT-3", "the batch needs 1 objects evicted, 0 can be")


def test_no_object_of_the_batch_makes_room() -> None:
    refusal = store.put(EMPTY, 1, ((K1, block("a")), (K2, block("b"))))
    assert isinstance(refusal, Refusal)
    assert refusal.clause == "STORE-PUT-3"


def test_a_batch_may_take_the_room_that_it_releases() -> None:
    state = filled(K1, K2, references=((K1, 1), (K2, 1)))
    after = store.put(state, 2, ((K3, block("c")),), release=(K1,))
    assert after == StoreState(((K2, block(str(K2[1]))), (K3, block("c"))), ((K2, 1),))


def test_references_are_counted_and_may_come_before_the_object() -> None:
    after = store.put(EMPTY, 2, (), retain=(K1, K1, K2))
    assert after == StoreState((), ((K1, 2), (K2, 1)))
    less = store.put(StoreState((), ((K1, 2), (K2, 1))), 2, (), release=(K1, K2))
    assert less == StoreState((), ((K1, 1),))


def test_releasing_more_than_was_retained_is_refused() -> None:
    refusal = store.put(EMPTY, 2, (), release=(K1,))
    assert isinstance(refusal, Refusal)
    assert refusal.clause == "STORE-PUT-4"


def test_released_objects_become_the_youngest_in_order() -> None:
    state = filled(K1, K2, K3, references=((K1, 1), (K2, 1)))
    after = store.put(state, 3, (), release=(K2, K1))
    assert keys(after) == [K3, K2, K1]


def test_an_object_that_is_written_and_released_at_once_may_make_room() -> None:
    state = filled(K1, K2, references=((K1, 1), (K2, 1), (K3, 1)))
    after = store.put(state, 2, ((K3, block("c")),), release=(K3,))
    assert keys(after) == [K1, K2]


def test_reading_is_in_order_and_makes_young() -> None:
    state, rows = store.read(filled(K1, K2, K3), (K2, K1))
    assert rows == (*block(str(K2[1])), *block(str(K1[1])))
    assert keys(state) == [K3, K2, K1]


def test_reading_what_is_missing_fails_closed() -> None:
    before = filled(K1)
    state, refusal = store.read(before, (K1, K2))
    assert refusal == Refusal("STORE-READ-1", "1 of 2 blocks are not in the store")
    assert state == before


def test_a_key_that_keeps_a_reference_keeps_its_age() -> None:
    state = filled(K1, K2, references=((K1, 2),))
    after = store.put(state, 2, (), release=(K1,))
    assert after == StoreState(state.objects, ((K1, 1),))  # STORE-PUT-4
