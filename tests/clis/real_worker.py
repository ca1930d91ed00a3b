"""A worker process whose only runtime is a real CLI, with a home of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.clis.harness import RealCli
from tests.clis.install import path_of
from tests.e2e.task_server import TaskServer
from tests.worker.live_worker import LiveWorker

#: What every CLI gets from its worker anyway.
_PASSED_ANYWAY = ("PATH", "HOME", "LANG", "TERM")
_SHELLS = {
    "claude": 'RUNTOOL Bash {{"command": "{0}"}}',
    "codex": 'RUNTOOL exec_command {{"cmd": "{0}"}}',
    "goose": 'RUNTOOL shell {{"command": "{0}"}}',
}


class RealWorker(LiveWorker):
    """The runtime has the name of its CLI."""

    def __init__(
        self, folder: Path, task_server: TaskServer, cli: RealCli, *options: str, ceiling: str = "autonomous"
    ) -> None:
        given = {name: value for name, value in cli.environment().items() if name not in ("LANG", "TERM")}
        super().__init__(folder, task_server.server.url, *options, env=given)
        self.task_server, self.cli, self.ceiling = task_server, cli, ceiling

    def words(self) -> list[str]:
        passed = [name for name in self.cli.environment() if name not in _PASSED_ANYWAY]
        return [
            "worker",
            *("--server", self.server, "--root", str(self.root), "--max-safety", self.ceiling),
            *("--runtime", f"{self.cli.name}={self.cli.name}:{path_of(self.cli.name)}"),
            *("--min-free-disk", "1M", "--pass-env", ",".join(passed)),
            *self.options,
        ]

    def end_clis(self) -> None:
        for process in self.cli.processes():
            try:
                os.kill(process.pid, signal.SIGKILL)
            except OSError:
                continue

    def run_command(self, command: str) -> str:
        """A prompt that makes the model run a command with this CLI's tool, in the task's own folder."""
        return _SHELLS[self.cli.name].format(command)

    def runtime(self) -> str | None:
        """None: it has not registered yet."""
        return next((one["id"] for one in self.task_server.runtimes() if one["name"] == self.cli.name), None)

    def work_dir(self) -> Path:
        (found,) = (self.root / "work").iterdir()
        return found

    def activity(self, task: str) -> list[dict[str, Any]]:
        return list(self.task_server.call("GET", f"/api/tasks/{task}/messages"))
