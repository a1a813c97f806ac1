"""The spec and the reference connector on the same random calls, legal and illegal, result by result."""

from __future__ import annotations

from random import Random

import pytest

import auxout_reference.connector
from auxout_conformance.judge.play import agrees
from auxout_conformance.observation import Raised
from auxout_conformance.session import Session
from auxout_conformance.setups import Setup
from auxout_conformance.targets.adapter import from_module
from auxout_spec import calls
from auxout_spec.calls import BuildConnectorMeta, Call, RequestFinished, Reset, TakeOutput, Unpack
from auxout_spec.profiles import PROFILES
from auxout_spec.scheduler import INITIAL
from auxout_spec.values import Outputs, Refusal, RequestOutput, RequestView, Row

NAMES = "ABCD"
REFERENCE = from_module(auxout_reference.connector, "reference")


class Caller:
    """Draws calls that an engine might make, and some that it must not."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.views = {name: self.fresh(name) for name in NAMES}

    def fresh(self, name: str) -> RequestView:
        prompt = self.random.randint(1, 6)
        hashes = tuple(self.hash() for _ in range(self.random.randint(0, 2)))
        return RequestView(name, prompt, prompt, 0, self.random.choice((0, 0, 2, 9)), hashes)

    def hash(self) -> bytes:
        return self.random.randbytes(4 if self.random.random() < 0.97 else self.random.randint(0, 5))

    def call(self) -> Call:
        draw = self.random.random()
        if draw < 0.45:
            return self.build()
        if draw < 0.75:
            return self.take()
        if draw < 0.92:
            return self.finish()
        if draw < 0.96:
            return Reset()
        data = self.random.randbytes(self.random.randint(0, 6))
        return Unpack(data, self.random.randint(-2, 4))

    def build(self) -> BuildConnectorMeta:
        for name in NAMES:
            self.grow(name)
        scheduled = self.random.sample(NAMES, self.random.randint(0, len(NAMES)))
        return BuildConnectorMeta(tuple((name, 1) for name in scheduled), tuple(self.views.values()))

    def grow(self, name: str) -> None:
        """A request's next state: output, hashes, sometimes a list that shrank or was replaced."""
        view, draw = self.views[name], self.random.random()
        more = self.random.choice((0, 0, 1, 2))
        hashes = (*view.block_hashes, *(self.hash() for _ in range(self.random.choice((0, 0, 1, 2)))))
        if draw < 0.02:
            hashes = hashes[: self.random.randint(0, len(hashes))]
        elif draw < 0.04:
            hashes = tuple(self.hash() for _ in hashes)
        self.views[name] = view._replace(
            num_tokens=view.num_tokens + more,
            num_output_tokens=view.num_output_tokens + more,
            block_hashes=hashes,
        )

    def take(self) -> TakeOutput:
        name = self.random.choice(NAMES)
        view = self.views[name]._replace(finished=self.random.random() < 0.3)
        if self.random.random() < 0.05:
            return TakeOutput(view, None)
        present = [other for other in NAMES if self.random.random() < (0.95 if other == name else 0.5)]
        return TakeOutput(view, self.outputs(present, view.num_tokens))

    def outputs(self, names: list[str], num_tokens: int) -> Outputs:
        def rows(name: str) -> RequestOutput:
            start = max(0, num_tokens + self.random.randint(-4, 1))
            count = self.random.randint(0, 5)
            return RequestOutput(start, tuple(Row(name, start + n, 0, 1) for n in range(count)))

        return tuple((name, rows(name)) for name in names)

    def finish(self) -> RequestFinished:
        name = self.random.choice(NAMES)
        self.grow(name)
        preempted = self.random.random() < 0.5
        view = self.views[name]._replace(finished=not preempted)
        if not preempted:
            self.views[name] = self.fresh(name)
        return RequestFinished(view, preempted)


def says(raised: Raised, right: Refusal, call: Call) -> bool:
    """Whether both name the same clause; of several faults in one step either may be the first."""
    clauses = {right.clause}
    if isinstance(call, BuildConnectorMeta):
        clauses = {"SCHED-HASH-8", "SCHED-HASH-10"}
    return any(f"[{clause}]" in raised.message for clause in clauses)


@pytest.mark.parametrize("profile", PROFILES)
def test_same_results(profile: str) -> None:
    kinds: set[str] = set()
    for seed in range(40):
        caller, state = Caller(seed), INITIAL
        session = Session(REFERENCE, Setup(profile))
        for _ in range(40):
            call = caller.call()
            state, right = calls.apply_scheduler(PROFILES[profile], state, call)
            seen = session.call(call)
            assert agrees(right, seen.outcome), (seed, call, right, seen.outcome)
            assert not seen.notes
            if isinstance(right, Refusal) and isinstance(seen.outcome, Raised):
                assert says(seen.outcome, right, call), (seed, call)
            kinds.add(right.clause if isinstance(right, Refusal) else type(right).__name__)
    assert kinds >= {
        "Metadata", "Rows", "Hashes", "NoneType", "SCHED-HASH-8", "SCHED-HASH-10",
        "SCHED-TERM-8", "SCHED-TAKE-1", "SCHED-TAKE-2", "SCHED-TAKE-6", "SCHED-TAKE-7", "WIRE-HASH-2", "WIRE-HASH-3",
    }  # fmt: skip
