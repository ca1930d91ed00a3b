"""The server of `lastgood demo`: a process that can be killed, on a socket and a folder of its own.

Reads back what the scripted model was shown, from the log that the server writes before every call.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import orjson

from lastgood.cli.demo_process import DemoProcess
from lastgood.client import AsyncClient
from lastgood.errors import LastgoodError, StoreUnavailable

#: How long the server may take to start, on a slow machine.
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05

#: The key of the agent that runs on a worker.
CODER = "coder"

_AGENT = """\
agents:
  root:
    model: builtin/scripted
    description: {description}
    safety: balanced
    toolsets:
      - type: shell
"""
_CODER = """\
agents:
  root:
    safety: autonomous
    harness: {type: command}
"""


class DemoServer:
    """Serves three agents: one from a file, one from a URL, and one that lives on a worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent_file = folder / "demo.yaml"
        self.tag = "v1"
        self._coder_file = folder / f"{CODER}.yaml"
        self._socket = folder / "demo.sock"
        self._prompts = folder / "prompts.jsonl"
        self._process = DemoProcess(folder / "server.log")
        self._web: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def write_agent(self, description: str) -> None:
        self.agent_file.write_text(_AGENT.format(description=description))

    # -- the agent at a URL ------------------------------------------------------------

    async def publish_agent(self) -> None:
        """Serves an agent file on a port of this machine, whatever the query of its URL."""
        self._web = await asyncio.start_server(_send_agent, "127.0.0.1", 0)

    def agent_url(self, tag: str) -> str:
        assert self._web is not None
        return f"http://127.0.0.1:{self._web.sockets[0].getsockname()[1]}/team.yaml?tag={tag}"

    def key_of(self, tag: str) -> str:
        return quote_plus(self.agent_url(tag))

    # -- the process -------------------------------------------------------------------

    async def start(self) -> None:
        self._coder_file.write_text(_CODER)
        variables = {"LASTGOOD_DATA_DIR": str(self.folder), "LASTGOOD_PROMPT_LOG": str(self._prompts)}
        agents = (str(self.agent_file), self.agent_url(self.tag), str(self._coder_file))
        words = ("serve", *agents, "--listen", self.url, "--safety", "autonomous")
        await self._process.start(words, variables)
        async with asyncio.timeout(_START_SECONDS):
            while not await self._answers():
                await asyncio.sleep(_LOOK_SECONDS)

    async def _answers(self) -> bool:
        if self._process.has_exited:
            raise StoreUnavailable(f"the server of the demo did not start: {self._process.last_words}")
        async with AsyncClient(self.url) as client:
            try:
                await client.agents()
            except LastgoodError:
                return False
        return True

    async def kill(self) -> None:
        await self._process.end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._process.end(signal.SIGTERM)

    async def close(self) -> None:
        await self.kill()
        if self._web is not None:
            self._web.close()

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


async def _send_agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = _AGENT.format(description="the agent at a URL").encode()
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()
