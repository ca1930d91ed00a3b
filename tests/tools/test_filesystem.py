"""The tools for files, as a model meets them."""

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.tools import directory_listing, filesystem, text_files
from lastgood.engine.tools.directory_listing import MOST_SHOWN
from lastgood.engine.tools.filesystem import READ_BYTES
from lastgood.engine.tools.rooted_files import Root
from lastgood.model.agents import Effect, OnUnknown
from tests.polls import eventually
from tests.tools.toolkit import Kit

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src/inner").mkdir(parents=True)
    (tmp_path / "readme").write_text("one\ntwo\nthree\n")
    (tmp_path / "src/main.py").write_text("import os\nprint('needle')\n")
    (tmp_path / "src/inner/other.py").write_text("# no match\n# Needle and needle\n")
    return tmp_path


@pytest.fixture
def kit(root: Path) -> Kit:
    return Kit("filesystem", root)


def test_each_tool_says_what_it_does_and_whether_it_may_be_repeated() -> None:
    look, change = Effect.SAFE, Effect.DESTRUCTIVE
    repeat, fail = OnUnknown.REPEAT, OnUnknown.FAIL
    tools = Kit("filesystem", None).tools
    assert {name: (tool.effect, tool.on_unknown) for name, tool in tools.items()} == {
        "read_file": (look, repeat),
        "read_multiple_files": (look, repeat),
        "list_directory": (look, repeat),
        "directory_tree": (look, repeat),
        "search_files_content": (look, repeat),
        "write_file": (change, repeat),
        "edit_file": (change, fail),
        "create_directory": (change, repeat),
        "remove_directory": (change, fail),
    }
    formatted = Kit("filesystem", None, post_edit=[{"path": "*", "cmd": "true"}]).tools
    assert formatted["write_file"].on_unknown is fail


# --- reading ---------------------------------------------------------------------------------------------


async def test_a_file_is_read(kit: Kit, root: Path) -> None:
    assert await kit("read_file", path="readme") == "one\ntwo\nthree\n"
    assert await kit("read_file", path=str(root / "readme")) == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        (2, 1, "two\n[lines 2 to 2 of 4]"),
        (2, None, "two\nthree\n"),
        (None, 2, "one\ntwo\n[lines 1 to 2 of 4]"),
        (1, 99, "one\ntwo\nthree\n"),
    ],
)
async def test_lines_of_a_file_are_read(kit: Kit, line: int | None, limit: int | None, expected: str) -> None:
    assert await kit("read_file", path="readme", line=line, limit=limit) == expected


async def test_a_line_that_is_not_there_is_said(kit: Kit) -> None:
    assert "has only 4 lines" in await kit.fails("read_file", path="readme", line=9)
    assert "from 1" in await kit.fails("read_file", path="readme", line=0)


async def test_I40_of_a_large_file_the_beginning_is_shown_and_the_rest_said(kit: Kit, root: Path) -> None:
    (root / "large").write_text("x" * (READ_BYTES + 5) + "\n" + "y" * (READ_BYTES + 5))
    said = await kit("read_file", path="large")
    assert said == "x" * READ_BYTES + (
        f"\n[large has {2 * READ_BYTES + 11} bytes; only the first {READ_BYTES} are shown]"
    )
    said = await kit("read_file", path="large", line=2)
    assert said.startswith("y" * READ_BYTES + "\n[only the first")


async def test_several_files_are_read_and_each_says_what_is_wrong_with_it(kit: Kit, root: Path) -> None:
    (root / "binary").write_bytes(b"\x7fELF\x00")
    said = await kit("read_multiple_files", paths=["readme", "gone", "binary", "/etc/passwd"])
    assert said.startswith("=== readme ===\none\ntwo\nthree\n\n\n=== gone ===\nerror: gone: not found\n\n")
    assert "error: binary is not a text file (5 bytes)" in said
    assert "error: /etc/passwd is outside the working directory" in said
    found = json.loads(await kit("read_multiple_files", paths=["readme"], json=True))
    assert found == [{"path": "readme", "content": "one\ntwo\nthree\n"}]


