"""I38: paths are resolved, symlinks too, and opened under their root, whoever moves things meanwhile."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from lastgood.engine.tools import rooted_files
from lastgood.engine.tools.cancellation import StopSignal, WorkStopped
from lastgood.engine.tools.rooted_files import (
    Root,
    folder_under,
    make_folder_under,
    place_under,
    read_text_under,
    read_under,
    remove_folder_under,
    write_under,
)
from lastgood.engine.tools.tool import ToolFailed

SECRET = "outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Beside it, a folder with a secret whose name begins alike."""
    for folder in ("root/sub/deep", "root-beside"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "root-beside/secret").write_text(SECRET)
    (tmp_path / "root/file").write_text("inside")
    (tmp_path / "root/sub/file").write_text("below")
    return tmp_path / "root"


@pytest.fixture
def outside(root: Path) -> Path:
    return root.parent / "root-beside"


def read(root: Path, path: str) -> str:
    return read_text_under(root, path, 1000)


def write(root: Path, path: str, text: str) -> Path:
    return write_under(Root(root), path, text.encode(), StopSignal())


def snapshot(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() if path.is_file() else "" for path in sorted(folder.rglob("*"))}


# --- where a path leads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["file", "./file", "sub/../file", "sub/./../file", "//file".lstrip("/"), "sub//../file", "gone/../file"],
)
def test_I38_a_path_inside_is_found_however_it_is_spelled(root: Path, path: str) -> None:
    assert read(root, path) == "inside"
    assert read(root, f"{root}/{path}") == "inside"
    assert read(root, f"/{root}/{path}") == "inside"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../root-beside/secret",
        "sub/../../root-beside/secret",
        "./../root-beside/secret",
        "/etc/passwd",
        "/",
        "//etc/passwd",
        "{root}-beside/secret",
        "{root}/../root-beside/secret",
        "{root}/sub/../../root-beside/secret",
        "~/x/../../../etc/passwd",
    ],
)
def test_I38_a_path_outside_is_refused(root: Path, path: str) -> None:
    path = path.replace("{root}", str(root))
    before = snapshot(root.parent)
    for attempt in _attempts(root, path):
        with pytest.raises(ToolFailed, match="outside the working directory"):
            attempt()
    assert snapshot(root.parent) == before


def _attempts(root: Path, path: str) -> list[Callable[[], object]]:
    def listed() -> None:
        with folder_under(Root(root), path):
            pass

    return [
        lambda: read(root, path),
        lambda: write(root, path, "x"),
        lambda: make_folder_under(Root(root), path),
        lambda: remove_folder_under(Root(root), path),
        listed,
    ]


LINKS = {
    "absolute": "{outside}/secret",
    "relative": "../root-beside/secret",
    "folder/secret": "{outside}",
    "chain": "absolute",
    "sub/up": "../../root-beside/secret",
    "sub/deep/far": "../up",
    "detour": "sub/../../root-beside/secret",
    "system": "/etc/passwd",
    "prefix": "{root}-beside/secret",
    "loop": "loop",
}


@pytest.fixture
def linked(root: Path, outside: Path) -> Path:
    for name, target in LINKS.items():
        link = root / ("folder" if name == "folder/secret" else name)
        link.symlink_to(target.format(root=root, outside=outside))
    return root


@pytest.mark.parametrize("name", LINKS)
def test_I38_a_link_that_leads_out_is_refused(linked: Path, name: str) -> None:
    before = snapshot(linked.parent)
    with pytest.raises(ToolFailed, match=r"outside the working directory|too many symbolic links"):
        read(linked, name)
    with pytest.raises(ToolFailed, match=r"outside the working directory|too many symbolic links"):
        write(linked, name, "x")
    with pytest.raises(ToolFailed):
        make_folder_under(Root(linked), f"{name}/new")
    assert snapshot(linked.parent) == before


