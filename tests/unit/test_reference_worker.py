"""The worker core's behaviour in small examples, with the results written out.

Blocks have two tokens. A row's two ids are its request's letter and its position, plus 100 for a recomputation.
Comparisons go through ``expect`` and ``pytest.raises``, so that the file tests the same under ``python -O``.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import auxout.core
import auxout_reference.worker
from auxout_reference import AuxOutputConnectorMetadata, PackedBlockHashes

MODULES = {"reference": auxout_reference.worker, "impl": auxout.core}


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        pytest.fail(f"got {actual!r}, expected {expected!r}")


def rows(*names: str) -> np.ndarray[Any, Any]:
    """``A3`` is the row of A's position 3, ``A3'`` that of its second computation."""
    ids = [[[ord(name[0]), int(name[1]) + 100 * name.count("'")]] for name in names]
    return np.array(ids, np.uint8).reshape(-1, 1, 2)


def names(array: np.ndarray[Any, Any]) -> list[str]:
    return [f"{chr(owner)}{position % 100}{chr(39) * (position // 100)}" for owner, position in array[:, 0]]


def read(outputs: Any) -> dict[str, Any]:
    """Request -> start and rows, or the error of one that failed."""
    return {
        name: output.error or (output.token_start, *names(output.rows)) for name, output in outputs.items()
    }


def meta(
    requests: dict[str, int] | None = None, finished: str = "", generation: int = 0, **hashes: str
) -> AuxOutputConnectorMetadata:
    """Metadata; each letter of a request's hashes names one hash of two bytes."""
    packed = {
        name: PackedBlockHashes(b"".join(2 * h.encode() for h in each), 2) for name, each in hashes.items()
    }
    return AuxOutputConnectorMetadata(generation, requests or {}, packed, tuple(finished))


def refusal(call: Any, *args: Any) -> Any:
    with pytest.raises(AssertionError) as caught:
        call(*args)
    return caught.value


class Driver:
    """A worker, and steps written in one line."""

    def __init__(self, module: Any, **options: Any) -> None:
        settings = {"block_size": 2, "shape_per_token": (1, 2), "dtype": "uint8", "max_objects": 8}
        self.core = module.WorkerCore(**{**settings, **options})

    def launch(self, *parts: tuple[str, int, np.ndarray[Any, Any]]) -> Any:
        """The forward pass of a step: request, start and rows of each part."""
        bounds = np.cumsum([0, *(len(part[2]) for part in parts)])
        live = np.concatenate([part[2] for part in parts])
        pending = self.core.prepare_output([p[0] for p in parts], [p[1] for p in parts], bounds, live)
        live[:] = 0  # the next step overwrites it
        return pending

    def land(self, pending: Any, sampled: Any = (1,), rejected: Any = (0,)) -> dict[str, Any]:
        return read(self.core.process_output(pending, sampled, rejected))

    def step(self, name: str, start: int, *new: str, sampled: int = 1, rejected: int = 0) -> dict[str, Any]:
        return self.land(self.launch((name, start, rows(*new))), [sampled], [rejected])

    def run(self, metadata: Any, name: str, start: int, *new: str, **counts: int) -> dict[str, Any]:
        self.core.begin_step(metadata)
        return self.step(name, start, *new, **counts)

    def usage(self) -> tuple[int, ...]:
        return tuple(self.core.usage())


@pytest.fixture(params=list(MODULES.values()), ids=list(MODULES))
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def driver(module: Any) -> Driver:
    return Driver(module)


@pytest.fixture
def lenient(module: Any) -> Driver:
    return Driver(module, errors="request")


# --- what a request gets


def test_a_prompt_is_returned_and_its_full_blocks_are_stored(driver: Driver) -> None:
    expect(driver.run(meta({"A": 0}, A="x"), "A", 0, "A0", "A1", "A2"), {"A": (0, "A0", "A1", "A2")})
    expect(driver.usage(), (1, 0, 1, 1, 1))
    expect(driver.run(meta({"A": 3}), "A", 3, "A3"), {"A": (3, "A3")})
    expect(driver.usage(), (1, 0, 1, 1, 2))  # the second block waits for its key
    driver.core.begin_step(meta(A="y"))
    expect(driver.usage(), (1, 0, 2, 2, 0))  # WORK-PUBLISH-1


