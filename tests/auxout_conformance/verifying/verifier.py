"""Verifies patches against a base."""

from __future__ import annotations

import filecmp
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from auxout_spec.profiles import named

from ..hosts import Crashed, DoesNotLoad, Host, Hung, TargetBroken, open_host
from ..judgement import Judgement
from ..known import findings_of, findings_under
from ..showing import tells_usage
from ..targets import Target, TargetError, patched, resolve
from ..verdicts import Progress, Report, Suite
from . import comparing, differential, moves, signatures
from .executed import unplayed
from .outcome import Result, Verification

OnProgress = Callable[[Progress], None]
_RESULTS: tuple[tuple[type[TargetBroken], Result], ...] = (
    (DoesNotLoad, Result.DOES_NOT_LOAD),
    (Hung, Result.HANGS),
    (Crashed, Result.KILLS),
    (TargetBroken, Result.KILLS),
)
_FEW = 5
"""Pieces of changed code that a reason names."""
WORKER_FILES = ("worker.py", "store.py", "routed_experts.py")
"""Modules of the released package that are only judged where the worker can be: it needs torch."""


@dataclass
class Base:
    """What patches are verified against; its judgement is made once and serves for every patch."""

    target: Target
    suite: Suite = "default"
    seed: int | None = None
    report: Report | None = None

    def close(self) -> None:
        """Remove its temporary files, if it has any; they go when the process ends at the latest."""
        if self.target.scratch is not None:
            self.target.scratch.remove()


def load_base(
    name: str, *, profile: str | None = None, suite: Suite = "default", seed: int | None = None
) -> Base:
    """The base that a user named.

    Raises:
        TargetError: there is none, or it is no vLLM that lies in a folder.
    """
    target = resolve(name, profile)
    _check_folder(target)
    return Base(target, suite, seed)


def verify(
    patch: str, base: Base, progress: OnProgress | None = None, *, allow_unplayed: bool = False
) -> Verification:
    """Verify one patch.

    Args:
        allow_unplayed: changed lines that no play executed, or that cannot be judged here, do not make it incomplete.
        patch: a file with a unified diff, or the changed code itself: a checkout, a wheel, ``vllm==X``, ``DIR@REV``.

    Raises:
        TargetError: there is no such patch.
        PatchError: it is no diff, or does not apply.
        Interrupted: the user stopped it; the report is of what was being judged.
    """
    changed = _changed_target(patch, base.target)
    try:
        return _Verifying(patch, base, changed, progress or (lambda _: None), allow_unplayed).run()
    finally:
        if changed.scratch is not None:
            changed.scratch.remove()


def play_newer(newer: Target, base: Base, progress: OnProgress | None = None) -> Verification:
    """Play the base's suite on code that is newer than its profile, whatever signatures it has.

    Raises:
        Interrupted: the user stopped it; the report is of what was being judged.
    """
    verifying = _Verifying(newer.name, base, newer, progress or (lambda _: None), allow_unplayed=True)
    return verifying.run(any_signature=True)


def _changed_target(patch: str, base: Target) -> Target:
    if not patch.endswith(".whl") and Path(patch).is_file():
        return patched(base, patch)
    try:
        target = resolve(patch, base.profile)
    except TargetError as error:
        raise TargetError(f"the patch {patch!r} is no file with a diff, and {error}") from None
    _check_folder(target)
    return target


def _check_folder(target: Target) -> None:
    if target.spec.kind != "folder":
        raise TargetError(
            f"a patch is verified on a released, installed or checked-out vLLM, which {target.name} is not"
        )


