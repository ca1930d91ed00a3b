"""What happens to runs on real processes: a machine sleeps, or the network is away for longer than a lease.

`lease_passes` is how the lease ends: in the suite by the clock of the database, in `make prove` by waiting.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.e2e.command import until
from tests.e2e.network_link import NetworkLink
from tests.e2e.task_server import TaskServer
from tests.worker.live_worker import LiveWorker, is_alive


def sleep_cancel_and_move(folder: Path, lease_passes: Callable[[TaskServer], None]) -> None:
    """Worker A and its CLI are stopped, the task is cancelled, the session goes on with B, and A wakes up."""
    task_server = TaskServer(folder)
    with (
        task_server.server,
        LiveWorker(folder / "a", task_server.server.url) as a,
        LiveWorker(folder / "b", task_server.server.url) as b,
    ):
        until(lambda: len(task_server.runtimes()) == 2)
        names = {one["worker_id"]: one["id"] for one in task_server.runtimes()}
        on_a, on_b = (names[one.worker_id()] for one in (a, b))
        session, gate = task_server.session(), folder / "gate"
        task_server.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": on_a})
        task_server.turn(session, "say:one")
        task = task_server.begin(session, f"say:two until:{gate} write:late.txt=x say:late")
        pid = a.until_job(2)["pid"]
        a.send(signal.SIGSTOP)
        os.kill(pid, signal.SIGSTOP)
        task_server.call("POST", f"/api/tasks/{task}/cancel")
        assert task_server.task(task)["status"] == "cancelled"
        lease_passes(task_server)
        task_server.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": on_b})
        moved = task_server.turn(session, "say:three")
        before = task_server.history(session)
        assert moved["decision"]["resume"]["decision"] == "replay"
        assert [one["content"] for one in b.jobs()[0]["transcript"]] == ["say:one", "one"]
        gate.touch()
        os.kill(pid, signal.SIGCONT)
        a.send(signal.SIGCONT)
        until(lambda: not is_alive(pid))
        until(lambda: "task ended" in a.log.rpartition("task started")[2] and not a.outbox())
        assert task_server.history(session) == before
        assert [text for _, text in before] == ["say:one", "one", "say:three", "three"]
        assert sorted(task_server.attempts(session)) == ["cancelled", "committed", "committed"]
        assert task_server.task(task)["status"] == "cancelled"
        assert task_server.turn(session, "read:late.txt")["messages"][-1]["content"] == "missing"
        task_server.call("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": on_a})
        back = task_server.turn(session, "say:back")
        assert back["decision"]["resume"]["decision"] == "native"
        assert [one["content"] for one in a.jobs()[-1]["catch_up"]][:2] == ["say:three", "three"]


def partition(folder: Path, lease_passes: Callable[[TaskServer], None]) -> None:
    """The CLI ends while its worker is cut off. Nobody took over, so the result counts, and it ran once."""
    task_server = TaskServer(folder)
    with (
        task_server.server,
        NetworkLink(task_server.server.port) as link,
        LiveWorker(folder / "w", link.url, "--slots", "2") as worker,
    ):
        task_server.bind()
        session, gate = task_server.session(), folder / "gate"
        early = task_server.begin(session, f"say:one until:{gate} say:two")
        other = task_server.session()
        running = task_server.begin(other, f"say:still until:{folder / 'second'} say:running")
        worker.until_job(2)
        link.cut()
        gate.touch()
        until(lambda: len(worker.outbox()) == 2)  # the snapshot and the result
        lease_passes(task_server)
        assert "lease" in task_server.task(early)["why"], "busy, and it says why"
        link.valid_text()
        task_server.until_task(early, "completed")
        # The other run goes on: its worker confirms its claims before it takes new ones.
        third = task_server.begin(task_server.session(), "say:new")
        task_server.until_task(third, "completed")
        (folder / "second").touch()
        task_server.until_task(running, "completed")
        assert task_server.history(session)[1:] == [("assistant", "one two")]
        assert task_server.history(other)[1:] == [("assistant", "still running")]
        assert task_server.attempts(session) == task_server.attempts(other) == ["committed"]
        assert len(worker.jobs()) == 3