def test_chunks_of_a_prompt_are_returned_with_the_one_that_samples(driver: Driver) -> None:
    expect(driver.run(meta({"A": 1}, A="xy"), "A", 0, "A0", "A1", "A2", sampled=0), {})
    expect(driver.run(meta({"A": 1}), "A", 3, "A3", "A4"), {"A": (1, "A1", "A2", "A3", "A4")})


def test_rows_before_the_step_come_from_the_tail_alone_where_it_has_them(module: Any) -> None:
    driver = Driver(module, block_size=4)
    driver.run(meta({"A": 1}), "A", 0, "A0", "A1", sampled=0)
    expect(driver.run(meta({"A": 1}), "A", 2, "A2"), {"A": (1, "A1", "A2")})
    driver.run(meta({"B": 4}, B="x"), "B", 0, "B0", "B1", "B2", "B3", "B4", sampled=0)
    expect(driver.run(meta({"B": 4}), "B", 5, "B5"), {"B": (4, "B4", "B5")})


def test_a_prefix_hit_reads_what_another_request_stored(driver: Driver) -> None:
    driver.run(meta({"A": 0}, A="xy"), "A", 0, "A0", "A1", "A2", "A3")
    driver.core.begin_step(meta(finished="A"))
    expect(driver.run(meta({"B": 1}, B="xy"), "B", 4, "B4"), {"B": (1, "A1", "A2", "A3", "B4")})


def test_a_request_reads_what_the_same_step_stored(driver: Driver) -> None:
    driver.core.begin_step(meta({"B": 0, "A": 0}, A="x", B="x"))
    pending = driver.launch(("B", 2, rows("B2")), ("A", 0, rows("A0", "A1")))
    expect(driver.land(pending, [1, 1], [0, 0]), {"B": (0, "A0", "A1", "B2"), "A": (0, "A0", "A1")})


def test_the_first_of_a_batch_to_compute_a_block_has_written_it(driver: Driver) -> None:
    driver.core.begin_step(meta({"B": 0, "A": 0}, A="x", B="x"))
    pending = driver.launch(("B", 0, rows("B0", "B1")), ("A", 0, rows("A0", "A1")))
    expect(driver.land(pending, [1, 1], [0, 0]), {"B": (0, "B0", "B1"), "A": (0, "A0", "A1")})
    expect(driver.run(meta({"C": 0}, C="x"), "C", 2, "C2"), {"C": (0, "B0", "B1", "C2")})  # STORE-PUT-1


def test_rejected_drafts_are_dropped_and_the_next_step_attaches(driver: Driver) -> None:
    driver.run(meta({"A": 0}, A="x"), "A", 0, "A0", "A1", "A2")
    driver.core.begin_step(meta({"A": 3}))
    first = driver.launch(("A", 3, rows("A3", "A4", "A5")))
    driver.core.begin_step(meta({"A": 3}))
    second = driver.launch(("A", 6, rows("A4'")))
    expect(driver.land(first, [1], [2]), {"A": (3, "A3")})  # WORK-CAPTURE-1
    expect(driver.land(second), {"A": (4, "A4'")})  # WORK-CAPTURE-3


def test_a_step_whose_rows_are_all_rejected_returns_no_row(driver: Driver) -> None:
    driver.run(meta({"A": 0}), "A", 0, "A0")
    expect(driver.run(meta({"A": 1}), "A", 1, "A1", rejected=1), {"A": (1,)})


def test_an_emit_start_ahead_waits_and_at_the_end_returns_no_row(driver: Driver) -> None:
    expect(driver.run(meta({"A": 3}), "A", 0, "A0", "A1"), {})
    expect(driver.run(meta({"A": 3}), "A", 2, "A2"), {"A": (3,)})


