"""Agents: what is served, from which source, and what is wrong with it."""

from __future__ import annotations

from typing import Any

from lastgood.errors import AgentInvalid, LastgoodError
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.model.agents import AgentSpec
from lastgood.model.tokens import Scope
from lastgood.model.usage import UsageDimension, UsageStep
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.text_format import moment
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.principal import Principal


class AgentPages:
    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows

    async def list(self, request: Request) -> Page:
        agents = await agent_views(self._flows.agents, request.caller)
        counted = await self._last_day(request)
        listed = [one | {"last_day": counted.get(one["key"])} for one in agents]
        return Page("agents.html", "Agents", {"agents": listed})

    async def _last_day(self, request: Request) -> dict[str, dict[str, Any]]:
        """How often each agent was tried, and how often it failed."""
        report = await self._flows.usage.report(
            request.caller.tenant,
            since=self._flows.now() - 23 * 3600,
            step=UsageStep.HOUR,
            by=UsageDimension.AGENT,
            is_whole=True,
        )
        return {
            row.name: {
                "attempts": row.counts.attempts,
                "failures": row.counts.failures,
                "failed_percent": round(100 * row.counts.failures / row.counts.attempts, 1),
            }
            for row in report.rows
            if row.counts.attempts
        }


async def agent_views(agents: AgentDirectory, caller: Principal) -> list[dict[str, Any]]:
    """By key. One that cannot be loaded is listed with the reason."""
    found = []
    for key in sorted(agents.list_keys()):
        try:
            shown = _loaded(key, await agents.load(key))
        except LastgoodError as error:
            shown = _unusable(key, error, caller)
        found.append(shown | _origin(agents, key, caller))
    return found


def _origin(agents: AgentDirectory, key: str, caller: Principal) -> dict[str, Any]:
    """Paths are for the operator."""
    try:
        origin = agents.origin(key)
    except LastgoodError:  # its file was removed just now
        return {"source": "removed", "where": None, "changed": None}
    return {
        "source": origin.kind,
        "where": origin.where if caller.may(Scope.ADMIN) and origin.kind != "built-in" else None,
        "changed": moment(origin.changed_at),
    }


def _loaded(key: str, agent: AgentSpec) -> dict[str, Any]:
    return {
        "key": key,
        "name": agent.name,
        "description": agent.description,
        "model": agent.model,
        "harness": agent.harness,
        "digest": agent.digest,
        "toolsets": [toolset.type for toolset in agent.toolsets],
        "team": [agent.name, *agent.members] if agent.members else [],
        "commands": {command.name: command.description for command in agent.commands},
        "welcome": agent.welcome_message,
        "warnings": list(agent.warnings),
        "stale": agent.stale,
        "problem": "",
    }


def _unusable(key: str, error: LastgoodError, caller: Principal) -> dict[str, Any]:
    """Paths and lines of a file are for the operator."""
    is_private = isinstance(error, AgentInvalid) and not caller.may(Scope.ADMIN)
    problem = "The agent file has errors; see the server log" if is_private else error.message
    nothing: dict[str, Any] = {"name": "", "description": "", "model": "", "harness": None, "digest": ""}
    more: dict[str, Any] = {"toolsets": [], "team": [], "commands": {}, "welcome": "", "warnings": []}
    return {"key": key, **nothing, **more, "stale": "", "problem": problem}
