"""The torch shell on the CPU, around stand-ins for the vLLM modules that it looks names up in."""

from __future__ import annotations

import logging
import pickle
import sys
import threading
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import auxout.worker
from auxout import AuxOutputConnectorMetadata, PackedBlockHashes, routed_experts
from auxout._snapshots import RingSnapshots

torch = pytest.importorskip("torch")

LAYERS, TOP_K = 2, 2


class Router(torch.nn.Module):
    def __init__(self, layer_id: int) -> None:
        super().__init__()
        self.layer_id, self.capture_fn = layer_id, None


class World:
    """What the vLLM modules say, and a model of routers."""

    def __init__(self) -> None:
        self.group = SimpleNamespace(is_first_rank=True, all_gather=self.gather)
        self.context = SimpleNamespace(dp_metadata=None)
        self.model = torch.nn.Sequential(*(Router(layer) for layer in range(LAYERS)), torch.nn.Linear(1, 1))
        self.other_shards: list[Any] = []

    def gather(self, tensor: Any, dim: int) -> Any:
        return torch.cat([tensor, *self.other_shards], dim)

    @staticmethod
    def bind(model: Any, capturer: Any) -> None:
        for each in model.modules():
            if hasattr(each, "layer_id"):
                each.capture_fn = lambda ids, layer=each.layer_id: capturer.capture(layer, ids)

    def config(self, **changes: Any) -> Any:
        values = {
            "experts": 8,
            "top_k": TOP_K,
            "max_bytes": None,
            "dp_rank": 0,
            "tp": 1,
            "tokens": 16,
        } | changes
        return SimpleNamespace(
            model_config=SimpleNamespace(
                get_total_num_hidden_layers=lambda: LAYERS,
                get_num_experts=lambda: values["experts"],
                get_num_experts_per_tok=lambda: values["top_k"],
            ),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=values["tokens"], max_num_seqs=4),
            parallel_config=SimpleNamespace(
                data_parallel_rank=values["dp_rank"], tensor_parallel_size=values["tp"]
            ),
            aux_output_config=SimpleNamespace(max_bytes=values["max_bytes"]),
            max_concurrent_batches=2,
        )

    def connector(self, *, options: dict[str, Any] | None = None, **changes: Any) -> Any:
        return auxout.AuxOutputWorkerConnector(
            vllm_config=self.config(**changes),
            model=self.model,
            kv_cache_config=SimpleNamespace(num_blocks=4),
            **(options or {}),
        )

    def forward(self, rows: np.ndarray[Any, Any]) -> None:
        """Every router reports its ids, as 32-bit integers."""
        for layer in range(LAYERS):
            self.model[layer].capture_fn(torch.from_numpy(rows[:, layer].astype(np.int32)))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    capturer = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
    stand_ins = {
        "vllm.distributed.parallel_state": {"get_tp_group": lambda: world.group},
        "vllm.forward_context": {"get_forward_context": lambda: world.context},
        "vllm.platforms": {"current_platform": SimpleNamespace(device_type="cpu")},
        capturer: {"bind_routed_experts_capturer": world.bind},
        "vllm.v1.core.kv_cache_utils": {"resolve_kv_cache_block_sizes": lambda kv, config: (4, 2)},
    }
    for name in stand_ins:
        parts = name.split(".")
        for end in range(1, len(parts)):
            package = ModuleType(".".join(parts[:end]))
            package.__path__ = []
            monkeypatch.setitem(sys.modules, package.__name__, package)
    for name, names in stand_ins.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return world


def rows(*first: int) -> np.ndarray[Any, Any]:
    """A row for each id: it, and the next ids, in every layer."""
    ids = np.arange(LAYERS * TOP_K).reshape(LAYERS, TOP_K)
    return (np.array(first)[:, None, None] + ids) % 8


def batch(*parts: tuple[str, int, int]) -> Any:
    """Request, start and tokens; arrays are longer than the batch, as the runner's are."""
    return SimpleNamespace(
        req_ids=[name for name, _, _ in parts],
        query_start_loc_np=np.cumsum([0, *(tokens for _, _, tokens in parts), 0, 0], dtype=np.int32),
        num_computed_tokens_np=np.array([*(start for _, start, _ in parts), 99], np.int32),
    )


