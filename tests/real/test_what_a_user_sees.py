"""What vLLM's front end makes of a request that failed: an array with fewer rows than its tokens are due, or none.

The rows are those of ``take_output`` in an engine; the front end is vLLM's own ``OutputProcessor``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import released

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

PROMPT = [1, 2, 3]


def finished(rows: list[Any]) -> Any:
    """The completion of a request whose steps had these rows, one token each."""
    released.version()
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor

    processor = OutputProcessor(None, log_stats=False)
    request = EngineCoreRequest(
        request_id="A",
        prompt_token_ids=PROMPT,
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=len(rows), detokenize=False),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        external_req_id="A",
    )
    processor.add_request(request, None)
    outputs: list[Any] = []
    for number, each in enumerate(rows, 1):
        reason = FinishReason.LENGTH if number == len(rows) else None
        part = EngineCoreOutput("A", [9], finish_reason=reason, routed_experts=each)
        outputs += processor.process_outputs([part]).request_outputs
    return outputs[-1].outputs[0]


def rows(count: int) -> Any:
    return np.zeros((count, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("delivered", "seen"),
    [
        ([rows(3), rows(1), rows(1)], 5),
        ([rows(3), rows(1), None], 4),
        ([rows(3), None, None], 3),
        ([None, None, None], None),
    ],
    ids=["whole", "failed last", "failed early", "failed at once"],
)
def test_a_failed_request_has_fewer_rows_than_tokens_less_one(delivered: list[Any], seen: int | None) -> None:
    completion = finished(delivered)
    num_tokens = len(PROMPT) + len(completion.token_ids)
    assert completion.finish_reason == "length"
    found = completion.routed_experts
    assert (None if found is None else len(found)) == seen
    assert (seen == num_tokens - 1) == all(each is not None for each in delivered)
