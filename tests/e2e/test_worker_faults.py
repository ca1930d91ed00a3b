"""A real server and real workers whose machines sleep, are cut off, or die at a planned point."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.command import until
from tests.e2e.runtime_faults import partition, sleep_cancel_and_move
from tests.e2e.task_server import TaskServer
from tests.process_faults import VARIABLE
from tests.worker.live_worker import LiveWorker


def test_a_machine_that_wakes_up_after_a_cancel_and_a_move_has_no_effect(tmp_path: Path) -> None:
    sleep_cancel_and_move(tmp_path, TaskServer.end_leases)


def test_a_partition_longer_than_the_lease_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    partition(tmp_path, TaskServer.end_leases)


#: Where the server dies, and whether somebody must claim the task again: nobody got the claim.
COMPLETED = {
    "after claim_tasks": True,
    "before confirm_claim": True,
    "after confirm_claim": True,
    "before start_task": False,
    "after start_task": False,
    "before commit_if_head": False,
    "after commit_if_head": False,
}


def test_a_server_killed_at_any_write_of_a_task_commits_it_once_and_loses_nothing(tmp_path: Path) -> None:
    point = tmp_path / "point"
    task_server = TaskServer(tmp_path)
    task_server.server.env[VARIABLE] = f"dies={point}"
    worker = LiveWorker(tmp_path / "worker", task_server.server.url)
    with task_server.server:
        worker.server = task_server.server.url
        with worker:
            task_server.bind()
            for number, (where, is_lost) in enumerate(COMPLETED.items(), 1):
                session = task_server.session()
                worker.kill()
                task = task_server.begin(session, f"say:{number}")
                point.write_text(where)
                worker.start()
                task_server.server.until_dead()
                point.unlink()
                task_server.server.start()
                if is_lost:
                    task_server.end_leases()
                task_server.until_task(task, "completed")
                until(lambda: not worker.outbox())
                assert task_server.history(session)[1:] == [("assistant", str(number))], where
                assert task_server.attempts(session).count("committed") == 1, where
                assert len(worker.jobs()) == number, where
                decided = task_server.call("GET", f"/api/sessions/{session}/attempts")[-1]["decision"]
                assert (decided["decision"], bool(decided["reason"])) == ("fresh", True), where


def test_a_server_killed_around_a_failure_report_fails_the_task_once(tmp_path: Path) -> None:
    point = tmp_path / "point"
    task_server = TaskServer(tmp_path)
    task_server.server.env[VARIABLE] = f"dies={point}"
    with task_server.server, LiveWorker(tmp_path / "worker", task_server.server.url) as worker:
        task_server.bind()
        for number, where in enumerate(("before finish_if_held", "after finish_if_held"), 1):
            session = task_server.session()
            worker.kill()
            task = task_server.begin(session, "fail:unenforceable")
            point.write_text(where)
            worker.start()
            task_server.server.until_dead()
            point.unlink()
            task_server.server.start()
            failed = task_server.until_task(task, "failed")
            until(lambda: not worker.outbox())
            assert "it failed" in failed["error"]["message"]
            assert task_server.attempts(session) == ["failed"], where
            assert task_server.history(session) == []
            assert len(worker.jobs()) == number, where


#: Where the worker dies, and how often its CLI has run in the end. A run whose report was not stored is lost,
#: and its effects outside happen once more.
REPORTS = {"before snapshot": 2, "after snapshot": 2, "before complete": 2, "after complete": 1}


def test_a_worker_killed_around_its_reports_commits_once_and_loses_nothing(tmp_path: Path) -> None:
    point = tmp_path / "point"
    task_server = TaskServer(tmp_path)
    with task_server.server:
        env = {VARIABLE: f"worker dies={point}"}
        with LiveWorker(tmp_path / "worker", task_server.server.url, env=env) as worker:
            task_server.bind()
            for where, runs in REPORTS.items():
                session, before = task_server.session(), len(worker.jobs())
                point.write_text(where)
                task = task_server.begin(session, "say:result")
                worker.wait()
                point.unlink()
                worker.start()
                if runs == 2:
                    task_server.end_leases()
                task_server.until_task(task, "completed")
                until(lambda: not worker.outbox())
                assert task_server.history(session) == [("user", "say:result"), ("assistant", "result")], (
                    where
                )
                assert task_server.attempts(session).count("committed") == 1, where
                assert len(worker.jobs()) - before == runs, where
