"""How a play becomes concrete: what ids, hashes, generations and rows look like to a connector.

A scenario is abstract and small. Its requests are called A and B, its hashes and rows are values of the spec. A
connector must give the same answers whatever they look like in a real engine, so a scenario may say so, and each play
of the suite draws it. ``Image`` is the translation: the right answer of a play is the image of the abstract one, since
no rule of the protocol looks inside an id, a hash or a row.

Images are injective. What a connector returns is translated back; what is no image of anything comes back as a value
that no right answer holds.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha512
from math import gcd
from typing import Any, NamedTuple

from .values import BlockHash, Metadata, RequestId

DIGEST_SIZE = 32
"""Bytes of an abstract hash; one that is corrupted may be several of them."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Begins an id that is the image of none."""
FILL = "x"
"""Fills up ids that are to be longer."""
MOST_BYTES = 64
_FAR = 1 << 20
"""No play has as many hashes."""
MIN_ROWS = 1 << 12
"""Values that rows must be able to take, since each computation has a row of its own."""


class Representation(NamedTuple):
    """What a play looks like to a connector; the default is the plain one."""

    ids: str = "plain"
    """Ids of requests: those of the scenario, or longer ones, see below."""
    hashes: str = "digest"
    """Bytes of hashes: as random as a digest, or such as differ little, see below."""
    hash_size: int = 32
    """Bytes of a hash, at most 64."""
    layers: int = 2
    """Layers of a row."""
    top_k: int = 2
    """Expert ids of a layer, all different."""
    experts: int = 2048
    """Expert ids are below it, and all are used; rows are uint8 for at most 256, else uint16."""
    generation: int = 0
    """The generation in which the play begins: there were as many resets before."""
    buffers: str = "fresh"
    """The runner's arrays of a step: new ones, or ``reused``, and overwritten once they were handed over."""
    order: str = "arrival"
    """Order of dictionaries where it means nothing: ``arrival``, or ``reversed``."""
    idle: int = 0
    """Further requests that the engine knows and never schedules."""
    writes: bool = False
    """The engine writes into the rows that it gets, where they can be written to."""
    id_length: int = 0
    """Characters of the first id, one more of each further one; shorter ids are filled up at their beginning."""
    first_ids: str = ""
    """The ids of the first requests, a line each, where these ids matter; no two are the same."""
    first_hashes: str = ""
    """The first hashes in hexadecimal digits, a space between them, where these bytes matter; no two are the same."""


PLAIN = Representation()


def _number_in(letters: str, number: int) -> str:
    """A number in as many letters as it takes, the letters being its digits."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, len(letters))
        digits = letters[digit] + digits
    return digits


def _engine_id(name: str) -> str:
    digest = sha512(name.encode()).hexdigest()
    return (
        f"cmpl-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}-0-{digest[32:40]}"
    )


_ACCENTS = ("\u00e9", "e\u0301")
"""One letter, composed and decomposed: two ids that look alike and are equal once normalised."""


def _accented(number: int) -> str:
    """A number in binary, at least twelve digits."""
    return "".join(_ACCENTS[number >> bit & 1] for bit in range(max(12, number.bit_length())))


ID_STYLES: dict[str, tuple[str, Callable[[str, int], str]]] = {
    "plain": ("as in the scenario", lambda name, number: name),
    "engine": ("such as `cmpl-5f1c...-0-9ab3`", lambda name, number: _engine_id(name)),
    "alike": (
        "alike up to the last characters",
        lambda name, number: f"request-{'0' * 32}-{_shuffled(number):04}",
    ),
    "same-end": (
        "alike but for the first characters",
        lambda name, number: f"{_shuffled(number):04}-{'0' * 32}-request",
    ),
    "prefixes": ("that begin with the one before", lambda name, number: "rollout" + "-1" * number),
    "numeric": ("that are numbers, with zeros before them", lambda name, number: "0" * number + "731"),
    "case": (
        "alike but for upper and lower case",
        lambda name, number: f"req-{_number_in('aA', number):a>12}",
    ),
    "unicode": (
        "any Unicode, equal once normalised",
        lambda name, number: "請求\U0001f9ea-" + _accented(number),
    ),
    "spaces": ("alike but for white space", lambda name, number: f"a request{' ' * number}"),
}
"""Style -> what it is, and the id of a request's name and number; a play numbers its requests as they come."""


def _shuffled(number: int) -> int:
    """Another number, of the same size; hashes and ids do not come in the order of their bytes."""
    return number ^ 0x55


