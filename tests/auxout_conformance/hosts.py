"""Where a target runs: in this process, or in a child process that may crash or hang without harm.

A host starts fresh sessions and makes calls in them. ``Crashed`` and ``Hung`` are not wrong answers: they say
that the target is broken.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Protocol

from auxout_spec import reading, trace
from auxout_spec import scenario as scenarios
from auxout_spec.calls import Call
from auxout_spec.profiles import Profile
from auxout_spec.reading import Malformed
from auxout_spec.scenario import Scenario

from . import isolation, observation
from .elsewhere import Elsewhere, can_fork
from .leftovers import GROUP, GUARD, Scratch
from .observation import Observation
from .pipes import Pipes, TooLong
from .reading import contents
from .session import Session
from .setups import Setup
from .targets import Target
from .targets.adapter import Offer, TargetError
from .targets.loading import load
from .targets.numbers import numbers_of
from .verdicts import Suite

LOAD_SECONDS = 60.0
CALL_SECONDS = 10.0
ALL_SECONDS = 900.0
"""How long a process may take over all its answers together."""


class TargetBroken(Exception):
    """The target cannot be judged; the message is one sentence.

    Attributes:
        said: the end of what it wrote to standard error, if it ran in a process of its own.
    """

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


class DoesNotLoad(TargetBroken):
    """Its import failed, or it is not what it should be."""


class Crashed(TargetBroken):
    """Its process ended."""


class Hung(TargetBroken):
    """It did not answer in time."""


class Host(Protocol):
    """Runs sessions of one target."""

    offer: Offer
    """Which halves the target has."""

    def new(self, setup: Setup) -> None:
        """Start over with fresh connectors."""
        ...

    def call(self, call: Call) -> Observation:
        """Make one call.

        Raises:
            TargetBroken: the target crashed or hung.
        """
        ...

    def said(self) -> str:
        """The end of what the target wrote to standard error so far; empty if that is not kept."""
        ...

    def lines(self) -> dict[str, list[int]]:
        """The lines that ran, by file, if the host measures that.

        Raises:
            TargetBroken: the target crashed or hung.
        """
        ...

    def optimized(self) -> Host:
        """The same target under ``python -O``, in a process that starts when it is first needed and ends with this.

        Raises:
            TargetBroken: it does not load there.
        """
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Twin:
    """A target under ``python -O``: where assert statements vanish."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._host: Child | None = None

    def host(self) -> Child:
        """The one process of this twin."""
        self._host = self._host or Child(self._target, optimized=True)
        return self._host

    def close(self) -> None:
        if self._host is not None:
            self._host.close()


class InProcess:
    """Runs a trusted target in this process."""

    def __init__(self, target: Target) -> None:
        self._twin = Twin(target)
        try:
            self._adapter = load(target.spec)
        except (TargetError, ImportError) as error:
            raise DoesNotLoad(f"{target.name} does not load: {error}") from None
        self.offer = self._adapter.offer._replace(numbers=numbers_of(target.spec))
        self._elsewhere = Elsewhere(contents) if can_fork() else None
        self._session: Session | None = None

    def new(self, setup: Setup) -> None:
        self._end_session()
        self._session = Session(self._adapter, setup, self._elsewhere)

    def call(self, call: Call) -> Observation:
        if self._session is None:
            raise RuntimeError("call new() first")
        return self._session.call(call)

    def lines(self) -> dict[str, list[int]]:
        """Nothing is measured in this process."""
        return {}

    def said(self) -> str:
        """Nothing is kept: this process's standard error shows it."""
        return ""

    def optimized(self) -> Host:
        return self._twin.host()

    def close(self) -> None:
        self._twin.close()
        self._end_session()

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None


