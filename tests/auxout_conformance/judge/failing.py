"""Names the clause that a wrong answer breaks where an inconsistent request fails alone."""

from __future__ import annotations

from auxout_spec.calls import (
    BuildConnectorMeta,
    Call,
    Halves,
    RequestFinished,
    TakeOutput,
    apply_scheduler,
)
from auxout_spec.profiles import Profile
from auxout_spec.scheduler import is_replaced
from auxout_spec.values import Metadata, RequestOutput, Result, StepOutput

from ..observation import Odd, Raised
from .ledger import Ledger, failed_in


def broken_clause(
    profile: Profile, ledger: Ledger, before: Halves, call: Call, right: Result, actual: Result | Raised | Odd
) -> str:
    """The clause of ``FAIL`` that ``actual`` breaks; empty if no request has failed, so that none is at stake."""
    if isinstance(call, TakeOutput):
        return _rows(ledger, before, call, right, actual)
    if isinstance(right, StepOutput) and isinstance(actual, StepOutput):
        return _outputs(ledger, right, actual)
    if isinstance(call, BuildConnectorMeta) and isinstance(right, Metadata) and isinstance(actual, Metadata):
        clause = _turns(before, call, right, actual)
        if clause:
            return clause
    told = isinstance(right, StepOutput) and any(output.failed for _, output in right.outputs)
    if isinstance(call, BuildConnectorMeta | RequestFinished):
        told = bool(apply_scheduler(profile, before.scheduler, call)[0].failed)
    at_stake = told or ledger.failed or failed_in(before)
    return "FAIL-ALONE-1" if at_stake or isinstance(actual, Raised) else ""


def _turns(before: Halves, call: BuildConnectorMeta, right: Metadata, actual: Metadata) -> str:
    """FAIL-TURN-1 where the fault is whether a list is sent again of which every sent hash still stands."""
    if right != actual._replace(replaced_block_hashes=right.replaced_block_hashes):
        return ""
    views, active = {view.request_id: view for view in call.requests}, dict(before.scheduler.active)
    wanted, found = dict(right.replaced_block_hashes), dict(actual.replaced_block_hashes)
    wrong = {name for name in {*wanted, *found} & active.keys() if wanted.get(name) != found.get(name)}
    return "FAIL-TURN-1" if any(not is_replaced(views[name], active[name], True) for name in wrong) else ""


def _rows(
    ledger: Ledger, before: Halves, call: TakeOutput, right: Result, actual: Result | Raised | Odd
) -> str:
    name, given = call.request.request_id, dict(call.outputs or ())
    told = name in given and given[name].failed
    if isinstance(actual, Raised):
        return "FAIL-ALONE-1"
    if right is None and (told or name in before.scheduler.failed):
        return "FAIL-LAST-1"
    if actual is None and name in ledger.failed:
        return "FAIL-AGAIN-1"
    return "FAIL-ALONE-1" if ledger.failed else ""


def _outputs(ledger: Ledger, right: StepOutput, actual: StepOutput) -> str:
    wanted, found = dict(right.outputs), dict(actual.outputs)
    wrong = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    nothing = RequestOutput(0, ())
    if any(wanted.get(name, nothing).failed for name in wrong):
        return "FAIL-TELL-1"
    if any(found.get(name, nothing).failed and name in ledger.failed for name in wrong):
        return "FAIL-AGAIN-1"
    told = any(output.failed for output in (*wanted.values(), *found.values()))
    return "FAIL-ALONE-1" if told or ledger.failed else ""