def test_outputs_stay_as_they_are_when_their_blocks_go_on(driver: Driver) -> None:
    driver.core.begin_step(meta({"A": 0}))
    output = driver.core.process_output(driver.launch(("A", 0, rows("A0"))), [1], [0])
    output["A"].rows[:] = 7
    expect(driver.run(meta({"A": 1}, A="x"), "A", 1, "A1"), {"A": (1, "A1")})
    expect(driver.run(meta({"B": 0}, B="x"), "B", 2, "B2"), {"B": (0, "A0", "A1", "B2")})


def test_a_step_without_metadata_does_nothing(driver: Driver) -> None:
    driver.core.begin_step(None)
    expect(driver.usage(), (0, 0, 0, 0, 0))


# --- ends, generations, eviction


def test_an_end_with_nothing_in_flight_leaves_only_objects(driver: Driver) -> None:
    driver.run(meta({"A": 0}, A="x"), "A", 0, "A0", "A1", "A2")
    driver.core.begin_step(meta(finished="A"))
    expect(driver.usage(), (0, 0, 0, 1, 0))  # WORK-TEAR-2


def test_an_end_waits_for_the_last_step_in_flight(driver: Driver) -> None:
    driver.run(meta({"A": 0}, A="x"), "A", 0, "A0", "A1", "A2")
    driver.core.begin_step(meta({"A": 3}))
    pending = driver.launch(("A", 3, rows("A3")))
    driver.core.begin_step(meta(finished="A", A="y"))
    expect(driver.usage(), (1, 1, 2, 1, 1))
    expect(driver.land(pending), {"A": (3, "A3")})
    expect(driver.usage(), (0, 0, 0, 2, 0))  # WORK-TEAR-1


def test_a_generation_drops_every_request_and_never_reads_older_objects(driver: Driver) -> None:
    driver.run(meta({"A": 0, "B": 0}, A="x", B="y"), "A", 0, "A0", "A1", "A2")
    driver.core.begin_step(meta({"A": 0}, generation=1, A="x"))
    expect(driver.usage(), (1, 0, 1, 1, 0))
    expect(driver.step("A", 0, "A0'", "A1'"), {"A": (0, "A0'", "A1'")})
    expect(driver.run(meta({"C": 0}, generation=1, C="x"), "C", 2, "C2"), {"C": (0, "A0'", "A1'", "C2")})


def test_the_oldest_unreferenced_block_makes_room(module: Any) -> None:
    driver = Driver(module, max_objects=2)
    driver.run(meta({"A": 0}, A="xy"), "A", 0, "A0", "A1", "A2", "A3")
    driver.core.begin_step(meta(finished="A"))  # released last first, so y is the oldest
    driver.run(meta({"B": 0}, B="z"), "B", 0, "B0", "B1")
    expect(driver.usage(), (1, 0, 1, 2, 0))  # STORE-PUT-2
    expect(driver.run(meta({"C": 0}, C="x"), "C", 2, "C2"), {"C": (0, "A0", "A1", "C2")})
    driver.core.begin_step(meta({"D": 0}, D="xy"))
    pending = driver.launch(("D", 4, rows("D4")))
    error = refusal(driver.land, pending)
    expect((error.clause, error.request_id), ("STORE-READ-1", "D"))


def test_a_block_kept_twice_has_two_references(driver: Driver) -> None:
    driver.run(meta({"A": 0}, A="x"), "A", 0, "A0", "A1")
    driver.run(meta({"B": 0}, B="x"), "B", 2, "B2")
    driver.core.begin_step(meta(finished="A"))
    expect(driver.usage()[2:4], (1, 1))


# --- refusals leave everything as it was


def unchanged(driver: Driver, clause: str, request_id: str | None, call: Any, *args: Any) -> None:
    """A call is refused for a clause and changes nothing that usage shows."""
    before = driver.usage()
    error = refusal(call, *args)
    expect((error.clause, error.request_id), (clause, request_id))
    expect(clause in str(error), True)
    expect(driver.usage(), before)


