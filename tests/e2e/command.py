"""The `lastgood` command as its users have it: a process of its own, on a data folder of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forkserver import DEVNULL, PIPE, Process, fork_server

AGENT = "builtin/scripted"
#: How long to wait for what must happen. Long, because it costs nothing where it does: machines may be slow.
SECONDS = 60.0


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.database = self.data_dir / "lastgood.db"
        self.prompt_log = folder / "prompts.jsonl"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LASTGOOD_")}
        self.env = clean | {
            "LASTGOOD_DATA_DIR": str(self.data_dir),
            "LASTGOOD_PROMPT_LOG": str(self.prompt_log),
            "TERM": "dumb",  # whatever terminal runs the tests
        }

    def __call__(self, *args: str, stdin: bytes = b"") -> Done:
        return finish(self.start(*args, stdin=PIPE), stdin=stdin, timeout=60)

    def start(
        self,
        *args: str,
        stdin: int = DEVNULL,
        stdout: int = PIPE,
        stderr: int = PIPE,
        own_terminal: bool = False,
    ) -> Process:
        return fork_server().start(
            self.words(*args),
            env=self.env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            own_terminal=own_terminal,
        )

    def executed(self, *args: str) -> subprocess.Popen[bytes]:
        """By an interpreter of its own: for tests of how it starts."""
        line = [sys.executable, "-m", "lastgood", *self.words(*args)]
        return subprocess.Popen(line, env=self.env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)

    def words(self, *args: str) -> list[str]:
        """The arguments that it is called with."""
        return list(args)

    # -- shorthands ------------------------------------------------------------

    def say(self, text: str, *options: str) -> Done:
        return self("run", AGENT, text, *options)

    def new_session(self, text: str = "hello") -> str:
        done = self.say(text, "--json")
        assert done.code == 0, done.err
        return str(done.lines[-1]["session"])

    def remembered(self, session: str) -> list[str]:
        """What the agent is shown of the session: asked on a fork, so that asking changes nothing."""
        fork = self("sessions", "fork", session).out.strip()
        said = self.say("!remember", "--session", fork).out.removeprefix("I remember: ").strip()
        assert self("sessions", "delete", fork).code == 0
        return said.split(" | ") if said else []

    def attempts(self, session: str) -> list[dict[str, Any]]:
        shown = self("sessions", "show", session, "--attempts", "--json")
        return list(shown.json["attempts"])

    def sessions(self) -> list[dict[str, Any]]:
        return list(self("sessions", "list", "--json").json)

    def prompts(self) -> int:
        return len(self.prompt_log.read_text().splitlines()) if self.prompt_log.exists() else 0


def finish(
    process: Process | subprocess.Popen[bytes],
    already: bytes = b"",
    *,
    stdin: bytes = b"",
    timeout: float = SECONDS,
) -> Done:
    out, err = process.communicate(stdin, timeout)
    assert process.returncode is not None
    return Done(process.returncode, (already + out).decode(), err.decode())


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
