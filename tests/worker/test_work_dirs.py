"""Working directories: the worker's own ones, and those of its owner, which it only enters if it may."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from lastgood.worker.work_dirs import Upload, WorkDirRefused, WorkDirs
from tests.polls import a_few_rounds

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
        dirs.used(one, Upload("a", "c") if is_saved else None)
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