def test_I38_a_link_that_stays_inside_is_followed(root: Path) -> None:
    (root / "near").symlink_to("sub/file")
    (root / "absolute").symlink_to(root / "sub")
    (root / "sub/up").symlink_to("../file")
    (root / "sub/deep/chain").symlink_to("../../absolute/up")
    (root / "dots").symlink_to("./sub/deep/../.././file")
    assert [read(root, name) for name in ("near", "absolute/file", "sub/up", "sub/deep/chain", "dots")] == [
        "below",
        "below",
        "inside",
        "inside",
        "inside",
    ]
    assert write(root, "near", "new") == root / "sub/file"
    assert (root / "near").is_symlink()
    assert read(root, "sub/file") == "new"


def test_I38_a_dangling_link_inside_is_written_to_where_it_points(root: Path) -> None:
    (root / "dangling").symlink_to("sub/new")
    assert write(root, "dangling", "x") == root / "sub/new"
    assert (root / "dangling").is_symlink()


def test_the_root_may_itself_be_a_link(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    (root / "back").symlink_to(root / "file")
    for path in ("file", f"{link}/file", f"{root}/file", "back"):
        assert read(link, path) == "inside"


def test_removing_a_folder_does_not_follow_its_last_link(root: Path) -> None:
    (root / "empty").mkdir()
    (root / "link").symlink_to("empty")
    with pytest.raises(ToolFailed):
        remove_folder_under(Root(root), "link")
    assert (root / "empty").is_dir()
    remove_folder_under(Root(root), "empty")
    assert not (root / "empty").exists()
    with pytest.raises(ToolFailed, match="itself cannot be removed"):
        remove_folder_under(Root(root), ".")
    with pytest.raises(ToolFailed, match="not empty"):
        remove_folder_under(Root(root), "sub")


# --- somebody moves things meanwhile ---------------------------------------------------------------------


#: Exchanges two names for ever, in one step each: the name is always there, now a thing and now a link.
_SWAPPER = """
import ctypes, os, sys
exchange = ctypes.CDLL(None).renameat2
one, other = (os.fsencode(name) for name in sys.argv[1:])
print("ready", flush=True)
while exchange(-100, one, -100, other, 2) == 0:
    pass
"""


@contextmanager
def swapping(path: Path, target: Path) -> Iterator[None]:
    """Somebody who swaps what is there for a link to the target, as fast as he can, on another core."""
    link = path.with_name("link")
    link.symlink_to(target)
    command = [sys.executable, "-c", _SWAPPER, str(path), str(link)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        assert swapper.stdout.readline() == b"ready\n"
        try:
            yield
            assert swapper.poll() is None, "the swapper gave up, so nothing was tested"
        finally:
            swapper.kill()


#: On a busy machine the swapper may get no time for a while; then the race is not over yet.
MOST_SECONDS = 60.0


def outcomes(work: Callable[[], object], times: int, expected: int = 1) -> set[str]:
    """What came of doing it so many times, and then on until there were as many different outcomes."""
    found: set[str] = set()
    ends = time.monotonic() + MOST_SECONDS
    done = 0
    while done < times or (len(found) < expected and time.monotonic() < ends):
        done += 1
        try:
            found.add(str(work()))
        except (ToolFailed, OSError) as error:
            found.add(type(error).__name__)
    return found


@pytest.mark.parametrize(("moved", "path"), [("sub", "sub/secret"), ("file", "file")])
def test_I38_swapping_a_name_for_a_link_never_leads_a_reader_out(
    root: Path, outside: Path, moved: str, path: str
) -> None:
    (root / "sub/secret").write_text("inside")

    def looking_first() -> str:
        return (root / path).read_text() if (root / path).resolve().is_relative_to(root) else ""

    with swapping(root / moved, outside if moved == "sub" else outside / "secret"):
        assert outcomes(lambda: read(root, path), 2000, expected=2) == {"inside", "ToolFailed"}
        # Whoever looks first and opens then is caught by this race, or this test would prove nothing.
        assert any(SECRET in outcomes(looking_first, 100) for _ in range(100))


@pytest.mark.parametrize("moved", ["sub", "sub/deep"])
def test_I38_swapping_a_folder_for_a_link_never_leads_a_writer_out(
    root: Path, outside: Path, moved: str
) -> None:
    before = snapshot(outside)
    bounds = Root(root)
    with swapping(root / moved, outside):
        for path in (f"{moved}/new", f"{moved}/more/new", f"{moved}/secret"):
            found = outcomes(partial(write, root, path, "x"), 200, expected=2)
            assert found == {"ToolFailed", str(root / path)}
        made = outcomes(lambda: make_folder_under(bounds, f"{moved}/made"), 500, expected=2)
        assert made == {"ToolFailed", "None"}
        outcomes(lambda: remove_folder_under(bounds, f"{moved}/made"), 500)
    assert snapshot(outside) == before


def test_I38_a_file_that_is_swapped_for_a_link_is_never_written_through(root: Path, outside: Path) -> None:
    (root / "file").chmod(0o600)
    with swapping(root / "file", outside / "secret"):
        outcomes(lambda: write(root, "file", "x"), 200)
    assert (outside / "secret").read_text() == SECRET


# --- what is not a file ----------------------------------------------------------------------------------


def test_pipes_sockets_and_devices_are_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(ToolFailed, match="not a regular file"):
                read(root, name)  # opening a pipe without a writer would wait for ever
            with pytest.raises(ToolFailed, match="not a regular file"):
                write(root, name, "x")
    with pytest.raises(ToolFailed, match="outside"):
        read(root, "null")


@pytest.mark.parametrize("path", ["sub", ".", "", "sub/"])
def test_a_folder_is_not_a_file(root: Path, path: str) -> None:
    with pytest.raises(ToolFailed, match="it is a folder"):
        read(root, path)
    with pytest.raises(ToolFailed, match="it is a folder"):
        write(root, path, "x")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gone", "gone: not found"),
        ("gone/file", "gone/file: not found"),
        ("file/below", "a part of the path is not a folder"),
        ("x" * 300, "the name is too long"),
        ("x/" * 3000, "the name is too long|not found"),
        ("a\x00b", "cannot contain a NUL"),
    ],
)
def test_what_goes_wrong_is_said(root: Path, path: str, words: str) -> None:
    with pytest.raises(ToolFailed, match=words):
        read(root, path)