def meta(requests: dict[str, int], **hashes: bytes) -> AuxOutputConnectorMetadata:
    packed = {name: PackedBlockHashes(data, 1) for name, data in hashes.items()}
    return AuxOutputConnectorMetadata(0, requests, packed, ())


def counts(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def read(outputs: Any) -> dict[str, Any]:
    return {name: (each.token_start, each.rows[:, 0, 0].tolist()) for name, each in outputs.items()}


def test_a_step_is_captured_copied_and_returned(world: World) -> None:
    connector = world.connector()
    connector.begin_step(meta({"A": 0, "B": 0}, A=b"x"))
    world.forward(rows(1, 2, 3, 4))
    pending = connector.prepare_output(batch(("A", 0, 3), ("B", 0, 1)))
    sampled, rejected = counts(0, 0), counts(0, 0)
    pending.enqueue_cpu_copy(sampled, rejected)
    world.forward(rows(7, 7, 7, 7))  # the next step's capture
    sampled[:], rejected[:] = [1, 1], [1, 0]  # the counts arrive while the copy is under way
    outputs = pending.process_output()
    assert read(outputs) == {"A": (0, [1, 2]), "B": (0, [4])}
    assert outputs["A"].rows.tolist() == rows(1, 2).tolist()
    assert outputs["A"].rows.dtype == np.uint8
    assert connector.usage() == (2, 0, 1, 1, 1)


def test_a_step_without_metadata_has_no_output(world: World) -> None:
    connector = world.connector()
    connector.begin_step(None)
    assert connector.prepare_output(batch(("A", 0, 1))) is None


def test_other_ranks_only_capture(world: World) -> None:
    world.group.is_first_rank = False
    connector = world.connector()
    connector.begin_step(meta({"A": 0}))
    world.forward(rows(1))
    assert connector.prepare_output(batch(("A", 0, 1))) is None
    assert connector.usage() == (0, 0, 0, 0, 0)
    connector.close()


def test_processing_comes_after_the_copy(world: World) -> None:
    connector = world.connector()
    connector.begin_step(meta({"A": 0}))
    pending = connector.prepare_output(batch(("A", 0, 1)))
    with pytest.raises(RuntimeError, match="enqueue_cpu_copy"):
        pending.process_output()


def test_the_store_holds_as_much_as_the_kv_cache_or_max_bytes(world: World) -> None:
    for max_bytes, expected in ((None, 8), (17, 2)):
        connector = world.connector(max_bytes=max_bytes)
        connector.begin_step(meta({"A": 0}, A=b"abcdefgh"))
        assert connector._core._store.max_objects == expected
    with pytest.raises(ValueError, match="max_bytes=7"):
        world.connector(max_bytes=7)


@pytest.mark.parametrize(("experts", "dtype", "highest"), [(256, "uint8", 255), (257, "uint16", 256)])
def test_ids_keep_their_value(world: World, experts: int, dtype: str, highest: int) -> None:
    connector = world.connector(experts=experts)
    connector.begin_step(meta({"A": 0}))
    world.forward(np.full((1, LAYERS, TOP_K), highest))
    pending = connector.prepare_output(batch(("A", 0, 1)))
    pending.enqueue_cpu_copy(counts(1), counts(0))
    output = pending.process_output()["A"]
    assert (output.rows.dtype, output.rows.tolist()) == (dtype, [[[highest] * TOP_K] * LAYERS])


def test_a_model_without_routed_experts_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="no routed experts"):
        world.connector(top_k=0)


def test_this_ranks_rows_of_a_data_parallel_batch(world: World) -> None:
    connector = world.connector(dp_rank=1)
    world.context.dp_metadata = SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor([2, 1]))
    connector.begin_step(meta({"A": 0}))
    world.forward(rows(5, 6, 3))
    pending = connector.prepare_output(batch(("A", 0, 1)))
    pending.enqueue_cpu_copy(counts(1), counts(0))
    assert read(pending.process_output()) == {"A": (0, [3])}


