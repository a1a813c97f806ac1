"""The capture buffers, the released one and ours, on the layouts that we ship for ports (``routed_experts.json``)."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

import auxout.worker
from auxout import routed_experts
from auxout._snapshots import HostSnapshots

from . import released

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

MODULE = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
MAX_TOKENS = 32
VECTORS = routed_experts.vectors()
REFUSALS = (AssertionError, IndexError, RuntimeError, ValueError)


def cases(group: str, refuse: bool = False) -> Any:
    chosen = [case for case in VECTORS[group] if case.get("refuse", False) == refuse]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: str(case.get("name", case)))


@pytest.fixture(params=["original", "impl"])
def make(request: pytest.FixtureRequest) -> Any:
    """Number of experts, layers, slots, and the parallel ranks -> a capture buffer."""
    released.version()

    def make(num_experts: int = 128, layers: int = 1, top_k: int = 1, dp_rank: int = 0, tp: int = 1) -> Any:
        model = SimpleNamespace(
            get_num_experts=lambda: num_experts,
            get_num_experts_per_tok=lambda: top_k,
            get_total_num_hidden_layers=lambda: layers,
            hf_text_config=SimpleNamespace(model_type="qwen3_moe"),
        )
        parallel = SimpleNamespace(data_parallel_rank=dp_rank, tensor_parallel_size=tp)
        config = SimpleNamespace(model_config=model, parallel_config=parallel)
        if request.param == "impl":
            return auxout.worker.RoutedExpertsCapturer(MAX_TOKENS, config, "cpu")
        return import_module(MODULE).RoutedExpertsCapturer(MAX_TOKENS, config)

    return make


def rows(capturer: Any, num_tokens: int) -> Any:
    """What a step's snapshot has of the buffer."""
    if isinstance(capturer, auxout.worker.RoutedExpertsCapturer):
        return HostSnapshots(capturer.device_buffer, capturer.output_dtype).take(num_tokens).numpy()
    return capturer.snapshot_routing_data(num_tokens).numpy()


def capture(
    capturer: Any, layer: int, ids: list[list[int]], dp_metadata: Any = None, gathered: Any = None
) -> None:
    """Run the hook as a router does, in a tensor-parallel group that gathers what is given."""
    import torch
    from vllm.forward_context import override_forward_context

    group = SimpleNamespace(all_gather=lambda shard, dim: torch.tensor(gathered))
    context = SimpleNamespace(dp_metadata=dp_metadata, batch_descriptor=None)
    parts = (f"{MODULE}.get_tp_group", "vllm.distributed.parallel_state.get_tp_group")
    with override_forward_context(context), patch(parts[0], lambda: group), patch(parts[1], lambda: group):
        shape = len(ids), len(ids[0]) if ids else 1
        capturer.capture(layer, torch.tensor(ids, dtype=torch.int64).reshape(shape))


def locate(make: Any, case: dict[str, Any]) -> tuple[Any, list[int]]:
    """The buffer after a router returned ids 1, 2, ... in the layout of a case, and all ids there are."""
    import torch

    metadata, num_ids, tp = None, case["num_ids"], case.get("tp", 1)
    if "dp" in case:
        counts = torch.tensor(case["dp"])
        metadata = SimpleNamespace(num_tokens_across_dp_cpu=counts, local_sizes=case.get("shards"))
    every = list(range(1, 1 + num_ids * (tp if case.get("gather") else 1)))
    capturer = make(dp_rank=case.get("dp_rank", 0), tp=tp)
    capture(capturer, 0, [[n] for n in every[:num_ids]], metadata, [[n] for n in every])
    return capturer, every


@cases("locate")
def test_this_ranks_rows(make: Any, case: dict[str, Any]) -> None:
    capturer, every = locate(make, case)
    expected = every[case["start"] : case["stop"]]
    assert rows(capturer, MAX_TOKENS)[:, 0, 0].tolist() == expected + [0] * (MAX_TOKENS - len(expected))


@cases("locate", refuse=True)
def test_other_lengths_are_refused(make: Any, case: dict[str, Any]) -> None:
    with pytest.raises(REFUSALS):
        locate(make, case)


@cases("row_dtype")
def test_ids_have_room(make: Any, case: dict[str, Any]) -> None:
    capturer, highest = make(case["num_experts"]), case["num_experts"] - 1
    capture(capturer, 0, [[highest]])
    found = rows(capturer, 1)
    assert (str(found.dtype), found.tolist()) == (case["dtype"], [[[highest]]])


@cases("logical_ids", refuse=True)
def test_slots_of_shared_experts_are_refused(make: Any, case: dict[str, Any]) -> None:
    capturer, ids = make(top_k=case["top_k"]), case["ids"]
    if isinstance(capturer, auxout.worker.RoutedExpertsCapturer) or len(ids[0]) > 1:
        with pytest.raises(REFUSALS):
            capture(capturer, 0, ids)
    else:
        # The released buffer takes one id for all slots of its row.
        capture(capturer, 0, ids)
        assert rows(capturer, 1).tolist() == [[ids[0] * case["top_k"]]]


@cases("capture")
def test_steps(make: Any, case: dict[str, Any]) -> None:
    if any(write["offset"] for write in case["writes"]):
        pytest.skip("vLLM's hook has no micro-batches")
    capturer = make(case["num_experts"], case["num_layers"])
    for write in case["writes"]:
        capture(capturer, write["layer"], write["ids"])
    assert rows(capturer, case["num_tokens"]).tolist() == case["rows"]


@cases("capture", refuse=True)
def test_a_layer_without_a_column_is_refused(make: Any, case: dict[str, Any]) -> None:
    (write,) = case["writes"]
    with pytest.raises(IndexError):
        capture(make(case["num_experts"], case["num_layers"]), write["layer"], write["ids"])