@pytest.fixture
def settled(driver: Driver) -> Driver:
    """A has rows up to 3; nothing is in flight."""
    driver.run(meta({"A": 0}, A="x"), "A", 0, "A0", "A1", "A2")
    return driver


@pytest.mark.parametrize(
    ("metadata", "clause", "request_id"),
    [
        (meta({"A": 0}, finished="A"), "WORK-BEGIN-1", "A"),
        (meta({"A": 4}), "WORK-BEGIN-4", "A"),
        (meta({"B": 0}, C="x"), "WORK-BEGIN-5", "C"),
        (meta({"B": 0}, finished="C"), "WORK-BEGIN-5", "C"),
    ],
    ids=["both", "emit start", "hashes of nobody", "end of nobody"],
)
def test_metadata_is_refused(settled: Driver, metadata: Any, clause: str, request_id: str) -> None:
    unchanged(settled, clause, request_id, settled.core.begin_step, metadata)
    expect(settled.run(meta({"A": 3}), "A", 3, "A3"), {"A": (3, "A3")})


def test_a_generation_never_goes_back_and_waits_for_steps_in_flight(settled: Driver) -> None:
    settled.core.begin_step(meta({"A": 0}, generation=2))
    unchanged(settled, "WORK-BEGIN-2", None, settled.core.begin_step, meta(generation=1))
    pending = settled.launch(("A", 0, rows("A0")))
    unchanged(settled, "WORK-BEGIN-3", None, settled.core.begin_step, meta(generation=3))
    expect(settled.land(pending), {"A": (0, "A0")})


@pytest.mark.parametrize(
    ("start", "rejected", "clause"),
    [(3, 2, "WORK-CAPTURE-5"), (3, -1, "WORK-CAPTURE-5"), (2, 0, "WORK-CAPTURE-2"), (4, 0, "WORK-CAPTURE-3")],
)
def test_a_capture_is_refused(settled: Driver, start: int, rejected: int, clause: str) -> None:
    settled.core.begin_step(meta({"A": 3}))
    pending = settled.launch(("A", start, rows("A3")))
    unchanged(settled, clause, "A", settled.core.process_output, pending, [1], [rejected])


def test_a_part_without_rows_is_refused(settled: Driver) -> None:
    settled.core.begin_step(meta({"A": 3, "B": 0}))
    pending = settled.launch(("A", 3, rows("A3")), ("B", 0, rows()))
    unchanged(settled, "WORK-CAPTURE-5", "B", settled.core.process_output, pending, [1, 0], [0, 0])


def test_the_first_capture_is_at_a_block_boundary(driver: Driver) -> None:
    driver.core.begin_step(meta({"A": 0}, A="x"))
    pending = driver.launch(("A", 1, rows("A1")))
    unchanged(driver, "WORK-CAPTURE-4", "A", driver.core.process_output, pending, [1], [0])


def test_rows_without_a_key_cannot_be_returned_later(driver: Driver) -> None:
    driver.run(meta({"A": 0}), "A", 0, "A0", "A1", sampled=0)
    driver.core.begin_step(meta({"A": 0}))
    pending = driver.launch(("A", 2, rows("A2")))
    unchanged(driver, "WORK-EMIT-3", "A", driver.core.process_output, pending, [1], [0])


def test_a_batch_that_does_not_fit_is_refused_before_what_is_missing(module: Any) -> None:
    driver = Driver(module, max_objects=1)
    driver.core.begin_step(meta({"A": 0, "B": 0}, A="xy", B="z"))
    pending = driver.launch(("B", 2, rows("B2")), ("A", 0, rows("A0", "A1", "A2", "A3")))
    unchanged(driver, "STORE-PUT-3", "A", driver.core.process_output, pending, [1, 1], [0, 0])
    driver = Driver(module, max_objects=1)
    driver.run(meta({"A": 0}), "A", 0, "A0", "A1", "A2", "A3")
    unchanged(driver, "STORE-PUT-3", "A", driver.core.begin_step, meta(A="xy"))


