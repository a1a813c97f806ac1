"""Patches: which diffs apply to a connector folder, which are refused, and that nothing else is written."""

from __future__ import annotations

import difflib
import os
import subprocess
from pathlib import Path

import pytest

from auxout_conformance.targets import PatchError, TargetError, patched, resolve, wheels
from auxout_conformance.targets import patches as module
from auxout_conformance.targets.patches import Applied, apply_diff

FOLDER = wheels.FOLDER
FILES = {
    "__init__.py": "",
    "connector.py": "".join(f"line {number}\n" for number in range(1, 21)),
    "store.py": "first\nlast without newline",
}
EDITED = FILES["connector.py"].replace("line 9\n", "line nine\nand more\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A connector folder that may be changed."""
    made = tmp_path / "copy" / "connector"
    made.mkdir(parents=True)
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


def diff_of(old: str, new: str, old_name: str, new_name: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), old_name, new_name
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def edit(old_name: str, new_name: str) -> str:
    return diff_of(FILES["connector.py"], EDITED, old_name, new_name)


def applied(folder: Path, text: str) -> Applied:
    path = folder.parents[1] / "some.diff"
    path.write_bytes(text.encode())
    return apply_diff(str(path), folder, "base")


def refused(folder: Path, text: str) -> str:
    before = {path.name: path.read_text() for path in folder.iterdir()}
    with pytest.raises(PatchError) as caught:
        applied(folder, text)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    assert sorted(path.name for path in folder.parents[1].iterdir()) == ["copy", "some.diff"]
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(folder.parents[1]), "")


# What applies.


@pytest.mark.parametrize(
    ("old_name", "new_name"),
    [
        (f"a/{FOLDER}/connector.py", f"b/{FOLDER}/connector.py"),
        (f"{FOLDER}/connector.py", f"{FOLDER}/connector.py"),
        (f"./{FOLDER}/connector.py", f"./{FOLDER}/connector.py"),
        (f"vllm-old/{FOLDER}/connector.py", f"vllm-new/{FOLDER}/connector.py"),
        (f"x/y/z/{FOLDER}/connector.py\t2026-01-01 10:00:00", f"{FOLDER}/connector.py\t2026-01-02"),
        ("a/connector.py", "b/connector.py"),
        ("connector.py", "connector.py"),
        ("connector.py.orig", "connector.py"),
    ],
)
def test_a_file_is_found_however_the_diff_names_it(folder: Path, old_name: str, new_name: str) -> None:
    assert applied(folder, edit(old_name, new_name)) == Applied(("connector.py",), ())
    assert (folder / "connector.py").read_text() == EDITED
    assert (folder / "store.py").read_text() == FILES["store.py"]


def test_line_numbers_may_be_off(folder: Path) -> None:
    text = edit("a/connector.py", "b/connector.py").replace("@@ -6,7 +6,8 @@", "@@ -4,7 +4,8 @@")
    applied(folder, text)
    assert (folder / "connector.py").read_text() == EDITED


def test_windows_line_ends_of_a_mail(folder: Path) -> None:
    applied(folder, edit("a/connector.py", "b/connector.py").replace("\n", "\r\n"))
    assert (folder / "connector.py").read_text() == EDITED


def test_a_patch_series_with_its_letters(folder: Path) -> None:
    head = "From 1234 Mon Sep 17 00:00:00 2001\nFrom: Someone\nSubject: [PATCH] connector\n\nWhy.\n---\n"
    stat = f" {FOLDER}/connector.py | 3 ++-\n 1 file changed\n\n"
    text = head + stat + git_header("connector.py", "connector.py", "index 12345..6789a 100644")
    applied(folder, text + edit(f"a/{FOLDER}/connector.py", f"b/{FOLDER}/connector.py") + "-- \n2.39.5\n")
    assert (folder / "connector.py").read_text() == EDITED


