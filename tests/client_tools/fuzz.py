"""Conversations at random, some of them damaged on the way, with what must come of them.

``python tests/client_tools/fuzz.py 1000000`` looks for a row that is lost or taken for another in silence: whatever is
played, either an error is raised or every position has exactly the row that the calls returned for it. The oracle is a
dictionary of positions and shares nothing with specification or library.
"""

from __future__ import annotations

import base64
import json
import random
import struct
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from auxout.client.conversation import play

Json = dict[str, Any]
Row = list[list[int]]
SOURCES = ("lists", "vllm", "sglang", "mapping", "nemo")
DTYPES = {"uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "int64": "q"}


class Built(NamedTuple):
    """A conversation and what its maker knows of it."""

    conversation: Json
    rows: dict[int, Row] | None
    """Position -> row; None: it must be refused."""
    num_tokens: int
    damage: str
    """What was done to one call; empty: nothing."""


class _Known:
    """What a right client knows after each call: a dictionary and the three policies."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.rows: dict[int, Row] = {}

    def add(self, prompt: list[int], output: list[int], rows: list[Row], start: int, keep: str) -> bool:
        """False: it must be refused."""
        new = {start + index: row for index, row in enumerate(rows)}
        if prompt[: len(self.tokens)] != self.tokens or start + len(rows) != len(prompt) + len(output) - 1:
            return False
        if self.rows and start > max(self.rows) + 1:
            return False
        if keep == "equal" and any(self.rows.get(position, row) != row for position, row in new.items()):
            return False
        self.rows = {**self.rows, **new} if keep == "last" else {**new, **self.rows}
        self.tokens = prompt + output
        return True

    def cut(self, num_tokens: int) -> None:
        self.tokens = self.tokens[:num_tokens]
        self.rows = {position: row for position, row in self.rows.items() if position < num_tokens}


def build(rng: random.Random) -> Built:
    """One conversation of one to four calls."""
    schema = _schema(rng)
    known, steps, right = _Known(), list[Json](), True
    damaged = rng.randrange(4) if rng.random() < 0.5 else -1
    damage = ""
    for number in range(rng.randint(1, 4)):
        prompt = known.tokens + [rng.randrange(1000) for _ in range(rng.randint(0 if known.tokens else 1, 3))]
        output = [rng.randrange(1000) for _ in range(rng.randint(0, 4))]
        num_tokens = len(prompt) + len(output)
        start = rng.randint(0, min(max(known.rows, default=num_tokens) + 1, num_tokens - 1))
        text = prompt + output
        rows = [
            _row(schema, text[: position + 1], rng.choice("aab")) for position in range(start, num_tokens - 1)
        ]
        keep = rng.choice(("first", "last", "equal"))
        call = {"prompt": prompt, "output": output, "start": start, "keep": keep}
        spoil: Callable[[Json], None] | None = None
        if number == damaged:
            damage, rows, spoil = _damaged(rng, schema, rows, call, bool(known.tokens))
        call["payload"] = encode(rng, rows, schema)
        if spoil is not None:
            spoil(call)
        right = spoil is None and known.add(call["prompt"], output, rows, call["start"], keep)
        steps.append({"call": call})
        if not right:
            break
        if rng.random() < 0.2:
            cut = rng.randint(0, len(known.tokens))
            known.cut(cut)
            steps.append({"truncate": cut})
    conversation = {"schema": schema, "samples": [steps], "result": {"as": "array"}}
    return Built(conversation, known.rows if right else None, len(known.tokens), damage)


def _schema(rng: random.Random) -> Json:
    num_layers = rng.randint(1, 3)
    moe_layers = sorted(rng.sample(range(num_layers), rng.randint(1, num_layers)))
    experts = rng.choice((4, 200, 256, 257, 40000))
    return {
        "num_layers": num_layers,
        "top_k": rng.randint(1, 3),
        "num_experts": experts,
        "moe_layers": moe_layers,
    }


def _row(schema: Json, prefix: list[int], version: str) -> Row:
    """The row of a token prefix under some weights: another prefix has another one, but for chance."""
    number = zlib.crc32(f"{prefix}{version}".encode())
    row: Row = []
    for layer in range(schema["num_layers"]):
        first = (number >> layer) % schema["num_experts"]
        ids = [(first + slot) % schema["num_experts"] for slot in range(schema["top_k"])]
        row.append(ids if layer in schema["moe_layers"] else [0] * schema["top_k"])
    return row


def encode(rng: random.Random, rows: list[Row], schema: Json) -> Json:
    """A payload in one of the encodings, and a dtype that holds the ids."""
    source = rng.choice(SOURCES)
    flat = [each for row in rows for layer in row for each in layer]
    fitting = [
        name
        for name in DTYPES
        if max(flat, default=0) <= {"B": 255, "h": 32767, "H": 65535}.get(DTYPES[name], 1 << 30)
    ]
    dtype = "int32" if source == "sglang" else rng.choice(fitting)
    shape = [len(rows), schema["num_layers"], schema["top_k"]]
    data = struct.pack(f"<{len(flat)}{DTYPES[dtype]}", *flat)
    text = base64.b64encode(data).decode()
    value: Any = rows
    if source == "vllm":
        code = f"{'|' if dtype == 'uint8' else '<'}{'u' if dtype[0] == 'u' else 'i'}{struct.calcsize(DTYPES[dtype])}"
        header = f"{{'descr': '{code}', 'fortran_order': False, 'shape': ({shape[0]}, {shape[1]}, {shape[2]}), }}\n"
        head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
        value = base64.b64encode(head + data).decode()
    elif source == "sglang":
        value = text
    elif source == "mapping":
        value = {"data": text, "shape": shape, "dtype": dtype}
    elif source == "nemo":
        value = f"nrlre1:{dtype}:{'x'.join(map(str, shape))}:{text}"
    return {"source": source, "value": value}


def _damaged(
    rng: random.Random, schema: Json, rows: list[Row], call: Json, is_later: bool
) -> tuple[str, list[Row], Callable[[Json], None] | None]:
    """What happened to a call's rows: other rows to encode, or something done to the encoded call."""
    other = _row(schema, [rng.randrange(1000)], "c")
    kinds: dict[str, list[Row]] = {
        "a row more": [*rows, other],
        "a row more in front": [other, *rows],
        "the first row lost": rows[1:],
        "the last row lost": rows[:-1],
        "shifted by one": [*rows[1:], other] if rows else rows,
        "shifted back by one": [other, *rows[:-1]] if rows else rows,
        "a row twice": [*rows[:1], *rows[:-1]],
        "layers exchanged": [row[::-1] for row in rows],
        "the whole prefix again": [*rows, *rows],
    }
    spoils: dict[str, Callable[[Json], None]] = {
        "another start": _move_start,
        "bytes lost": _lose_bytes,
        "a negative id": lambda call: _put(call, schema, rows, -1),
        "an id beyond the dtype": lambda call: _put(call, schema, rows, 70000),
        "a layer more": lambda call: _reshape(call, [[*row, row[0]] for row in rows] or None),
        "a slot less": lambda call: _reshape(call, [[ids[1:] for ids in row] for row in rows] or None),
        "another prompt": _change_prompt,
        "no rows": lambda call: call.update(payload={"source": "vllm", "value": None}),
    }
    name = rng.choice([*kinds, *spoils])
    if name in kinds:
        return name, kinds[name], None
    # A payload without rows has no byte to lose, and a first call's prompt contradicts nothing.
    harms = is_later if name == "another prompt" else bool(rows)
    return (name, rows, spoils[name]) if harms else ("", rows, None)


def _move_start(call: Json) -> None:
    call["start"] += 1


def _lose_bytes(call: Json) -> None:
    payload = call["payload"]
    value = payload["value"]
    if payload["source"] == "mapping":
        value["data"] = value["data"][:-4]
    elif payload["source"] == "lists":
        value.pop()
    else:
        payload["value"] = value[:-4]


def _put(call: Json, schema: Json, rows: list[Row], value: int) -> None:
    changed = json.loads(json.dumps(rows))
    changed[-1][0][0] = value
    call["payload"] = {"source": "lists", "value": changed}


def _reshape(call: Json, rows: list[Any] | None) -> None:
    call["payload"] = {"source": "lists", "value": rows}


def _change_prompt(call: Json) -> None:
    call["prompt"][0] += 1


def fault(built: Built, played: Json) -> str:
    """What is lost or made up in silence; empty: nothing."""
    if built.rows is None:
        return "" if "error" in played else "it must be refused and was not"
    if "error" in played:
        return f"it is right and was refused: {played}"
    known = [position in built.rows for position in range(built.num_tokens)]
    if played["mask"] != known:
        return f"known are {[p for p, k in enumerate(known) if k]}, the mask is {played['mask']}"
    wrong = [p for p, row in built.rows.items() if played["rows"][p] != row]
    return f"other rows at {wrong}" if wrong else ""


def main(number: int, seed: int = 0) -> int:
    """Play a number of conversations and tell what was found."""
    refused = damaged = 0
    started = time.perf_counter()
    for index in range(number):
        built = build(random.Random(f"{seed}-{index}"))
        played = play(built.conversation)
        if found := fault(built, played):
            print(f"conversation {seed}-{index}, {built.damage or 'undamaged'}: {found}")
            print(json.dumps(built.conversation))
            return 1
        refused += "error" in played
        damaged += bool(built.damage)
    seconds = time.perf_counter() - started
    print(
        f"{number} conversations, {damaged} damaged, {refused} refused, none lost a row in silence; {seconds:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
