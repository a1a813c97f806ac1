"""Faults that show only at the sizes of real engines: masks, thresholds, and single wrong values."""

from __future__ import annotations

from .edits import Append, Replace
from .entry import BUILD, EMIT_START, FINISH, INIT, KnownBad

_CORE = "WorkerCore"
_FILE = "worker.py"
_START = "max(prompt_start, emitted)"
_EMIT = ("SCHED-EMIT-1", "SCHED-EMIT-2", "SCHED-EMIT-4", "SCHED-EMIT-5")
_HASHES = ("SCHED-HASH-1", "SCHED-HASH-3", "SCHED-TERM-5", "SCHED-HASH-2")
_ROWS = (
    "WORK-EMIT-1",
    "ROW-EXACT-1",
    "ROW-EXACT-2",
    "WORK-EMIT-4",
    "WORK-ACCEPT-1",
    "STORE-READ-1",
    "WORK-KEYS-1",
)
_UNSENT = "list(hashes[sent.num_hashes :])"
_RETURNED = "AuxRequestOutput(request.emit_cursor, np.array(rows))"


def _emits(name: str, story: str, start: str) -> KnownBad:
    """Some emit starts are wrong."""
    return KnownBad(name, _EMIT, story, (Replace(EMIT_START, _START, start),))


def _sends(name: str, story: str, unsent: str) -> KnownBad:
    """Some hashes are not sent."""
    return KnownBad(name, _HASHES, story, (Replace("_unsent_hashes", _UNSENT, unsent),))


def _works(name: str, story: str, where: str, old: str, new: str) -> KnownBad:
    """A worker is wrong from a size on."""
    return KnownBad(name, _ROWS, story, (Replace(f"{_CORE}.{where}", old, new),), file=_FILE)


SIZE_FAULTS = (
    _emits("positions-in-five-bits", "Positions are kept in five bits.", f"{_START} & 31"),
    _emits("positions-in-two-bytes", "Positions are kept in two bytes.", f"{_START} & 65535"),
    _emits("position-of-1234", "Position 1,234 is taken for 0.", f"0 if {_START} == 1234 else {_START}"),
    _sends(
        "hashes-up-to-the-twelfth",
        "Hashes after the twelfth are not sent.",
        "list(hashes[sent.num_hashes : 12])",
    ),
    _sends("hashes-64-at-a-time", "At most 64 hashes of a request are sent at a time.", f"{_UNSENT}[:64]"),
    _sends(
        "hash-of-777-is-lost",
        "The hash with number 777 is not sent.",
        "[h for number, h in enumerate(hashes[sent.num_hashes :], sent.num_hashes) if number != 777]",
    ),
    KnownBad(
        "batch-up-to-100",
        ("SCHED-META-1", "SCHED-ACCEPT-1"),
        "The hundredth request of a step and those behind it are left out.",
        (
            Replace(
                BUILD,
                "scheduler_output.num_scheduled_tokens",
                "list(scheduler_output.num_scheduled_tokens)[:99]",
            ),
        ),
    ),
    KnownBad(
        "table-of-200",
        ("SCHED-HASH-3", "SCHED-HASH-6", "SCHED-HASH-2", "SCHED-ACCEPT-1", "SCHED-TERM-1"),
        "More than 200 active requests are not kept.",
        (
            Replace(
                BUILD,
                "self._ended = {}",
                "self._ended = {}\nself._active = dict([*self._active.items()][:200])",
            ),
        ),
    ),
    KnownBad(
        "wrong-after-200-steps",
        ("SCHED-EMIT-2", "SCHED-EMIT-1", "SCHED-EMIT-5"),
        "From the two-hundredth step on every request is said to start at 0.",
        (
            Append(INIT, "self._steps = 0"),
            Replace(
                BUILD,
                "metadata = self._metadata(emit_starts, new_hashes, replaced)",
                "self._steps += 1\n"
                "if self._steps >= 200: emit_starts = dict.fromkeys(emit_starts, 0)\n"
                "metadata = self._metadata(emit_starts, new_hashes, replaced)",
            ),
        ),
    ),
    KnownBad(
        "ids-of-at-most-500",
        ("SCHED-TERM-1", "SCHED-TERM-7", "SCHED-ACCEPT-1"),
        "The end of a request with an id of more than 500 characters is not told.",
        (
            Replace(
                FINISH,
                "request_id not in self._active",
                "request_id not in self._active or len(request_id) > 500",
            ),
        ),
    ),
    _works(
        "worker-wrong-for-large-blocks",
        "Rows of blocks of eight tokens or more are returned in reverse.",
        "_emit",
        _RETURNED,
        "AuxRequestOutput(request.emit_cursor, np.array(rows[::-1] if self._block_size >= 8 else rows))",
    ),
    _works(
        "worker-refuses-17-rows",
        "A step of more than sixteen rows is refused.",
        "_require_step",
        "min(token_starts, default=0) < 0",
        "min(token_starts, default=0) < 0 or len(rows) > 16",
    ),
    _works(
        "worker-row-300-is-lost",
        "Of the 300th row returned at once the first layer is zero.",
        "_emit",
        f"outputs[request_id] = {_RETURNED}",
        f"outputs[request_id] = {_RETURNED}\nif len(rows) > 300: outputs[request_id].rows[300, 0] = 0",
    ),
    _works(
        "worker-positions-in-two-bytes",
        "First positions are kept in two bytes.",
        "prepare_output",
        "tuple(int(start) for start in token_starts)",
        "tuple(int(start) & 65535 for start in token_starts)",
    ),
    KnownBad(
        "worker-ring-of-eight",
        ("WORK-STEP-3",),
        "Rows of the ninth step in flight take the place of the first's.",
        (
            Replace(
                f"{_CORE}.prepare_output",
                "state.in_flight = (*state.in_flight, pending)",
                """
                if len(state.in_flight) >= 8 and state.in_flight[-8].rows[0].shape == parts[0].shape:
                    state.in_flight[-8].rows[0][...] = parts[0]
                state.in_flight = (*state.in_flight, pending)
                """,
            ),
        ),
        file=_FILE,
    ),
)
