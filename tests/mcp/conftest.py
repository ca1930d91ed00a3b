"""Real MCP servers as processes, and the toolset that talks to them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.mcp.mcp_toolset import McpToolset
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.program_tools import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.tool import ToolUse
from lastgood.model.agents import ToolsetSpec
from lastgood.model.answers import Answer
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import Message
from lastgood.outside.network import SYSTEM
from lastgood.outside.secrets import Secrets

SERVER = Path(__file__).parent / "server.py"
#: For what any server shows: importing the SDK takes the other one most of a second.
SMALL_SERVER = SERVER.with_name("small_server.py")
SECRETS = {"CANARY": "canary-1f7a", "TOKEN": "token-5511"}


@dataclass
class Servers:
    """What a test opens; all of it is closed at its end."""

    folder: Path
    clock: float = 0.0
    said: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.environment = {**SECRETS, "HOME": "/tmp", "PATH": "/usr/bin:/bin"}
        environment = Environment(self.environment, Secrets(SECRETS))
        self.toolset = McpToolset(environment, SYSTEM, clock=lambda: self.clock)

    def program(
        self, *, session: str = "s", tenant: TenantId = DEFAULT_TENANT, trusted: bool = True, **options: Any
    ) -> LiveProgram:
        tools, instruction = options.pop("tools", None), options.pop("instruction", "")
        spec = ToolsetSpec("mcp", tools=tools, instruction=instruction, options=options, trusted=trusted)
        return self.toolset.program(spec, SessionPlace(tenant, SessionId(session), self.folder))

    def stdio(self, how: str = "stdio", **options: Any) -> LiveProgram:
        return self.program(command=sys.executable, args=[str(SERVER), how], **options)

    def small(self, **options: Any) -> LiveProgram:
        return self.program(command=sys.executable, args=[str(SMALL_SERVER)], **options)

    async def call(
        self,
        program: LiveProgram,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        messages: tuple[Message, ...] = (),
        key: str = "turn_1:1:call_1",
        answer: Answer | None = None,
    ) -> str:
        offer = await program.offer()
        assert not offer.problem, offer.problem
        tools = {tool.name: tool for tool in offer.tools}
        use = ToolUse(
            dict(arguments or {}),
            key,
            SessionId("s"),
            TurnId("turn_1"),
            AttemptId("att_1"),
            1,
            self.folder,
            messages,
            answer,
            self.said.append,
            frozenset(tools),
        )
        return await tools[name].run(use)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncGenerator[Servers, None]:
    opened = Servers(tmp_path)
    yield opened
    await opened.toolset.close()


@pytest.fixture(params=["streamable-http", "sse"])
def remote(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The `remote` of a server that listens on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), request.param, str(port)])
    try:
        yield {
            "url": f"http://127.0.0.1:{port}/{'sse' if request.param == 'sse' else 'mcp'}",
            "transport_type": "sse" if request.param == "sse" else "streamable",
        }
    finally:
        process.kill()
        process.wait()


async def offered(program: LiveProgram) -> Offer:
    """Waits for a server that is starting."""
    for _ in range(200):
        offer = await program.offer()
        if not offer.problem:
            return offer
        await asyncio.sleep(0.1)
    raise AssertionError(offer.problem)


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