def test_several_files_and_those_outside(folder: Path) -> None:
    text = edit(f"a/{FOLDER}/connector.py", f"b/{FOLDER}/connector.py")
    text += diff_of(
        "one\n", "two\n", "a/vllm/v1/core/sched/scheduler.py", "b/vllm/v1/core/sched/scheduler.py"
    )
    text += diff_of(FILES["store.py"], "first\nother", f"a/{FOLDER}/store.py", f"b/{FOLDER}/store.py")
    assert applied(folder, text) == Applied(
        ("connector.py", "store.py"), ("vllm/v1/core/sched/scheduler.py",)
    )
    assert (folder / "store.py").read_text() == "first\nother"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_only_files_outside(folder: Path) -> None:
    assert applied(folder, diff_of("1\n", "2\n", "a/setup.py", "b/setup.py")) == Applied((), ("setup.py",))


def git_header(old: str, new: str, *more: str) -> str:
    return "\n".join([f"diff --git a/{FOLDER}/{old} b/{FOLDER}/{new}", *more, ""])


def test_a_rename_with_and_without_a_change(folder: Path) -> None:
    names = (f"rename from {FOLDER}/connector.py", f"rename to {FOLDER}/scheduler.py")
    text = git_header("connector.py", "scheduler.py", "similarity index 90%", *names)
    text += edit(f"a/{FOLDER}/connector.py", f"b/{FOLDER}/scheduler.py")
    text += git_header(
        "store.py",
        "kept.py",
        "similarity index 100%",
        f"rename from {FOLDER}/store.py",
        f"rename to {FOLDER}/kept.py",
    )
    assert applied(folder, text).changed == ("scheduler.py", "kept.py")
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "kept.py", "scheduler.py"]
    assert (folder / "scheduler.py").read_text() == EDITED


def test_a_rename_out_of_the_folder_is_a_removal(folder: Path) -> None:
    text = f"diff --git a/{FOLDER}/store.py b/vllm/store.py\nsimilarity index 100%\n"
    text += f"rename from {FOLDER}/store.py\nrename to vllm/store.py\n"
    applied(folder, text)
    assert not (folder / "store.py").exists()


def test_new_and_removed_files(folder: Path) -> None:
    text = git_header("new.py", "new.py", "new file mode 100644")
    text += diff_of("", "x = 1\n", "/dev/null", f"b/{FOLDER}/new.py")
    text += git_header("store.py", "store.py", "deleted file mode 100644")
    text += diff_of(FILES["store.py"], "", f"a/{FOLDER}/store.py", "/dev/null")
    assert applied(folder, text).changed == ("new.py", "store.py")
    assert (folder / "new.py").read_text() == "x = 1\n"
    assert not (folder / "store.py").exists()


def test_a_change_of_mode_alone_changes_nothing(folder: Path) -> None:
    assert (
        applied(folder, git_header("store.py", "store.py", "old mode 100644", "new mode 100755")).changed
        == ()
    )


def test_no_repository_around_the_copy_has_a_say(folder: Path) -> None:
    subprocess.run(
        ["git", "init", "-q", folder.parent], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    )
    applied(folder, edit("a/connector.py", "b/connector.py"))
    assert (folder / "connector.py").read_text() == EDITED


# What is refused.


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "/some.diff is empty"),
        (" \n\n", "/some.diff is empty"),
        ("just some words\n", "/some.diff is not a unified diff: no file header (---, +++) was found"),
        ("<html>404</html>", "/some.diff is not a unified diff: no file header (---, +++) was found"),
        ("@@ -1 +1 @@\n-a\n+b\n", "/some.diff is not a unified diff: Unexpected hunk found: @@ -1 +1 @@"),
        (
            "--- a/connector.py\n+++ b/connector.py\n@@ -1,9 +1,9 @@\n line 1\n",
            "/some.diff is not a unified diff: Hunk is shorter than expected",
        ),
    ],
)
def test_not_a_diff(folder: Path, text: str, why: str) -> None:
    assert refused(folder, text) == why


def test_not_text(folder: Path) -> None:
    path = folder.parents[1] / "some.diff"
    path.write_bytes(b"--- a/x\n+++ b/x\n\xff\xfe")
    with pytest.raises(PatchError, match="it is not UTF-8 text"):
        apply_diff(str(path), folder, "base")
    with pytest.raises(PatchError, match=r"cannot read .*: is a directory"):
        apply_diff(str(folder), folder, "base")
    with pytest.raises(PatchError, match=r"cannot read .*: no such file"):
        apply_diff(str(folder / "nothing.diff"), folder, "base")