def _between(fill: bytes, number: int, size: int) -> bytes:
    """A number in the middle of a fill."""
    before = fill * ((size - 4) // 2)
    return before + number.to_bytes(4, "big") + fill * (size - 4 - len(before))


HASH_STYLES: dict[str, tuple[str, Callable[[int, int], bytes]]] = {
    "digest": (
        "as random as a digest",
        lambda number, size: sha512(number.to_bytes(8, "big")).digest()[:size],
    ),
    "zeros": ("with zero bytes at both ends", lambda number, size: _between(b"\0", number, size)),
    "ones": ("with 0xff bytes at both ends", lambda number, size: _between(b"\xff", number, size)),
    "alike": (
        "alike but for the last bytes",
        lambda number, size: b"h" * (size - 4) + number.to_bytes(4, "big"),
    ),
    "same-end": (
        "alike but for the first bytes",
        lambda number, size: number.to_bytes(4, "little") + b"h" * (size - 4),
    ),
}
"""Style -> what it is, and the bytes of a hash's number; a play numbers its hashes as they come."""

CHOICES: dict[str, tuple[str, ...]] = {
    "ids": tuple(ID_STYLES),
    "hashes": tuple(HASH_STYLES),
    "buffers": ("fresh", "reused"),
    "order": ("arrival", "reversed"),
}
"""The fields that are words, with their values."""
BOUNDS: dict[str, tuple[int, int]] = {
    "hash_size": (8, MOST_BYTES),
    "layers": (1, 1 << 10),
    "top_k": (1, 1 << 8),
    "experts": (1, 1 << 16),
    "generation": (0, 1 << 17),
    "idle": (0, 1 << 12),
    "id_length": (0, 1 << 17),
}
"""The fields that are numbers, with the least and the most they may be."""


class Image:
    """The concrete values of one play, and the way back.

    Args:
        representation: what they look like.
    """

    def __init__(self, representation: Representation) -> None:
        self._made = representation
        self._first_ids = _lines(representation.first_ids)
        self._first_hashes = list(map(bytes.fromhex, representation.first_hashes.split()))
        self._ids: dict[RequestId, str] = {}
        self._names: dict[str, RequestId] = {}
        self._hashes: dict[BlockHash, bytes] = {}
        self._digests: dict[bytes, BlockHash] = {}

    def request_id(self, name: RequestId) -> str:
        """The id of a request."""
        found = self._ids.get(name)
        if found is None:
            number = len(self._ids)
            found = (
                self._first_ids[number] if number < len(self._first_ids) else self._further_id(name, number)
            )
            while found in self._names:
                found = FILL + found
            self._ids[name] = found
            self._names[found] = name
        return found

    def _further_id(self, name: RequestId, number: int) -> str:
        found = ID_STYLES[self._made.ids][1](name, number)
        return found.rjust(self._made.id_length + number if self._made.id_length else 0, FILL)

    def name(self, request_id: str) -> RequestId:
        """The request that an id is of; an id of none is marked as unknown."""
        if self._is_named_plainly:
            return request_id
        return self._names.get(request_id, UNKNOWN + request_id)

    def named(self, text: str) -> str:
        """A text in which ids became the names of their requests."""
        if not self._is_named_plainly:
            for request_id in sorted(self._names, key=len, reverse=True):
                text = text.replace(request_id, self._names[request_id])
        return text

    def block_hash(self, abstract: BlockHash) -> bytes:
        """The bytes of a hash; of one that is corrupted those of its parts."""
        if self._is_plain or not abstract:
            return abstract
        if len(abstract) > DIGEST_SIZE:
            return self.block_hash(abstract[:DIGEST_SIZE]) + self.block_hash(abstract[DIGEST_SIZE:])
        found = self._hashes.get(abstract)
        if found is None:
            found = self._next_hash(len(self._hashes))
            self._hashes[abstract], self._digests[found] = found, abstract
        return found

    def _next_hash(self, number: int) -> bytes:
        if number < len(self._first_hashes):
            return self._first_hashes[number]
        found = HASH_STYLES[self._made.hashes][1](_shuffled(number), self._made.hash_size)
        return found if found not in self._digests else self._next_hash(number + _FAR)

    def digest(self, concrete: bytes) -> BlockHash:
        """The hash that some bytes are of; bytes of none are marked as unknown."""
        if self._is_plain or not concrete:
            return concrete
        size = self._made.hash_size
        parts = [concrete[at : at + size] for at in range(0, len(concrete), size)]
        found = [self._digests.get(part) for part in parts]
        return b"".join(part for part in found if part) if all(found) else UNKNOWN.encode() + concrete

    def metadata(self, abstract: Metadata) -> Metadata:
        """What a worker is sent."""
        return _mapped(abstract, self._made.generation, self.request_id, self.block_hash)

    def abstract(self, concrete: Metadata) -> Metadata:
        """What a scheduler connector's metadata says."""
        return _mapped(concrete, -self._made.generation, self.name, self.digest)

    @property
    def _is_named_plainly(self) -> bool:
        made = self._made
        return (made.ids, made.id_length, made.first_ids) == ("plain", 0, "")

    @property
    def _is_plain(self) -> bool:
        made = self._made
        return (made.hashes, made.hash_size, made.first_hashes) == ("digest", DIGEST_SIZE, "")


def _mapped(
    metadata: Metadata, raised: int, id_of: Callable[[str], str], hash_of: Callable[[bytes], bytes]
) -> Metadata:
    """Metadata in other generations, ids and hashes."""

    def entries(
        found: tuple[tuple[str, tuple[bytes, ...]], ...],
    ) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
        return tuple((id_of(name), tuple(map(hash_of, hashes))) for name, hashes in found)

    return Metadata(
        metadata.generation + raised,
        tuple((id_of(name), start) for name, start in metadata.requests),
        entries(metadata.block_hashes),
        tuple(map(id_of, metadata.finished_requests)),
        entries(metadata.finished_block_hashes),
        entries(metadata.replaced_block_hashes),
        tuple(map(hash_of, metadata.retained_block_hashes)),
        tuple(map(hash_of, metadata.released_block_hashes)),
    )


def steps_of(experts: int) -> tuple[int, ...]:
    """By how much the ids of one layer may differ, one from the next, so that none comes twice."""
    return tuple(step for step in range(1, experts) if gcd(step, experts) == 1) or (1,)


def num_rows(representation: Representation) -> int:
    """How many different rows there are, or more than enough."""
    top_k, experts = representation.top_k, representation.experts
    in_a_layer = experts * (len(steps_of(experts)) if top_k > 1 else 1)
    return in_a_layer ** min(representation.layers, 2)


def differing(representation: Representation) -> dict[str, Any]:
    """The fields that are not those of the plain representation."""
    fields = representation._asdict()
    return {name: value for name, value in fields.items() if value != getattr(PLAIN, name)}


def unusable(fields: dict[str, Any]) -> str:
    """What is wrong with a representation's fields, each of the right type; empty if nothing is."""
    for name, choices in CHOICES.items():
        if fields.get(name, choices[0]) not in choices:
            return f"{name} is one of {', '.join(choices)}, found {fields[name]!r}"
    for name, (least, most) in BOUNDS.items():
        if not least <= fields.get(name, least) <= most:
            return f"{name} is from {least} to {most}, found {fields[name]}"
    made = Representation(**fields)
    if wrong := _unusable_firsts(made):
        return wrong
    if made.top_k > made.experts:
        return f"a layer has {made.top_k} different ids of {made.experts} experts"
    if num_rows(made) < MIN_ROWS:
        return f"there are {num_rows(made)} different rows, at least {MIN_ROWS} are needed"
    return ""


def _lines(text: str) -> list[str]:
    """Only a newline ends one: an id may hold what else counts as an end of a line."""
    return text.split("\n") if text else []


def _unusable_firsts(made: Representation) -> str:
    """What is wrong with the first ids and hashes that are given; empty if nothing is."""
    ids = _lines(made.first_ids)
    if len(set(ids)) < len(ids) or not all(ids):
        return "first_ids has an id twice, or an empty one"
    try:
        hashes = list(map(bytes.fromhex, made.first_hashes.split()))
    except ValueError:
        return f"first_hashes are hexadecimal digits, found {made.first_hashes!r}"
    if any(len(each) != made.hash_size for each in hashes):
        return f"first_hashes are of {made.hash_size} bytes (hash_size)"
    return "first_hashes has a hash twice" if len(set(hashes)) < len(hashes) else ""


def in_words(representation: Representation) -> str:
    """What is not plain, for people."""
    fields = differing(representation)
    row = {"layers", "top_k", "experts"} & fields.keys()
    words = [text(representation) for name, text in _WORDS.items() if name in fields]
    if row:
        words.append(
            f"rows ({representation.layers}, {representation.top_k}) of {representation.experts} experts"
        )
    return ", ".join(words)


_WORDS: dict[str, Callable[[Representation], str]] = {
    "ids": lambda made: f"ids {ID_STYLES[made.ids][0]}",
    "hashes": lambda made: f"hashes {HASH_STYLES[made.hashes][0]}",
    "hash_size": lambda made: f"hashes of {made.hash_size} bytes",
    "generation": lambda made: f"after {made.generation} resets",
    "buffers": lambda made: "the runner's arrays used again",
    "order": lambda made: "dictionaries in reversed order",
    "idle": lambda made: f"{made.idle} idle request{'' if made.idle == 1 else 's'}",
    "id_length": lambda made: f"ids of {made.id_length} characters",
    "first_ids": lambda made: f"ids {', '.join(map(repr, _lines(made.first_ids)))}",
    "first_hashes": lambda made: f"hashes {', '.join(made.first_hashes.split())}",
    "writes": lambda made: "an engine that writes into its rows",
}