class _Verifying:
    """One patch being verified."""

    def __init__(
        self, patch: str, base: Base, changed: Target, progress: OnProgress, allow_unplayed: bool
    ) -> None:
        self.base, self.target, self._progress = base, changed, progress
        self._allow_unplayed = allow_unplayed
        self.rules = named(base.target.profile)
        self.done = Verification(
            patch, base.report, None, Result.CLEAN, base.target.name, base.target.profile, notes=changed.notes
        )
        self._started = time.monotonic()

    def run(self, *, any_signature: bool = False) -> Verification:
        """Everything, cheapest first.

        Args:
            any_signature: play it also where callers of the base would have to change.
        """
        files = _different_files(Path(self.base.target.spec.where), Path(self.target.spec.where))
        if not files:
            return self._ended(
                Result.CLEAN, "no file of the connector is changed, so there is nothing to judge"
            )
        self._files = files
        folders = Path(self.base.target.spec.where), Path(self.target.spec.where)
        found = () if any_signature else signatures.breaking_changes(*folders)
        if found:
            return self._ended(Result.SIGNATURE, "; ".join(found))
        try:
            return self._compared()
        except differential.BaseBroken as error:
            return self._ended(Result.BASE_BROKEN, str(error))
        except TargetBroken as error:
            return self._broke(error)

    def _compared(self) -> Verification:
        hosts = [_open_base(self.base.target)]
        try:
            hosts.append(open_host(self.target, watched=True))
            self._note_not_judged(*hosts)
            moved = moves.look_for_moves(hosts[0], hosts[1], self.rules)
            base = self._judged_base(hosts[0])
            if base.verdict.exit_code == 3:
                return self._ended(Result.BASE_BROKEN, base.reason)
            judgement = self._judgement(self.target, hosts[1], moved)
            report = judgement.run()
            self.done = replace(self.done, base=base, patched=report, moves=moved.moves)
            if judgement.broken is not None:
                self.done = replace(self.done, replay=report.replay)
                raise judgement.broken
            return self._told(hosts[0], hosts[1], base, judgement, report, moved)
        finally:
            for host in hosts:
                host.close()

    def _told(
        self,
        base_host: Host,
        host: Host,
        base: Report,
        judgement: Judgement,
        report: Report,
        moved: moves.Moved,
    ) -> Verification:
        """Say what the two judgements come to."""
        compared = differential.compare(
            base_host,
            host,
            moved.rules,
            judged=judgement,
            progress=lambda phase, done, total: self._progress(
                Progress(self.target.title, phase, done, total)
            ),
        )
        outcomes = comparing.outcomes((base_host, host), base, judgement, report, compared.violations, moved)
        self.done = replace(
            self.done,
            clauses=outcomes,
            changes=compared.changes,
            num_scenarios=compared.num_scenarios,
            notes=(*self.done.notes, *comparing.notes(host, base, report, moved)),
        )
        self._note_unplayed(host)
        settled = self.done.settled(any(each.outcome == "broken" for each in outcomes))
        return self._ended(settled.result, settled.reason)

    def _judged_base(self, host: Host) -> Report:
        if self.base.report is None:
            self.base.report = self._judgement(self.base.target, host, None).run()
        return self.base.report

    def _judgement(self, target: Target, host: Host, moved: moves.Moved | None) -> Judgement:
        """A judgement under the base's rules, with those of its known findings that the target shows."""
        findings = findings_of(self.base.target.release) or findings_under(self.rules.name)
        return Judgement(
            target,
            self.base.suite,
            self.base.seed,
            findings,
            settled=False,
            rules=moved.rules if moved else self.rules,
            host=host,
            progress=self._progress,
        )

    def _note_unplayed(self, host: Host) -> None:
        """Say which changed statements no play executed."""
        folders = Path(self.base.target.spec.where), Path(self.target.spec.where)
        left = unplayed(*folders, self._files, host.lines())
        why = self.done.unjudged
        if left and not why and not self._allow_unplayed:
            why = f"no play executed {', '.join(left[:_FEW])}{' and more' if left[_FEW:] else ''}"
        self.done = replace(self.done, unplayed=left, unjudged=why)

    def _note_not_judged(self, base: Host, host: Host) -> None:
        left = [name for name in self._files if name in WORKER_FILES]
        if left and not host.offer.worker:
            why = f"changed, but not judged, because the worker cannot be loaded here: {', '.join(left)}"
            self._note(why)
            if not self._allow_unplayed:
                self.done = replace(self.done, unjudged=why)
        elif tells_usage(base, self.rules) and not tells_usage(host, self.rules):
            self._note("the changed worker does not say what it holds, so it was judged by its answers alone")

    def _note(self, note: str) -> None:
        self.done = replace(self.done, notes=(*self.done.notes, note))

    def _broke(self, error: TargetBroken) -> Verification:
        result = next(result for kind, result in _RESULTS if isinstance(error, kind))
        return self._ended(result, str(error))

    def _ended(self, result: Result, reason: str) -> Verification:
        return replace(
            self.done,
            base=self.done.base or self.base.report,
            result=result,
            reason=reason,
            seconds=time.monotonic() - self._started,
        )


def _open_base(target: Target) -> Host:
    try:
        return open_host(target)
    except TargetBroken as error:
        raise differential.BaseBroken(str(error), error.said) from None


def _different_files(base: Path, patched: Path) -> tuple[str, ...]:
    """Python files that differ, by their names in the connector folder."""
    names = {path.relative_to(root).as_posix() for root in (base, patched) for path in root.rglob("*.py")}
    return tuple(name for name in sorted(names) if not _same(base / name, patched / name))


def _same(a: Path, b: Path) -> bool:
    return a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)