async def test_I40_several_files_have_together_what_one_may_have(kit: Kit, root: Path) -> None:
    (root / "large").write_text("x" * (READ_BYTES - 10))
    said = await kit("read_multiple_files", paths=["large"] * 20)
    assert len(said) < READ_BYTES + 5000


async def test_binary_files_are_not_shown(kit: Kit, root: Path) -> None:
    (root / "binary").write_bytes(b"\x89PNG\x00\x01")
    (root / "latin").write_bytes("fünf".encode("latin-1"))
    assert "not a text file (6 bytes)" in await kit.fails("read_file", path="binary")
    assert await kit("read_file", path="latin") == "f\ufffdnf"


# --- writing ---------------------------------------------------------------------------------------------


async def test_a_file_is_written_with_its_folders(kit: Kit, root: Path) -> None:
    said = await kit("write_file", path="new/deep/file", content="fünf")
    assert said == "File written successfully: new/deep/file (5 bytes)"
    assert (root / "new/deep/file").read_text() == "fünf"
    await kit("write_file", path="new/deep/file", content="")
    assert (root / "new/deep/file").read_text() == ""


async def test_I38_nothing_is_written_outside(kit: Kit, root: Path) -> None:
    for path in ("../x", "/tmp/lastgood-x", "src/../../x"):
        assert "outside" in await kit.fails("write_file", path=path, content="x")


async def test_edits_are_made_one_after_another(kit: Kit, root: Path) -> None:
    edits = [{"oldText": "one", "newText": "two-and-a-half"}, {"oldText": "two-and", "newText": "2"}]
    said = await kit("edit_file", path="readme", edits=edits)
    assert said == (
        "File edited successfully. Changes:\nEdit 1: Replaced 3 characters\nEdit 2: Replaced 7 characters"
    )
    assert (root / "readme").read_text() == "2-a-half\ntwo\nthree\n"
    said = await kit("edit_file", path="readme", edits=[{"oldText": "\ntwo", "newText": ""}])
    assert said == "File edited successfully. Replaced 4 characters"


@pytest.mark.parametrize(
    ("old", "words"),
    [("zwei", "Edit 2 failed: old text not found"), ("t", "found 2 times"), ("", "oldText is empty")],
)
async def test_of_edits_all_are_made_or_none(kit: Kit, root: Path, old: str, words: str) -> None:
    edits = [{"oldText": "one", "newText": "1"}, {"oldText": old, "newText": "2"}]
    assert words in await kit.fails("edit_file", path="readme", edits=edits)
    assert (root / "readme").read_text() == "one\ntwo\nthree\n"


async def test_line_ends_and_bytes_that_are_no_text_are_not_damaged(kit: Kit, root: Path) -> None:
    (root / "dos").write_bytes(b"a\r\nb\r\n")
    await kit("edit_file", path="dos", edits=[{"oldText": "b", "newText": "c"}])
    assert (root / "dos").read_bytes() == b"a\r\nc\r\n"
    (root / "latin").write_bytes(b"f\xfcnf")
    edit = [{"oldText": "nf", "newText": "x"}]
    assert "not UTF-8" in await kit.fails("edit_file", path="latin", edits=edit)
    assert (root / "latin").read_bytes() == b"f\xfcnf"


async def test_a_file_that_is_too_large_is_not_edited(
    kit: Kit, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "EDIT_BYTES", 5)
    assert "up to 5 can be edited" in await kit.fails(
        "edit_file", path="readme", edits=[{"oldText": "one", "newText": "1"}]
    )


