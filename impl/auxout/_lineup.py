"""The active requests in columns, so that most steps compare them with one call.

What is looked up and compared here is the same in every step in which no request starts or ends.
"""

from __future__ import annotations

from itertools import compress
from operator import itemgetter, ne
from typing import TYPE_CHECKING

from ._hashes import append, pack_replaced, pack_unsent
from ._wire import Roster
from .errors import ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ._engine import Request
    from ._hashes import Replaced
    from ._wire import HashColumns

    Progress = list[tuple[int, str, tuple[int, bytes]]]
    """Places among the active requests, their ids, and how much of their hashes is sent."""

NUM_RECENT = 4
"""Batches kept. Two or more alternate where pipeline stages take turns."""
NOTHING_SENT = (0, b"")


class Batch:
    """What depends on ids alone."""

    __slots__ = ("find", "names", "roster")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.find = _finder(names)
        self.roster = Roster(names)


class Lineup:
    """The active requests in columns, in the order of their start; good until one starts or ends."""

    __slots__ = ("everyone", "last", "num_sent", "recent")

    def __init__(
        self, names: tuple[str, ...], num_sent: list[int], last: list[bytes], recent: list[Batch]
    ) -> None:
        self.everyone = Batch(names)
        self.num_sent = num_sent
        self.last = last
        # The latest batches, all of them of active requests.
        self.recent = recent


def _finder(names: tuple[str, ...]) -> Callable[[Mapping[str, Request]], tuple[Request, ...]]:
    """A function that looks up all names in one call."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda requests: tuple([requests[name] for name in names])


def look_up(
    batch: Batch, requests: Mapping[str, Request], scheduled: Mapping[str, int]
) -> tuple[Request, ...]:
    """The engine's requests of a batch, or a refusal that names one it does not know."""
    try:
        return batch.find(requests)
    except KeyError:
        missing = next(name for name in batch.names if name not in requests)
        clause = "SCHED-META-1" if missing in scheduled else "SCHED-HASH-6"
        raise ProtocolViolation(clause, missing, "it is not among the engine's requests") from None


def changed(requests: Sequence[Request], num_sent: list[int]) -> Iterable[int]:
    """Positions of requests whose hash list has not just the length sent. O(requests)."""
    counts = [len(request.block_hashes) for request in requests]
    if counts == num_sent:
        return ()
    return compress(range(len(counts)), map(ne, counts, num_sent))


def collect(
    indices: Iterable[int],
    lineup: Lineup,
    found: Sequence[Request],
    new: HashColumns,
    replaced: Replaced,
    progress: Progress,
) -> None:
    """Add what is new of requests whose hash list has not just the length sent. O(their new hashes).

    Args:
        indices: their positions.
        replaced: gets the whole lists of those of which hashes that were sent no longer stand (SCHED-HASH-12).
    """
    names, data, sizes = new
    ids, nums_sent, lasts = lineup.everyone.names, lineup.num_sent, lineup.last
    for index in indices:
        name, block_hashes = ids[index], found[index].block_hashes
        num_sent, last = nums_sent[index], lasts[index]
        if (
            num_sent
            and len(block_hashes) == num_sent + 1
            and block_hashes[-2] is last
            and type(fresh := block_hashes[-1]) is bytes
            and len(fresh) == len(last)
        ):
            # By far the most frequent case, without a call, a slice and a join.
            names.append(name)
            data.append(fresh)
            sizes.append(len(last))
            progress.append((index, name, (num_sent + 1, fresh)))
            continue
        if 0 < num_sent <= len(block_hashes) and block_hashes[num_sent - 1] != last:
            packed = pack_replaced(replaced, name, block_hashes, num_sent)
        else:
            packed = pack_unsent(name, block_hashes, num_sent, last)
        append(new, name, packed)
        progress.append((index, name, (len(block_hashes), block_hashes[-1])))
