"""Reading payloads: every encoding gives the same rows, what needs no copy has none, hostile ones are refused."""

from __future__ import annotations

import base64
import io
import json
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest

from auxout.client import (
    CountError,
    DtypeError,
    IdError,
    MissingError,
    PayloadError,
    Rows,
    RowsError,
    Schema,
    ShapeError,
    StartError,
    decode,
    encode,
    splice,
    validate,
)

SCHEMA = Schema(num_layers=3, top_k=2, num_experts=256)
WIDE = Schema(num_layers=3, top_k=2, num_experts=40000)


def some(schema: Schema = SCHEMA, rows: int = 4) -> np.ndarray:
    ids = np.arange(rows * schema.num_layers * schema.top_k) * 31 % schema.num_experts
    return ids.reshape(rows, *schema.row_shape).astype(schema.dtype)


def npy(array: Any, **options: Any) -> str:
    file = io.BytesIO()
    np.save(file, array, **options)
    return base64.b64encode(file.getvalue()).decode()


def text(array: np.ndarray, dtype: str) -> str:
    return base64.b64encode(array.astype(dtype).tobytes()).decode()


def payloads(values: np.ndarray) -> dict[str, tuple[str, Any]]:
    shape = "x".join(map(str, values.shape))
    mapping = {"data": text(values, "<i4"), "shape": list(values.shape), "dtype": "int32"}
    return {
        "array": ("vllm", values),
        "wide array": ("vllm", values.astype(np.int64)),
        "array in Fortran order": ("vllm", np.asfortranarray(values)),
        "npy": ("vllm", npy(values)),
        "npy bytes": ("vllm", npy(values).encode()),
        "npy in Fortran order": ("vllm", npy(np.asfortranarray(values))),
        "big-endian npy": ("vllm", npy(values.astype(">i4"))),
        "sglang text": ("sglang", text(values, "<i4")),
        "sglang bytes": ("sglang", values.astype("<i4").tobytes()),
        "sglang array": ("sglang", values.astype(np.int32).ravel()),
        "mapping": ("mapping", mapping),
        "mapping of bytes": ("mapping", {**mapping, "data": values.astype("<i4").tobytes()}),
        "nemo": ("nemo", f"nrlre1:int32:{shape}:{text(values, '<i4')}"),
        "lists": ("lists", values.tolist()),
        "lists of arrays": ("lists", list(values)),
    }


@pytest.mark.parametrize("schema", [SCHEMA, WIDE], ids=["uint8", "uint16"])
@pytest.mark.parametrize("name", payloads(some()))
def test_every_encoding_gives_the_same_rows(name: str, schema: Schema) -> None:
    values = some(schema)
    source, payload = payloads(values)[name]
    rows = decode(payload, schema, source=source, start=2, num_tokens=7)  # type: ignore[arg-type]
    assert rows == Rows(values, 2, schema)
    assert rows.values.dtype == schema.dtype
    assert (rows.start, rows.end, len(rows)) == (2, 6, 4)
    assert (
        decode(json.loads(json.dumps(encode(rows))), schema, source="mapping", start=2, num_tokens=7) == rows
    )


@pytest.mark.parametrize("num_experts", [127, 128, 129, 255, 256, 257, 511, 32767, 32768, 65536])
def test_the_largest_id_survives(num_experts: int) -> None:
    schema = Schema(1, 1, num_experts)
    values = np.array([[[num_experts - 1]], [[0]]], schema.dtype)
    rows = decode(encode(Rows(values, 0, schema)), schema, source="mapping", num_tokens=3)
    assert rows.values.tolist() == values.tolist()


def test_what_needs_no_copy_has_none() -> None:
    values = some()
    assert np.shares_memory(decode(values, SCHEMA, source="vllm", num_tokens=5).values, values)
    raw = values.tobytes()
    rows = decode({"data": raw, "shape": [4, 3, 2], "dtype": "uint8"}, SCHEMA, source="mapping", num_tokens=5)
    assert np.shares_memory(rows.values, np.frombuffer(raw, np.uint8))


def test_rows_are_never_written_to() -> None:
    values = some()
    rows = decode(values, SCHEMA, source="vllm", num_tokens=5)
    with pytest.raises(ValueError, match="read-only"):
        rows.values[0] = 0
    assert values.flags.writeable


def bomb() -> object:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("a payload was unpickled",)

    return Bomb()


