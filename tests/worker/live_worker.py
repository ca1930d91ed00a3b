"""A worker as its owner has it: a process of its own on a root of its own, whose CLI is a small program."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.e2e.command import SECONDS, until
from tests.forkserver import Process, fork_server

#: Does what the prompt says, one word after the other, and keeps a journal of what it did outside.
PROGRAM = """#!{python}
import json, os, signal, sys, time, uuid
job = json.loads(sys.stdin.readline())
def say(type, **more):
    print(json.dumps(dict(type=type, **more)), flush=True)
def note(text):
    with open({journal!r}, "a") as journal:
        journal.write(text + "\\n")
session = job["session"] or uuid.uuid4().hex
say("session", id=session, resumed=job["session"] is not None)
note("job " + json.dumps(job | dict(cwd=os.getcwd(), pid=os.getpid(), env=dict(os.environ))))
output = []
for word in job["prompt"].split():
    command, _, value = word.partition(":")
    if command == "say":
        say("text", text=value)
        output.append(value)
    elif command == "write":
        name, _, text = value.partition("=")
        open(name, "a").write(text + "\\n")
    elif command == "read":
        output.append(open(value).read().strip() if os.path.exists(value) else "missing")
    elif command == "tool":
        say("tool_use", tool=value, input=dict(x=1), call="c1")
    elif command == "until":
        while not os.path.exists(value):
            time.sleep(0.02)
        note("saw " + value)
    elif command == "repeat":
        while True:
            say("text", text="still working")
            time.sleep(0.05)
    elif command == "tick":
        say("text", text="ticking")
        while not os.path.exists(value):
            note("tick")
            time.sleep(0.1)
    elif command == "polite":
        def leave(*_):
            note("ended politely")
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
    elif command == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif command == "fail":
        say("error", code=value, message="it failed")
        sys.exit(1)
    elif command == "crash":
        sys.exit(3)
    elif command == "env":
        output.append(os.environ.get(value, "unset"))
say("usage", input_tokens=3, output_tokens=5, cost=0.25)
say("result", output=" ".join(output) or "ok")
"""


class LiveWorker:
    def __init__(
        self, folder: Path, server: str, *options: str, env: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.server, self.options = folder, server, options
        self.root = folder / "root"
        self.journal = folder / "journal.txt"
        self.stderr = folder / "stderr.txt"
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM.format(python=sys.executable, journal=str(self.journal)))
        self.program.chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LASTGOOD_")}
        self.env = clean | {"LASTGOOD_DATA_DIR": str(folder / "data"), **(env or {})}
        self.process: Process | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()
        self.end_clis()

    def end_clis(self) -> None:
        """A worker that was killed leaves them behind."""
        for pid in self.cli_pids():
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                continue

    def start(self) -> Self:
        with self.stderr.open("ab") as stderr:
            self.process = fork_server().start(
                self.words(), env=self.env, cwd=self.folder, stderr=stderr.fileno()
            )
        return self

    def words(self) -> list[str]:
        return [
            "worker",
            *("--server", self.server, "--root", str(self.root), "--max-safety", "autonomous"),
            *("--runtime", f"here=command:{self.program}", "--min-free-disk", "1M"),
            *self.options,
        ]

    def worker_id(self) -> str:
        return str(json.loads((self.root / "worker.json").read_text())["worker_id"])

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        return process.wait(SECONDS)

    def _end(self, number: signal.Signals) -> int:
        self.send(number)
        return self.wait()

    @property
    def log(self) -> str:
        return self.stderr.read_text()

    def notes(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def jobs(self) -> list[dict[str, Any]]:
        return [json.loads(note[4:]) for note in self.notes() if note.startswith("job ")]

    def until_job(self, times: int = 1) -> dict[str, Any]:
        until(lambda: len(self.jobs()) >= times)
        return self.jobs()[times - 1]

    def until_logged(self, text: str) -> None:
        until(lambda: text in self.log)

    def cli_pids(self) -> list[int]:
        return [job["pid"] for job in self.jobs()]

    def outbox(self) -> list[Path]:
        return sorted((self.root / "outbox").glob("*.report"))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def is_halted(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
