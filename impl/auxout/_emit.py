"""Where a step's requests begin to emit: one function of a whole batch for each form of the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _kernel
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ._engine import Request


def _emit_starts_0_31(requests: Sequence[Request], on_first: Callable[[Request], None]) -> list[int]:
    """``_kernel.emit_start_unclamped`` of each request, inline. O(requests).

    Args:
        on_first: called with each request without output tokens.
    """
    starts: list[int] = []
    for request in requests:
        start = _prompt_start(request)
        if not request.num_output_tokens:
            on_first(request)
        elif (resumed := request.num_tokens - 1) > start:
            start = resumed
        starts.append(start)
    return starts


def _emit_starts_0_32(requests: Sequence[Request], on_first: Callable[[Request], None]) -> list[int]:
    """``_kernel.emit_start_clamped`` of each request, inline for those with output tokens. O(requests).

    A request has output tokens exactly if it has more tokens than its prompt. In vLLM the counts are properties,
    except the prompt's length; asked this way, one of two calls is saved.

    Args:
        on_first: called with each request without output tokens.
    """
    return [
        num_tokens - 1
        if (num_tokens := request.num_tokens) > request.num_prompt_tokens
        else _first_emit_start(request, num_tokens, on_first)
        for request in requests
    ]


def _first_emit_start(request: Request, num_tokens: int, on_first: Callable[[Request], None]) -> int:
    """The emit start of a request without output tokens in profile 0.32."""
    on_first(request)
    return _kernel.emit_start_clamped(_prompt_start(request), request.num_prompt_tokens, 0, num_tokens)


def _prompt_start(request: Request) -> int:
    params = request.sampling_params
    if params is None:
        problem = "it has no sampling parameters and so no prompt start"
        raise ProtocolViolation("SCHED-EMIT-1", request.request_id, problem)
    return params.routed_experts_prompt_start


def require_sampling(names: Sequence[str], requests: Mapping[str, Request]) -> None:
    """Refuse a start without sampling parameters, even if the prompt start is not needed. O(names)."""
    for name in names:
        _prompt_start(requests[name])


EMIT_STARTS: dict[str, Callable[[Sequence[Request], Callable[[Request], None]], list[int]]] = {
    "0.31": _emit_starts_0_31,
    "0.32": _emit_starts_0_32,
}
