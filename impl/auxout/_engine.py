"""The attributes that the connector reads of the engine's objects. It writes none (SCHED-META-5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SamplingParams(Protocol):
    """``vllm.SamplingParams`` fits."""

    @property
    def routed_experts_prompt_start(self) -> int:
        """First position whose row is wanted; at least 0."""
        ...


class Request(Protocol):
    """``vllm.v1.request.Request`` fits."""

    @property
    def request_id(self) -> str: ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """One per completed hash block; a list that the engine extends in place."""
        ...

    @property
    def sampling_params(self) -> SamplingParams | None:
        """None for pooling requests, which the connector refuses."""
        ...

    @property
    def num_tokens(self) -> int:
        """Prompt and accepted output tokens."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Read in profile 0.32, and where requests fail."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Read in profile 0.31, and where requests fail."""
        ...

    def is_finished(self) -> bool: ...


class SchedulerOutput(Protocol):
    """``vllm.v1.core.sched.output.SchedulerOutput`` fits."""

    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]:
        """Request id -> tokens, in batch order; the values are not read."""
        ...


class AsSent:
    """A request that failed, as the connector goes on with it: no hashes but those that were sent."""

    def __init__(self, request_id: str, block_hashes: list[bytes], request: Request | None) -> None:
        """Of a request of the engine; None: the engine does not know it."""
        self.request_id = request_id
        self.block_hashes = block_hashes
        params = None if request is None else request.sampling_params
        self.sampling_params: SamplingParams = _AllRows() if params is None else params
        self.num_tokens = 1 if request is None else request.num_tokens
        self.num_prompt_tokens = 1 if request is None else request.num_prompt_tokens
        self.num_output_tokens = 0 if request is None else request.num_output_tokens

    def is_finished(self) -> bool:
        """It is in a step."""
        return False


class _AllRows:
    """Sampling parameters of a request that has none."""

    routed_experts_prompt_start = 0
