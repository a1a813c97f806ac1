"""``auxout drift``: the older one's suite on newer code, where the newer code is our reference with changes."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from auxout_conformance import drift
from auxout_conformance.drift import Result, behaviour, order
from auxout_conformance.drift.trees import read
from auxout_conformance.hosts import Child, DoesNotLoad
from auxout_conformance.observation import Raised
from auxout_conformance.setups import Setup
from auxout_conformance.targets import Target, TargetError, wheels
from auxout_conformance.targets.drivers import Sizes
from auxout_conformance.targets.loading import LoadSpec
from auxout_spec.calls import BeginStep, BuildConnectorMeta
from auxout_spec.retention import KvCache
from auxout_spec.values import Metadata, RequestView

PLAYING = drift.Playing("smoke", None, "0.32")
WORKER = """\
from .connector import AuxOutputConnectorMetadata


class AuxOutputWorkerConnector:
    def __init__(self, vllm_config, model, kv_cache_config):
        pass

    def begin_step(self, metadata):
        assert type(metadata) is AuxOutputConnectorMetadata
        raise ValueError(f"{metadata.generation} {metadata.later}")

    def close(self):
        pass
"""
Edit = Callable[..., Path]
REAL = order.PYTHON
EMPTY = drift.Drift(drift.Side("old", ""), drift.Side("new", ""), ())


@pytest.fixture(autouse=True)
def no_real_scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What ``make real`` made is left alone: a tree of a few lines has no scheduler."""
    monkeypatch.setattr(order, "PYTHON", tmp_path / "no-python")


@pytest.fixture
def newer(tree: Path) -> Edit:
    """Makes the newer tree: the reference with text replaced in its connector, and with more files."""

    def edit(*pairs: tuple[str, str], add: str = "", **files: str) -> Path:
        root = tree.parent / "newer"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tree, root)
        path = root / wheels.FOLDER / "connector.py"
        text = path.read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text + add)
        for name, content in files.items():
            (root / wheels.FOLDER / f"{name}.py").write_text(content)
        return root

    return edit


def scheduler_of(found: drift.Drift) -> behaviour.Played:
    return next(each for each in found.played if each.half == "scheduler")


def asked(what: str) -> str:
    """Code after which the scheduler connector is built with more."""
    return f"""

class _Newer(AuxOutputSchedulerConnector):
    def __init__(self, {what}):
        super().__init__()


AuxOutputSchedulerConnector = _Newer
"""


def test_the_same_package_is_not_played(tree: Path, newer: Edit) -> None:
    found = drift.compare(str(tree), str(newer()), None, PLAYING)
    assert (found.played, found.result) == ((), Result.NONE)


@pytest.mark.usefixtures("quick")
def test_what_differs_by_clause(tree: Path, newer: Edit, run: Any, tmp_path: Path) -> None:
    root = newer(add="\nAuxOutputSchedulerConnector.reset = lambda self: None\n")
    out = tmp_path / "drift.json"
    ran = run("drift", tree, root, "--profile", "0.32", "--json", out)
    assert ran.code == 1
    lines = ran.out.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith("  SCHED-RESET-1  "))
    assert [line.split()[0] for line in lines[head + 1 : head + 5]] == [
        "call",
        "expected",
        "newer",
        "scenario",
    ]
    assert "generation 1" in lines[head + 2]
    assert "generation 0" in lines[head + 3]
    assert "  1 clause  " in lines[-1]
    data = json.loads(out.read_text())
    schema = json.loads(resources.files("auxout_conformance").joinpath("drift.schema.json").read_text())
    jsonschema.validate(data, schema)
    scheduler, worker = data["played"]
    broken = [each for each in scheduler["clauses"] if each["outcome"] == "broken"]
    assert [each["clause"] for each in broken] == ["SCHED-RESET-1"]
    assert broken[0]["violation"]["scenario"]["events"]
    assert (worker["half"], worker["clauses"]) == ("worker", [])
    assert "note: the worker was not played: of the older one, there is no class" in ran.out