def test_shards_are_gathered(world: World) -> None:
    connector = world.connector(tp=2)
    metadata = SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor([3, 9]), local_sizes=None)
    world.context.dp_metadata = metadata
    connector.begin_step(meta({"A": 0}))
    for layer in range(LAYERS):
        mine, other = (torch.from_numpy(rows(*ids)[:, layer]) for ids in ((1, 2), (3, 0)))
        world.other_shards = [other]
        world.model[layer].capture_fn(mine)
    pending = connector.prepare_output(batch(("A", 0, 3)))
    pending.enqueue_cpu_copy(counts(1), counts(0))
    assert read(pending.process_output()) == {"A": (0, [1, 2, 3])}


@pytest.mark.parametrize("case", routed_experts.vectors()["capture"], ids=lambda case: case["name"])
def test_capture_vectors(world: World, case: dict[str, Any]) -> None:
    config = world.config(experts=case["num_experts"], top_k=1)
    config.model_config.get_total_num_hidden_layers = lambda: case["num_layers"]
    capturer = auxout.worker.RoutedExpertsCapturer(4, config, "cpu")
    for write in case["writes"]:
        store = (
            capturer.store,
            write["layer"],
            torch.tensor(write["ids"]),
            routed_experts.Batch(),
            write["offset"],
        )
        if case.get("refuse"):
            with pytest.raises(IndexError, match="has no column"):
                store[0](*store[1:])
            return
        store[0](*store[1:])
    narrowed = capturer.device_buffer[: case["num_tokens"]].to(capturer.output_dtype)
    assert narrowed.tolist() == case["rows"]


def test_more_tokens_than_the_buffer_has_are_refused(world: World) -> None:
    world.connector(tokens=2)
    with pytest.raises(ValueError, match="ids of 3 tokens do not fit a capture buffer of 2"):
        world.forward(rows(1, 2, 3))


def test_a_shared_experts_slot_is_refused(world: World) -> None:
    world.connector()
    with pytest.raises(ValueError, match="3 slots"):
        world.model[0].capture_fn(torch.zeros((1, TOP_K + 1), dtype=torch.int32))


def test_self_check_counts_and_logs_what_it_finds(world: World, caplog: pytest.LogCaptureFixture) -> None:
    connector = world.connector(options={"self_check": True})
    connector.begin_step(meta({"A": 0}))
    world.model[1].capture_fn(torch.from_numpy(rows(1)[:, 1]))
    with caplog.at_level(logging.ERROR):
        connector.prepare_output(batch(("A", 0, 1)))
    fault = "layer 0: all rows are zero; its router does not report what it chooses"
    assert connector.faults == {fault: 1}
    assert fault in caplog.text


def as_vllm_makes_it(world: World) -> Any:
    return auxout.worker.get_aux_output_connector(world.model, world.config(), SimpleNamespace(num_blocks=4))


def test_options_from_the_environment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUXOUT_ERRORS", "AUXOUT_SELF_CHECK"):
        monkeypatch.setenv(name, "")
    assert as_vllm_makes_it(world)._checked_layers == ()
    monkeypatch.setenv("AUXOUT_SELF_CHECK", "1")
    monkeypatch.setenv("AUXOUT_ERRORS", "request")
    connector = as_vllm_makes_it(world)
    assert connector._checked_layers == (0, 1)
    connector.begin_step(meta({"A": 0}))
    pending = connector.prepare_output(batch(("A", 1, 1)))
    pending.enqueue_cpu_copy(counts(1), counts(0))
    assert "WORK-CAPTURE-4" in pending.process_output()["A"].error


