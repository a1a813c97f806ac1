"""The worker connector's core, runner-independent: from the rows of each step to the outputs of its requests.

Theory of operation. A decode step has one row a request, and for most requests nothing else happens: no block is
full, no key arrived. So what a step does to every request is arithmetic on columns (``_requests``, ``_capture``), and
only requests with full blocks, new keys or rows to be read back are looked at one by one. Rows are copied once, into
the block of the store's arena that they stay in; blocks are published by name (``store``). Outputs are columns over
the step's own rows (``_outputs``).

Every call first finds out what it would do, which is where it may refuse, and only then changes anything. Rows and
slots beyond a capture cursor are not part of the state: they may be written before. So is the age of blocks that no
request refers to: what a refused call looked up counts as used.

Costs: "blocks" are those that fill or get a key in the step.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._capture import places
from ._intake import Intake, Writing, read
from ._landing import Landing, Read, land
from ._options import errors_mode
from ._profiles import LATEST, checked
from ._requests import RequestTable
from ._steps import PendingStep, failed_outputs
from .errors import ProtocolViolation, StoreError, log_failure
from .store import ArenaStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray

    from ._options import Errors
    from ._wire import AuxOutputConnectorMetadata, AuxRequestOutput
    from .store import Store


class Usage(NamedTuple):
    """What the worker holds; all zero but ``objects`` when no request lives and no step is in flight."""

    requests: int
    steps_in_flight: int
    references: int
    """Sum of the store's reference counts."""
    objects: int
    """Blocks in the store."""
    buffered_rows: int
    """Rows of incomplete blocks and of blocks without a key, outside the store."""