@pytest.mark.usefixtures("quick")
def test_code_that_answers_alike_and_is_written_otherwise(tree: Path, newer: Edit) -> None:
    found = drift.compare(str(tree), str(newer(add="\n# a remark\n")), None, PLAYING)
    assert not scheduler_of(found).differs
    assert found.result is Result.DRIFT, "its file differs"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"add": "", "pairs": [("        self,\n", "        self,\n        store,\n")]},
            "is built with store, for which",
        ),
        (
            {"pairs": [("class AuxOutputSchedulerConnector", "class Renamed")]},
            "there is no class AuxOutputScheduler",
        ),
    ],
)
def test_what_cannot_be_built_is_a_finding(
    changed: dict[str, Any], said: str, tree: Path, newer: Edit
) -> None:
    pairs = changed.pop("pairs")
    path = Path(newer(**changed)) / wheels.FOLDER / "connector.py"
    text = path.read_text()
    start = text.index("class AuxOutputSchedulerConnector")
    for old, new in pairs:
        assert old in text[start:]
        text = text[:start] + text[start:].replace(old, new, 1)
    path.write_text(text)
    found = drift.compare(str(tree), str(path.parents[3]), None, PLAYING)
    played = scheduler_of(found)
    assert said in played.unbound
    assert (played.verification, played.differs, found.result) == (None, True, Result.DRIFT)
    assert any(said in str(line) for line in drift.lines(found))


@pytest.mark.parametrize(
    ("add", "said"),
    [
        ("\nraise RuntimeError('not today')\n", "does not import: "),
        (
            "\nimport os\nAuxOutputSchedulerConnector.reset = lambda self: os._exit(3)\n",
            "kills its process: ",
        ),
    ],
)
@pytest.mark.usefixtures("quick")
def test_code_that_does_not_run(add: str, said: str, tree: Path, newer: Edit, run: Any) -> None:
    ran = run("drift", tree, newer(add=add), "--profile", "0.32")
    assert ran.code == 3
    assert f"  {said}" in ran.out
    assert "does not run" in ran.out.splitlines()[-1]
    assert "connector.py" in ran.out, "how its source differs is told all the same"


def test_without_a_profile_the_source_is_compared(tree: Path, newer: Edit, run: Any) -> None:
    ran = run("drift", tree, newer(add="\nx = 1\n"))
    assert ran.code == 1
    assert "note: no suite was played: the version of" in ran.out
    ran = run("drift", tree, newer(add="\nx = 1\n"), "--source")
    assert (ran.code, "note:" in ran.out) == (1, False)


def host(root: Path, kind: str) -> Child:
    return Child(Target(root.name, LoadSpec(kind, str(root / wheels.FOLDER)), "0.32"))


def test_what_is_built_with_a_kv_cache_gets_one(newer: Edit) -> None:
    more = "\n        self._generation = kv_cache_manager.block_pool.hash_block_size\n"
    root = newer(
        add=asked("kv_cache_manager, other=None").replace("super().__init__()\n", f"super().__init__(){more}")
    )
    running = host(root, "newer-scheduler")
    try:
        running.new(Setup("0.32", cache=KvCache(4, 4, 9)))
        step = BuildConnectorMeta((("A", 1),), (RequestView("A", 4, 4, 0, 0, (b"x" * 32,)),))
        seen = running.call(step).outcome
    finally:
        running.close()
    assert isinstance(seen, Metadata)
    assert (seen.generation, seen.requests) == (4, (("A", 0),))


def test_what_nothing_stands_in_for_can_be_imported_and_not_used(newer: Edit) -> None:
    head = (
        "from vllm.unheard.of import thing, Base\nfrom vllm.v1.core.kv_cache_utils import later\n"
        "class Made(Base):\n    field: thing[int] | None = None\n"
    )
    running = host(newer(add=f"\n{head}"), "newer-scheduler")
    running.close()
    with pytest.raises(DoesNotLoad, match=r"nothing stands in for vllm\.unheard\.of\.thing\.now"):
        host(newer(add=f"\n{head}thing.now()\n"), "newer-scheduler")
    with pytest.raises(DoesNotLoad, match="is built with store, for which nothing stands in"):
        host(newer(add=asked("store")), "newer-scheduler")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the worker needs torch")
