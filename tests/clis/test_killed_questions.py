"""A question of a real CLI while its server, its worker and the CLI itself are killed: at most one effect."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

from tests.clis.harness import RealCli
from tests.clis.real_worker import RealWorker
from tests.e2e.command import until
from tests.e2e.task_server import TaskServer


def question_of(task_server: TaskServer, task: str) -> dict[str, Any]:
    task_server.until_task(task, "waiting")
    (question,) = task_server.call("GET", f"/api/tasks/{task}/questions")
    return dict(question)


def allow(task_server: TaskServer, task: str, question: dict[str, Any]) -> int:
    try:
        task_server.call("POST", f"/api/tasks/{task}/questions/{question['id']}", {"allowed": True})
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code
    return 200


def test_I33_a_question_outlives_its_server_and_not_its_process(claude: RealCli, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    task_server = TaskServer(tmp_path / "task_server")
    with (
        task_server.server,
        RealWorker(tmp_path / "worker", task_server, claude, ceiling="balanced") as worker,
    ):
        effect = worker.run_command(f"echo x >> {journal}")
        task_server.bind()
        session = task_server.session()

        first = task_server.begin(session, f"MARK-server {effect}")
        asked = question_of(task_server, first)
        task_server.server.kill()
        task_server.server.start()
        assert question_of(task_server, first)["id"] == asked["id"]
        assert (allow(task_server, first, asked), allow(task_server, first, asked)) == (200, 409)
        task_server.until_task(first, "completed")
        assert journal.read_text() == "x\n"

        second = task_server.begin(session, f"MARK-worker {effect}")
        gone = question_of(task_server, second)
        worker.kill()
        worker.end_clis()
        task_server.end_leases()
        worker.start()
        until(lambda: _asks_again(task_server, second, gone))
        assert allow(task_server, second, gone) == 409
        assert journal.read_text() == "x\n"
        assert allow(task_server, second, question_of(task_server, second)) == 200
        task_server.until_task(second, "completed")
        assert journal.read_text() == "x\nx\n"


def _asks_again(task_server: TaskServer, task: str, before: dict[str, Any]) -> bool:
    found = task_server.call("GET", f"/api/tasks/{task}/questions")
    return bool(found) and found[0]["id"] != before["id"]
