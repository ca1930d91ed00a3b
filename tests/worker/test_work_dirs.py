"""Working directories: the worker's own ones, and those of its owner, which it only enters if it may."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from lastgood.worker.work_dirs import WorkDirRefused, WorkDirs
from tests.polls import a_few_rounds, eventually

DAY = 86400.0


def test_an_own_directory_is_private_new_each_time_and_found_again(tmp_path: Path) -> None:
    dirs = WorkDirs(tmp_path / "root")
    first, second = dirs.create("session"), dirs.create("session")
    assert first.path != second.path
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700
    found = WorkDirs(tmp_path / "root").find(str(first.path))
    assert (found.path, found.is_owned, found.is_new) == (first.path, True, False)


def test_without_allow_dir_no_folder_of_the_owner_is_entered(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with pytest.raises(WorkDirRefused, match="--allow-dir"):
        WorkDirs(tmp_path / "root").find(str(tmp_path / "project"))


def test_a_folder_at_or_below_an_allowed_one_is_entered(tmp_path: Path) -> None:
    below = tmp_path / "projects" / "a" / "b"
    below.mkdir(parents=True)
    dirs = WorkDirs(tmp_path / "root", [tmp_path / "projects"])
    assert dirs.find(str(below)).path == below
    assert not dirs.find(str(tmp_path / "projects")).is_owned


@pytest.mark.parametrize(
    "path", ["../outside", "link", "link/deeper", "missing", "file", "..", "a/../../outside"]
)
def test_paths_that_lead_outside_are_refused(tmp_path: Path, path: str) -> None:
    allowed, outside = tmp_path / "projects", tmp_path / "outside"
    (allowed / "a").mkdir(parents=True)
    (outside / "deeper").mkdir(parents=True)
    (allowed / "link").symlink_to(outside)
    (allowed / "file").write_text("x")
    dirs = WorkDirs(tmp_path / "root", [allowed])
    with pytest.raises(WorkDirRefused):
        dirs.find(str(allowed / path))


def test_the_root_of_the_worker_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(WorkDirRefused, match="contain one another"):
        WorkDirs(tmp_path / "root", [tmp_path])
    dirs = WorkDirs(tmp_path / "root")
    for path in (tmp_path / "root", tmp_path / "root" / "work", dirs.create("s").path / ".."):
        with pytest.raises(WorkDirRefused):
            dirs.find(str(path))


def test_a_link_in_place_of_an_own_directory_is_refused(tmp_path: Path) -> None:
    dirs = WorkDirs(tmp_path / "root")
    own = dirs.create("s").path
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(WorkDirRefused):
        dirs.find(str(own))


@pytest.mark.parametrize(
    ("first", "second", "is_free"),
    [
        ("p", "p", False),
        ("p", "p/sub", False),
        ("p/sub/deep", "p", False),
        ("p/sub", "p/other", True),
        ("p/sub", "p/sub-2", True),
    ],
)
def test_runs_in_a_folder_and_below_it_exclude_each_other_also_of_two_workers(
    tmp_path: Path, first: str, second: str, is_free: bool
) -> None:
    for folder in ("p/sub/deep", "p/other", "p/sub-2"):
        (tmp_path / folder).mkdir(parents=True)
    one = WorkDirs(tmp_path / "root", [tmp_path / "p"])
    other = WorkDirs(tmp_path / "other", [tmp_path / second])

    async def both() -> None:
        waited: list[Path] = []
        here, there = one.find(str(tmp_path / first)), other.find(str(tmp_path / second))
        async with one.locked(here):
            locking = other.locked(there, lambda work_dir: waited.append(work_dir.path))
            entering = asyncio.create_task(locking.__aenter__())
            await eventually(lambda: entering.done() or waited)
            assert entering.done() is is_free
        await asyncio.wait_for(entering, 10)
        await locking.__aexit__(None, None, None)

    asyncio.run(both())


def test_who_waits_for_a_directory_gets_the_one_that_took_its_place(tmp_path: Path) -> None:
    dirs = WorkDirs(tmp_path / "root")
    old, newer = dirs.create("s"), dirs.create("s")
    waited: list[Path] = []

    async def both() -> None:
        locking = dirs.locked(old, lambda work_dir: waited.append(work_dir.path))
        async with dirs.locked(newer):
            async with dirs.locked(old):
                entering = asyncio.create_task(locking.__aenter__())
                await eventually(lambda: waited)
                dirs.replace(old, newer)
            seen = len(waited)
            await eventually(lambda: entering.done() or len(waited) > seen + 1)
            assert not entering.done(), "the run that replaced it still works there"
        await asyncio.wait_for(entering, 10)

    asyncio.run(both())


def test_a_directory_that_is_deleted_while_a_run_waits_for_it_is_refused(tmp_path: Path) -> None:
    dirs = WorkDirs(tmp_path / "root")
    work_dir = dirs.create("s")
    waited: list[Path] = []

    async def both() -> None:
        async with dirs.locked(work_dir):
            locking = dirs.locked(work_dir, lambda work_dir: waited.append(work_dir.path))
            entering = asyncio.create_task(locking.__aenter__())
            await eventually(lambda: waited)
            work_dir.path.rmdir()
        with pytest.raises(WorkDirRefused, match="deleted or moved meanwhile"):
            await asyncio.wait_for(entering, 10)

    asyncio.run(both())


def test_a_second_run_in_one_folder_waits_for_the_first(tmp_path: Path) -> None:
    dirs = WorkDirs(tmp_path / "root")
    work_dir = dirs.create("s")

    async def both() -> None:
        async with dirs.locked(work_dir):
            second = asyncio.create_task(dirs.locked(work_dir).__aenter__())
            await a_few_rounds()
            assert not second.done()
        await asyncio.wait_for(second, 10)

    asyncio.run(both())


def test_unused_directories_are_deleted_by_age_and_state(tmp_path: Path) -> None:
    dirs = WorkDirs(tmp_path / "root")
    saved, unsaved, used, locked = (dirs.create(name) for name in "abcd")
    for one, is_saved in ((saved, True), (unsaved, False), (locked, True)):
        dirs.used(one, is_saved=is_saved)
    now = used.path.stat().st_mtime

    async def clean_up(after: float) -> list[Path]:
        async with dirs.locked(locked):
            return dirs.clean_up(14 * DAY, now + after)

    assert asyncio.run(clean_up(13 * DAY)) == []
    assert asyncio.run(clean_up(15 * DAY)) == [saved.path]
    assert set(asyncio.run(clean_up(57 * DAY))) == {unsaved.path, used.path}
    assert locked.path.exists()


def test_clean_up_does_not_follow_links(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("mine")
    dirs = WorkDirs(tmp_path / "root")
    own = dirs.create("s")
    (own.path / "link").symlink_to(project)
    os.symlink(project, tmp_path / "root" / "work" / "planted")
    dirs.clean_up(1, own.path.stat().st_mtime + 1000)
    assert (project / "mine.txt").read_text() == "mine"
    assert not own.path.exists()