def test_too_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    assert "is larger than" in refused(folder, edit("a/connector.py", "b/connector.py"))


def test_the_wrong_base(folder: Path) -> None:
    text = edit("a/connector.py", "b/connector.py").replace("-line 9\n", "-line nine\n")
    assert refused(folder, text) == (
        "/some.diff does not apply to base: connector.py reads otherwise around line 6; is it the right base?"
    )


def test_a_file_that_is_not_there(folder: Path) -> None:
    text = edit(f"a/{FOLDER}/missing.py", f"b/{FOLDER}/missing.py")
    assert refused(folder, text) == "/some.diff does not apply to base: it has no missing.py"


def test_a_new_file_that_is_there(folder: Path) -> None:
    text = git_header("store.py", "store.py", "new file mode 100644")
    text += diff_of("", "x = 1\n", "/dev/null", f"b/{FOLDER}/store.py")
    assert "store.py: already exists in working directory" in refused(folder, text)


def test_one_file_that_fits_and_one_that_does_not(folder: Path) -> None:
    text = edit("a/connector.py", "b/connector.py") + diff_of("other\n", "text\n", "a/store.py", "b/store.py")
    assert "does not apply to base: store.py reads otherwise" in refused(folder, text)


@pytest.mark.parametrize(
    "name",
    [
        f"{FOLDER}/../../../../escaped.py",
        f"../{FOLDER}/connector.py",
        "../escaped.py",
        "/etc/cron.d/escaped",
        f"/{FOLDER}/connector.py",
        "~/escaped.py",
        f"{FOLDER}\\..\\escaped.py",
        '"../escaped.py"',
    ],
)
def test_a_path_that_escapes(folder: Path, name: str) -> None:
    text = diff_of("", "x = 1\n", "/dev/null", name) + edit("a/connector.py", "b/connector.py")
    assert "is outside of any source tree; nothing was applied" in refused(folder, text)


@pytest.mark.parametrize("name", ["with blank.py", "a*.py", "-.py;x", "a//b.py"])
def test_a_strange_name(folder: Path, name: str) -> None:
    text = diff_of("", "x = 1\n", "/dev/null", f"b/{FOLDER}/{name}")
    assert "is no name of a Python source file" in refused(folder, text)


def test_a_name_with_control_characters(folder: Path) -> None:
    assert "control characters" in refused(folder, edit("a/connector.py\x1b[2J", "b/connector.py"))


@pytest.mark.parametrize(("mode", "what"), [("120000", "a link"), ("160000", "a link")])
def test_a_link(folder: Path, mode: str, what: str) -> None:
    text = git_header("store2.py", "store2.py", f"new file mode {mode}")
    text += diff_of("", "/etc/passwd", "/dev/null", f"b/{FOLDER}/store2.py")
    assert f"makes store2.py {what}, which is not applied" in refused(folder, text)


@pytest.mark.parametrize(
    "body",
    [
        f"Binary files a/{FOLDER}/store.py and b/{FOLDER}/store.py differ\n",
        "index 123..456 100644\nGIT binary patch\nliteral 5\nMcmZQzU|?imVqyRQ0RRI4\n\nliteral 0\nHcmV?d00001\n\n",
    ],
)
def test_a_binary_patch(folder: Path, body: str) -> None:
    text = git_header("store.py", "store.py") + body
    assert "changes store.py as a binary file, which is not applied" in refused(folder, text)


def test_a_move_into_the_folder(folder: Path) -> None:
    text = f"diff --git a/vllm/x.py b/{FOLDER}/x.py\nsimilarity index 50%\n"
    text += f"rename from vllm/x.py\nrename to {FOLDER}/x.py\n"
    text += diff_of("one\ntwo\n", "one\nthree\n", "a/vllm/x.py", f"b/{FOLDER}/x.py")
    assert "does not hold its text" in refused(folder, text)


def test_without_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "git is needed to apply" in refused(folder, edit("a/connector.py", "b/connector.py"))


# Targets with a patch.


