"""Agents: what is served, from which source, and what is wrong with it.

Reading an agent looks at its files. So the list has pages, and the summaries of the home page, which is read
again every few seconds, are kept for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lastgood.errors import AgentInvalid, LastgoodError
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.model.agents import AUTO, AgentSpec
from lastgood.model.tokens import Scope
from lastgood.model.usage import UsageDimension, UsageStep
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.text_format import file_name, moment
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.body_parser import whole_number
from lastgood.surfaces.http.principal import Principal

_IN_PAGE = 25
#: For how long the home page uses what it has read of the agents.
SUMMARY_SECONDS = 10.0
#: Agents that are read between two pauses.
_BATCH = 20


class AgentPages:
    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows

    async def list(self, request: Request) -> Page:
        q = request.query.get("q", "").strip()
        keys = [key for key in sorted(self._flows.agents.list_keys()) if q.lower() in key.lower()]
        begin = whole_number(request.query, "after", 0, least=0, most=2**31)
        counted = await self._last_day(request)
        agents, caller = self._flows.agents, request.caller
        listed = [
            await _view(agents, key, caller) | {"last_day": counted.get(key)}
            for key in keys[begin : begin + _IN_PAGE]
        ]
        end = begin + len(listed)
        data = {"agents": listed, "total": len(keys), "next": end if end < len(keys) else None, "q": q}
        return Page("agents.html", "Agents", data, more={"is_first": begin == 0, "first": begin + 1})

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


# -- summaries for the home page ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Summary:
    key: str
    description: str = ""
    answers: str = ""  # the model, or the kind of runtime
    warnings: int = 0
    is_stale: bool = False
    error: LastgoodError | None = None

    def view(self, caller: Principal) -> dict[str, Any]:
        """Without the reason why it is stale, which may name a path."""
        return {
            "key": self.key,
            "description": self.description,
            "answers": self.answers,
            "warnings": self.warnings,
            "is_stale": self.is_stale,
            "problem": _problem(self.error, caller) if self.error is not None else "",
        }


class AgentSummaries:
    """Read again after a while, and when other agents are served."""

    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows
        self._until = 0.0
        self._known: Sequence[_Summary] = ()

    async def views(self, caller: Principal) -> list[dict[str, Any]]:
        keys = sorted(self._flows.agents.list_keys())
        now = self._flows.now()
        if not now < self._until or [one.key for one in self._known] != keys:
            self._known = await self._read(keys)
            self._until = now + SUMMARY_SECONDS
        return [one.view(caller) for one in self._known]

    async def _read(self, keys: Sequence[str]) -> Sequence[_Summary]:
        found = []
        for number, key in enumerate(keys):
            if number % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)  # others must not wait for a thousand agents
            try:
                agent = await self._flows.agents.load(key)
            except LastgoodError as error:
                found.append(_Summary(key, error=error))
            else:
                warnings, is_stale = len(agent.warnings), bool(agent.stale)
                found.append(_Summary(key, agent.description, _answers(agent), warnings, is_stale))
        return found


# -- one agent ---------------------------------------------------------------------------------


async def _view(agents: AgentDirectory, key: str, caller: Principal) -> dict[str, Any]:
    """One that cannot be loaded is listed with the reason."""
    try:
        shown = _loaded(key, await agents.load(key), agents.auto_model())
    except LastgoodError as error:
        shown = _unusable(key, error, caller)
    return shown | _origin(agents, key, caller, shown["warnings"], shown["stale"])


def _origin(
    agents: AgentDirectory, key: str, caller: Principal, warnings: Sequence[str], stale: str
) -> dict[str, Any]:
    """Paths are for the operator: for others, the name of the file remains of them."""
    try:
        origin = agents.origin(key)
    except LastgoodError:  # its file was removed just now
        return {"source": "removed", "where": None, "changed": None}
    is_operator = caller.may(Scope.ADMIN)
    where, name = origin.where, file_name(origin.where)
    return {
        "source": origin.kind,
        "where": where if is_operator and origin.kind != "built-in" else None,
        "changed": moment(origin.changed_at),
        "warnings": [one if is_operator else one.replace(where, name) for one in warnings],
        "stale": stale if is_operator else stale.replace(where, name),
    }


def _loaded(key: str, agent: AgentSpec, auto_model: str) -> dict[str, Any]:
    return {
        "key": key,
        "name": agent.name,
        "description": agent.description,
        "model": agent.model,
        "models": [auto_model] if agent.model == AUTO else _models(agent),
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


def _models(agent: AgentSpec) -> list[str]:
    """What the name of its model means, if it is one of its file."""
    spec = agent.models.get(agent.model)
    if spec is None:
        return []
    refs = spec.first_available or spec.alloy or (spec.ref,)
    return [] if refs == (agent.model,) else [*refs]


def _answers(agent: AgentSpec) -> str:
    return f"a runtime of {agent.harness}" if agent.harness else ", ".join(_models(agent) or [agent.model])


def _unusable(key: str, error: LastgoodError, caller: Principal) -> dict[str, Any]:
    nothing: dict[str, Any] = {"name": "", "description": "", "model": "", "harness": None, "digest": ""}
    more: dict[str, Any] = {
        "models": [],
        "toolsets": [],
        "team": [],
        "commands": {},
        "welcome": "",
        "warnings": [],
    }
    return {"key": key, **nothing, **more, "stale": "", "problem": _problem(error, caller)}


def _problem(error: LastgoodError, caller: Principal) -> str:
    """Paths and lines of a file are for the operator."""
    is_private = isinstance(error, AgentInvalid) and not caller.may(Scope.ADMIN)
    return "The agent file has errors; see the server log" if is_private else error.message
