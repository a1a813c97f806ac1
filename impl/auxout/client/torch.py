"""Rows as tensors: the same functions as for arrays, with the same results, refusals and clauses.

    batch = pad(conversations, pin=True).to("cuda")
    rows = moe_rows(batch.rows, schema)
    targets = router_targets(rows, batch.mask)

A batch is written once, into memory that the tensor keeps, pinned where it is to travel to a device. Rows of more than
256 experts are ``torch.uint16``, which torch stores, copies, compares and converts, but hardly computes with:
``router_targets`` converts where ids are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from . import layout
from .decode import Source
from .decode import decode as _decode
from .errors import DtypeError, ShapeError
from .layout import How, Missing, Side
from .rows import Rows
from .schema import Schema
from .trajectory import Trajectory

Device = torch.device | str | int

_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Placed(NamedTuple):
    """Rows in their places."""

    rows: torch.Tensor
    """(length, num_layers, top_k), or (samples, length, num_layers, top_k)."""
    mask: torch.Tensor
    """(length,) or (samples, length), bool: where a row is known."""

    def to(self, device: Device) -> Placed:
        """The same on a device; from pinned memory without waiting for it (see ``to_device``)."""
        return Placed(to_device(self.rows, device), to_device(self.mask, device))


class Packed(NamedTuple):
    """Samples one after another; sample i takes the places ``[offsets[i], offsets[i + 1])``."""

    rows: torch.Tensor
    """(places, num_layers, top_k)."""
    mask: torch.Tensor
    """(places,), bool."""
    offsets: torch.Tensor
    """(samples + 1,), int64; what variable-length attention calls cumulative sequence lengths."""

    def to(self, device: Device) -> Packed:
        """The same on a device; from pinned memory without waiting for it (see ``to_device``)."""
        return Packed(*(to_device(each, device) for each in self))


def decode(
    payload: Any,
    schema: Schema,
    *,
    source: Source,
    start: int = 0,
    num_tokens: int,
    request: str | None = None,
) -> Rows:
    """As ``auxout.client.decode``, for tensors on any device too; those on the CPU are not copied.

    Raises:
        RowsError: it is not exactly the rows that are due (CLIENT-DECODE).
    """
    if isinstance(payload, torch.Tensor) and payload.device.type not in ("cpu", "meta"):
        payload = payload.cpu()
    return _decode(payload, schema, source=source, start=start, num_tokens=num_tokens, request=request)


def as_tensor(rows: Rows) -> torch.Tensor:
    """The rows, (rows, num_layers, top_k), in the memory that they are in: read the tensor, never write to it.

    Torch has no read-only tensors. Strides that it lacks are copied.
    """
    values = rows.values
    if any(stride < 0 or stride % values.itemsize for stride in values.strides):
        return _shared(np.array(values))
    # torch.from_numpy warns of arrays that may not be written to, as rows may not.
    return _shared(np.asarray(_Writable(values)))


def to_tensor(
    trajectory: Trajectory, length: int | None = None, *, missing: Missing = "mask", pin: bool = False
) -> Placed:
    """As ``auxout.client.to_array``; ``pin`` as in ``pad``.

    Raises:
        CountError: ``length`` is below the tokens (CLIENT-ARRAY-2).
        MissingError: under ``refuse`` (CLIENT-ARRAY-3).
    """
    memory = _Memory(pin)
    layout.to_array(trajectory, length, missing=missing, empty=memory)
    return Placed(*memory.made)


def pad(
    trajectories: Sequence[Trajectory],
    length: int | None = None,
    side: Side = "right",
    *,
    pin: bool = False,
) -> Placed:
    """As ``auxout.client.pad``.

    Args:
        pin: in pinned memory, from which CUDA copies without a stop; ordinary memory where there is no CUDA device.

    Raises:
        CountError: ``length`` is below the longest (CLIENT-PAD-2).
        ShapeError: their schemas differ, or there are none (CLIENT-PACK-2).
    """
    memory = _Memory(pin)
    layout.pad(trajectories, length, side, empty=memory)
    return Placed(*memory.made)


def pack(
    trajectories: Sequence[Trajectory],
    *,
    dtype: torch.dtype | None = None,
    align: int = 1,
    pin: bool = False,
) -> Packed:
    """As ``auxout.client.pack``, with a dtype of torch's; ``pin`` as in ``pad``.

    Raises:
        ShapeError: their schemas differ, or there are none (CLIENT-PACK-2).
        DtypeError: the dtype is too small for the experts, or of no integers (CLIENT-PACK-3).
    """
    if dtype is not None and _NAMES.get(dtype, "bool") == "bool":
        raise DtypeError(f"{dtype} does not hold expert ids", "CLIENT-PACK-3")
    memory = _Memory(pin)
    name = None if dtype is None else _NAMES[dtype]
    offsets = layout.pack(trajectories, dtype=name, align=align, empty=memory).offsets
    rows, mask = memory.made
    return Packed(rows, mask, _shared(offsets))


def shard(
    tensor: torch.Tensor, rank: int, size: int, how: How = "contiguous", *, dim: int = 0
) -> torch.Tensor:
    """As ``auxout.client.shard``, on the tensor's device: a view if contiguous, else two parts copied.

    Raises:
        ShapeError: there is no such rank, or the places do not divide evenly (CLIENT-SHARD-3).
    """
    ranges = layout.ranges(tensor.shape[dim], rank, size, how)
    parts = [tensor.narrow(dim, start, end - start) for start, end in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def moe_rows(tensor: torch.Tensor, schema: Schema) -> torch.Tensor:
    """As ``auxout.client.moe_rows``, on the tensor's device; a view where the layers are evenly spaced.

    Raises:
        ShapeError: the tensor has another number of layers (CLIENT-LAYERS-3).
    """
    return tensor[..., layout.layer_index(tensor.shape, schema), :]


def for_stage(tensor: torch.Tensor, schema: Schema, layers: Sequence[int]) -> torch.Tensor:
    """As ``auxout.client.for_stage``, on the tensor's device; a view where the routers are evenly spaced.

    Raises:
        ShapeError: a layer is not the model's, or they are out of order (CLIENT-LAYERS-3).
    """
    return tensor[..., layout.layer_index(tensor.shape, schema, layers), :]


def router_targets(rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What a router that replays takes: int64, and expert 0, 1, ... where no row is known.

    Such a router gathers the scores of the ids that it is given, so they must be valid and distinct in padding too; its
    loss leaves out what the mask does.

    Args:
        rows: (..., layers, top_k), of layers with a router only.
        mask: (...), bool.

    Raises:
        ShapeError: the mask is not of the rows' places.
    """
    if rows.ndim < 2 or rows.shape[:-2] != mask.shape:
        raise ShapeError(f"a mask of shape {tuple(mask.shape)} is not one of rows {tuple(rows.shape)}")
    filler = torch.arange(rows.shape[-1], device=rows.device)
    return torch.where(mask[..., None, None], rows.to(torch.int64), filler)


def to_device(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """The tensor on a device; itself where it is there.

    From pinned memory to an accelerator the copy is only started, in order with what its current stream does next: do
    not write to the memory before that has run. Any other copy is done on return.
    """
    to_accelerator = torch.device(device).type != "cpu"
    return tensor.to(device, non_blocking=to_accelerator and tensor.is_pinned())


def _shared(values: NDArray[Any]) -> torch.Tensor:
    """A tensor of the array's memory, which may be written to."""
    return torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType] - torch leaves its argument untyped


class _Memory:
    """Makes arrays that are tensors' memory, and keeps the tensors."""

    def __init__(self, pin: bool) -> None:
        self.made: list[torch.Tensor] = []
        self._pin = pin and torch.cuda.is_available()

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if self._pin:
            self.made.append(torch.empty(shape, dtype=_DTYPES[str(dtype)], pin_memory=True))
            return self.made[-1].numpy()
        # numpy asks for huge pages and torch does not: of a large batch that is four fifths of the time.
        values = np.empty(shape, dtype)
        self.made.append(_shared(values))
        return values


class _Writable:
    """Shows an array's memory, which it keeps, as one that may be written to."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        described = values.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}