class WorkerCore:
    """One worker's requests and rows. Not thread-safe: one call at a time."""

    def __init__(
        self,
        *,
        block_size: int,
        shape_per_token: tuple[int, int],
        dtype: DTypeLike,
        max_objects: int,
        max_num_seqs: int = 256,
        max_in_flight: int = 2,
        errors: Errors = "raise",
        profile: str = LATEST,
        num_spare: int | None = None,
        store: Store | None = None,
    ) -> None:
        """Generation 0, nothing stored.

        Args:
            block_size: tokens per hash block.
            shape_per_token: ``(num_layers, top_k)`` of a row.
            dtype: of an expert id: ``uint8`` for at most 256 experts, else ``uint16``.
            max_objects: hard limit of blocks in the store.
            max_num_seqs: requests in one step.
            max_in_flight: steps that may be in flight.
            errors: ``"raise"`` refuses what is inconsistent, as the original does; ``"request"`` fails only the
                request that it is about: its output says so (``AuxRequestOutput.error``), it keeps nothing from then
                on, ``failures`` counts it and the log names the clause.
            profile: protocol version; all are the same for a worker.
            num_spare: blocks to hold memory for beside the store: incomplete ones, one a request, and those without a
                key. More is taken when they do not suffice. Default: three a request.
            store: where blocks go instead of an ``ArenaStore`` of the core's own; closed with the core.

        Raises:
            ValueError: a size is below 1, or an unknown ``errors`` or ``profile``.
        """
        sizes = block_size, *shape_per_token, max_objects, max_num_seqs, max_in_flight
        if min(sizes) < 1:
            raise ValueError(f"block_size, shape_per_token and the limits are at least 1, not {sizes}")
        checked(profile)
        self.failures: Counter[str] = Counter()
        """Requests that failed, by clause (``errors="request"``)."""
        self._block_size = block_size
        self._shape = shape_per_token
        self._dtype = np.dtype(dtype)
        self._max_in_flight = max_in_flight
        self._strict = errors_mode(errors) == "raise"
        self._store = store or ArenaStore(
            max_objects=max_objects,
            block_shape=(block_size, *shape_per_token),
            dtype=dtype,
            num_spare=3 * max_num_seqs if num_spare is None else num_spare,
        )
        self._table = RequestTable()
        self._steps: deque[PendingStep] = deque()
        self._generation = 0
        self._told: set[str] = set()
        """Requests of void steps that are known to have failed."""
        self._closed = False

    def begin_step(self, metadata: AuxOutputConnectorMetadata | None) -> None:
        """Take in one step's metadata, before its forward pass. O(scheduled requests + new hashes + blocks).

        Args:
            metadata: None for a step without auxiliary output.

        Raises:
            ProtocolViolation: WORK-BEGIN-1 to -5; STORE-PUT-3: waiting blocks that got a key do not fit.
        """
        self._require_open()
        if metadata is None:
            return
        table = self._table
        release: list[bytes] = []
        if metadata.generation > self._generation:
            release = [key for seat in table.seats.values() for key in reversed(table.keys[seat])]
            table = RequestTable()
        intake = read(table, metadata)
        self._require_generation(metadata.generation, intake)
        if not self._strict:
            intake.object_to_more(metadata.generation < self._generation)
        failing = self._failing(intake.objections, table)
        for request_id in failing:
            release += reversed(intake.without(request_id))
        if intake.num_kept:
            release += intake.replaced()
        leaving = {name: seat for name, seat in intake.ending.items() if not table.in_flight[seat]}
        for request_id in leaving:
            if request_id not in failing:
                release += reversed(intake.keys(request_id))
        retain = [key for keys in intake.added.values() for key in keys]

        def keys_of(request_id: str) -> list[bytes]:
            return [] if request_id in leaving else intake.keys(request_id)

        failing |= self._put(intake.ready(), retain, release, keys_of)
        # Nothing is refused from here on.
        self._enter(max(metadata.generation, self._generation), table)
        intake.commit()
        if intake.num_kept:
            self._turn(intake.num_kept)
        if failing:
            self._fail({name: violation for name, violation in failing.items() if name not in leaving})
            intake.go_on(failing)
        self._leave(leaving.values())

    def prepare_output(
        self,
        request_ids: Sequence[str],
        token_starts: Sequence[int] | NDArray[Any],
        query_start_loc: Sequence[int] | NDArray[Any],
        rows: NDArray[Any],
    ) -> PendingStep:
        """Take a snapshot of one step's rows, after its forward pass; the step is in flight from then on.

        O(batch) and one copy of the rows.

        Args:
            request_ids: the batch, in order.
            token_starts: ``(batch,)``, the first position of each request as it was scheduled.
            query_start_loc: ``(batch + 1,)``, where each request's rows begin in ``rows``; the last is their number.
            rows: ``(total, num_layers, top_k)``; may be overwritten when this returns.

        Raises:
            ProtocolViolation: WORK-STEP-1: as many steps as may be are in flight, or a batch that is not one;
                WORK-STEP-2: a request that never began.
        """
        if rows.dtype != self._dtype or rows.shape[1:] != self._shape:
            problem = f"rows are {rows.dtype} {rows.shape[1:]}, not {self._dtype} {self._shape}"
            raise ProtocolViolation("WORK-STEP-1", None, problem)
        step = self.launch(request_ids, token_starts, query_start_loc, len(rows))
        step.rows = np.array(rows, order="C")
        return step

    def launch(
        self,
        request_ids: Sequence[str],
        token_starts: Sequence[int] | NDArray[Any],
        query_start_loc: Sequence[int] | NDArray[Any],
        num_rows: int,
    ) -> PendingStep:
        """``prepare_output`` for ``num_rows`` rows that are still on their way. O(batch).

        Whoever launches sets ``rows`` of the result before it is processed, of the worker's shape and type, and
        ``owned`` to false if they are overwritten after that.
        """
        self._require_open()
        step = PendingStep(request_ids, token_starts, query_start_loc)
        if len(self._steps) >= self._max_in_flight:
            raise ProtocolViolation("WORK-STEP-1", None, f"{len(self._steps)} steps are in flight already")
        step.require_sound(num_rows)
        _, step.roster, step.seats, complete = self._table.find(step.roster)
        seats = step.seats
        if not complete:
            unknown = [step.roster.ids[place] for place in places(seats < 0)]
            problem = "it is in a step and never began"
            objections = [ProtocolViolation("WORK-STEP-2", request_id, problem) for request_id in unknown]
            step.failing = self._failing(objections)
            seats = seats[seats >= 0]
        self._table.in_flight[seats] += 1
        self._steps.append(step)
        return step

    def process_output(
        self,
        pending: PendingStep,
        num_sampled: Sequence[int] | NDArray[Any],
        num_rejected: Sequence[int] | NDArray[Any],
    ) -> Mapping[str, AuxRequestOutput]:
        """Store the oldest step's rows, then return what its requests are due.

        All of the step is stored before anything is returned, since a request may read what another has just
        written (WORK-PUBLISH-1). Costs O(batch) in arrays, O(blocks), and a copy of the rows; a second copy of those
        that are returned of earlier steps, and of all when ``pending`` does not own its rows.

        Args:
            pending: the oldest step in flight.
            num_sampled: ``(batch,)``, tokens sampled for each request; 0 in the middle of a prompt.
            num_rejected: ``(batch,)``, rejected drafts at the end of each request's rows.

        Returns:
            Rows from the emit cursor on, of each request that sampled (WORK-EMIT-1); reads like a dictionary.

        Raises:
            ProtocolViolation: WORK-STEP-1: another step is the oldest; WORK-CAPTURE-2 to -5, WORK-EMIT-3: the rows do
                not continue what is there; STORE-PUT-3, STORE-READ-1: the store cannot hold or lacks blocks.
        """
        self._require_open()
        if not self._steps or self._steps[0] is not pending:
            raise ProtocolViolation("WORK-STEP-1", None, "the step is not the oldest in flight")
        if pending.rows is None:
            raise ProtocolViolation("WORK-STEP-1", None, "the step's rows have not arrived")
        if pending.void_since:
            return self._land_void(pending)
        landing = land(self._table, pending, self._block_size, num_sampled, num_rejected, self._strict)
        failing = self._failing(landing.objections())
        release = self._fail(failing)
        landing.leave_out(failing)
        slots = landing.store_rows(self._store)
        try:
            writing = landing.complete()
            reads = self._plan_reads(landing, writing) if self._strict else []
            failing = self._put(writing, (), release, self._keys_of)
        except (ProtocolViolation, StoreError):
            self._store.give_back(slots)
            raise
        # Nothing is refused from here on.
        landing.commit()
        self._store.give_back(landing.dropped)
        release = []
        if not self._strict:
            self._fail(failing)
            landing.fail(failing)
            reads, objections = landing.plan_reads(self._store, Writing())
            failing = self._failing(objections)
            release = self._fail(failing)
            landing.fail(failing)
        outputs = landing.outputs(self._store.blocks, reads)
        self._land(pending, release)
        return outputs

    def usage(self) -> Usage:
        """What is held at the moment. O(requests + keys)."""
        if self._closed:
            return Usage(0, 0, 0, 0, 0)
        table, store = self._table, self._store
        buffered = table.num_buffered_rows(self._block_size)
        return Usage(len(table.seats), len(self._steps), store.num_references, store.num_objects, buffered)

    def close(self) -> None:
        """Drop everything, steps in flight included; every later call is refused, except closing again.

        Raises:
            StoreError: a background store had failed.
        """
        if not self._closed:
            self._closed = True
            self._table = RequestTable()
            self._steps.clear()
            self._store.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ProtocolViolation("WORK-STEP-1", None, "the worker is closed")

    def _require_generation(self, generation: int, intake: Intake) -> None:
        """A new generation drops every request, so it needs an empty pipeline (WORK-BEGIN-2, -3)."""
        if self._strict and intake.objections and intake.objections[0].clause == "WORK-BEGIN-1":
            raise intake.objections[0]
        if self._strict and generation < self._generation:
            problem = f"generation {generation} follows {self._generation}"
            raise ProtocolViolation("WORK-BEGIN-2", None, problem)
        if self._strict and generation > self._generation and self._steps:
            problem = f"generation {generation} begins with {len(self._steps)} steps in flight"
            raise ProtocolViolation("WORK-BEGIN-3", None, problem)

    def _failing(
        self, objections: list[ProtocolViolation], table: RequestTable | None = None
    ) -> dict[str, ProtocolViolation]:
        """Raise the first objection, or note that their requests fail; those that had failed are not told again.

        Args:
            table: where they are, if not in the worker's own.
        """
        table = self._table if table is None else table
        if objections and self._strict:
            raise objections[0]
        failing: dict[str, ProtocolViolation] = {}
        for violation in objections:
            name = str(violation.request_id)
            is_first = failing.setdefault(name, violation) is violation
            if is_first and table.seats.get(name) not in table.errors:
                self.failures[violation.clause] += 1
                log_failure(violation)
        return failing

    def _fail(self, failing: Mapping[str, ProtocolViolation]) -> list[bytes]:
        """Make requests that live give up what they hold; the keys that are to be released."""
        release: list[bytes] = []
        table = self._table
        for request_id, violation in failing.items():
            seat = table.seats.get(request_id)
            if seat is not None and seat not in table.errors:
                release += reversed(table.keys[seat])
                self._store.give_back(table.slots(seat))
                table.fail(seat, str(violation))
        return release

    def _keys_of(self, request_id: str) -> list[bytes]:
        return self._table.keys[self._table.seats[request_id]]

    def _plan_reads(self, landing: Landing, writing: Writing) -> list[Read]:
        """What is read back, or a refusal; a batch that does not fit is refused before what is missing."""
        reads, objections = landing.plan_reads(self._store, writing)
        if objections:
            self._named(writing, self._store.require_room, writing.keys)
        self._failing(objections)
        return reads

    def _put(
        self,
        writing: Writing,
        retain: Sequence[bytes],
        release: list[bytes],
        keys_of: Callable[[str], list[bytes]],
    ) -> dict[str, ProtocolViolation]:
        """Write blocks and move references in one batch of the store.

        Where it does not fit and requests may fail, the last one with blocks in it does, until it fits.

        Args:
            keys_of: what a request that fails releases.

        Returns:
            The requests that failed.
        """
        failing: dict[str, ProtocolViolation] = {}
        while writing.keys or retain or release:
            try:
                self._named(writing, self._store.put, writing.keys, writing.slots, retain, release)
                break
            except ProtocolViolation as violation:
                if not writing.owners:
                    raise
                failing |= self._failing([violation])
                last = str(violation.request_id)
                release += reversed(keys_of(last))
                writing, dropped = writing.without(last)
                self._store.give_back(dropped)
        return failing

    def _named(self, writing: Writing, call: Callable[..., None], *args: Any) -> None:
        """Call the store; what it refuses is about the last request with blocks in the batch."""
        try:
            call(*args)
        except ProtocolViolation as violation:
            owner = writing.owners[-1] if writing.owners else None
            raise ProtocolViolation(violation.clause, owner, violation.args[2]) from None

    def _enter(self, generation: int, table: RequestTable) -> None:
        """Go on with the table of a generation; the slots of the one before are free."""
        if table is not self._table:
            for step in self._steps:
                step.void_since = step.void_since or generation
            self._told |= {self._table.ids[seat] for seat in self._table.errors} if self._steps else set()
            for seat in self._table.seats.values():
                self._store.give_back(self._table.slots(seat))
            self._table = table
        self._generation = generation

    def _turn(self, request_ids: Iterable[str]) -> None:
        """Tokens at the end of requests were replaced: drop what is in flight of them (WORK-KEYS-2)."""
        seats = {self._table.seats[request_id] for request_id in request_ids}
        self._table.turned |= seats
        for step in self._steps:
            step.stale |= seats.intersection(step.seats.tolist())

    def _land_void(self, step: PendingStep) -> Mapping[str, AuxRequestOutput]:
        """Take a step out of flight whose requests a new generation has dropped: none gets rows of it."""
        problem = f"its step was in flight when generation {step.void_since} began"
        ids = step.roster.ids
        errors = {name: ProtocolViolation("WORK-BEGIN-3", name, problem) for name in ids}
        self._failing([errors[name] for name in ids if name not in self._told], RequestTable())
        self._told.update(ids)
        self._steps.popleft()
        if not any(each.void_since for each in self._steps):
            self._told.clear()
        return failed_outputs(step, {name: str(violation) for name, violation in errors.items()})

    def _land(self, step: PendingStep, release: list[bytes]) -> None:
        """Take the oldest step out of flight; tear down who ended and has nothing left in flight (WORK-TEAR-1)."""
        table = self._table
        seats = step.seats[step.seats >= 0] if step.failing else step.seats
        table.in_flight[seats] -= 1
        self._steps.popleft()
        leaving: list[int] = []
        if table.num_ending:
            leaving = seats[table.ends[seats] & (table.in_flight[seats] == 0)].tolist()
        for seat in leaving:
            release += reversed(table.keys[seat])
        if release:
            self._store.put((), (), (), release)
        self._leave(leaving)

    def _leave(self, seats: Iterable[int]) -> None:
        """Forget requests whose keys are released (WORK-TEAR-2)."""
        for seat in seats:
            self._store.give_back(self._table.slots(seat))
            self._table.leave(seat)
