"""What the rows of one model look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ..routed_experts import row_dtype
from .configs import describe
from .errors import ShapeError


@dataclass(frozen=True)
class Schema:
    """Layers, slots and experts of a model.

    Args:
        num_layers: layers of the model, those without a router included.
        top_k: experts that a router chooses for a token.
        num_experts: routed experts of a layer, shared ones not counted; 1 to 65536.
        moe_layers: layers that have a router, ascending; None: all.

    Raises:
        ShapeError: no model can look like that.
    """

    num_layers: int
    top_k: int
    num_experts: int
    moe_layers: tuple[int, ...] = None  # type: ignore[assignment]  # it is never None after __init__

    def __post_init__(self) -> None:
        given = cast("tuple[int, ...] | None", self.moe_layers)
        layers = tuple(range(self.num_layers) if given is None else given)
        object.__setattr__(self, "moe_layers", layers)
        if self.num_layers < 1:
            raise ShapeError(f"a model of {self.num_layers} layers has no rows")
        try:
            row_dtype(self.num_experts)
        except ValueError as error:
            raise ShapeError(str(error)) from None
        if not 1 <= self.top_k <= self.num_experts:
            raise ShapeError(f"a router cannot choose {self.top_k} of {self.num_experts} experts")
        if list(layers) != sorted(set(layers)) or any(not 0 <= each < self.num_layers for each in layers):
            raise ShapeError(f"moe_layers {layers} are not ascending layers of {self.num_layers}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8 up to 256 experts, else uint16, whatever ids occur (CLIENT-DECODE-5)."""
        return np.dtype(row_dtype(self.num_experts))

    @property
    def row_shape(self) -> tuple[int, int]:
        """(num_layers, top_k)."""
        return self.num_layers, self.top_k

    @classmethod
    def from_config(cls, config: Any) -> Schema:
        """The schema of a Hugging Face configuration, an object or a dictionary.

        Raises:
            ShapeError: it is of no model type that ``auxout.client.configs`` knows, or it has no router.
        """
        return cls(*describe(config))