def test_a_patched_target_is_a_copy(folder: Path, tmp_path: Path) -> None:
    diff = tmp_path / "some.diff"
    diff.write_text(
        edit("a/connector.py", "b/connector.py") + diff_of("1\n", "2\n", "a/setup.py", "b/setup.py")
    )
    (folder / "data.bin").write_bytes(b"\x00")
    (folder / "linked.py").symlink_to(diff)
    target = patched(resolve(str(folder), "0.32"), str(diff))
    copy = Path(target.spec.where)
    assert (copy / "connector.py").read_text() == EDITED
    assert (folder / "connector.py").read_text() == FILES["connector.py"]
    assert sorted(path.name for path in copy.iterdir()) == [
        "__init__.py",
        "connector.py",
        "linked.py",
        "store.py",
    ]
    assert not (copy / "linked.py").is_symlink()
    assert (target.words, target.title) == ((str(folder), "--patch", str(diff)), f"{folder} + {diff}")
    assert target.notes == (f"ignored in {diff}: setup.py",)
    assert target.profile == "0.32"
    del target
    assert not copy.exists()


def test_only_a_vllm_in_a_folder_can_be_patched(folder: Path) -> None:
    with pytest.raises(
        TargetError, match="a patch applies to a released, installed or checked-out vLLM, which impl is not"
    ):
        patched(resolve("impl"), "some.diff")


# Renames and copies as git writes them.

INSIDE, OUTSIDE = f"{FOLDER}/store.py", "vllm/elsewhere.py"


def git_diff(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> str:
    """What ``git diff`` says with renames and copies found, also among files that did not change."""
    root = tmp_path / "repository"

    def git(*words: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        command = ["git", "-C", str(root), *who, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    root.mkdir()
    git("init", "-q")
    for files in (before, after):
        for path in root.rglob("*.py"):
            path.unlink()
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        git("add", "-A")
        git("commit", "-qm", "next")
    return git("diff", "-M", "-C", "-C", "HEAD~1", "HEAD")


TREE = {f"{FOLDER}/{name}": text for name, text in FILES.items()} | {
    OUTSIDE: "".join(f"x{n} = {n}\n" for n in range(40))
}


def moved(old: str, new: str, text: str = "") -> dict[str, str]:
    return {
        (new if name == old else name): (each + text if name == old else each) for name, each in TREE.items()
    }


@pytest.mark.parametrize("text", ["", "more = 1\n"], ids=["whole", "changed"])
@pytest.mark.parametrize("copies", [False, True], ids=["renamed", "copied"])
@pytest.mark.parametrize("target", [f"{FOLDER}/helper.py", "vllm/away.py"])
def test_a_file_of_the_folder_is_renamed_or_copied(
    folder: Path, tmp_path: Path, target: str, copies: bool, text: str
) -> None:
    source = f"{FOLDER}/connector.py"
    after = {**TREE, target: TREE[source] + text} if copies else moved(source, target, text)
    diff = git_diff(tmp_path, TREE, after)
    assert ("copy from" if copies else "rename from") in diff
    (tmp_path / "repository").rename(folder.parent / "repository")
    (tmp_path / "some.diff").write_text(diff)
    apply_diff(str(tmp_path / "some.diff"), folder, "base")
    wanted = {
        name.removeprefix(f"{FOLDER}/"): each for name, each in after.items() if name.startswith(FOLDER)
    }
    assert {path.name: path.read_text() for path in folder.glob("*.py")} == wanted


@pytest.mark.parametrize("text", ["", "more = 1\n"], ids=["whole", "changed"])
@pytest.mark.parametrize("copies", [False, True], ids=["renamed", "copied"])
@pytest.mark.parametrize("target", [f"{FOLDER}/helper.py", f"{FOLDER}/connector.py"])
def test_a_file_from_elsewhere_is_not_nothing(
    folder: Path, tmp_path: Path, target: str, copies: bool, text: str
) -> None:
    """Its text is not in the diff, so that the change cannot be judged: a mistake, and not "nothing broken"."""
    before = {name: each for name, each in TREE.items() if name != target}
    after = {**before, target: TREE[OUTSIDE] + text}
    if not copies:
        del after[OUTSIDE]
    diff = git_diff(tmp_path, before, after)
    assert ("copy from" if copies else "rename from") in diff
    (tmp_path / "repository").rename(folder.parent / "repository")
    said = refused(folder, diff)
    assert f"moves a/{OUTSIDE} to {target.removeprefix(FOLDER + '/')}" in said
    assert said.endswith("does not hold its text")