def test_a_worker_gets_metadata_of_its_own_class(newer: Edit) -> None:
    later = "    finished_requests: tuple[str, ...]\n"
    root = newer((later, f"{later}    later: int = 7\n"), worker=WORKER)
    running = host(root, "newer-worker")
    try:
        running.new(Setup("0.32", Sizes(4, 8, 2)))
        seen = running.call(BeginStep(Metadata(3, (), (), ()))).outcome
    finally:
        running.close()
    assert isinstance(seen, Raised)
    assert (seen.type, seen.message) == ("ValueError", "3 7")


EVENTS = {"version": "1", "events": [["add A", []], ["step", ["build_connector_meta({A: 1})"]]]}


@pytest.fixture
def schedulers(tree: Path, newer: Edit, tmp_path: Path) -> Callable[..., drift.Drift]:
    """Compares two trees with a Python that says what their file ``vllm/said.py`` says."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncd "${PYTHONPATH#*:}" && . ./vllm/run.py && cat vllm/said.py\n')
    python.chmod(0o755)

    def compare(old: str, new: str, *, run: str = "", named: Path | None = python) -> drift.Drift:
        roots = tree, newer()
        for root, said in zip(roots, (old, new), strict=True):
            (root / "vllm" / "said.py").write_text(said)
            (root / "vllm" / "run.py").write_text(run)
        return drift.compare(*map(str, roots), None, PLAYING._replace(python=named and str(named)))

    return compare


def test_the_order_of_calls_on_both_schedulers(schedulers: Callable[..., drift.Drift]) -> None:
    later = json.dumps(EVENTS).replace('["build', '["max_cache_hit(A)", "build')
    found = schedulers(json.dumps(EVENTS), later)
    assert [(each.path, each.name) for each in found.of(drift.Part.ORDER)] == [("event 2", "step")]
    lines = [f"{line.mark} {line.text}" for line in found.of(drift.Part.ORDER)[0].lines]
    assert lines == ["+ max_cache_hit(A)", "  build_connector_meta({A: 1})"]
    assert (found.result, found.unordered) == (Result.DRIFT, "")
    assert schedulers(json.dumps(EVENTS), json.dumps(EVENTS)).result is Result.NONE


@pytest.mark.parametrize(
    ("said", "options", "why"),
    [
        ("{}", {}, "answered with something unreadable"),
        (
            "",
            {"run": "echo No module named msgspec >&2; exit 1"},
            "does not run with .*: No module named msgspec",
        ),
        ("", {"run": "exit 1"}, "it said nothing"),
        ("", {"named": Path("/no/such/python")}, "cannot run /no/such/python: no such file"),
        ("", {"named": None}, "`make real` makes one"),
    ],
)
def test_why_the_order_was_not_recorded(
    said: str, options: dict[str, Any], why: str, schedulers: Callable[..., drift.Drift]
) -> None:
    found = schedulers(said, said, **options)
    assert re.search(why, found.unordered)
    assert (found.result, found.differences) == (Result.NONE, ()), "it is told, and changes no verdict"
    (line,) = (str(line) for line in drift.lines(found))
    assert line == f"note: the order of connector calls was not recorded: {found.unordered}"


def test_a_scheduler_that_takes_too_long(
    schedulers: Callable[..., drift.Drift], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "SECONDS", 0.2)
    assert "took over 0.2 s" in schedulers("", "", run="sleep 5").unordered


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason="needs what `make real` makes")
def test_the_released_schedulers() -> None:
    """The newest connector asks for a bound before the prefix cache is looked up; the one before did not."""
    try:
        trees = [read(f"vllm=={version}") for version in ("0.32.0", "0.33.0")]
    except TargetError as error:
        pytest.skip(str(error))
    found = order.compare(trees[0], trees[1], str(REAL))
    lines = [f"{line.mark} {line.text}" for line in found[0].lines]
    assert lines[:2] == ["+ max_cache_hit(A)", "  KV get_computed_blocks(A)"]
    said = "\n".join(map(str, drift.lines(replace(EMPTY, differences=tuple(found)))))
    page = (Path(__file__).parents[2] / "docs" / "drift.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- shown: order -->\n```text\n(.*?)```", page, re.DOTALL)
    assert block in said
