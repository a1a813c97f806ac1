"""Drives a scheduler connector, a worker, or both: turns calls into real ones, results into the spec's values.

A session is one pair of connectors from their construction on. It watches what no result shows: whether inputs were
changed, whether what was returned changes later, whether it survives the way to another process. With both halves it
is the way between them: the worker begins its steps with what the scheduler connector built, and that gets what the
worker returned.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from auxout_spec.calls import (
    WORKER_CALLS,
    BeginStep,
    BuildConnectorMeta,
    Call,
    Close,
    HitCall,
    MaxCacheHit,
    PrepareOutput,
    RequestFinished,
    RequestLoading,
    SchedulerCall,
    TakeOutput,
    Unpack,
    WorkerCall,
)
from auxout_spec.calls import Reset as ResetCall
from auxout_spec.representation import Image
from auxout_spec.values import BlockHash, Hashes, Metadata, Outputs, Rows, StepOutput, Tokens

from .elsewhere import Elsewhere
from .kv_cache import KvCacheManager
from .objects import Requests, RowCodec, StepMetadata, StepOutputs
from .observation import Observation, Odd, Raised
from .reading import read_metadata, reopened
from .setups import Setup
from .targets.adapter import Adapter
from .watching import LATEST, Watch
from .worker_session import Notes, WorkerHalf

STORE_REFUSALS = (AssertionError, ValueError, RuntimeError)
"""By which a worker may refuse a call; a store that fails raises RuntimeError (WORK-REFUSE-1)."""


class Session:
    """The connectors under judgement.

    Args:
        sizes: what the worker is built for; None: it takes no part.
        representation: what the calls look like to the connectors.
        elsewhere: where pickles are opened; None: here.
        cache: the KV cache that the scheduler connector is built with; None before profile 0.33.
    """

    def __init__(
        self,
        adapter: Adapter,
        setup: Setup,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._manager = KvCacheManager(setup.cache)
        self._kv_connector = object() if setup.cache.kv_connector else None
        self._adapter, self._setup, self._elsewhere = adapter, setup, elsewhere
        self._representation = setup.representation
        self._start()

    def _start(self) -> None:
        """Fresh connectors, brought to the generation in which the play begins."""
        adapter, (profile, sizes, made, _) = self._adapter, self._setup
        of_engine = self._manager, self._kv_connector
        self._connector: Any = adapter.scheduler(profile, *of_engine) if adapter.scheduler else None
        self._image = Image(made)
        self._requests = Requests(self._image, made)
        self._rows = RowCodec(made)
        self._delivered: deque[tuple[Any, Metadata]] = deque(maxlen=LATEST)
        """The metadata objects that were returned last, with what they said then."""
        self._metadata, self._taken = Watch(), Watch()
        self._outputs: StepOutputs | None = None
        """Those of the step whose output the engine consumes."""
        self._worker: WorkerHalf | None = None
        if adapter.worker is not None and sizes is not None:
            driver = adapter.worker(profile, sizes, made)
            self._worker = WorkerHalf(driver, self._rows, self._image, made, self._elsewhere)
        if made.generation:
            caught(self._pass_generations)

    def _pass_generations(self) -> None:
        connector = self._connector
        if connector is not None:
            for _ in range(self._representation.generation):
                connector.reset()
        if self._worker is not None:
            idle = self._image.metadata(Metadata(0, (), (), ()))
            self._worker.begin_step(StepMetadata.of(idle), [])

    def close(self) -> None:
        """Give the worker's threads and memory back."""
        if self._worker is not None:
            caught(self._worker.close)

    def call(self, call: Call) -> Observation:
        """Make one call; never raises what the target raises."""
        if not isinstance(call, TakeOutput | RequestFinished):
            self._outputs = None
        seen = self._call_worker(call) if isinstance(call, WORKER_CALLS) else self._call_scheduler(call)
        if isinstance(seen.outcome, Raised):
            seen = seen._replace(
                outcome=seen.outcome._replace(message=self._image.named(seen.outcome.message))
            )
        return seen

    def _call_worker(self, call: WorkerCall) -> Observation:
        if self._worker is None:
            raise RuntimeError("the target has no worker")
        notes: Notes = []
        worker = self._worker
        if isinstance(call, Close):
            outcome = caught(worker.close_twice, STORE_REFUSALS)
            self._start()
            return Observation(outcome)
        if isinstance(call, BeginStep):
            metadata = self._metadata_for_worker(call.metadata)
            outcome = caught(lambda: worker.begin_step(metadata, notes), STORE_REFUSALS)
        elif isinstance(call, PrepareOutput):
            outcome = caught(lambda: worker.prepare_output(call, notes), STORE_REFUSALS)
        else:
            outcome = caught(lambda: worker.process_output(call, notes), STORE_REFUSALS)
        worker.recheck_returned(notes)
        return Observation(outcome, tuple(notes), caught(worker.usage))

    def _metadata_for_worker(self, metadata: Metadata) -> Any:
        """What the scheduler connector built, if that is what the worker is to get, as it arrives."""
        for returned, said in reversed(self._delivered):
            if said == metadata:
                return pickle.loads(pickle.dumps(returned, protocol=5))
        return StepMetadata.of(self._image.metadata(metadata), self._representation)

    def _outputs_for_scheduler(self, outputs: Outputs | None) -> StepOutputs:
        """A step's outputs as they arrive, the same for all its requests.

        What the worker returned, if that is what the scheduler connector is to get.
        """
        if self._outputs is None or self._outputs.said != outputs:
            self._outputs = StepOutputs(outputs, self._arriving(outputs))
        return self._outputs

    def _arriving(self, outputs: Outputs | None) -> Any:
        returned = self._worker.returned if self._worker is not None else None
        if returned is not None and outputs is not None and returned[1] == StepOutput(outputs):
            return pickle.loads(returned[0])
        made = self._rows.outputs(outputs, self._image)
        if made is not None and self._representation.order == "reversed":
            return dict(reversed(made.items()))
        return made

    def _call_scheduler(self, call: SchedulerCall) -> Observation:
        if self._connector is None:
            raise RuntimeError("the target has no scheduler connector")
        notes: Notes = []
        traits: list[str] = []
        if isinstance(call, BuildConnectorMeta):
            outcome = caught(lambda: self._build(call, notes, traits))
        elif isinstance(call, TakeOutput):
            outcome = caught(lambda: self._take(call, notes, traits))
        elif isinstance(call, RequestFinished):
            outcome = caught(lambda: self._finish(call))
        elif isinstance(call, ResetCall):
            outcome = caught(lambda: _nothing(self._connector.reset(), "reset"))
        elif isinstance(call, HitCall):
            outcome = caught(lambda: self._hit(call))
        else:
            outcome = caught(lambda: self._unpack(call))
        if not notes and self._requests.changed():
            notes.append(("SCHED-META-7", "a request of the engine was changed"))
        if isinstance(call, RequestFinished) and call.request.finished and not isinstance(outcome, Raised):
            self._requests.forget(call.request)
        if self._metadata.changed():
            notes.append(("SCHED-META-6", "metadata that was already returned says something else now"))
        if self._taken.changed():
            notes.append(("SCHED-TAKE-13", "rows that were handed out before are other rows now"))
        return Observation(outcome, tuple(notes), traits=tuple(traits))

    def _build(self, call: BuildConnectorMeta, notes: Notes, traits: list[str]) -> Metadata | Odd:
        output, requests = self._requests.step(call)
        table, scheduled = dict(requests), list(output.num_scheduled_tokens.items())
        try:
            returned = self._connector.build_connector_meta(output, requests)
        finally:
            kept = list(output.num_scheduled_tokens.items()) == scheduled
            same_table = list(requests.items()) == list(table.items())
            if not (kept and same_table) or self._requests.changed():
                notes.append(("SCHED-META-5", "the scheduler output or a request was changed"))
        metadata = self._read(returned)
        if isinstance(metadata, Metadata):
            self._delivered.append((returned, metadata))
            num_hashes = sum(len(hashes) for _, hashes in metadata.block_hashes)
            self._metadata.keep(lambda: self._read(returned), len(metadata.requests) + num_hashes)
            self._check_pickle(returned, metadata, notes)
            traits += _field_types(returned)
        return metadata

    def _read(self, returned: Any) -> Metadata | Odd:
        """What a metadata object says, in abstract values."""
        metadata = returned if isinstance(returned, Metadata | Odd) else read_metadata(returned)
        return metadata if isinstance(metadata, Odd) else self._image.abstract(metadata)

    def _check_pickle(self, returned: Any, said: Metadata, notes: Notes) -> None:
        """The worker may live in another process: what arrives must say the same (WIRE-META-1)."""
        arrived = caught(lambda: self._read(reopened(pickle.dumps(returned, protocol=5), self._elsewhere)))
        if arrived != said:
            notes.append(("WIRE-META-1", f"after pickling the metadata reads {arrived}"))

    def _take(self, call: TakeOutput, notes: Notes, traits: list[str]) -> Rows | Odd | None:
        request = self._requests.get(call.request)
        outputs = self._outputs_for_scheduler(call.outputs)
        given = (outputs.given or {}).get(request.request_id)
        try:
            rows = self._connector.take_output(request, outputs.given)
        finally:
            if outputs.changed(request.request_id) or not request.unchanged():
                notes.append(("SCHED-TAKE-10", "the worker's output or the request was changed"))
        if rows is None:
            return None
        if not isinstance(rows, np.ndarray):
            return Odd(f"take_output returned {type(rows).__name__}, not a numpy array or None")
        if not self._rows.fits(rows):
            was = f"rows are {rows.dtype}{list(rows.shape)}, the worker gave {self._rows}"
            notes.append(("SCHED-TAKE-9", was))
        if given is not None and rows.size:
            how = "a view" if np.shares_memory(rows, given.rows) else "a copy"
            traits.append(f"{how} of the worker's rows")
        found = Rows(self._rows.decode(rows) if rows.ndim else ())
        if self._representation.writes:
            self._rows.overwrite(rows)
            outputs.forget(request.request_id)
        self._taken.keep(rows.tobytes, len(found.rows))
        return found

    def _finish(self, call: RequestFinished) -> Odd | None:
        request = self._requests.get(call.request)
        self._see(call.resident)
        return _nothing(self._connector.request_finished(request), "request_finished")

    def _see(self, resident: tuple[BlockHash, ...]) -> None:
        """Let the KV cache hold some blocks."""
        self._manager.block_pool.resident = frozenset(map(self._image.block_hash, resident))

    def _hit(self, call: HitCall) -> Tokens | Odd | None:
        request, connector = self._requests.get(call.request), self._connector
        if isinstance(call, RequestLoading):
            return _nothing(connector.request_loading(request, call.num_tokens), "request_loading")
        self._see(call.resident)
        if isinstance(call, MaxCacheHit):
            found = connector.max_cache_hit(request)
        else:
            found = connector.cap_external_hit(request, call.num_local, call.num_external)
        if isinstance(found, bool) or not isinstance(found, int | np.integer):
            return Odd(f"tokens of a hit are {type(found).__name__}, not a whole number")
        return Tokens(int(found))

    def _unpack(self, call: Unpack) -> Hashes | Odd:
        assert self._adapter.packed_block_hashes is not None  # it comes with the scheduler connector
        items = list(self._adapter.packed_block_hashes(call.data, call.item_size))
        if not all(isinstance(item, bytes) for item in items):
            return Odd("a packed value iterates to something that is not bytes")
        return Hashes(tuple(items))


def _field_types(returned: Any) -> list[str]:
    """The types of a metadata's containers."""
    names = ("requests", "block_hashes", "finished_requests")
    return [f"{name} in a {type(getattr(returned, name)).__name__}" for name in names]


def _nothing(returned: Any, method: str) -> Odd | None:
    return None if returned is None else Odd(f"{method} returned {type(returned).__name__}, not None")


def caught(
    action: Callable[[], Any], refusals: tuple[type[Exception], ...] = (AssertionError, ValueError)
) -> Any:
    """What an action returns, or what it raises as an observation."""
    try:
        return action()
    except Exception as error:
        return Raised(type(error).__name__, str(error), isinstance(error, refusals))