def test_what_is_given_is_not_what_the_environment_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUXOUT_SELF_CHECK", "1")
    monkeypatch.setenv("AUXOUT_ERRORS", "nonsense")
    connector = world.connector(options={"errors": "raise", "self_check": False})
    assert connector._checked_layers == ()
    connector = auxout.AuxOutputSchedulerConnector(errors="request")
    request = SimpleNamespace(request_id="A", num_tokens=1, is_finished=lambda: False)
    assert connector.take_output(request, None) is None


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("AUXOUT_ERRORS", "ignore", "AUXOUT_ERRORS is 'raise' or 'request', not 'ignore'"),
        ("AUXOUT_SELF_CHECK", "yes", "AUXOUT_SELF_CHECK is '0' or '1', not 'yes'"),
    ],
)
def test_another_value_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        as_vllm_makes_it(world)
    if variable == "AUXOUT_ERRORS":
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            auxout.AuxOutputSchedulerConnector()
    option: dict[str, Any] = {variable.removeprefix("AUXOUT_").lower(): value}
    with pytest.raises(ValueError, match=sentence.replace(variable, next(iter(option)))):
        world.connector(options=option)


def test_the_log_says_what_is_in_place(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AUXOUT_SELF_CHECK", "1")
    monkeypatch.setenv("AUXOUT_ERRORS", "request")
    with caplog.at_level(logging.INFO, "vllm"):
        auxout.AuxOutputSchedulerConnector()
        as_vllm_makes_it(world)
        world.group.is_first_rank = False
        as_vllm_makes_it(world)  # holds nothing and returns nothing
    package = f"(auxout {version('auxout')})"
    assert [(record.name, record.levelname) for record in caplog.records] == [("vllm.auxout", "INFO")] * 2
    assert caplog.messages == [
        f"AuxOutputSchedulerConnector is that of auxout.connector {package}: errors=request, profile 0.32",
        f"AuxOutputWorkerConnector is that of auxout.worker {package}: errors=request, self_check=1, max_objects=8",
    ]


def test_a_request_that_fails_is_in_vllms_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    connector = world.connector(options={"errors": "request"})
    connector.begin_step(meta({"A": 0}))
    pending = connector.prepare_output(batch(("A", 1, 1)))
    pending.enqueue_cpu_copy(counts(1), counts(0))
    pending.process_output()
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.name == "vllm.auxout"
    assert "request A" in record.message
    assert "WORK-CAPTURE-4" in record.message
    assert connector.failures == {"WORK-CAPTURE-4": 1}


def test_a_pending_output_has_the_releases_fields(world: World) -> None:
    connector = world.connector()
    connector.begin_step(meta({"A": 4, "B": 0}))
    world.forward(rows(1, 2, 3))
    pending = connector.prepare_output(batch(("A", 4, 1), ("B", 0, 2)))
    assert pending.connector is connector
    assert pending.request_ids == ["A", "B"]
    assert (pending.token_starts.tolist(), pending.query_start_loc.tolist()) == ([4, 0], [0, 1, 3])
    assert pending.routed_experts_gpu.tolist() == rows(1, 2, 3).tolist()
    assert (pending.routed_experts, pending.num_sampled, pending.num_rejected) == (None, None, None)
    sampled, rejected = counts(1, 1), counts(0, 0)
    pending.enqueue_cpu_copy(sampled, rejected)
    assert (pending.num_sampled, pending.num_rejected) == (sampled, rejected)
    assert pending.routed_experts.tolist() == rows(1, 2, 3).tolist()
    pending.process_output()
    assert (pending.routed_experts_gpu, pending.routed_experts) == (None, None)


def test_hashes_may_come_as_a_list(world: World) -> None:
    connector = world.connector()
    hashes: dict[str, Any] = {"A": [b"xx", b"yy"], "B": (), "C": (each for each in [b"zz"])}
    connector.begin_step(AuxOutputConnectorMetadata(0, dict.fromkeys("ABC", 0), hashes, ()))
    other = world.connector()
    packed = {name: PackedBlockHashes(data, 2) for name, data in {"A": b"xxyy", "C": b"zz"}.items()}
    other.begin_step(AuxOutputConnectorMetadata(0, dict.fromkeys("ABC", 0), packed, ()))
    assert connector._core._table.keys == other._core._table.keys
    assert connector.usage().references == 3


@pytest.mark.parametrize("hashes", [["xx"], [b"xx", None], [b"xx", b"y"], [b""]])
def test_a_list_of_anything_else_is_refused_before_anything_changes(world: World, hashes: list[Any]) -> None:
    connector = world.connector()
    with pytest.raises(auxout.ProtocolViolation, match="request A: its hashes are not all"):
        connector.begin_step(AuxOutputConnectorMetadata(0, {"A": 0}, {"A": hashes}, ()))
    assert connector.usage() == (0, 0, 0, 0, 0)


def test_a_background_writer(world: World) -> None:
    before = set(threading.enumerate())
    connector = world.connector(options={"background": True})
    connector.begin_step(meta({"A": 0}, A=b"x"))
    world.forward(rows(1, 2))
    pending = connector.prepare_output(batch(("A", 0, 2)))
    pending.enqueue_cpu_copy(counts(1), counts(0))
    assert read(pending.process_output()) == {"A": (0, [1, 2])}
    assert connector.usage() == (1, 0, 1, 1, 0)
    assert "auxout-writer" in {thread.name for thread in set(threading.enumerate()) - before}
    connector.close()
    connector.close()
    assert set(threading.enumerate()) <= before


def test_a_background_writer_cannot_fail_a_request_alone(world: World) -> None:
    with pytest.raises(ValueError, match="background"):
        world.connector(options={"background": True, "errors": "request"})


class FakeCuda:
    """Streams and events that write down what is asked of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.num_events = 0

    def Stream(self) -> Any:
        return SimpleNamespace(
            wait_event=lambda event: self.log.append(f"copy stream waits for {event.name}")
        )

    def Event(self) -> Any:
        name = f"event {self.num_events}"
        self.num_events += 1
        return SimpleNamespace(
            name=name,
            record=lambda stream=None: self.log.append(f"{name} on {'copy' if stream else 'compute'}"),
            synchronize=lambda: self.log.append(f"host waits for {name}"),
        )

    def stream(self, stream: Any) -> Any:
        class Context:
            def __enter__(this) -> None:
                self.log.append("enter copy stream")

            def __exit__(this, *args: object) -> None:
                self.log.append("leave copy stream")

        return Context()


def test_a_ring_orders_copies_by_events_and_waits_only_when_rows_are_read() -> None:
    buffer = torch.zeros((3, 1, 1), dtype=torch.int32)
    cuda = FakeCuda()
    ring = RingSnapshots(buffer, torch.uint8, 2, cuda, pin_memory=False)
    buffer[:, 0, 0] = torch.tensor([1, 2, -1])
    first = ring.take(2)
    ring.start_copy(first)
    assert cuda.log == [
        "event 2 on compute",
        "copy stream waits for event 2",
        "enter copy stream",
        "event 3 on copy",
        "leave copy stream",
    ]
    buffer[:] = 7
    second = ring.take(3)
    ring.start_copy(second)
    del cuda.log[:]
    assert ring.rows(first)[:, 0, 0].tolist() == [1, 2]
    assert cuda.log == ["host waits for event 3"]
    ring.release(first)
    buffer[:] = 9
    third = ring.take(1)
    ring.start_copy(third)
    assert (ring.rows(second)[:, 0, 0].tolist(), ring.rows(third)[:, 0, 0].tolist()) == ([7, 7, 7], [9])


def test_outputs_of_a_ring_are_copies(world: World) -> None:
    connector = world.connector()
    buffer = connector._capturer.device_buffer
    connector.snapshots = RingSnapshots(buffer, torch.uint8, 2, FakeCuda(), pin_memory=False)
    connector.begin_step(meta({"A": 0}))
    delivered = []
    for start in range(5):
        world.forward(rows(start))
        pending = connector.prepare_output(batch(("A", start, 1)))
        pending.enqueue_cpu_copy(counts(1), counts(0))
        delivered.append(pending.process_output())
    assert [read(each) for each in delivered] == [{"A": (start, [start])} for start in range(5)]
    assert [read(pickle.loads(pickle.dumps(each))) for each in delivered] == [
        read(each) for each in delivered
    ]
