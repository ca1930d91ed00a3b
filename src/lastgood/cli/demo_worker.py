"""The workers of `lastgood demo`: processes that stand for two machines, each with an agent CLI of its own.

The agent CLI is a small program that keeps its conversations in files, as real ones do, and answers with
everything that it has seen in the one that it continues.
"""

from __future__ import annotations

import shlex
import signal
import sys
from types import TracebackType
from typing import Self

from lastgood.cli.demo_process import DemoProcess
from lastgood.cli.demo_server import DemoServer

_PROGRAM = """\
import json, pathlib, sys

job, store = json.loads(sys.stdin.readline()), pathlib.Path(sys.argv[1])
store.mkdir(exist_ok=True)
session = job["session"] or f"native-{len(list(store.iterdir())) + 1}"
file = store / session
seen = json.loads(file.read_text()) if job["session"] else []
missed = job["catch_up"] if job["session"] else job["transcript"]
seen += [said["content"] for said in missed if said["role"] == "user"]
seen.append(job["prompt"])
file.write_text(json.dumps(seen))
print(json.dumps({"type": "session", "id": session, "resumed": job["session"] is not None}))
print(json.dumps({"type": "result", "output": " | ".join(seen)}))
"""


class DemoWorker:
    """One runtime of the kind `command`, named like its machine."""

    def __init__(self, server: DemoServer, machine: str) -> None:
        self._server, self._machine = server, machine
        self._process = DemoProcess(server.folder / f"{machine}.log")

    async def __aenter__(self) -> Self:
        program, folder = self._server.folder / "agent_cli.py", self._server.folder
        program.write_text(_PROGRAM)
        command = shlex.join([sys.executable, str(program), str(folder / f"{self._machine}-sessions")])
        words = ["worker", "--server", self._server.url, "--worker-id", self._machine]
        words += ["--root", str(folder / self._machine), "--max-safety", "autonomous"]
        words += ["--min-free-disk", "0", "--runtime", f"{self._machine}=command:{command}"]
        await self._process.start(words, {"LASTGOOD_DATA_DIR": str(folder)})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._process.end(signal.SIGKILL)