def header(fields: str, data: bytes = b"", length: int | None = None, version: bytes = b"\x01\x00") -> str:
    size = len(fields) if length is None else length
    return base64.b64encode(
        b"\x93NUMPY" + version + size.to_bytes(2, "little") + fields.encode() + data
    ).decode()


HUGE = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({1 << 40}, 3, 2)}}\n"
NEGATIVE = "{'descr': '|u1', 'fortran_order': False, 'shape': (-2, -3, 4)}\n"
HOSTILE: dict[str, tuple[str, Any, type[RowsError]]] = {
    "pickled .npy": ("vllm", npy(np.array([bomb()], object), allow_pickle=True), DtypeError),
    "pickle": ("vllm", base64.b64encode(pickle.dumps(bomb())).decode(), PayloadError),
    "object array": ("vllm", np.array([[[bomb()] * 2] * 3] * 4, object), DtypeError),
    "structured array": ("vllm", npy(np.zeros((4, 3, 2), [("a", "u1")])), DtypeError),
    "strings": ("vllm", npy(np.full((4, 3, 2), "1")), DtypeError),
    "booleans": ("vllm", np.ones((4, 3, 2), bool), DtypeError),
    "floats": ("vllm", np.ones((4, 3, 2), np.float32), DtypeError),
    "complex": ("vllm", np.ones((4, 3, 2), np.complex64), DtypeError),
    "dates": ("vllm", np.zeros((4, 3, 2), "M8[s]"), DtypeError),
    "header of a terabyte": ("vllm", header(HUGE), PayloadError),
    "negative sizes": ("vllm", header(NEGATIVE, b"\0" * 24), PayloadError),
    "header longer than the file": ("vllm", header("{", length=65000), PayloadError),
    "header that is deep": ("vllm", header("(" * 9000), PayloadError),
    "header that is no dictionary": ("vllm", header("[1]\n"), PayloadError),
    "header of another version": ("vllm", header(HUGE, version=b"\x09\x00"), PayloadError),
    "nothing": ("vllm", "", PayloadError),
    "not ASCII": ("vllm", "é", PayloadError),
    "no array": ("vllm", object(), PayloadError),
    "mapping of a terabyte": (
        "mapping",
        {"data": "", "shape": [1 << 40, 3, 2], "dtype": "uint8"},
        PayloadError,
    ),
    "mapping that overflows": (
        "mapping",
        {"data": "AAAAAA==", "shape": [1 << 62, 4, 1 << 2], "dtype": "uint8"},
        PayloadError,
    ),
    "shape of floats": ("mapping", {"data": "", "shape": [0.0, 3, 2], "dtype": "uint8"}, PayloadError),
    "shape of booleans": ("mapping", {"data": "AAA=", "shape": [True, 2, 1], "dtype": "uint8"}, PayloadError),
    "shape that is text": ("mapping", {"data": "", "shape": "432", "dtype": "uint8"}, PayloadError),
    "no shape": ("mapping", {"data": "", "dtype": "uint8"}, PayloadError),
    "dtype object": ("mapping", {"data": "", "shape": [0, 3, 2], "dtype": "O"}, DtypeError),
    "dtype that is code": ("mapping", {"data": "", "shape": [0, 3, 2], "dtype": "{'a': 1}"}, DtypeError),
    "no mapping": ("mapping", "text", PayloadError),
    "list for data": ("mapping", {"data": [1], "shape": [4, 3, 2], "dtype": "uint8"}, PayloadError),
    "half a number": ("sglang", base64.b64encode(b"123").decode(), PayloadError),
    "object in a flat array": ("sglang", np.array([bomb()] * 24), DtypeError),
    "text without its name": ("nemo", "uint8:4x3x2:", PayloadError),
    "size of a thousand digits": ("nemo", f"nrlre1:int8:{'9' * 1000}x3x2:", PayloadError),
    "lists of text": ("lists", [[["1", "2"]] * 3] * 4, DtypeError),
    "lists with true": ("lists", [[[1, True]] * 3] * 4, DtypeError),
    "lists with null": ("lists", [[[1, None]] * 3] * 4, DtypeError),
    "lists of floats": ("lists", [[[1, 2.0]] * 3] * 4, DtypeError),
    "numbers of 30 digits": ("lists", [[[1, 10**30]] * 3] * 4, DtypeError),
    "lists too deep": ("lists", json.loads("[" * 100 + "]" * 100), RowsError),
    "no lists": ("lists", 7, PayloadError),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_payload_is_refused_in_a_sentence(name: str) -> None:
    source, payload, error = HOSTILE[name]
    with pytest.raises(error) as refused:
        decode(payload, SCHEMA, source=source, start=0, num_tokens=5, request="r7")  # type: ignore[arg-type]
    assert str(refused.value).startswith("request r7: ")
    assert len(str(refused.value)) < 400


def test_memory_is_bounded_by_the_payload() -> None:
    tracemalloc.start()
    try:
        for name in ("header of a terabyte", "mapping of a terabyte", "size of a thousand digits"):
            source, payload, error = HOSTILE[name]
            with pytest.raises(error):
                decode(payload, SCHEMA, source=source, num_tokens=5)  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_errors_tell_what_they_are_about_and_survive_a_process_boundary() -> None:
    with pytest.raises(MissingError) as refused:
        decode(None, SCHEMA, source="vllm", start=3, num_tokens=9, request="r1")
    error = pickle.loads(pickle.dumps(refused.value))
    assert isinstance(error, ValueError)
    assert (error.request, error.call, error.positions, error.clause) == (
        "r1",
        None,
        (3, 8),
        "CLIENT-DECODE-6",
    )
    assert str(error) == str(refused.value)
    assert str(error).startswith("request r1, positions [3, 8): 5 rows are due")


@pytest.mark.parametrize(("rows", "error"), [(3, CountError), (5, CountError)])
def test_counts_are_exact(rows: int, error: type[RowsError]) -> None:
    with pytest.raises(error, match="4 are due"):
        decode(some(rows=rows), SCHEMA, source="vllm", num_tokens=5)


@pytest.mark.parametrize("start", [-1, 5, 6])
def test_a_start_is_one_of_the_tokens(start: int) -> None:
    with pytest.raises(StartError):
        decode(some(), SCHEMA, source="vllm", start=start, num_tokens=5)


def test_nothing_due_may_be_none_or_empty() -> None:
    for payload, source in (
        (None, "vllm"),
        ([], "lists"),
        (np.empty((0, 3, 2), np.uint8), "vllm"),
        ("", "sglang"),
    ):
        rows = decode(payload, SCHEMA, source=source, start=4, num_tokens=5)  # type: ignore[arg-type]
        assert len(rows) == 0
        assert rows.values.shape == (0, 3, 2)


def test_rows_by_hand_are_checked_as_well() -> None:
    with pytest.raises(ShapeError):
        Rows(some()[:, :2], 0, SCHEMA)
    with pytest.raises(DtypeError):
        Rows(some().astype(np.int64), 0, SCHEMA)
    with pytest.raises(StartError):
        Rows(some(), -1, SCHEMA)


def test_validation_names_the_first_position() -> None:
    schema = Schema(3, 2, 16, (1, 2))
    good = np.zeros((9000, 3, 2), np.uint8)
    good[:, 1:] = [[1, 2], [3, 15]]
    validate(Rows(good, 10, schema))
    for value, place, clause in (
        (16, (8500, 1, 0), "CLIENT-IDS-1"),
        (2, (8500, 1, 0), "CLIENT-IDS-2"),
        (1, (8500, 0, 1), "CLIENT-IDS-3"),
    ):
        bad = good.copy()
        bad[place] = value
        with pytest.raises(IdError) as refused:
            validate(Rows(bad, 10, schema))
        assert (refused.value.clause, refused.value.positions) == (clause, (8510, 8511))
        validate(Rows(bad, 10, schema), "capture")
    bad = good.copy()
    bad[:, 2] = 0
    with pytest.raises(IdError, match="layer 2 is zero") as refused:
        validate(Rows(bad, 10, schema), "capture")
    assert refused.value.positions == (10, 9010)
    validate(Rows(good[:0], 0, schema))


def test_splicing_copies_only_what_it_must() -> None:
    values = some(rows=6)
    whole, front, back = Rows(values, 0, SCHEMA), Rows(values[:4], 0, SCHEMA), Rows(values[3:], 3, SCHEMA)
    assert splice(front, back) == splice(back, front) == whole
    assert splice(whole, back) is splice(back, whole) is whole
    assert splice(front, Rows(values[4:], 4, SCHEMA)) == whole
    assert splice(front, whole) is whole
    with pytest.raises(RowsError):
        splice(front, Rows(some(WIDE), 4, WIDE))
