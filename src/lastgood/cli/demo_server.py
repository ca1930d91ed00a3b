"""The server of `lastgood demo`: a process that can be killed, on a socket and a folder of its own.

Reads back what the scripted model was shown, from the log that the server writes before every call.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import orjson

from lastgood.client import AsyncClient
from lastgood.errors import LastgoodError, StoreUnavailable

#: How long the server may take to start, on a slow machine.
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05

_AGENT = """\
agents:
  root:
    model: builtin/scripted
    description: {description}
    toolsets:
      - type: shell
"""


class DemoServer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent_file = folder / "demo.yaml"
        self._socket = folder / "demo.sock"
        self._prompts = folder / "prompts.jsonl"
        self._stderr = folder / "server.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def write_agent(self, description: str) -> None:
        self.agent_file.write_text(_AGENT.format(description=description))

    async def start(self) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LASTGOOD_")}
        env = clean | {"LASTGOOD_DATA_DIR": str(self.folder), "LASTGOOD_PROMPT_LOG": str(self._prompts)}
        words = ("serve", str(self.agent_file), "--listen", self.url, "--safety", "balanced")
        with self._stderr.open("ab") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lastgood", *words),
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                # Ctrl-C is for the demo, which ends its server itself.
                start_new_session=True,
            )
        async with asyncio.timeout(_START_SECONDS):
            while not await self._answers():
                await asyncio.sleep(_LOOK_SECONDS)

    async def _answers(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            last = self._stderr.read_text().strip().splitlines()[-1:]
            raise StoreUnavailable(f"the server of the demo did not start: {' '.join(last)}")
        async with AsyncClient(self.url) as client:
            try:
                await client.agents()
            except LastgoodError:
                return False
        return True

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(number)
            await process.wait()

    # -- what the model was shown ------------------------------------------------------

    def _logged(self) -> list[dict[str, Any]]:
        """A line that is still being written is left out."""
        if not self._prompts.exists():
            return []
        lines = self._prompts.read_bytes().split(b"\n")[:-1]
        return [one for one in map(orjson.loads, lines) if "session" in one]

    def last_prompt(self, session: str) -> list[str]:
        """What the user had said in the last prompt of the session, without directives."""
        prompts = [one["prompt"] for one in self._logged() if one["session"] == session]
        said = [message["content"] for message in (prompts or [[]])[-1] if message["role"] == "user"]
        plain = (" ".join(line for line in text.split("\n") if not line.startswith("!")) for text in said)
        return [text for text in plain if text]

    async def until_shown(self, text: str) -> None:
        """Until the model was asked with a prompt that ends with this message: then its turn is running."""
        async with asyncio.timeout(_START_SECONDS):
            while not any(text in str(one["prompt"][-1]["content"]) for one in self._logged()):
                await asyncio.sleep(_LOOK_SECONDS)
