"""``auxout drift``: every kind of change, on a vLLM of a few lines, and rows of the profile on the released ones."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from auxout_conformance import drift, known
from auxout_conformance.drift import Line, Part, order, trees
from auxout_conformance.targets import TargetError, wheels
from auxout_spec.profiles import PROFILES

CONNECTOR = """\
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.core.keys import key_of

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass
class AuxOutputConnectorMetadata:
    generation: int


class AuxOutputSchedulerConnector:
    def __init__(self) -> None:
        self._sent = {}

    def build_connector_meta(self, output, requests: "dict[str, Request]"):
        for name in output:
            request = requests[name]
            assert request.block_hashes, "none"
        return key_of(request.sampling_params.routed_experts_prompt_start)

    def _check(self, count):
        if count > 3:
            raise ValueError("too many")
"""
WORKER = """\
from vllm.core.capturer import Capturer


def get_aux_output_connector(config):
    return Capturer(config).rows
"""
CAPTURER = """\
class Capturer:
    def __init__(self, config):
        self.rows = self._layout(config)

    def _layout(self, n):
        if n == 1:
            return 1

    def unused(self):
        return 1
"""
REQUEST = """\
class Request:
    def __init__(self, block_hasher):
        self._block_hasher = block_hasher
        self.block_hashes = []

    def update_block_hashes(self):
        self.block_hashes.extend(self._block_hasher(self))
"""
HASHES = """\
def get_request_block_hasher(size):
    def request_block_hasher(request):
        return hashes(request, size)
    return request_block_hasher
"""
SCHEDULER = """\
from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector
from vllm.v1.request import Request


