"""`lastgood serve` as its users have it: a process of its own, on a port and a data folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import apsw
import openai

from tests.e2e.command import AGENT, SECONDS, until
from tests.forkserver import Process, fork_server

_ADDRESS = re.compile(rb" on http://127\.0\.0\.1:(\d+)\n")


class LiveServer:
    """Started, killed and started again on the same data, the same port and the same prompt log."""

    #: Open files that it is given.
    pass_fds: tuple[int, ...] = ()

    def __init__(
        self,
        folder: Path,
        *agents: str,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        api_key: str = "none",
    ) -> None:
        self.folder = folder
        self.agents = agents or (AGENT,)
        self.options = tuple(options)
        self.api_key = api_key
        self.data_dir = folder / "data"
        self.prompt_log = folder / "prompts.jsonl"
        self.stderr = folder / "stderr.txt"
        self.port = 0  # 0: any; once it is known, it stays
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LASTGOOD_")}
        self.env = clean | {
            "LASTGOOD_DATA_DIR": str(self.data_dir),
            "LASTGOOD_PROMPT_LOG": str(self.prompt_log),
            **(env or {}),
        }
        self._process: Process | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    # -- its life ------------------------------------------------------------------

    def start(self) -> Self:
        assert self._process is None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.launch()
        until(self._is_ready)
        return self

    def launch(self) -> None:
        """Without waiting until it is ready."""
        with self.stderr.open("wb") as stderr:
            self._process = fork_server().start(
                ["serve", *self.agents, *self.options, "--listen", self.listen],
                env=self.env,
                cwd=self.folder,
                stderr=stderr.fileno(),
                pass_fds=self.pass_fds,
            )

    @property
    def listen(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended: {self.stderr.read_text()}"
        if self.port == 0:
            found = _ADDRESS.search(self.stderr.read_bytes())
            if found is None:
                return False
            self.port = int(found[1])
        return self.status("/ready") == 200

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def until_dead(self) -> None:
        """It ends by itself."""
        assert self._process is not None
        self._process.wait(SECONDS)
        self._process = None

    def tell(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def cpu_seconds(self) -> float:
        """What the process has used so far, in all its threads."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        return process.wait(SECONDS)

    def restart(self) -> Self:
        """After a kill -9."""
        self.kill()
        return self.start()

    # -- asking it -----------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self, path: str) -> int | None:
        """None: nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return None

    @contextmanager
    def client(self, *, max_retries: int = 0, timeout: float = SECONDS) -> Iterator[openai.OpenAI]:
        """The SDK as it comes. Its own retries are off unless they are what is looked at."""
        with openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=max_retries, timeout=timeout
        ) as client:
            yield client

    def metric(self, line: str) -> float:
        """The number behind this name and its labels; 0 where it was never counted."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=SECONDS) as answer:
            for found in answer.read().decode().splitlines():
                if found.startswith(f"{line} "):
                    return float(found.removeprefix(f"{line} "))
        return 0.0

    @property
    def running(self) -> int:
        return int(self.metric("lastgood_turns_running"))

    # -- judging it ----------------------------------------------------------------

    def prompts(self) -> list[dict[str, Any]]:
        """Every prompt that the scripted model was asked with, in order; a last line may be half written."""
        if not self.prompt_log.exists():
            return []
        lines = self.prompt_log.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def seen(self, having: str) -> list[list[tuple[str, str]]]:
        """Of each prompt with this word in it, who said what; system messages are left out."""
        found = [[(said["role"], said["content"]) for said in one["prompt"]] for one in self.prompts()]
        return [
            [(role, text) for role, text in one if role != "system"]
            for one in found
            if any(having in str(text) for _, text in one)
        ]

    def until_seen(self, having: str, times: int = 1) -> None:
        until(lambda: len(self.seen(having)) >= times)

    def rows(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        """Read past the server: it may be dead, or might hide something."""
        database = apsw.Connection(str(self.data_dir / "lastgood.db"), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            database.set_busy_timeout(5000)
            return list(database.execute(sql, values))
        finally:
            database.close()

    def tries(self, conversation: str) -> list[str]:
        """How each attempt of the conversation ended, in order."""
        sql = """SELECT status FROM attempts JOIN sessions ON sessions.id = session_id
                 WHERE conversation = ? ORDER BY attempts.fence"""
        return [str(status) for (status,) in self.rows(sql, conversation)]

    def turns(self, conversation: str) -> int | None:
        """How many are committed; None: there is no such conversation."""
        found = self.rows("SELECT seq FROM sessions WHERE conversation = ?", conversation)
        return int(found[0][0]) if found else None