def test_a_path_of_too_many_folders_is_refused_and_leaves_no_file_open(root: Path) -> None:
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ToolFailed, match="folders deep"):
        write(root, "d/" * 200 + "file", "x")
    assert len(os.listdir("/proc/self/fd")) == open_files


@pytest.mark.parametrize("name", ["ein ü 🎉", "two\nlines", " ", "-rf", "*", "a:b", "..."])
def test_names_are_just_names(root: Path, name: str) -> None:
    write(root, f"sub/{name}", name)
    assert read(root, f"sub/{name}") == name
    assert (root / "sub" / name).read_text() == name


# --- what is open and closed -----------------------------------------------------------------------------


def test_a_closed_folder_is_closed_however_one_gets_there(root: Path) -> None:
    (root / "sub/link").symlink_to("deep")
    (root / "alias").symlink_to("sub")
    (root / "sub/deep/file").write_text("x")
    closed = Root(root, closed=("alias/deep",))  # by whatever name it was closed
    for path in ("sub/deep/file", "sub/link/file", "alias/deep/file", "sub/deep/new", "sub/deep/new/file"):
        with pytest.raises(ToolFailed, match=r"may not access|not found"):
            read_under(closed, path, 10)
        with pytest.raises(ToolFailed, match="may not access"):
            write_under(closed, path, b"y", StopSignal())
    assert sorted(path.name for path in (root / "sub/deep").iterdir()) == ["file"]
    assert read_under(closed, "sub/file", 10).data == b"below"