class Child:
    """Runs a target in a process of its own, with a time limit for each call.

    Code from a folder, which may be anybody's, gets the limits of ``isolation`` as well; a module that the user
    can import keeps the user's environment.

    Args:
        optimized: run it under ``python -O``, where assert statements vanish.
        watched: measure which lines of a folder run.
    """

    def __init__(
        self,
        target: Target,
        optimized: bool = False,
        call_seconds: float = CALL_SECONDS,
        *,
        watched: bool = False,
    ) -> None:
        self._name, self._call_seconds = target.name, call_seconds
        self._twin = Twin(target)
        self._ended: TargetBroken | None = None
        self._waited = 0.0
        flags, more = ["-O"] if optimized else [], [isolation.WATCHED] if watched else []
        self._scratch = Scratch() if target.spec.isolated else None
        folder = str(self._scratch.folder) if self._scratch else None
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-m", f"{__package__}.child", *target.spec, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=isolation.environment(folder)
            if folder
            else {**os.environ, "PYTHONPATH": isolation.python_path()},
            # A session of its own, so that what the target starts ends with it.
            start_new_session=True,
        )
        GUARD.add(GROUP, self._process.pid)
        self._pipes = Pipes(self._process)
        try:
            answer = self._read(LOAD_SECONDS, "loading")
            if "broken" in answer:
                raise DoesNotLoad(f"{target.name} does not load: {answer['broken']}", self.said())
            self.offer = self._offer(answer)
        except BaseException:
            # Nobody else knows the process yet.
            self.close()
            raise

    def new(self, setup: Setup) -> None:
        data = {
            "new": setup.profile,
            "sizes": setup.sizes and list(setup.sizes),
            "representation": setup.representation._asdict(),
            "cache": list(setup.cache),
        }
        self._write(data, "starting over")

    def call(self, call: Call) -> Observation:
        data = trace.call_to_json(call)
        self._write(data, data["call"])
        answer = self._read(self._call_seconds, data["call"])
        try:
            return observation.from_json(answer)
        except Malformed:
            raise self._unreadable(data["call"]) from None

    def lines(self) -> dict[str, list[int]]:
        self._write({"lines": True}, "the lines")
        answer = self._read(self._call_seconds, "the lines")
        try:
            found = reading.table(answer.get("lines"), "lines")
            return {
                name: [reading.integer(line, "a line") for line in reading.array(lines, "lines")]
                for name, lines in found.items()
            }
        except Malformed:
            raise self._unreadable("the lines") from None

    def solve(self, profile: Profile, suite: Suite) -> list[Scenario]:
        """Plays in which the target may be wrong (``solving``).

        Raises:
            TargetBroken: the target crashed or hung.
            Malformed: what it answers is no list of scenarios.
        """
        deviations = [deviation.value for deviation in profile.deviations]
        self._write({"solve": profile.name, "deviations": deviations, "suite": suite}, "solving")
        answer = self._read(self._call_seconds, "solving")
        return [scenarios.from_json(each) for each in reading.array(answer.get("found"), "found")]

    def said(self) -> str:
        """The end of what the target wrote to standard error, also after it ended."""
        return self._pipes.said()

    def optimized(self) -> Host:
        return self._twin.host()

    def close(self) -> None:
        self._twin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        GUARD.drop(GROUP, self._process.pid)
        self._pipes.close()
        if self._scratch is not None:
            self._scratch.remove()
        self._ended = self._ended or Crashed(f"{self._name} is no longer running")

    def _write(self, data: dict[str, Any], doing: str) -> None:
        if self._ended is not None:
            raise self._ended
        try:
            self._pipes.send(json.dumps(data).encode(), self._call_seconds)
        except TimeoutError:
            raise self._hung(doing, self._call_seconds) from None
        except OSError:
            raise self._broken(Crashed(self._crash("between calls"))) from None

    def _read(self, seconds: float, doing: str) -> dict[str, Any]:
        started = time.monotonic()
        try:
            line = self._pipes.receive(min(seconds, ALL_SECONDS - self._waited))
        except TimeoutError:
            raise self._hung(doing, seconds) from None
        except TooLong:
            raise self._broken(Crashed(f"{self._name} answered {doing} without end")) from None
        if line is None:
            raise self._broken(Crashed(self._crash(f"during {doing}")))
        self._waited += time.monotonic() - started
        try:
            return reading.table(reading.parse(line.decode()), "an answer")
        except ValueError:
            raise self._unreadable(doing) from None

    def _offer(self, answer: dict[str, Any]) -> Offer:
        try:
            fields = reading.record(answer.get("loaded"), "loaded", Offer._fields)
            halves = (
                reading.boolean(fields[name], name) for name in ("scheduler", "worker", "writes_behind")
            )
            numbers = tuple(
                reading.integer(each, "numbers") for each in reading.array(fields["numbers"], "numbers")
            )
            missing = reading.text(fields["missing"], "missing")
            return Offer(*halves, missing=missing, numbers=numbers)
        except Malformed:
            raise self._unreadable("loading") from None

    def _unreadable(self, doing: str) -> TargetBroken:
        return TargetBroken(f"{self._name} answered {doing} with something unreadable", self.said())

    def _hung(self, doing: str, seconds: float) -> TargetBroken:
        return self._broken(Hung(f"{self._name} hung: {self._too_long(doing, seconds)}"))

    def _too_long(self, doing: str, seconds: float) -> str:
        if ALL_SECONDS - self._waited < seconds:
            return f"its answers took over {ALL_SECONDS:g} s in all"
        return f"{doing} took over {seconds:g} s"

    def _broken(self, error: TargetBroken) -> TargetBroken:
        """The target is gone; whoever calls it again hears the same."""
        self._ended = error
        self.close()
        error.said = self.said()
        return error

    def _crash(self, when: str) -> str:
        try:
            code = self._process.wait(self._call_seconds)
        except subprocess.TimeoutExpired:
            # It runs on without its end of the pipe.
            return f"{self._name} closed its answers {when}"
        lines = self.said().strip().splitlines()
        said = f"; its last words: {lines[-1]}" if lines else ""
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"{self._name} crashed {when} ({how}){said}"


def open_host(target: Target, *, watched: bool = False) -> Host:
    """A running host for a target: its own process if it is foreign, measured if it is to be watched.

    Raises:
        TargetBroken: it does not load.
    """
    return Child(target, watched=watched) if target.foreign else InProcess(target)