async def test_folders_are_made_and_removed(kit: Kit, root: Path) -> None:
    said = await kit("create_directory", paths=["a/b", "a/b", "c"])
    assert said.splitlines() == [f"Directory created successfully: {path}" for path in ("a/b", "a/b", "c")]
    assert await kit("remove_directory", paths=["a/b", "c"]) == (
        "Directory removed successfully: a/b\nDirectory removed successfully: c"
    )
    assert not (root / "c").exists()


async def test_steps_before_a_failure_are_reported(kit: Kit, root: Path) -> None:
    (root / "empty").mkdir()
    said = await kit.fails("remove_directory", paths=["empty", "src", "never"])
    assert said == (
        "Directory removed successfully: empty\nDirectory not removed: src: the folder is not empty"
    )
    assert "not created: readme" in await kit.fails("create_directory", paths=["readme"])


async def test_an_edit_does_not_undo_concurrent_changes(
    kit: Kit, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_disk, go_on = threading.Event(), threading.Event()

    def slow(file: int) -> None:
        at_disk.set()
        go_on.wait()

    monkeypatch.setattr(os, "fsync", slow)
    running = asyncio.create_task(
        kit.fails("edit_file", path="readme", edits=[{"oldText": "one", "newText": "1"}])
    )
    await asyncio.to_thread(at_disk.wait)
    (root / "readme").write_text("one and theirs\n")
    go_on.set()
    assert "changed since it was read; read it again" in await running
    assert (root / "readme").read_text() == "one and theirs\n"


async def test_a_cancelled_write_has_stopped_when_the_cancellation_comes_back(
    kit: Kit, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow just before the file would appear; the turn is cancelled; then the disk is done."""
    at_disk, go_on = threading.Event(), threading.Event()

    def slow(file: int) -> None:
        at_disk.set()
        go_on.wait()

    monkeypatch.setattr(os, "fsync", slow)
    running = asyncio.create_task(kit("write_file", path="readme", content="new"))
    await asyncio.to_thread(at_disk.wait)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (root / "readme").read_text() == "one\ntwo\nthree\n"
    assert sorted(os.listdir(root)) == ["readme", "src"]


# --- after an edit ---------------------------------------------------------------------------------------


async def test_the_operators_commands_follow_an_edit(root: Path) -> None:
    after = [
        {"path": "*.py", "cmd": 'echo "checked $path $file" | sed "s|$PWD/||g"'},
        {"path": "src/*", "cmd": "echo bad; exit 2"},
        {"path": "*.go", "cmd": "echo never"},
    ]
    kit = Kit("filesystem", root, post_edit=after)
    said = await kit("write_file", path="src/main.py", content="x")
    assert said == (
        "File written successfully: src/main.py (1 bytes)\n"
        f"After it, `{after[0]['cmd']}`: checked src/main.py src/main.py\n"
        f"After it, `{after[1]['cmd']}`: Error executing command: exit status 2\nOutput: bad"
    )
    said = await kit("edit_file", path="readme", edits=[{"oldText": "one", "newText": "1"}])
    assert "After it" not in said


async def test_commands_of_an_untrusted_file_do_not_run_after_an_edit(root: Path) -> None:
    after = [{"path": "*", "cmd": "touch pwned"}]
    kit = Kit("filesystem", root, trusted=False, post_edit=after)
    assert "After it" not in await kit("write_file", path="file", content="x")
    assert not (root / "pwned").exists()


# --- looking around --------------------------------------------------------------------------------------


async def test_a_folder_is_listed(kit: Kit, root: Path) -> None:
    (root / "link").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    (root / "two\nlines").touch()
    assert (await kit("list_directory", path=".")).splitlines() == [
        "LINK link",
        "OTHER pipe",
        "FILE readme",
        "DIR  src",
        'FILE "two\\nlines"',
    ]


async def test_an_empty_folder_says_so(kit: Kit, root: Path) -> None:
    (root / "empty").mkdir()
    assert await kit("list_directory", path="empty") == "Directory is empty: empty"
    (root / "empty/.git").mkdir()
    assert await kit("list_directory", path="empty") == (
        "Directory has no visible entries (1 hidden by ignore patterns): empty"
    )


async def test_I40_of_many_entries_some_are_shown_and_the_rest_counted(kit: Kit, root: Path) -> None:
    for number in range(MOST_SHOWN + 7):
        (root / f"src/{number:05}").touch()
    said = await kit("list_directory", path="src")
    assert len(said.splitlines()) == MOST_SHOWN + 1
    assert said.endswith("[9 more entries not shown]")
    tree = json.loads(await kit("directory_tree", path="."))
    assert [child["name"] for child in tree["children"]] == ["readme", "src"]
    assert tree["children"][1]["not_shown"] == MOST_SHOWN + 9 - (MOST_SHOWN - 3)


async def test_a_tree_is_drawn_without_following_links(kit: Kit, root: Path) -> None:
    (root / "src/up").symlink_to("..")
    assert json.loads(await kit("directory_tree", path="src")) == {
        "name": "src",
        "type": "directory",
        "children": [
            {"name": "inner", "type": "directory", "children": [{"name": "other.py", "type": "file"}]},
            {"name": "main.py", "type": "file"},
            {"name": "up", "type": "symlink"},
        ],
    }
    assert "not found" in await kit.fails("directory_tree", path="gone")


async def test_I38_nothing_outside_is_listed(kit: Kit, root: Path) -> None:
    (root / "out").symlink_to("/etc")
    for tool in ("list_directory", "directory_tree"):
        for path in ("..", "/etc", "out", "out/"):
            assert "outside" in await kit.fails(tool, path=path)


async def test_what_git_ignores_is_left_out_unless_the_file_wants_it(root: Path) -> None:
    (root / ".gitignore").write_text("*.log\n/build/\n")
    (root / "src/.gitignore").write_text("!keep.log\ninner\n")
    for path in ("a.log", "src/b.log", "src/keep.log"):
        (root / path).write_text("needle")
    for path in ("build", "src/build", ".git"):
        (root / path).mkdir()
        (root / path / "needle").write_text("needle")
    kit = Kit("filesystem", root)
    assert (await kit("list_directory", path=".")).splitlines() == [
        "FILE .gitignore",
        "FILE readme",
        "DIR  src",
        "[3 entries hidden by ignore patterns]",
    ]
    tree = json.loads(await kit("directory_tree", path="."))
    assert [child["name"] for child in tree["children"][2]["children"]] == [
        ".gitignore",
        "build",
        "keep.log",
        "main.py",
    ]
    found = await kit("search_files_content", path=".", query="needle")
    assert [line.split(":")[0] for line in found.splitlines()] == [
        "src/build/needle",
        "src/keep.log",
        "src/main.py",
    ]
    everything = Kit("filesystem", root, ignore_vcs=False)
    assert "FILE a.log" in await everything("list_directory", path=".")
    assert "build/needle" in await everything("search_files_content", path=".", query="needle")


async def test_folders_can_be_opened_and_closed_to_the_tools(root: Path) -> None:
    (root / "src/secret").mkdir()
    (root / "src/secret/file").write_text("needle")
    kit = Kit("filesystem", root, allow_list=["./src", "~/nowhere"], deny_list=["src/secret", "$HIDDEN"],
              environment={"HOME": str(root), "HIDDEN": "src/inner"})  # fmt: skip
    assert "may not access" in await kit.fails("read_file", path="readme")
    assert "may not access" in await kit.fails("read_file", path="src/secret/file")
    assert "may not access" in await kit.fails("list_directory", path=".")
    assert (await kit("list_directory", path="src")).splitlines()[0] == "FILE main.py"
    found = await kit("search_files_content", path="src", query="needle")
    assert found == "src/main.py:2:8: print('needle')"
    tree = json.loads(await kit("directory_tree", path="src"))
    assert [child["name"] for child in tree["children"]] == ["main.py"]


# --- searching -------------------------------------------------------------------------------------------


MAIN, OTHER = "src/main.py:2:8: print('needle')", "src/inner/other.py:2:14: # Needle and needle"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"query": "needle"}, [OTHER, MAIN]),
        ({"query": "[Nn]eedle$", "is_regex": True}, [OTHER]),
        ({"query": "[Nn]eedle$"}, ["No results found"]),
        ({"query": "needle", "path": "src/inner"}, [OTHER]),
        ({"query": "needle", "excludePatterns": ["inner"]}, [MAIN]),
        ({"query": "needle", "excludePatterns": ["src/inner/*"]}, [MAIN]),
        ({"query": "needle", "excludePatterns": ["*.py"]}, ["No results found"]),
    ],
)
async def test_text_is_found(kit: Kit, arguments: dict[str, Any], expected: list[str]) -> None:
    assert (await kit("search_files_content", **{"path": ".", **arguments})).splitlines() == expected


async def test_a_long_line_is_shown_around_the_match(kit: Kit, root: Path) -> None:
    (root / "long").write_text("a" * 500 + "needle" + "b" * 500)
    found = await kit("search_files_content", path=".", query="needle", excludePatterns=["src"])
    assert found == f"long:1:501: {'a' * 20}needle{'b' * 20}"


async def test_binary_files_and_links_are_not_searched(kit: Kit, root: Path) -> None:
    (root / "binary").write_bytes(b"\x00needle")
    (root / "link").symlink_to("/etc/passwd")
    (root / "folder").symlink_to("/etc")
    assert (
        await kit("search_files_content", path=".", query="root:", excludePatterns=["src"])
        == "No results found"
    )
    assert "binary" not in await kit("search_files_content", path=".", query="needle")


async def test_I40_of_many_matches_some_are_shown_and_it_is_said(kit: Kit, root: Path) -> None:
    (root / "many").write_text("needle\n" * 1000)
    found = (
        await kit("search_files_content", path=".", query="needle", excludePatterns=["src"])
    ).splitlines()
    assert len(found) == 501
    assert found[-1].startswith("[more than 500 matches")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"query": "("}, "Invalid regex pattern"),
        ({"query": "a{99999999999}"}, "Invalid regex pattern"),
        ({"query": ""}, "the query is empty"),
        ({"path": "gone"}, "gone: not found"),
        ({"path": "../.."}, "outside"),
        ({"query": "x" * 300_000}, "too long"),
    ],
)
async def test_a_question_that_makes_no_sense_is_explained(
    kit: Kit, arguments: dict[str, Any], words: str
) -> None:
    asked = {"path": ".", "query": "x", "is_regex": True, **arguments}
    assert words in await kit.fails("search_files_content", **asked)


async def test_I40_an_endless_search_is_ended_and_blocks_no_other(
    kit: Kit, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "SEARCH_SECONDS", 1.0)
    (root / "trap").write_text("a" * 40 + "!")
    running = asyncio.create_task(
        kit.fails("search_files_content", path=".", query="(a|aa)+$", is_regex=True)
    )
    beats = 0

    def beat() -> bool:
        nonlocal beats
        beats += 1
        return running.done()

    await eventually(beat)
    assert "timed out" in await running
    assert beats > 3, "the event loop waited for the search"


async def test_I41_a_search_sees_no_variable_of_the_server(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python obeys many variables; none of them may come from the working directory or the server."""
    (root / "json.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.setenv("PYTHONPATH", str(root))
    kit = Kit("filesystem", root, environment={"PYTHONPATH": str(root)})
    assert await kit("search_files_content", path="src", query="zzz") == "No results found"


def test_an_unreadable_folder_is_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(folder: int, name: str) -> int:
        raise PermissionError

    monkeypatch.setattr(directory_listing, "open_folder_at", locked)
    found = directory_listing.walk(Root(root), ".", True, lambda path: False)
    assert [path for _, path, _ in found] == ["readme"]