@pytest.mark.parametrize(
    "batch",
    [
        (["A", "A"], [3, 4], [0, 1, 2], rows("A3", "A4")),
        (["A"], [3, 4], [0, 1], rows("A3")),
        (["A"], [3], [0, 1, 1], rows("A3")),
        (["A"], [3], [], rows("A3")),
        (["A"], [3], [1, 2], rows("A3", "A4")),
        (["A"], [3], [0, 1], rows("A3", "A4")),
        (["A"], [-1], [0, 1], rows("A3")),
        (["A"], [3], [0, 1], rows("A3").astype(np.uint16)),
        (["A"], [3], [0, 1], rows("A3").reshape(1, 2, 1)),
    ],
    ids=[
        "twice",
        "starts",
        "bounds",
        "nothing",
        "offset",
        "more-rows",
        "negative",
        "dtype",
        "shape",
    ],
)
def test_a_batch_that_is_none_is_refused(settled: Driver, batch: tuple[Any, ...]) -> None:
    settled.core.begin_step(meta({"A": 3, "B": 0}))
    unchanged(settled, "WORK-STEP-1", None, settled.core.prepare_output, *batch)


def test_an_empty_batch_is_a_step(driver: Driver) -> None:
    pending = driver.core.prepare_output([], [], [0], rows())
    expect(driver.usage()[1], 1)
    expect(driver.land(pending, [], []), {})


def test_a_request_that_never_began_is_refused(driver: Driver) -> None:
    unchanged(driver, "WORK-STEP-2", "A", driver.launch, ("A", 0, rows("A0")))


def test_steps_are_processed_once_in_launch_order_and_no_more_than_allowed(driver: Driver) -> None:
    driver.core.begin_step(meta({"A": 0}))
    first, second = driver.launch(("A", 0, rows("A0"))), driver.launch(("A", 1, rows("A1")))
    unchanged(driver, "WORK-STEP-1", None, driver.launch, ("A", 2, rows("A2")))
    unchanged(driver, "WORK-STEP-1", None, driver.land, second)
    unchanged(driver, "WORK-STEP-1", None, driver.land, first, [1, 1], [0])
    unchanged(driver, "WORK-STEP-1", None, driver.land, first, [1], [])
    expect((driver.land(first), driver.land(second)), ({"A": (0, "A0")}, {"A": (1, "A1")}))
    unchanged(driver, "WORK-STEP-1", None, driver.land, second)