class Scheduler:
    def __init__(self, config):
        self.aux_output_connector = AuxOutputSchedulerConnector() if config.aux_output_config.enabled else None

    def schedule(self, request):
        hit = self.manager.get_computed_blocks(request)
        if self.aux_output_connector is not None:
            self.aux_output_connector.build_connector_meta(request)

    def update(self, session):
        kept = session.num_tokens
        del session.block_hashes[kept // 4:]

    def land(self, request):
        routed = self.aux_output_connector.take_output(request)
        return EngineOutput(request, rows=routed)
"""
MANAGER = """\
class Manager:
    def get_computed_blocks(self, request):
        return 0
"""
CONFIG = """\
class AuxOutputConfig:
    enabled: bool = False
    return_worker_rows: bool = False


class Config:
    def _verify_aux_output_compatibility(self):
        if not self.caching:
            raise ValueError("no caching")
"""
OUTPUTS = """\
class EngineOutput:
    request_id: str
    rows: list | None = None
"""
FOLDER = wheels.FOLDER
NEWEST = known.newest_release()
FILES = {
    f"{FOLDER}/__init__.py": "",
    f"{FOLDER}/connector.py": CONNECTOR,
    f"{FOLDER}/worker.py": WORKER,
    "vllm/core/keys.py": "def key_of(start):\n    return start\n",
    "vllm/core/capturer.py": CAPTURER,
    "vllm/v1/request.py": REQUEST,
    "vllm/v1/core/hashes.py": HASHES,
    "vllm/v1/core/scheduler.py": SCHEDULER,
    "vllm/v1/core/manager.py": MANAGER,
    "vllm/v1/outputs.py": OUTPUTS,
    "vllm/config.py": CONFIG,
}


@pytest.fixture(autouse=True)
def no_real_scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What ``make real`` made is left alone: a tree of a few lines has no scheduler."""
    monkeypatch.setattr(order, "PYTHON", tmp_path / "no-python")


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class Changed:
    """Compares the small vLLM with one in which texts are replaced."""

    def __init__(self, tmp_path: Path) -> None:
        self.old, self.new = written(tmp_path / "old", FILES), tmp_path / "new"

    def __call__(self, path: str, *pairs: tuple[str, str], more: dict[str, str] | None = None) -> drift.Drift:
        text = FILES.get(path, "")
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        written(self.new, {**FILES, **({path: text} if path else {}), **(more or {})})
        return drift.compare(str(self.old), str(self.new))


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    return Changed(tmp_path)


def told(found: drift.Drift, part: Part, name: str) -> list[str]:
    """The marked lines of one place."""
    (each,) = (each for each in found.of(part) if each.name == name)
    return [f"{line.mark} {line.text}" for line in each.lines]


def places(found: drift.Drift) -> set[tuple[str, str]]:
    return {(each.part.value, each.name) for each in found.differences if each.part is not Part.FILES}


def test_no_drift(changed: Changed) -> None:
    found = changed("")
    assert (found.differences, found.result, found.exit_code) == ((), drift.Result.NONE, 0)


def test_comments_and_docstrings_are_no_drift_but_the_file_is_named(changed: Changed) -> None:
    path = f"{FOLDER}/worker.py"
    found = changed(path, ("    return", '    """Words."""\n    # why\n    return'))
    assert [(each.part, each.path) for each in found.differences] == [(Part.FILES, path)]
    assert found.differences[0].lines == (Line("-", "5 lines"), Line("+", "7 lines"))


def test_files_of_the_package_that_come_and_go(changed: Changed) -> None:
    found = changed("", more={f"{FOLDER}/store.py": "x = 1\n"})
    assert [(each.path, each.lines) for each in found.of(Part.FILES)] == [
        (f"{FOLDER}/store.py", (Line("+", "the file is new"),))
    ]
    back = drift.compare(str(changed.new), str(changed.old))
    assert back.of(Part.FILES)[0].lines == (Line("-", "the file is gone"),)


def test_a_file_that_is_no_python(changed: Changed) -> None:
    found = changed("", more={f"{FOLDER}/worker.py": "def (:\n"})
    assert "+ it is no Python that this interpreter reads" in told(found, Part.FILES, "")


def test_a_module_that_starts_and_one_that_stops_to_use_the_names(changed: Changed) -> None:
    found = changed("", more={"vllm/other.py": "def f(config):\n    return config.aux_output_config\n"})
    assert [(each.path, each.lines) for each in found.of(Part.FILES)] == [
        ("vllm/other.py", (Line("+", "uses the protocol's names"),))
    ]
    back = drift.compare(str(changed.new), str(changed.old))
    assert back.of(Part.FILES)[0].lines == (Line("-", "uses the protocol's names"),)


def test_a_local_name_is_no_use(changed: Changed) -> None:
    assert not changed(
        "", more={"vllm/model.py": "def f(x):\n    aux_output = x\n    return aux_output\n"}
    ).differences


def test_a_constructor_that_asks_for_more(changed: Changed) -> None:
    found = changed(
        f"{FOLDER}/connector.py", ("__init__(self)", "__init__(self, manager, kv_connector=None)")
    )
    assert told(found, Part.SIGNATURES, "AuxOutputSchedulerConnector") == [
        "- AuxOutputSchedulerConnector()",
        "+ AuxOutputSchedulerConnector(manager, kv_connector=None)",
    ]
    name = "AuxOutputSchedulerConnector.__init__(manager)"
    assert told(found, Part.SIGNATURES, name) == ["+ breaks callers: parameter was added as required"]


def test_a_new_public_method_and_a_private_one(changed: Changed) -> None:
    more = (
        "\n    def max_cache_hit(self, request: 'Request'):\n        return request.num_computed_tokens\n"
        "\n    def _own(self): ..."
    )
    found = changed(
        f"{FOLDER}/connector.py",
        ('raise ValueError("too many")\n', f'raise ValueError("too many")\n{more}\n'),
    )
    name = "AuxOutputSchedulerConnector.max_cache_hit"
    assert told(found, Part.SIGNATURES, name) == [f"+ {name}(request)"]
    assert told(found, Part.PACKAGE, name) == [
        "+ takes (request)",
        "+ returns request.num_computed_tokens",
        "+ reads request.num_computed_tokens",
    ]
    assert ("signatures", "AuxOutputSchedulerConnector._own") not in places(found)
    assert ("package", "AuxOutputSchedulerConnector._own") in places(found)


def test_a_field_of_the_metadata(changed: Changed) -> None:
    found = changed(
        f"{FOLDER}/connector.py", ("generation: int\n", "generation: int\n    held: bytes | None = None\n")
    )
    assert told(found, Part.FIELDS, "AuxOutputConnectorMetadata") == [
        "  generation: int",
        "+ held: bytes | None = None",
    ]


def test_a_field_in_which_the_engine_puts_an_answer(changed: Changed) -> None:
    found = changed(
        "vllm/v1/outputs.py",
        ("rows: list | None", "rows: bytes | None"),
        ("request_id: str", "request_id: int"),
    )
    assert told(found, Part.FIELDS, "EngineOutput") == [
        "- rows: list | None = None",
        "+ rows: bytes | None = None",
    ]


def test_what_a_function_of_the_package_reads_refuses_and_computes(changed: Changed) -> None:
    found = changed(f"{FOLDER}/connector.py", ('raise ValueError("too many")', 'logger.warning("many")'))
    assert told(found, Part.PACKAGE, "AuxOutputSchedulerConnector._check") == [
        "- raises ValueError: too many  [count > 3]",
        "+ logs warning: many",
    ]
    found = changed(f"{FOLDER}/connector.py", ("self._sent = {}", "self._sent = dict()"))
    assert told(found, Part.PACKAGE, "AuxOutputSchedulerConnector.__init__") == [
        "+ computes other values; what it reads, calls, keeps, tests and refuses is the same"
    ]
    found = changed(
        f"{FOLDER}/connector.py", ("assert request.block_hashes", "assert request.num_computed_tokens")
    )
    assert told(found, Part.PACKAGE, "AuxOutputSchedulerConnector.build_connector_meta") == [
        "- asserts request.block_hashes  where request = requests[name]",
        "- reads request.block_hashes",
        "+ asserts request.num_computed_tokens  where request = requests[name]",
        "+ reads request.num_computed_tokens",
    ]


def test_the_order_of_calls_and_the_conditions_around_them(changed: Changed) -> None:
    before = "        hit = self.manager.get_computed_blocks(request)\n"
    asked = (
        "        bound = self.aux_output_connector.max_cache_hit(request)\n"
        "        hit = self.manager.get_computed_blocks(request, bound)\n"
        "        if hit:\n"
        "            found = self.other.match(hit)\n"
        "            found = self.aux_output_connector.cap(found)\n"
    )
    found = changed(
        "vllm/v1/core/scheduler.py",
        (before, asked),
        more={"vllm/v1/core/manager.py": MANAGER.replace("request)", "request, most=None)")},
    )
    assert told(found, Part.CALLS, "Scheduler.schedule") == [
        "+ calls self.aux_output_connector.max_cache_hit(request)",
        "+ passes bound to self.manager.get_computed_blocks(request, bound)",
        "+ asks self.other.match(hit) for found  [hit]",
        "+ calls self.aux_output_connector.cap(found)  [hit]",
        "  calls self.aux_output_connector.build_connector_meta(request)  [self.aux_output_connector is not None]",
    ]
    assert told(found, Part.LOOKUPS, "Manager.get_computed_blocks") == [
        "- Manager.get_computed_blocks(request)",
        "+ Manager.get_computed_blocks(request, most=None)",
    ]


def test_how_the_connector_is_built(changed: Changed) -> None:
    found = changed(
        "vllm/v1/core/scheduler.py",
        ("AuxOutputSchedulerConnector() if", "AuxOutputSchedulerConnector(config) if"),
    )
    assert told(found, Part.CALLS, "Scheduler.__init__") == [
        "  sets self.aux_output_connector",
        "- builds AuxOutputSchedulerConnector()  [config.aux_output_config.enabled]",
        "+ builds AuxOutputSchedulerConnector(config)  [config.aux_output_config.enabled]",
    ]


def test_what_it_reads_of_a_request_is_written_otherwise(changed: Changed) -> None:
    found = changed("vllm/v1/core/scheduler.py", ("session.num_tokens\n", "session.num_tokens - 1\n"))
    assert told(found, Part.INPUTS, "Scheduler.update") == [
        "- del session.block_hashes[kept // 4:]  where kept = session.num_tokens",
        "+ del session.block_hashes[kept // 4:]  where kept = session.num_tokens - 1",
    ]


def test_who_makes_an_input_and_where_its_new_parameter_comes_from(changed: Changed) -> None:
    config = (
        CONFIG + "\n    @property\n    def num_ahead(self):\n        return 0 if self.eagle is None else 1\n"
    )
    found = changed(
        "vllm/v1/core/hashes.py",
        ("hasher(size)", "hasher(size, num_ahead=0)"),
        more={"vllm/config.py": config},
    )
    assert told(found, Part.INPUTS, "get_request_block_hasher") == [
        "- takes (size)",
        "+ takes (size, num_ahead=0)",
    ]
    assert told(found, Part.INPUTS, "Config.num_ahead") == [
        "+ takes ()",
        "+ returns 0 if self.eagle is None else 1",
        "+ tests self.eagle is None",
    ]


def test_what_the_package_imports(changed: Changed) -> None:
    found = changed("vllm/core/capturer.py", ("n == 1", "n == 2"), ("return 1\n\n", "return 3\n\n"))
    assert told(found, Part.CAPTURE, "Capturer._layout") == [
        "- tests n == 1",
        "- returns 1",
        "+ tests n == 2",
        "+ returns 3",
    ]
    found = changed(
        "vllm/core/capturer.py",
        ("def unused(self):\n        return 1", "def unused(self):\n        return 2"),
    )
    assert not found.of(Part.CAPTURE)


def test_what_the_package_begins_to_import(changed: Changed) -> None:
    keys = (
        "from vllm import envs\n\ndef key_of(start):\n    return start\n"
        "\ndef short(key):\n    return key if envs.VLLM_SHORT else 0\n"
    )
    written(changed.old, {"vllm/core/keys.py": keys})
    found = changed(
        f"{FOLDER}/connector.py", ("import key_of", "import key_of, short"), more={"vllm/core/keys.py": keys}
    )
    assert told(found, Part.CAPTURE, "short") == [
        "+ the package uses it now",
        "+ reads environment VLLM_SHORT",
    ]


def test_gates(changed: Changed) -> None:
    found = changed(
        "vllm/config.py",
        ('"no caching"', '"no prefix caching"'),
        ("enabled: bool = False", "enabled: bool = True"),
    )
    assert told(found, Part.GATES, "Config._verify_aux_output_compatibility") == [
        "- raises ValueError: no caching  [not self.caching]",
        "+ raises ValueError: no prefix caching  [not self.caching]",
    ]
    more = {
        "vllm/other.py": "def f(config):\n    if config.aux_output_config.on:\n        raise ValueError('not here')\n"
    }
    found = changed("", more=more)
    assert told(found, Part.GATES, "f") == [
        "+ tests config.aux_output_config.on",
        "+ raises ValueError: not here",
    ]
    more = {"vllm/other.py": "def f(config):\n    return config.return_worker_rows\n"}
    assert told(changed("", more=more), Part.GATES, "f") == ["+ reads config.return_worker_rows"]


def test_a_connector_folder_alone_is_not_whole(changed: Changed) -> None:
    folder = str(changed.old / FOLDER)
    found = drift.compare(folder, str(changed.old))
    assert (found.result, found.exit_code) == (drift.Result.INCOMPLETE, 4)
    assert folder in found.notes[0]
    changed(f"{FOLDER}/worker.py", ("(config).rows", "(config)"))
    found = drift.compare(folder, str(changed.new))
    assert (found.result, found.exit_code) == (drift.Result.DRIFT, 1)
    assert ("package", "get_aux_output_connector") in places(found)


def packed(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_a_revision_and_a_release_say_what_the_tree_says(
    changed: Changed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = packed(
        tmp_path / "vllm-9.8.0-py3-none-any.whl", {**FILES, "vllm/_C.so": "no text", "other/x.py": ""}
    )
    tree = trees.read(str(wheel))
    assert (tree.texts, tree.version) == (trees.read(str(changed.old)).texts, "9.8.0")
    monkeypatch.setenv("AUXOUT_CACHE", str(tmp_path / "cache"))
    fetched: list[str] = []

    def download(version: str, scratch: Path) -> Path:
        fetched.append(version)
        return packed(scratch / "vllm-9.8.0.whl", {**FILES, "vllm/_C.so": "no text"})

    monkeypatch.setattr(wheels, "download", download)
    for _ in range(2):
        assert trees.read("vllm==9.8.0").texts == tree.texts
    assert fetched == ["9.8.0"], "the second time it is in the cache"
    assert (wheels.fetch("9.8.0") / "connector.py").read_text() == CONNECTOR
    assert fetched == ["9.8.0"], "the connector alone comes out of the same file"
    git = ["git", "-C", str(changed.old), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "commit.gpgsign=false", "commit", "-qm", "all"],
        ["tag", "v9.8.0"],
    ):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (changed.old / FOLDER / "worker.py").write_text("not committed")
    at = trees.read(f"{changed.old}@HEAD")
    assert (at.texts, at.version) == (tree.texts, "9.8.0")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("impl", "'impl' is no source of vLLM"),
        ("nothing.whl", "there is no file nothing.whl"),
        ("{tmp}/empty", "has no vllm/distributed/aux_output_connector/connector.py"),
        ("{tmp}/bad.whl", "is not a wheel"),
        ("{tmp}/empty@HEAD", "cannot read"),
        ("{tmp}/empty@--all", "is no git revision"),
    ],
)
def test_what_is_no_vllm(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the repository has a folder that is named impl
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.whl").write_text("no zip file")
    with pytest.raises(TargetError, match=said):
        trees.read(name.format(tmp=tmp_path))


@pytest.mark.parametrize("depth", [200, 450, 900, 5000])
def test_code_that_is_nested_without_end(depth: int, changed: Changed) -> None:
    """It is compared, or it is said in a sentence that it cannot be; how deep is too deep depends on the Python."""
    path, said = f"{FOLDER}/worker.py", ""
    try:
        said = changed(path, ("return", f"x = {' + '.join(['1'] * depth)}\n    return")).differences[0].path
    except TargetError as error:
        said = str(error)
    assert said == path or said.endswith("has an expression that is nested too deeply to be compared")


def test_a_tree_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_FILES", 3)
    with pytest.raises(TargetError, match="more than any vLLM"):
        trees.read(str(written(tmp_path, FILES)))


def test_the_command(changed: Changed, run: Any, tmp_path: Path) -> None:
    changed(f"{FOLDER}/connector.py", ("__init__(self)", "__init__(self, manager)"))
    out = tmp_path / "drift.json"
    ran = run("drift", changed.old, changed.new, "--json", out)
    assert ran.code == 1
    assert "    + AuxOutputSchedulerConnector(manager)" in ran.out.splitlines()
    assert ran.out.splitlines()[-1].startswith(f"{changed.new} against {changed.old}  drift  ")
    data = json.loads(out.read_text())
    schema = json.loads(resources.files("auxout_conformance").joinpath("drift.schema.json").read_text())
    jsonschema.validate(data, schema)
    assert data["argv"] == ["auxout", "drift", str(changed.old), str(changed.new), "--json", str(out)]
    assert {each["part"] for each in data["differences"]} == {"files", "signatures", "package"}
    assert run("drift", changed.old, changed.old).code == 0
    ran = run("drift", changed.old, "nothing")
    assert (ran.code, "no source of vLLM" in ran.err) == (2, True)
    assert run("drift", changed.old, changed.new, "--json", tmp_path).code == 2


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The newest known release and 9.9.0 of the small vLLM, and which were fetched."""
    later = CONNECTOR.replace("generation: int", "generation: int\n    more: int = 0")
    fetched: list[str] = []

    def download(version: str, scratch: Path) -> Path:
        fetched.append(version)
        files = {NEWEST: FILES, "9.9.0": {**FILES, f"{FOLDER}/connector.py": later}}.get(version)
        if files is None:
            raise TargetError("there is no such release")
        return packed(scratch / f"vllm-{version}.whl", files)

    monkeypatch.setenv("AUXOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(wheels, "download", download)
    return fetched


def test_conform_of_a_version_without_a_profile_says_what_drift_says(releases: list[str], run: Any) -> None:
    ran = run("conform", "vllm==9.9.0")
    assert ran.code == 2
    last = ran.err.splitlines()[-1]
    assert last.startswith("auxout: no profile describes vllm==9.9.0 (version 9.9.0) yet; add --profile (")
    assert last.endswith(
        f"It differs from vllm=={NEWEST} in 2 places (1 in files, 1 in fields): auxout drift vllm=={NEWEST} vllm==9.9.0"
    )
    assert releases == [NEWEST, "9.9.0"]
    assert run("drift", f"vllm=={NEWEST}", "vllm==9.9.0", "--source").code == 1


def test_conform_where_drift_cannot_tell(releases: list[str], run: Any) -> None:
    ran = run("conform", "vllm==9.8.0")
    assert (ran.code, ran.err.splitlines()[-1].endswith(f"({' or '.join(PROFILES)})")) == (2, True)
    assert releases == [NEWEST, "9.8.0"]
    ran = run("smoke", "vllm==9.9.0")
    assert (ran.code, ran.err.splitlines()[-1].endswith(f"({' or '.join(PROFILES)})")) == (2, True)


def test_conform_of_a_version_that_did_not_change(releases: list[str], run: Any, tmp_path: Path) -> None:
    wheel = packed(tmp_path / "vllm-9.7.0-py3-none-any.whl", FILES)
    last = run("conform", wheel).err.splitlines()[-1]
    assert f"Its source has no drift from vllm=={NEWEST}: auxout drift vllm=={NEWEST} {wheel}" in last
    assert releases == [NEWEST]


ROWS = {
    "scheduler connector is built with": (
        r"\+ AuxOutputSchedulerConnector\(kv_cache_manager, kv_connector=None\)",
    ),
    "hashes that are sent": ("SCHED-HASH-1 ", r"\+ reads request\.num_computed_tokens"),
    "final hashes of an ended request": ("SCHED-TERM-5 ",),
    "rows of a block whose KV is resident": (
        r"vllm/.*/connector\.py AuxOutputSchedulerConnector\._release_unheld",
        r"\+ calls self\._retained_hashes\.extend\(",
        r"\+ tests .*self\._gpu_cached\(",
        r"\+ reads metadata\.released_block_hashes",
    ),
    "metadata": (r"\+ retained_block_hashes: ", r"\+ released_block_hashes: "),
    "KV found elsewhere": (
        r"\+ asks self\.connector\.get_num_new_matched_tokens\(",
        r"\+ calls self\.aux_output_connector\.cap_external_hit\(",
        r"\+ returns num_external$",
        r"\+ returns 0$",
    ),
    "local prefix hit": (
        r"\+ calls self\.aux_output_connector\.max_cache_hit\(request\)",
        r"\+ KVCacheManager\.get_computed_blocks\(request, max_cache_hit_length=None\)",
    ),
    "store that is full of referenced objects": (
        "STORE-PUT-3 ",
        r"- raises BlockObjectStoreError: .* cannot retain",
        r"\+ logs warning: .* store grows",
    ),
    "a key that is stored and unreferenced, written again": ("STORE-PUT-1 ",),
    "session turn": (
        r"vllm/.*/scheduler\.py Scheduler\._update_request_as_session",
        r"\+ del session\.block_hashes\[.* = session\.num_tokens - 1$",
    ),
    "block hash": (
        r"\+ takes \(hash_block_size, caching_hash_fn, num_hash_lookahead_tokens=0\)",
        r"vllm/config/vllm\.py VllmConfig\.num_hash_lookahead_tokens",
        r"\+ tests .*use_eagle_block_drop",
    ),
}
"""What profile 0.33 changes, row by row, and the lines of the output that name it, as patterns."""


@pytest.fixture(scope="module")
def from_0_32_to_0_33() -> drift.Drift:
    """What differs from vLLM 0.32.0 to 0.33.0."""
    pytest.importorskip("torch", reason="the worker needs it")
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(order, "PYTHON", Path("no-python"))
        try:
            return drift.compare("vllm==0.32.0", "vllm==0.33.0", None, drift.Playing())
        except TargetError as error:
            pytest.skip(str(error))


@pytest.mark.slow
def test_every_row_of_profile_0_33_is_named(from_0_32_to_0_33: drift.Drift) -> None:
    found = from_0_32_to_0_33
    lines = [str(line).strip() for line in drift.lines(found)]
    missing = {
        row: [each for each in marks if not any(re.match(each, line) for line in lines)]
        for row, marks in ROWS.items()
    }
    assert not {row: marks for row, marks in missing.items() if marks}
    assert found.result is drift.Result.DRIFT
    users = {each.path for each in found.differences if each.part is Part.CALLS}
    assert "vllm/v1/core/sched/scheduler.py" in users
    assert not [each.path for each in found.differences if "llama" in each.path], "names of other things"


def shown_in_docs(what: str) -> str:
    """A block of the page about drift, as a pattern: ``...`` stands for anything, alone on a line for any lines."""
    page = (Path(__file__).parents[2] / "docs" / "drift.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"<!-- shown: {re.escape(what)} -->\n```text\n(.*?)```", page, re.DOTALL)
    pattern = ""
    for line in block.splitlines():
        pattern += "(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
    return pattern


@pytest.mark.slow
def test_the_page_shows_what_it_says(from_0_32_to_0_33: drift.Drift) -> None:
    said = "\n".join([*map(str, drift.lines(from_0_32_to_0_33)), drift.summary_line(from_0_32_to_0_33), ""])
    assert re.search(f"^{shown_in_docs('vllm==0.32.0 vllm==0.33.0')}$", said, re.MULTILINE)


@pytest.mark.slow
def test_what_profile_0_32_changed_is_named() -> None:
    """The three parameters in which profiles 0.31 and 0.32 differ, in the source of the releases."""
    try:
        found = drift.compare("vllm==0.31.0", "vllm==0.32.0")
    except TargetError as error:
        pytest.skip(str(error))
    name = "AuxOutputSchedulerConnector.build_connector_meta"
    assert told(found, Part.PACKAGE, name) == ["+ reads request.num_prompt_tokens"]  # clamps_prompt_start
    (session,) = told(found, Part.INPUTS, "Scheduler._update_request_as_session")
    assert session.startswith("+ del session.block_hashes[")  # truncates_session_hashes
    reset = told(found, Part.CALLS, "Scheduler.reset_prefix_cache")
    assert [line.partition("(")[0] for line in reset] == [  # guards_running_reset
        "- raises RuntimeError",
        "- raises RuntimeError",
        "  calls self.aux_output_connector.reset",
    ]
