"""Every patch of the corpus is verified against the releases it applies to.

python -m pytest tests/patches                 all of them, about fifteen seconds each
python -m pytest tests/patches -m 'not slow'   a handful of every kind
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from auxout_conformance import hosts
from auxout_conformance.hosts import open_host
from auxout_conformance.judgement import Judgement
from auxout_conformance.known import findings_of
from auxout_conformance.targets import patched, resolve
from auxout_conformance.verdicts import Suite
from auxout_conformance.verifying import Base, Result, Verification, load_base, verifier, verify
from auxout_conformance.verifying.differential import compare
from auxout_spec.profiles import PROFILES

from .bugs import BUGS
from .fixes import FIXES, MOVES, UNJUDGED
from .patch import RELEASES, Patch
from .refactorings import REFACTORINGS
from .worker_bugs import WORKER_BUGS
from .worker_fixes import WORKER_FIXES
from .worker_refactorings import WORKER_REFACTORINGS

pytestmark = pytest.mark.real

CLEAN = (*REFACTORINGS, *WORKER_REFACTORINGS)
CORPUS = (*CLEAN, *BUGS, *WORKER_BUGS, *FIXES, *WORKER_FIXES, *MOVES, *UNJUDGED)
QUICK = {
    "rename-attribute-0.32.0", "copy-rows-0.31.0", "emit-start-one-late-0.31.0", "fix-assert-only-0.32.0",
    "clamp-0.31.0", "rename-parameter-0.32.0", "import-raises-0.31.0", "worker-rename-requests-0.32.0",
    "worker-rejected-kept-0.32.0", "store-evicts-referenced-0.32.0", "worker-fix-first-writer-0.31.0",
}  # fmt: skip
"""Those that run with every change."""
SEEDS = 20
MAX_EVENTS = 9
"""Of the scenario that shows what is wrong; three requests are needed to see which block a store gives up first."""


@cache
def base_of(release: str) -> Base:
    """A release, judged once for all patches."""
    return load_base(f"vllm=={release}", suite="smoke")


def written(patch: Patch, release: str, folder: Path) -> Path:
    """The patch's file with its diff."""
    diff = folder / f"{patch.name}.diff"
    diff.write_text(patch.diff(Path(resolve(f"vllm=={release}").spec.where)), encoding="utf-8")
    return diff


def check(patch: Patch, done: Verification) -> None:
    """Compare a verification with what the corpus says."""
    named = {each.clause for each in done.having("broken")}
    assert done.result is patch.result, done
    assert named <= set(patch.broken), done
    assert named or not patch.broken, done
    assert not patch.broken or patch.broken[0] in named, done
    assert {each.clause for each in done.having("fixed")} == set(patch.fixed), done
    assert {clause for move in done.moves for clause in move.clauses} == set(patch.moved), done
    if patch.changes is not None:
        assert sorted(change.what for change in done.changes) == sorted(patch.changes), done
    for each in done.having("broken"):
        assert each.violation is not None
        assert each.clause != patch.broken[0] or len(each.violation.scenario.events) <= MAX_EVENTS


def pairs(patches: Iterable[Patch]) -> Iterator[ParameterSet]:
    for patch in patches:
        for release in patch.releases:
            name = f"{patch.name}-{release}"
            marks = () if name in QUICK else (pytest.mark.slow,)
            yield pytest.param(patch, release, id=name, marks=marks)


@pytest.mark.parametrize(("patch", "release"), [*pairs(CORPUS)])
def test_a_patch_comes_out_as_expected(
    patch: Patch, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if patch.result is Result.HANGS:
        monkeypatch.setattr(hosts, "LOAD_SECONDS", 10.0)
    # What a patch changes and no play reaches has tests of its own.
    diff = written(patch, release, tmp_path)
    check(patch, verify(str(diff), base_of(release), allow_unplayed=True))


def test_the_corpus_is_large_enough() -> None:
    names = [patch.name for patch in CORPUS]
    assert len(names) == len(set(names)) >= 40
    ids = {f"{patch.name}-{release}" for patch in CORPUS for release in patch.releases}
    assert ids >= QUICK
    for release in RELEASES:
        assert any(patch.fixed and release in patch.releases for patch in FIXES)


def test_every_patch_changes_its_releases() -> None:
    for patch in CORPUS:
        for release in patch.releases:
            assert patch.diff(Path(resolve(f"vllm=={release}").spec.where)), patch.name


def test_the_worker_s_files_are_the_same_in_both_releases() -> None:
    """So that its patches need one of them only."""
    old, new = (Path(resolve(f"vllm=={release}").spec.where) for release in RELEASES)
    for name in verifier.WORKER_FILES:
        assert (old / name).read_bytes() == (new / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("patch", "release"), [*pairs(CLEAN)])
def test_a_refactoring_is_not_accused_whatever_the_seed(patch: Patch, release: str, tmp_path: Path) -> None:
    """What of a verification depends on the seed; the rest is the same with each."""
    base = base_of(release).target
    changed = patched(base, str(written(patch, release, tmp_path)))
    expected = set(patch.changes or ())
    with closing(open_host(base)) as old, closing(open_host(changed)) as new:
        for seed in range(1, SEEDS + 1):
            judged = Judgement(changed, "smoke", seed, findings_of(release), host=new)
            assert judged.run(random_only=True).violations == (), seed
            rules = PROFILES[base.profile]
            compared = compare(old, new, rules, judged=judged, progress=lambda *_: None, random_only=True)
            assert compared.violations == (), seed
            assert {change.what for change in compared.changes} <= expected, seed
            assert min(judged.tally.scenarios, compared.num_scenarios) > 0


@pytest.mark.parametrize("suite", ["smoke", pytest.param("default", marks=pytest.mark.slow)])
def test_from_one_release_to_the_next_only_the_emit_start_moves(suite: Suite) -> None:
    done = verify("vllm==0.32.0", load_base("vllm==0.31.0", suite=suite), allow_unplayed=True)
    assert done.result is Result.CLEAN, done
    assert [(move.profile, move.clauses, move.instead_of) for move in done.moves] == [
        ("0.32", ("SCHED-EMIT-4",), ("SCHED-EMIT-3",))
    ]
    assert [each.clause for each in done.having("moved")] == ["SCHED-EMIT-3"]
    assert [(each.clause, each.findings) for each in done.having("fixed")] == [("SCHED-TAKE-2", ("F31-21",))]
    assert (done.having("broken"), done.changes) == ((), ())
    assert done.clauses
    assert not done.having("not judged")
