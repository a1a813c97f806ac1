"""Drives one worker: hands it a step's rows, keeps the steps in flight, and reads what it returns.

It watches what no result shows: whether a step's rows survive the next forward pass, whether rows that were
returned change afterwards, whether they survive the way to another process, and whether what it was given changes.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from auxout_spec.calls import PrepareOutput, ProcessOutput
from auxout_spec.representation import PLAIN, Image, Representation
from auxout_spec.values import RequestOutput, StepOutput

from .elsewhere import Elsewhere
from .objects import RowCodec
from .observation import Odd, Usage
from .reading import read_metadata, reopened
from .targets.drivers import Driver
from .watching import Watch

Notes = list[tuple[str, str]]
"""Pairs of clause id and sentence."""
INPUT = "WORK-STEP-5"
"""The clause on what a worker is given."""


@dataclass
class _Prepared:
    """A step in flight."""

    pending: Any
    first_row: int


class WorkerHalf:
    """One worker under judgement."""

    def __init__(
        self,
        driver: Driver,
        rows: RowCodec,
        image: Image,
        representation: Representation = PLAIN,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._driver, self._rows, self._image = driver, rows, image
        self._writes, self._elsewhere = representation.writes, elsewhere
        self._in_flight: list[_Prepared] = []
        self.returned: tuple[bytes, StepOutput] | None = None
        """What it returned last, pickled, and what that says."""
        self._handed_out = Watch()

    def begin_step(self, metadata: Any, notes: Notes) -> Odd | None:
        """Begin a step with a metadata object."""
        said = read_metadata(metadata)
        try:
            return _nothing(self._driver.begin_step(metadata), "begin_step")
        finally:
            if read_metadata(metadata) != said:
                notes.append((INPUT, "begin_step changed the metadata"))

    def prepare_output(self, call: PrepareOutput, notes: Notes) -> Odd | None:
        """Run a forward pass and take its snapshot."""
        bounds = [0]
        for _, _, count in call.batch:
            bounds.append(bounds[-1] + count)
        first, rows = self._rows.reserve(bounds[-1])
        names = [self._image.request_id(name) for name, _, _ in call.batch]
        try:
            pending = self._driver.prepare(names, [start for _, start, _ in call.batch], bounds, rows)
        finally:
            self._note_changed(notes)
        self._in_flight.append(_Prepared(pending, first))
        return None

    def process_output(self, call: ProcessOutput, notes: Notes) -> StepOutput | Odd:
        """Consume a step; its rows get the values that the spec knows by now."""
        step = self._in_flight[call.step]
        self._rows.bind(step.first_row, [row for part in call.parts for row in part.rows])
        sampled = [part.num_sampled for part in call.parts]
        try:
            returned = self._driver.process(step.pending, sampled, [part.num_rejected for part in call.parts])
        finally:
            self._note_changed(notes)
        del self._in_flight[call.step]
        outputs = self._read(returned, notes)
        self.returned = None
        if isinstance(outputs, StepOutput):
            self._hand_out(returned, outputs, notes)
        return outputs

    def _hand_out(self, returned: Mapping[str, Any], outputs: StepOutput, notes: Notes) -> None:
        """What the engine does with a step's outputs: they cross to its process, or it gets them as they are."""
        data = self._check_pickle(returned, outputs, notes)
        self.returned = None if data is None else (data, outputs)
        for output in returned.values():
            if self._writes:
                self._rows.overwrite(output.rows)
        for output in returned.values():
            self._handed_out.keep(lambda output=output: (output.token_start, output.rows.tobytes()))

    def _note_changed(self, notes: Notes) -> None:
        changed = self._driver.changed()
        if changed:
            notes.append((INPUT, f"{changed} changed"))

    def recheck_returned(self, notes: Notes) -> None:
        """Notice rows that changed after they were returned (WORK-EMIT-5)."""
        if self._handed_out.changed():
            notes.append(("WORK-EMIT-5", "rows that were returned before are other rows now"))

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
            if not self._rows.fits(rows):
                was = f"rows of {name} are {rows.dtype}{list(rows.shape)}, captured were {self._rows}"
                notes.append(("WORK-EMIT-4", was))
            failed = getattr(output, "error", None) is not None
            request = self._image.name(name)
            outputs.append((request, RequestOutput(int(start), self._rows.decode(rows), failed)))
        return StepOutput(tuple(outputs))

    def _check_pickle(self, returned: Any, said: StepOutput, notes: Notes) -> bytes | None:
        """The engine may live in another process: what arrives must say the same (WORK-EMIT-6). The pickle."""
        data = None
        try:
            data = pickle.dumps(returned, protocol=5)
            arrived = self._read(reopened(data, self._elsewhere), [])
        except Exception as error:
            arrived = f"{type(error).__name__}: {error}"
        if arrived != said:
            notes.append(("WORK-EMIT-6", f"after pickling the output reads {arrived}"))
        return data


def _nothing(returned: Any, method: str) -> Odd | None:
    return None if returned is None else Odd(f"{method} returned {type(returned).__name__}, not None")
