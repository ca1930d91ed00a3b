"""Handlers for agents, compatible with docker-agent's clients."""

from __future__ import annotations

from typing import Any

from lastgood.errors import LastgoodError
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.model.agents import AgentCommand, AgentSpec, ToolsetSpec
from lastgood.surfaces.api.resources import AGENT, ListedAgent
from lastgood.surfaces.http.asgi import Request, Response, json_reply


class AgentHandlers:
    def __init__(self, agents: AgentDirectory) -> None:
        self._agents = agents

    async def list(self, request: Request) -> Response:
        """Agents that cannot be loaded are listed with their error code."""
        found: list[dict[str, Any]] = []
        for key in self._agents.list_keys():
            try:
                listed = ListedAgent(key, await self._agents.load(key))
            except LastgoodError as error:
                listed = ListedAgent(key, None, error.code)
            found.append(AGENT.json(listed))
        return json_reply(sorted(found, key=lambda agent: str(agent["name"])))

    async def read(self, request: Request) -> Response:
        agent, decision = await self._agents.resolve(self._agents.canonical_key(request.path["agent"]))
        members = [_member(member) for member in agent.members.values()]
        body = AGENT.json(ListedAgent(agent.key, agent)) | {"digest": agent.digest, "decision": decision}
        # docker-agent's clients take commands at this level for groups of commands, and then read nothing.
        body.pop("commands", None)
        return json_reply(body | {"agents": [_member(agent), *members], "warnings": list(agent.warnings)})


def _member(agent: AgentSpec) -> dict[str, Any]:
    """Its description and its tools. Its instruction is its author's, and not shown to every client."""
    return {
        "name": agent.name,
        "description": agent.description,
        "welcome_message": agent.welcome_message,
        "model": agent.model,
        "commands": {command.name: _command(command) for command in agent.commands},
        "toolsets": [_toolset(toolset) for toolset in agent.toolsets],
        "sub_agents": list(agent.sub_agents),
        "handoffs": list(agent.handoffs),
    }


def _command(command: AgentCommand) -> dict[str, str]:
    """With its prompt: docker-agent's clients replace `/name` by it before they send a message."""
    agent = {"agent": command.agent} if command.agent else {}
    url = {"url": command.url} if command.url else {}
    return {"description": command.description, "instruction": command.instruction, **agent, **url}


def _toolset(toolset: ToolsetSpec) -> dict[str, str]:
    """As docker-agent's clients decode it. Its options may hold secrets and are not shown."""
    name = toolset.options.get("name")
    return {"type": toolset.type, **({"name": str(name)} if name else {})}
