"""Reads what an engine returned, and writes the one form that keeps everything.

A payload is not trusted: sizes are compared with its bytes before an array is made of them, memory is bounded by the
payload itself, only integer types are accepted and nothing is unpickled. Where the payload has the rows' dtype already
the rows are a view of it.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..routed_experts import row_dtype
from . import _kernel
from .errors import CountError, DtypeError, MissingError, PayloadError, RowsError, ShapeError, StartError
from .rows import Rows
from .schema import Schema

Source = Literal["vllm", "sglang", "mapping", "nemo", "lists"]

_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_NEMO = re.compile(r"nrlre1:(\w+):(\d{1,9})x(\d{1,9})x(\d{1,9}):(.*)", re.DOTALL)


def decode(
    payload: Any,
    schema: Schema,
    *,
    source: Source,
    start: int = 0,
    num_tokens: int,
    request: str | None = None,
) -> Rows:
    """The rows of one call.

    Args:
        payload: what the engine returned, None included.
        source: how it is encoded. ``vllm``: base64 of an ``.npy`` file, or an array (rows, num_layers, top_k);
            ``sglang``: a flat int32 buffer as base64, bytes or array; ``mapping``: ``data``, ``shape``, ``dtype`` and
            perhaps ``start``, as ``encode`` writes it; ``nemo``: NeMo-RL's text; ``lists``: nested lists.
        start: position of the first row, as the call asked for it; most engines do not tell.
        num_tokens: tokens of the call, prompt and output.
        request: a name for messages.

    Raises:
        RowsError: it is not exactly the rows that are due (CLIENT-DECODE).
    """
    try:
        return _decode(payload, schema, source, start, num_tokens)
    except RowsError as error:
        error.request = request
        raise


def encode(rows: Rows) -> dict[str, Any]:
    """Rows as JSON: ``data`` (base64, little-endian), ``shape``, ``dtype``, ``start``; a ``mapping`` to ``decode``."""
    name = row_dtype(rows.schema.num_experts)
    data = np.ascontiguousarray(rows.values, _dtype(name))
    return {
        "data": base64.b64encode(data.data).decode("ascii") if data.size else "",
        "shape": list(rows.values.shape),
        "dtype": name,
        "start": rows.start,
    }


class _Read(NamedTuple):
    """Numbers of a payload; ``flat`` where their shape says nothing about rows."""

    values: NDArray[Any]
    flat: bool = False


def _decode(payload: Any, schema: Schema, source: Source, start: int, num_tokens: int) -> Rows:
    due = _kernel.num_rows_due(num_tokens, start) if start >= 0 else -1
    if due < 0:
        raise StartError(f"rows cannot start at {start} of {num_tokens} tokens", "CLIENT-DECODE-2")
    if payload is None:
        if due:
            raise MissingError(
                f"{due} rows are due and the engine returned none",
                "CLIENT-DECODE-6",
                positions=(start, start + due),
            )
        return Rows(np.empty((0, *schema.row_shape), schema.dtype), start, schema)
    if isinstance(payload, Mapping) and (told := cast("Any", payload).get("start", start)) != start:
        raise StartError(f"the payload's rows start at {told}, not at {start}", "CLIENT-DECODE-2")
    read = _READERS[source](payload)
    if read.values.dtype.kind not in "iuO":
        raise _no_integers(read.values.dtype)
    values = _shaped(read, schema, due)
    return Rows(_narrowed(values, schema.dtype), start, schema)


def _shaped(read: _Read, schema: Schema, due: int) -> NDArray[Any]:
    """The numbers as rows, if they are as many as are due."""
    values, row_shape = read.values, schema.row_shape
    width = math.prod(row_shape)
    fits = values.ndim == 1 and not values.size % width if read.flat else values.shape[1:] == row_shape
    if not fits and (values.size or values.ndim == 0 or len(values)):
        raise ShapeError(f"values of shape {values.shape} are no rows of {row_shape}", "CLIENT-DECODE-3")
    count = values.size // width if read.flat else len(values)
    if count != due:
        raise CountError(f"{count} rows came and {due} are due", "CLIENT-DECODE-1")
    return np.reshape(values, (due, *row_shape))


def _narrowed(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if values.dtype == dtype or not values.size:
        return values if values.dtype == dtype else values.astype(dtype)
    low, high = values.min(), values.max()
    if low < 0 or high > np.iinfo(dtype).max:
        hint = "; -1 marks rows that an engine lost" if low == -1 else ""
        raise DtypeError(f"ids from {low} to {high} do not fit {dtype}{hint}", "CLIENT-DECODE-4")
    return values.astype(dtype)


def _no_integers(dtype: object) -> DtypeError:
    return DtypeError(f"ids are integers, and the payload is of type {dtype}", "CLIENT-DECODE-4")


def _malformed(problem: str) -> PayloadError:
    return PayloadError(problem, "CLIENT-DECODE-7")


# What each source sends.


def _read_vllm(payload: Any) -> _Read:
    if not isinstance(payload, (str, bytes)):
        return _Read(_array(payload))
    data = _from_base64(payload)
    header = io.BytesIO(data[: npy.ARRAY_ALIGN + 2**16])
    try:
        version = npy.read_magic(header)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read_header(header)
    except Exception as error:  # A header is Python text, and reading it fails in many ways.
        raise _malformed(f"it is no .npy file that can be read: {type(error).__name__}") from None
    if dtype.kind not in "iu":
        raise _no_integers(dtype)
    if len(shape) != 3:
        raise ShapeError(f"values of shape {shape} are no rows", "CLIENT-DECODE-3")
    values = _from_buffer(memoryview(data)[header.tell() :], dtype, shape[::-1] if fortran else shape)
    return _Read(np.transpose(values) if fortran else values)


def _read_sglang(payload: Any) -> _Read:
    if isinstance(payload, str):
        payload = _from_base64(payload)
    if isinstance(payload, (bytes, bytearray, memoryview)):
        buffer = memoryview(cast("bytes", payload)).cast("B")
        if buffer.nbytes % 4:
            raise _malformed(f"{buffer.nbytes} bytes are no int32 values")
        return _Read(np.frombuffer(buffer, "<i4"), flat=True)
    return _Read(_array(payload), flat=True)


def _read_mapping(payload: Any) -> _Read:
    if not isinstance(payload, Mapping):
        raise _malformed(f"a mapping of data, shape and dtype is expected, not {type(payload).__name__}")
    fields = cast("Mapping[str, Any]", payload)
    data, dtype, shape = (fields.get(name) for name in ("data", "dtype", "shape"))
    if not isinstance(data, (str, bytes, bytearray, memoryview)):
        raise _malformed(f"data is base64 or bytes, not {type(data).__name__}")
    raw = _from_base64(data) if isinstance(data, str) else memoryview(cast("bytes", data)).cast("B")
    named = _dtype(dtype)
    if not isinstance(shape, Sequence) or len(cast("Sequence[Any]", shape)) != 3:
        raise _malformed(f"shape is (rows, layers, slots), not {shape!r:.80}")
    return _Read(_from_buffer(raw, named, tuple(cast("Sequence[Any]", shape))))


def _read_nemo(payload: Any) -> _Read:
    parts = _NEMO.fullmatch(payload) if isinstance(payload, str) else None
    if parts is None:
        raise _malformed("the text does not begin as NeMo-RL's, nrlre1:<dtype>:<rows>x<layers>x<slots>:")
    data = _from_base64(parts[5])
    return _Read(_from_buffer(data, _dtype(parts[1]), tuple(int(size) for size in parts.group(2, 3, 4))))


def _read_lists(payload: Any) -> _Read:
    if not isinstance(payload, (list, tuple)):
        raise _malformed(f"nested lists are expected, not {type(payload).__name__}")
    try:
        values = np.asarray(cast("list[Any]", payload))
    except ValueError:
        raise ShapeError("the lists have several lengths", "CLIENT-DECODE-3") from None
    if not values.size:
        return _Read(values.astype(np.int64))
    items = cast("Iterable[Any]", payload)
    for _ in range(values.ndim - 1):
        items = chain.from_iterable(items)
    # numpy takes true for 1 where it stands among numbers.
    names = {kind.__name__ for kind in set(map(type, items)) if not _is_integer(kind)}
    if names:
        raise _no_integers(min(names))
    return _Read(values)


_READERS: dict[Source, Callable[[Any], _Read]] = {
    "vllm": _read_vllm,
    "sglang": _read_sglang,
    "mapping": _read_mapping,
    "nemo": _read_nemo,
    "lists": _read_lists,
}


def _is_integer(kind: type) -> bool:
    return issubclass(kind, (int, np.integer)) and kind is not bool


def _array(payload: Any) -> NDArray[Any]:
    """An array as it is; anything else that claims to be one is converted by itself, never unpickled."""
    if not isinstance(payload, np.ndarray) and not hasattr(payload, "__array__"):
        raise _malformed(f"text or an array is expected, not {type(payload).__name__}")
    kind = type(cast("object", payload)).__name__
    try:
        values: NDArray[Any] = np.asarray(cast("Any", payload))
    except (
        Exception
    ) as error:  # A tensor may be of a type or on a device that numpy lacks, and say so in its way.
        raise _malformed(f"numpy cannot read this {kind}: {error!s:.200}") from None
    if values.dtype.kind not in "iu":
        raise _no_integers(values.dtype)
    return values


def _from_base64(text: str | bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("the data is not base64") from None


def _dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in _INTEGERS:
        raise _no_integers(f"{name!r:.80}")
    kind, _, bits = name.rpartition("int")
    return np.dtype(f"<{kind or 'i'}{int(bits) // 8}")


def _from_buffer(data: bytes | memoryview, dtype: np.dtype[Any], shape: tuple[Any, ...]) -> NDArray[Any]:
    """The bytes as an array, if they are exactly those of the shape."""
    sizes = [size for size in shape if type(size) is int and size >= 0]
    if len(sizes) < len(shape) or math.prod(sizes) * dtype.itemsize != len(data):
        raise _malformed(f"{len(data)} bytes are not those of {dtype} values of shape {shape!r:.80}")
    return np.reshape(np.frombuffer(data, dtype), sizes)
