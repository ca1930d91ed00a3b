"""The directories of a worker process's tasks: used again, restored, and refused."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from lastgood.worker.redaction import Redaction
from lastgood.worker.snapshots import Baseline, make_snapshot
from lastgood.worker.work_dirs import WorkDirs
from tests.e2e.command import until
from tests.worker.live_worker import LiveWorker
from tests.worker.work_api import WorkApi


def at(path: str, **state: Any) -> dict[str, Any]:
    return {"work_dir": path, "work_dir_state": {"is_local": True, **state}}


def test_the_directory_of_a_session_is_used_again(api: WorkApi, worker: LiveWorker) -> None:
    first = api.until_called("complete", api.queue("write:a.txt=1"))["work_dir"]
    again = api.queue("read:a.txt", **at(first))
    done = api.until_called("complete", again)
    assert (done["output"], done["work_dir"]) == ("1", first)


def test_a_deleted_directory_is_disclosed(api: WorkApi, worker: LiveWorker) -> None:
    path = str(worker.root / "work" / "gone-1")
    api.until_called("complete", api.queue("say:x", **at(path)))
    assert "does not exist" in worker.jobs()[0]["disclosures"][0]


def test_a_directory_of_another_root_is_not_entered_and_that_is_disclosed(
    api: WorkApi, worker: LiveWorker, tmp_path: Path
) -> None:
    task = api.queue("write:a.txt=1", **at(str(tmp_path)))
    assert Path(api.until_called("complete", task)["work_dir"]).parent == worker.root / "work"
    assert "The earlier files are not here" in worker.jobs()[0]["disclosures"][0]
    assert not (tmp_path / "a.txt").exists()


def test_a_task_that_waits_for_a_folder_says_so_and_changes_nothing_before_its_turn(
    tmp_path: Path, api: WorkApi
) -> None:
    def is_said(why: str) -> bool:
        live = [one for body in api.of("heartbeat")[-1:] for one in body["live"]]
        return any(one["task_id"] == second and why in (one.get("why") or "") for one in live)

    with LiveWorker(tmp_path / "w", api.url, "--slots", "2") as worker:
        here = api.until_called("complete", api.queue("write:a.txt=old"))["work_dir"]
        elsewhere = WorkDirs(tmp_path / "elsewhere").create("s")
        (elsewhere.path / "a.txt").write_text("newer")
        made = make_snapshot(elsewhere, Baseline(), Redaction(()))
        api.snapshot = {"body": base64.b64encode(made.body).decode(), "summary": made.summary}
        gate = tmp_path / "gate"
        first = api.queue(f"until:{gate} read:a.txt", **at(here))
        worker.until_job(2)
        snapshot = {"attempt": "att_1", "kind": "x", "bytes": 1}
        second = api.queue("read:a.txt", **at(here, is_outdated=True), snapshot=snapshot)
        until(lambda: is_said(f"another task works in {here}"))
        assert not api.of("start", second)
        gate.touch()
        assert api.until_called("complete", first)["output"] == "old", "its directory was replaced under it"
        assert api.until_called("complete", second)["output"] == "newer"


def test_a_folder_that_is_not_allowed_is_refused(api: WorkApi, worker: LiveWorker, tmp_path: Path) -> None:
    failed = api.until_called("fail", api.queue("say:x", folder=str(tmp_path)))
    assert "--allow-dir" in failed["error"]
    assert worker.jobs() == []


def test_an_allowed_folder_is_worked_in_and_not_uploaded(tmp_path: Path, api: WorkApi) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("mine")
    with LiveWorker(tmp_path / "w", api.url, "--allow-dir", str(project)):
        task = api.queue("write:new.txt=1", folder=str(project))
        api.until_called("complete", task)
        assert not api.of("snapshot")
    assert sorted(os.listdir(project)) == ["mine.txt", "new.txt"]
    with LiveWorker(tmp_path / "v", api.url, "--allow-dir", str(project), "--snapshot-allowed-dirs"):
        task = api.queue("write:more.txt=1", **at(str(project)))
        api.until_called("complete", task)
        assert [one["path"] for one in api.of("snapshot")[0]["summary"]["changes"]] == ["more.txt"]


def test_files_from_another_machine_are_restored_or_their_absence_is_said(
    api: WorkApi, worker: LiveWorker, tmp_path: Path
) -> None:
    elsewhere = WorkDirs(tmp_path / "elsewhere").create("s")
    (elsewhere.path / "a.txt").write_text("from there")
    made = make_snapshot(elsewhere, Baseline(), Redaction(()))
    api.snapshot = {"body": base64.b64encode(made.body).decode(), "summary": made.summary}
    there = at("/elsewhere/a", is_local=False)
    moved = api.queue("read:a.txt", **there, snapshot={"attempt": "att_1", "kind": "x", "bytes": 1})
    assert api.until_called("complete", moved)["output"] == "from there"
    api.snapshot = {"body": base64.b64encode(b"garbage").decode()}
    broken = api.queue("read:a.txt", **there, snapshot={"attempt": "att_1", "kind": "x", "bytes": 1})
    assert api.until_called("complete", broken)["output"] == "missing"
    assert "could not be restored" in worker.jobs()[1]["disclosures"][0]


def test_a_directory_whose_session_worked_elsewhere_gets_the_newer_files_under_its_own_path(
    api: WorkApi, worker: LiveWorker, tmp_path: Path
) -> None:
    here = api.until_called("complete", api.queue("write:a.txt=old write:mine.txt=1"))["work_dir"]
    elsewhere = WorkDirs(tmp_path / "elsewhere").create("s")
    (elsewhere.path / "a.txt").write_text("newer")
    made = make_snapshot(elsewhere, Baseline(), Redaction(()))
    outdated = at(here, is_outdated=True)
    snapshot = {"attempt": "att_1", "kind": "x", "bytes": 1}
    api.snapshot = {"body": base64.b64encode(b"garbage").decode()}
    broken = api.queue("read:a.txt", **outdated, snapshot=snapshot)
    assert api.until_called("complete", broken)["output"] == "old"
    assert "as you left it" in worker.jobs()[1]["disclosures"][0]
    api.snapshot = {"body": base64.b64encode(made.body).decode(), "summary": made.summary}
    done = api.until_called("complete", api.queue("read:a.txt", **outdated, snapshot=snapshot))
    assert (done["output"], done["work_dir"]) == ("newer", here)
    kept = [one for one in (worker.root / "work").iterdir() if (one / "mine.txt").exists()]
    assert len(kept) == 1
    assert str(kept[0]) != here
