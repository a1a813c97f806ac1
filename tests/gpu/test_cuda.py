"""The torch worker on CUDA: rows equal to those of the CPU, nothing that waits in the forward pass, captured graphs.

``make test-gpu``; skipped where there is no CUDA device.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auxout import AuxOutputConnectorMetadata, PackedBlockHashes, WorkerCore
from auxout._snapshots import HostSnapshots, RingSnapshots
from auxout.routed_experts import Batch
from auxout.worker import RoutedExpertsCapturer

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here: these tests need one"),
]

LAYERS, TOP_K, TOKENS = 12, 8, 512


def capturer(device: str, experts: int = 256) -> RoutedExpertsCapturer:
    model = SimpleNamespace(
        get_total_num_hidden_layers=lambda: LAYERS,
        get_num_experts=lambda: experts,
        get_num_experts_per_tok=lambda: TOP_K,
    )
    parallel = SimpleNamespace(data_parallel_rank=0, tensor_parallel_size=1)
    return RoutedExpertsCapturer(
        TOKENS, SimpleNamespace(model_config=model, parallel_config=parallel), device
    )


def ids(step: int, experts: int = 256) -> Any:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, experts, (LAYERS, TOKENS, TOP_K), generator=generator, dtype=torch.int32)


@pytest.mark.parametrize("experts", [256, 512])
def test_rows_equal_those_of_the_cpu(experts: int) -> None:
    device, host = capturer("cuda", experts), capturer("cpu", experts)
    ring = RingSnapshots(device.device_buffer, device.output_dtype, 2, torch.cuda)
    plain = HostSnapshots(host.device_buffer, host.output_dtype)
    expected, waiting = [], []
    for step in range(20):
        for layer, chosen in enumerate(ids(step, experts)):
            device.store(layer, chosen.cuda(), Batch())
            host.store(layer, chosen, Batch())
        snapshot = ring.take(TOKENS - step)
        ring.start_copy(snapshot)
        waiting.append(snapshot)
        expected.append(plain.rows(plain.take(TOKENS - step)))
        if len(waiting) == 2:  # two steps are in flight
            oldest = waiting.pop(0)
            np.testing.assert_array_equal(ring.rows(oldest), expected.pop(0))
            ring.release(oldest)


def test_the_forward_pass_is_never_synchronized() -> None:
    device = capturer("cuda")
    ring = RingSnapshots(device.device_buffer, device.output_dtype, 2, torch.cuda)
    chosen = ids(0).cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for layer in range(LAYERS):
            device.store(layer, chosen[layer], Batch())
        snapshot = ring.take(TOKENS)
        ring.start_copy(snapshot)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    np.testing.assert_array_equal(ring.rows(snapshot), chosen.permute(1, 0, 2).cpu().numpy())


def test_the_hook_works_in_a_captured_graph() -> None:
    device = capturer("cuda")
    chosen = torch.zeros((LAYERS, TOKENS, TOP_K), dtype=torch.int32, device="cuda")

    def forward() -> None:
        for layer in range(LAYERS):
            device.store(layer, chosen[layer], Batch())

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        forward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    ring = RingSnapshots(device.device_buffer, device.output_dtype, 1, torch.cuda)
    for step in range(3):
        chosen.copy_(ids(step))
        graph.replay()
        snapshot = ring.take(TOKENS)
        ring.start_copy(snapshot)
        np.testing.assert_array_equal(ring.rows(snapshot), ids(step).permute(1, 0, 2).numpy())
        ring.release(snapshot)


def test_outputs_are_those_of_the_rows() -> None:
    device = capturer("cuda")
    ring = RingSnapshots(device.device_buffer, device.output_dtype, 2, torch.cuda)
    core = WorkerCore(block_size=16, shape_per_token=(LAYERS, TOP_K), dtype="uint8", max_objects=64)
    hashes = PackedBlockHashes(bytes(range(32)), 1)
    core.begin_step(AuxOutputConnectorMetadata(0, {"A": 0}, {"A": hashes}, ()))
    for layer, chosen in enumerate(ids(1)):
        device.store(layer, chosen.cuda(), Batch())
    step = core.launch(["A"], [0], [0, TOKENS], TOKENS)
    step.owned = ring.owned
    snapshot = ring.take(TOKENS)
    ring.start_copy(snapshot)
    step.rows = ring.rows(snapshot)
    outputs = core.process_output(step, [1], [0])
    ring.release(snapshot)
    np.testing.assert_array_equal(outputs["A"].rows, ids(1).permute(1, 0, 2).numpy())
