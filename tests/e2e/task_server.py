"""A server with one agent, `agent`, that workers come to, and what its users ask for."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import apsw

from tests.e2e.command import SECONDS, until
from tests.e2e.server import LiveServer

AGENT = """
agents:
  root:
    model: builtin/scripted
    instruction: Be good.
"""


class TaskServer:
    """A server, its agent `agent`, and what its users ask for."""

    def __init__(self, folder: Path, *options: str, token: str | None = None, agent: str = AGENT) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "agent.yaml").write_text(agent)
        self.token = token
        self.server = LiveServer(
            folder / "server", str(folder / "agent.yaml"), options=("--safety", "autonomous", *options)
        )

    def call(self, method: str, path: str, body: Any = None, *, timeout: float = SECONDS) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.server.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def runtimes(self) -> list[dict[str, Any]]:
        return list(self.call("GET", "/api/runtimes"))

    def runtime_of(self, account: str) -> str:
        """Once it is registered."""
        until(lambda: account in [one["account"] for one in self.runtimes()])
        return next(str(one["id"]) for one in self.runtimes() if one["account"] == account)

    def bind(self, count: int = 1) -> str:
        """The agent runs on the oldest runtime, once there are so many."""
        until(lambda: len(self.runtimes()) >= count)
        runtime = str(self.runtimes()[0]["id"])
        self.call("PUT", "/api/agents/agent/runtime", {"runtime_id": runtime})
        return runtime

    def session(self, **fields: Any) -> str:
        return str(self.call("POST", "/api/sessions", {"agent": "agent", **fields})["id"])

    def turn(self, session: str, text: str) -> dict[str, Any]:
        """Waits for the turn."""
        body = {"messages": [{"role": "user", "content": text}], "wait": True}
        return dict(self.call("POST", f"/api/sessions/{session}/turns", body))

    def begin(self, session: str, text: str) -> str:
        """Returns the task."""
        body = {"messages": [{"role": "user", "content": text}]}
        self.call("POST", f"/api/sessions/{session}/turns", body)
        return str(self.call("GET", f"/api/tasks?session={session}")[0]["id"])

    def task(self, task: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/api/tasks/{task}"))

    def until_task(self, task: str, status: str) -> dict[str, Any]:
        until(lambda: self.task(task)["status"] in (status, "completed", "failed", "cancelled"))
        found = self.task(task)
        assert found["status"] == status, found
        return found

    def history(self, session: str) -> list[tuple[str, str]]:
        found = self.call("GET", f"/api/sessions/{session}")["messages"]
        return [(one["role"], one["content"]) for one in found]

    def attempts(self, session: str) -> list[str]:
        return [one["status"] for one in self.call("GET", f"/api/sessions/{session}/attempts")]

    def end_leases(self) -> None:
        """Ninety seconds pass, by the clock of the database."""
        database = apsw.Connection(str(self.server.data_dir / "lastgood.db"))
        try:
            database.set_busy_timeout(10_000)
            database.execute("UPDATE tasks SET lease_until = 1.0 WHERE lease_until IS NOT NULL")
        finally:
            database.close()
