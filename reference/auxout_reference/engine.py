"""What the connector reads of the engine's objects, and nothing else of them.

vLLM's ``Request`` and ``SchedulerOutput`` fit; so does anything with these attributes. All are read, none is
written (SCHED-META-5). Token counts and positions are in tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SamplingParams(Protocol):
    """A request's sampling parameters."""

    @property
    def routed_experts_prompt_start(self) -> int:
        """First position whose row the client wants, at least 0."""
        ...


class Request(Protocol):
    """One request, as it is at the time of the call."""

    @property
    def request_id(self) -> str:
        """The engine's name for it."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """One hash per completed hash block, in order; all of one length."""
        ...

    @property
    def sampling_params(self) -> SamplingParams | None:
        """None for a pooling request, which has no routed experts to return."""
        ...

    @property
    def num_tokens(self) -> int:
        """Prompt tokens plus accepted output tokens."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens; read in profile 0.32 only."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Accepted output tokens."""
        ...

    def is_finished(self) -> bool:
        """Whether a stop rule or an abort ended it."""
        ...


class ComputedRequest(Request, Protocol):
    """One request, as it is read from profile 0.33 on."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV is computed, those of steps in flight included."""
        ...


class SchedulerOutput(Protocol):
    """One step, as scheduled."""

    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]:
        """Request id -> tokens of this step, in the order of the batch; before 0.33 only the ids matter."""
        ...


class WithHashes:
    """A request with other hashes than it has."""

    def __init__(self, request_id: str, block_hashes: list[bytes], request: Request | None) -> None:
        """Of a request of the engine; None: the engine does not know it."""
        self.request_id = request_id
        self.block_hashes = block_hashes
        self.sampling_params = None if request is None else request.sampling_params
        self.num_tokens = 1 if request is None else request.num_tokens
        self.num_prompt_tokens = 1 if request is None else request.num_prompt_tokens
        self.num_output_tokens = 0 if request is None else request.num_output_tokens

    def is_finished(self) -> bool:
        """It is in a step."""
        return False


class AsSent(WithHashes):
    """A request that failed, as its scheduler connector goes on with it: no hashes but those that were sent."""

    def __init__(self, request_id: str, block_hashes: list[bytes], request: Request | None) -> None:
        """One without sampling parameters wants every row."""
        super().__init__(request_id, block_hashes, request)
        self.sampling_params = self.sampling_params or _EveryRow()


class _EveryRow:
    """Sampling parameters of a request that has none."""

    routed_experts_prompt_start = 0


def as_computed(
    scheduled: Mapping[str, int], requests: Mapping[str, Request], sent: Mapping[str, int], block_size: int
) -> Mapping[str, Request]:
    """Requests without hashes of blocks that are not computed, except those sent before.

    Args:
        scheduled: tokens that each has in the step that is built; none, no entry.
        sent: hashes of each that were sent; none, no entry.
        block_size: tokens per hash.
    """
    shown: dict[str, Request] = {}
    for request_id, request in requests.items():
        computed = cast("ComputedRequest", request).num_computed_tokens + scheduled.get(request_id, 0)
        end = max(computed // block_size, sent.get(request_id, 0))
        shown[request_id] = WithHashes(request_id, list(request.block_hashes[:end]), request)
    return shown
