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
        """Read in profile 0.32 only."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Read in profile 0.31 only."""
        ...

    def is_finished(self) -> bool: ...


class SchedulerOutput(Protocol):
    """``vllm.v1.core.sched.output.SchedulerOutput`` fits."""

    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]:
        """Request id -> tokens, in batch order; the values are not read."""
        ...
