"""How engines encode rows on their way to a client, and how to read it without trusting it.

| source | what it is |
| --- | --- |
| ``vllm`` | base64 of an ``.npy`` file, (rows, num_layers, top_k) |
| ``sglang`` | base64 of a flat little-endian int32 buffer |
| ``mapping`` | ``data`` (base64), ``shape``, ``dtype`` and perhaps ``start``: SkyRL, prime-rl, ``encode`` |
| ``nemo`` | text ``nrlre1:<dtype>:<rows>x<layers>x<top_k>:<base64>`` of NeMo-RL |
| ``lists`` | nested lists |

A payload that says one size and has another, or says that it holds anything but whole numbers, is refused before its
values are read (CLIENT-DECODE-4, CLIENT-DECODE-7); pickles are never loaded.
"""

from __future__ import annotations

import ast
import base64
import binascii
import math
import re
import struct
from typing import Any, cast

from .values import Payload, Refused

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000
"""Bytes of an ``.npy`` header that are read at most."""
CODES = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
}
"""Name of an integer dtype -> its letter in ``struct``."""
_NPY_TYPE = re.compile(r"([<>|=]?)([iu])([1248])")
_NEMO = re.compile(r"nrlre1:(\w+):(\d{1,9})x(\d{1,9})x(\d{1,9}):(.*)", re.DOTALL)


def unpack(source: str, value: Any) -> Payload | Refused:
    """The numbers and the shape of an encoded payload.

    Args:
        source: one of the table above.
        value: text, a mapping or nested lists, as JSON has them.
    """
    if source == "lists":
        return _lists(value)
    if source == "mapping":
        if not isinstance(value, dict):
            return _malformed("a mapping is expected")
        fields = cast("dict[str, Any]", value)
        return _buffer(fields.get("data"), fields.get("dtype"), fields.get("shape"))
    if source == "sglang":
        return _buffer(value, "int32", None)
    if source == "nemo":
        parts = _NEMO.fullmatch(value) if isinstance(value, str) else None
        if parts is None:
            return _malformed("the text does not begin as NeMo-RL's")
        return _buffer(parts[5], parts[1], [int(size) for size in parts.group(2, 3, 4)])
    return _npy(value)


def _malformed(message: str) -> Refused:
    return Refused("CLIENT-DECODE-7", message)


def _bytes(text: Any) -> bytes | Refused:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return _malformed("the data is not base64")


def _buffer(text: Any, dtype: Any, shape: Any, order: str = "<") -> Payload | Refused:
    """Base64 of numbers in row-major order; without a shape they are flat."""
    data = _bytes(text)
    if isinstance(data, Refused):
        return data
    code = CODES.get(dtype) if isinstance(dtype, str) else None
    if code is None:
        return Refused("CLIENT-DECODE-4", f"{dtype} is no integer type")
    return _numbers(data, code, shape, order)


def _numbers(data: bytes, code: str, shape: Any, order: str) -> Payload | Refused:
    size = struct.calcsize(order + code)
    count, rest = divmod(len(data), size)
    if rest or not (shape is None or _is_shape(shape)) or (shape is not None and math.prod(shape) != count):
        return _malformed(f"{len(data)} bytes are not what shape {shape} needs")
    values = struct.unpack(f"{order}{count}{code}", data)
    return Payload((count,) if shape is None else tuple(shape), values, flat=shape is None)


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, (list, tuple)):
        return False
    sizes = cast("list[Any]", shape)
    return len(sizes) == 3 and all(type(size) is int and size >= 0 for size in sizes)


def _npy(text: Any) -> Payload | Refused:
    data = _bytes(text)
    if isinstance(data, Refused):
        return data
    major, size = (data[6], 2 * data[6]) if len(data) > 12 else (0, 0)
    if data[:6] != MAGIC or major not in (1, 2):
        return _malformed("the data is no .npy file")
    length = int.from_bytes(data[8 : 8 + size], "little")
    end = 8 + size + length
    if length > MAX_HEADER or end > len(data):
        return _malformed("the .npy header is longer than the data")
    header = _header(data[8 + size : end])
    if isinstance(header, Refused):
        return header
    order, code, shape, fortran = header
    found = _numbers(data[end:], code, shape, order)
    if isinstance(found, Refused) or not fortran:
        return found
    return found._replace(values=_row_major(found.values, shape))


def _header(text: bytes) -> tuple[str, str, list[int], bool] | Refused:
    try:
        header: Any = ast.literal_eval(text.decode("latin1").strip())
        descr, fortran, shape = (header[name] for name in ("descr", "fortran_order", "shape"))
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        return _malformed("the .npy header is not readable")
    if type(fortran) is not bool or not isinstance(shape, tuple):
        return _malformed("the .npy header has other types")
    kind = _NPY_TYPE.fullmatch(descr) if isinstance(descr, str) else None
    if kind is None:
        return Refused("CLIENT-DECODE-4", f"{descr} is no integer type")
    sizes = list(cast("tuple[Any, ...]", shape))
    if len(sizes) != 3:
        return Refused("CLIENT-DECODE-3", f"rows of {sizes}")
    code = CODES[("u" if kind[2] == "u" else "") + f"int{8 * int(kind[3])}"]
    return ">" if kind[1] == ">" else "<", code, sizes, fortran


def _row_major(values: tuple[int | float, ...], shape: list[int]) -> tuple[int | float, ...]:
    rows, layers, slots = shape
    places = ((r, p, s) for r in range(rows) for p in range(layers) for s in range(slots))
    return tuple(values[r + rows * (p + layers * s)] for r, p, s in places)


def _lists(value: Any) -> Payload | Refused:
    shape: list[int] = []
    level: list[Any] = [value]
    while all(isinstance(each, list) for each in level) and (level or not shape):
        sizes = {len(each) for each in level}
        if len(sizes) > 1:
            return Refused("CLIENT-DECODE-3", "the lists have several lengths")
        shape += sizes
        level = [item for each in level for item in each]
    if any(isinstance(each, list) for each in level):
        return Refused("CLIENT-DECODE-3", "numbers and lists stand side by side")
    if not shape:
        return _malformed("nested lists are expected")
    if any(type(each) is not int for each in level):
        return Refused("CLIENT-DECODE-4", "the lists hold something else than whole numbers")
    return Payload(tuple(shape), tuple(level))
