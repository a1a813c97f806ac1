"""Drives one worker: hands it a step's rows, keeps the steps in flight, and reads what it returns.

It watches what no result shows: whether a step's rows survive the next forward pass, whether rows that were
returned change afterwards, and whether they survive pickling.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from auxout_spec.calls import PrepareOutput, ProcessOutput
from auxout_spec.values import RequestOutput, StepOutput

from .objects import ROW_DTYPE, ROW_SHAPE, RowCodec
from .observation import Odd, Usage
from .targets.drivers import Driver

Notes = list[tuple[str, str]]
"""Pairs of clause id and sentence."""
_KEPT = 8
"""Returned arrays that are looked at again."""


@dataclass
class _Prepared:
    """A step in flight."""

    pending: Any
    first_row: int


class WorkerHalf:
    """One worker under judgement."""

    def __init__(self, driver: Driver, rows: RowCodec) -> None:
        self._driver, self._rows = driver, rows
        self._in_flight: list[_Prepared] = []
        self.returned: tuple[Any, StepOutput] | None = None
        """What it returned last, and what that says."""
        self._handed_out: deque[tuple[Any, Any]] = deque(maxlen=_KEPT)
        """Arrays that it returned, and what was in them then."""

    def begin_step(self, metadata: Any) -> Odd | None:
        """Begin a step with a metadata object."""
        return _nothing(self._driver.begin_step(metadata), "begin_step")

    def prepare_output(self, call: PrepareOutput) -> Odd | None:
        """Run a forward pass and take its snapshot."""
        bounds = [0]
        for _, _, count in call.batch:
            bounds.append(bounds[-1] + count)
        first, rows = self._rows.reserve(bounds[-1])
        names = [request_id for request_id, _, _ in call.batch]
        pending = self._driver.prepare(names, [start for _, start, _ in call.batch], bounds, rows)
        self._in_flight.append(_Prepared(pending, first))
        return None

    def process_output(self, call: ProcessOutput, notes: Notes) -> StepOutput | Odd:
        """Consume a step; its rows get the values that the spec knows by now."""
        step = self._in_flight[call.step]
        self._rows.bind(step.first_row, [row for part in call.parts for row in part.rows])
        sampled = [part.num_sampled for part in call.parts]
        returned = self._driver.process(step.pending, sampled, [part.num_rejected for part in call.parts])
        del self._in_flight[call.step]
        outputs = self._read(returned, notes)
        self.returned = None
        if isinstance(outputs, StepOutput):
            self._handed_out.extend((returned[name].rows, returned[name].rows.copy()) for name in returned)
            self._check_pickle(returned, outputs, notes)
            self.returned = returned, outputs
        return outputs

    def recheck_returned(self, notes: Notes) -> None:
        """Notice rows that changed after they were returned (WORK-EMIT-5)."""
        if any(not np.array_equal(rows, then) for rows, then in self._handed_out):
            notes.append(("WORK-EMIT-5", "rows that were returned before are other rows now"))
            self._handed_out.clear()

    def usage(self) -> Usage | None:
        """What the worker says that it holds."""
        return self._driver.usage()

    def close(self) -> None:
        """Close the worker."""
        self._driver.close()

    def close_twice(self) -> None:
        """Close the worker, and once more (WORK-CLOSE-1)."""
        self._driver.close()
        self._driver.close()

    def _read(self, returned: Any, notes: Notes) -> StepOutput | Odd:
        if not isinstance(returned, Mapping):
            return Odd(f"process_output returned {type(returned).__name__}, not a mapping")
        outputs: list[tuple[str, RequestOutput]] = []
        for name, output in returned.items():
            start, rows = getattr(output, "token_start", None), getattr(output, "rows", None)
            if not isinstance(start, int | np.integer) or not isinstance(rows, np.ndarray) or not rows.ndim:
                return Odd(f"the output of {name} has no whole token_start or no array of rows")
            if rows.shape[1:] != ROW_SHAPE or rows.dtype != ROW_DTYPE:
                was = f"rows of {name} are {rows.dtype}{list(rows.shape)}, captured were {ROW_DTYPE}[n, 2, 2]"
                notes.append(("WORK-EMIT-4", was))
            failed = getattr(output, "error", None) is not None
            outputs.append((name, RequestOutput(int(start), self._rows.decode(rows), failed)))
        return StepOutput(tuple(outputs))

    def _check_pickle(self, returned: Any, said: StepOutput, notes: Notes) -> None:
        """The engine may live in another process: what arrives must say the same (WORK-EMIT-6)."""
        try:
            arrived = self._read(pickle.loads(pickle.dumps(returned, protocol=5)), [])
        except Exception as error:
            arrived = f"{type(error).__name__}: {error}"
        if arrived != said:
            notes.append(("WORK-EMIT-6", f"after pickling the output reads {arrived}"))


def _nothing(returned: Any, method: str) -> Odd | None:
    return None if returned is None else Odd(f"{method} returned {type(returned).__name__}, not None")