def test_what_is_not_listed_as_open_is_closed(root: Path) -> None:
    only = Root(root, open=("sub", "/etc", ".."), closed=("sub/deep",))
    assert read_under(only, "sub/file", 10).data == b"below"
    assert read_under(Root(root, open=(".",)), "file", 10).data == b"inside"
    narrow = Root(root, open=("sub",), closed=("sub/deep",))
    for path in ("file", ".", "subway/file", "sub/deep/new"):
        with pytest.raises(ToolFailed, match=r"not open|folder"):
            write_under(narrow, path, b"x", StopSignal())
    with pytest.raises(ToolFailed, match="outside"):
        read_under(only, "/etc/passwd", 10)
    assert not (root / "subway").exists()


# --- writing ---------------------------------------------------------------------------------------------


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".lastgood-*")]


def test_a_write_keeps_the_mode_and_makes_missing_folders(root: Path) -> None:
    (root / "file").chmod(0o750)
    write(root, "file", "new")
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0o750
    write(root, "new/folders/file", "x")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((root / "new/folders/file").stat().st_mode) == 0o666 & ~umask
    assert drafts(root) == []


def test_a_reader_sees_the_old_file_or_the_new_one_and_nothing_between(root: Path) -> None:
    old, new = "a" * 300_000, "b" * 300_000
    write(root, "file", old)
    found: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            found.add((root / "file").read_text())

    reader = threading.Thread(target=look)
    reader.start()
    for text in (new, old) * 20:
        write(root, "file", text)
    done.set()
    reader.join()
    assert found <= {old, new}


def test_a_stopped_write_changes_nothing_and_leaves_nothing(root: Path) -> None:
    stop = StopSignal()
    stop.set()
    with pytest.raises(WorkStopped):
        write_under(Root(root), "file", b"new", stop)
    assert read(root, "file") == "inside"
    assert drafts(root) == []


def test_a_full_disk_is_said_and_leaves_the_old_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    monkeypatch.setattr(os, "fsync", full)  # where a full disk often is found out
    with pytest.raises(ToolFailed, match="the disk is full"):
        write(root, "file", "new")
    assert read(root, "file") == "inside"
    assert drafts(root) == []


def test_a_changed_version_is_not_overwritten(root: Path) -> None:
    version = read_under(Root(root), "file", 100).version
    (root / "file").write_text("theirs")
    with pytest.raises(ToolFailed, match="changed since it was read"):
        write_under(Root(root), "file", b"ours", StopSignal(), version)
    assert read(root, "file") == "theirs"
    (root / "file").unlink()
    with pytest.raises(ToolFailed, match="changed since it was read"):
        write_under(Root(root), "file", b"ours", StopSignal(), version)
    assert drafts(root) == []


def _as_nobody(work: Callable[[], None]) -> bool:
    """In a child that is not root, for whom no permission counts. Whether it did not raise."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def place_for_all() -> Iterator[Path]:
    """Not below pytest's own folder, which is for its owner alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_file_or_folder_that_may_not_be_written_is_left_alone(place_for_all: Path) -> None:
    tmp_path = place_for_all
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked/file").write_text("old")
    (tmp_path / "locked/file").chmod(0o666)
    (tmp_path / "free").mkdir()
    (tmp_path / "free").chmod(0o777)
    (tmp_path / "free/file").write_text("old")
    (tmp_path / "free/file").chmod(0o444)
    (tmp_path / "blind").mkdir()
    (tmp_path / "blind/file").write_text("seen")
    (tmp_path / "blind").chmod(0o711)

    def work() -> None:
        for path in ("locked/file", "free/file", "locked/new"):
            with pytest.raises(ToolFailed, match="permission denied"):
                write(tmp_path, path, "new")
        # Passing through a folder needs no right to list it.
        assert read(tmp_path, "blind/file") == "seen"

    assert _as_nobody(work)
    assert (tmp_path / "free/file").read_text() == "old"


def test_a_place_says_where_it_really_is(root: Path) -> None:
    (root / "link").symlink_to("sub")
    with place_under(Root(root), "link/file") as place:
        assert place.path == root / "sub/file"


def test_without_a_way_to_only_pass_through_folders_it_works_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooted_files, "_PASS", rooted_files._LIST)
    assert read(root, "sub/file") == "below"