def test_closing_drops_everything_and_refuses_what_follows(driver: Driver) -> None:
    driver.core.begin_step(meta({"A": 0}, A="x"))
    pending = driver.launch(("A", 0, rows("A0", "A1", "A2")))
    driver.core.close()
    driver.core.close()
    expect(driver.usage(), (0, 0, 0, 0, 0))
    unchanged(driver, "WORK-STEP-1", None, driver.core.begin_step, meta())
    unchanged(driver, "WORK-STEP-1", None, driver.launch, ("A", 3, rows("A3")))
    unchanged(driver, "WORK-STEP-1", None, driver.land, pending)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"block_size": 0}, "at least 1"),
        ({"shape_per_token": (1, 0)}, "at least 1"),
        ({"max_objects": 0}, "at least 1"),
        ({"errors": "ignore"}, "'ignore'"),
        ({"profile": "0.30"}, "'0.30'"),
    ],
)
def test_unusable_options(module: Any, option: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Driver(module, **option)


# --- errors="request": one request fails, the rest continues


def failed(driver: Driver, clause: str, outputs: dict[str, Any], name: str = "A") -> None:
    """The request's output says why it failed, once counted, and it holds nothing any more."""
    expect(clause in outputs.pop(name), True)
    expect(driver.core.failures[clause], 1)


def test_a_failing_capture_leaves_the_others_alone(lenient: Driver, caplog: pytest.LogCaptureFixture) -> None:
    lenient.run(meta({"A": 0}, A="x"), "A", 0, "A0", "A1", "A2")
    lenient.core.begin_step(meta({"A": 3, "B": 0}, B="y"))
    pending = lenient.launch(("A", 2, rows("A3")), ("B", 0, rows("B0", "B1", "B2")))
    with caplog.at_level(logging.ERROR):
        outputs = lenient.core.process_output(pending, [1, 1], [0, 0])
    expect((outputs["A"].token_start, outputs["A"].rows.shape), (3, (0, 1, 2)))
    expect("request A" in caplog.text and "WORK-CAPTURE-2" in caplog.text, True)
    outputs = read(outputs)
    failed(lenient, "WORK-CAPTURE-2", outputs)
    expect(outputs, {"B": (0, "B0", "B1", "B2")})
    expect(lenient.usage(), (2, 0, 1, 2, 1))  # A's key is released, its tail gone


def test_a_failed_request_says_so_until_it_ends_and_may_start_again(lenient: Driver) -> None:
    lenient.run(meta({"A": 0}), "A", 1, "A1")
    outputs = lenient.run(meta({"A": 9}, A="x"), "A", 5, "A5", sampled=0)
    failed(lenient, "WORK-CAPTURE-4", outputs)
    pending = lenient.launch(("A", 6, rows("A6")))
    lenient.core.begin_step(meta(finished="A"))
    failed(lenient, "WORK-CAPTURE-4", lenient.land(pending))
    expect(lenient.usage(), (0, 0, 0, 0, 0))
    expect(lenient.run(meta({"A": 0}), "A", 0, "A0"), {"A": (0, "A0")})


@pytest.mark.parametrize(
    ("metadata", "clause"),
    [(meta({"A": 0}, finished="A"), "WORK-BEGIN-1"), (meta({"A": 4}), "WORK-BEGIN-4")],
)
def test_metadata_fails_a_request(lenient: Driver, metadata: Any, clause: str) -> None:
    lenient.run(meta({"A": 0}, A="x"), "A", 0, "A0", "A1", "A2")
    failed(lenient, clause, lenient.run(metadata, "A", 3, "A3"))
    expect(lenient.usage(), (1, 0, 0, 1, 0))


def test_a_start_that_also_ends_fails(lenient: Driver) -> None:
    failed(lenient, "WORK-BEGIN-1", lenient.run(meta({"A": 0}, finished="A"), "A", 0, "A0"))


def test_messages_about_nobody_are_counted(lenient: Driver) -> None:
    lenient.core.begin_step(meta(finished="C", B="x"))
    expect(lenient.core.failures, {"WORK-BEGIN-5": 2})
    expect(lenient.usage(), (0, 0, 0, 0, 0))


def test_a_request_that_never_began_fails(lenient: Driver) -> None:
    pending = lenient.launch(("A", 0, rows("A0")))
    failed(lenient, "WORK-STEP-2", lenient.land(pending))
    pending = lenient.launch(("A", 0, rows("A0")))
    lenient.core.begin_step(meta({"A": 0}))  # another activation: the step in flight is none of its
    expect("WORK-STEP-2" in lenient.land(pending)["A"], True)
    expect(lenient.usage(), (1, 0, 0, 0, 0))


def test_missing_rows_fail_a_request(lenient: Driver) -> None:
    failed(lenient, "STORE-READ-1", lenient.run(meta({"A": 0}, A="x"), "A", 2, "A2"))
    expect(lenient.usage(), (1, 0, 0, 0, 0))
    lenient.run(meta({"B": 0}), "B", 0, "B0", "B1", sampled=0)
    failed(lenient, "WORK-EMIT-3", lenient.run(meta({"B": 0}), "B", 2, "B2"), "B")


def test_the_last_requests_with_blocks_fail_until_the_batch_fits(module: Any) -> None:
    driver = Driver(module, max_objects=1, errors="request")
    driver.core.begin_step(meta({"A": 0, "B": 0, "C": 0}, A="x", B="y", C=""))
    pending = driver.launch(*((name, 0, rows(f"{name}0", f"{name}1")) for name in "CBA"))
    outputs = driver.land(pending, [1, 1, 1], [0, 0, 0])
    failed(driver, "STORE-PUT-3", outputs)
    expect(outputs, {"C": (0, "C0", "C1"), "B": (0, "B0", "B1")})
    driver.core.begin_step(meta({"D": 0}, finished="C", C="z", D="z"))  # C has ended: there is nobody to tell
    expect(driver.core.failures, {"STORE-PUT-3": 2})
    expect(driver.usage(), (3, 0, 2, 1, 0))


def test_requests_of_an_old_generation_fail_and_the_others_go_on(lenient: Driver) -> None:
    lenient.core.begin_step(meta({"A": 0, "B": 0}, generation=1))
    lenient.core.begin_step(meta({"A": 0, "C": 0}, generation=0))
    pending = lenient.launch(("A", 0, rows("A0")), ("B", 0, rows("B0")), ("C", 0, rows("C0")))
    outputs = lenient.land(pending, [1, 1, 1], [0, 0, 0])
    expect(outputs.pop("B"), (0, "B0"))
    expect(["WORK-BEGIN-2" in outputs[name] for name in "AC"], [True, True])
    expect(lenient.core.failures, {"WORK-BEGIN-2": 2})


def test_a_step_from_before_a_generation_is_void_and_the_next_is_not(lenient: Driver) -> None:
    lenient.core.begin_step(meta({"A": 0}))
    before = lenient.launch(("A", 0, rows("A0")))
    lenient.core.begin_step(meta({"A": 0}, generation=1))
    after = lenient.launch(("A", 0, rows("A1")))
    failed(lenient, "WORK-BEGIN-3", lenient.land(before))
    expect(lenient.land(after), {"A": (0, "A1")})
    expect(lenient.usage(), (1, 0, 0, 0, 1))


def test_a_request_of_void_steps_is_counted_once_whatever_it_fails_for(lenient: Driver) -> None:
    lenient.core.begin_step(meta({"A": 0, "B": 0}))
    lenient.land(lenient.launch(("A", 1, rows("A1"))), [0])
    failed(lenient, "WORK-CAPTURE-4", lenient.run(meta({"A": 9}, A="x"), "A", 5, "A5", sampled=0))
    void = [lenient.launch(("A", 6, rows("A6")), ("B", 0, rows("B0"))) for _ in range(2)]
    lenient.core.begin_step(meta(generation=1))
    for pending in void:
        outputs = lenient.land(pending, [1, 1], [0, 0])
        expect(["WORK-BEGIN-3" in outputs[name] for name in "AB"], [True, True])
    expect(lenient.core.failures, {"WORK-CAPTURE-4": 1, "WORK-BEGIN-3": 1})
    lenient.core.begin_step(meta({"A": 0}, generation=1))
    again = lenient.launch(("A", 0, rows("A0")))
    lenient.core.begin_step(meta(generation=2))
    lenient.land(again)
    expect(lenient.core.failures, {"WORK-CAPTURE-4": 1, "WORK-BEGIN-3": 2})


def test_a_request_that_runs_again_while_it_ends_fails_until_it_ends_again(lenient: Driver) -> None:
    lenient.core.begin_step(meta({"A": 0}))
    before = lenient.launch(("A", 0, rows("A0")))
    lenient.core.begin_step(meta(finished="A"))
    lenient.core.begin_step(meta({"A": 0}))
    failed(lenient, "WORK-BEGIN-1", lenient.land(before))
    expect(lenient.usage(), (1, 0, 0, 0, 0))
    lenient.core.begin_step(meta(finished="A"))
    expect(lenient.usage(), (0, 0, 0, 0, 0))
