"""`lastgood agents check --connect`: starts or reaches the MCP servers of a file, and lists their tools."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastgood.agents.agent_file import AgentFile
from lastgood.engine.mcp.server_spec import server_spec
from lastgood.engine.tools.builtin import live_toolsets
from lastgood.engine.tools.program_tools import LiveToolsets, Offer, SessionPlace
from lastgood.model.agents import AgentSpec, ToolsetSpec
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.outside.env_file import secrets_of


@dataclass(frozen=True, slots=True)
class Connected:
    agent: str
    server: str
    offer: Offer

    def as_json(self) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "server": self.server,
            "tools": [tool.name for tool in self.offer.tools],
            "problem": self.offer.problem or None,
        }

    def line(self) -> str:
        if self.offer.problem:
            return f"  {self.agent}: {self.offer.problem}"
        names = ", ".join(tool.name for tool in self.offer.tools) or "no tools"
        return f"  {self.agent}: MCP server {self.server}: {names}"


def connect(files: Iterable[AgentFile], env_file: Path | None) -> Sequence[Connected]:
    """Servers run in an empty folder, and are stopped before this returns."""
    return asyncio.run(_connect([agent for file in files for agent in file.agents.values()], env_file))


async def _connect(agents: Sequence[AgentSpec], env_file: Path | None) -> Sequence[Connected]:
    live = live_toolsets(secrets_of(env_file, os.environ))
    try:
        with tempfile.TemporaryDirectory(prefix="lastgood-check-") as folder:
            asked = [(agent, spec) for agent in agents for spec in agent.toolsets if spec.type == "mcp"]
            return await asyncio.gather(*(_ask(agent, spec, live, Path(folder)) for agent, spec in asked))
    finally:
        for toolset in live.values():
            await toolset.close()


async def _ask(agent: AgentSpec, spec: ToolsetSpec, live: LiveToolsets, folder: Path) -> Connected:
    place = SessionPlace(DEFAULT_TENANT, SessionId(f"check-{agent.name}"), folder)
    program = live[spec.type].program(spec, place)
    offer = await program.offer()
    await program.close()
    return Connected(agent.name, server_spec(spec).name, offer)
