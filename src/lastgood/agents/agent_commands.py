"""Builds the commands of agents, in every form they are written in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from lastgood.agents.findings import Findings, hint
from lastgood.agents.schema_reader import Fields, Value
from lastgood.core.command_prompts import unknown_expressions, uses_environment, why_no_page
from lastgood.model.agents import AgentCommand

_MOST = 500


class Commands:
    def __init__(
        self, groups: Mapping[str, Value], agents: Collection[str], findings: Findings, *, trusted: bool
    ) -> None:
        self._trusted = trusted
        self._agents = agents
        self._findings = findings
        self._groups = {name: tuple(self._built(group)) for name, group in groups.items()}

    def of(self, agent: Fields) -> tuple[AgentCommand, ...]:
        """Its own, then those of the groups it uses; of the same name its own."""
        commands = {one.name: one for one in self._built(agent.values.get("commands"))}
        for group in agent.listed("use_commands"):
            if group.raw not in self._groups:
                near = hint(group.raw, self._groups) or "; define it there"
                self._findings.error(group.place, f"'{group.raw}' is not in `commands`{near}")
            for one in self._groups.get(group.raw, ()):
                commands.setdefault(one.name, one)
        if len(commands) > _MOST:
            self._findings.error(agent.place, f"{len(commands):,} commands; the limit per agent is {_MOST}")
            return ()
        return tuple(commands.values())

    def _built(self, value: Value | None) -> Iterator[AgentCommand]:
        seen: set[str] = set()
        for name, one in _pairs(value):
            if name in seen:
                self._findings.error(one.place, f"duplicate command '{name}'")
            seen.add(name)
            command = self._command(name, one)
            if command is not None:
                yield command

    def _command(self, name: str, value: Value) -> AgentCommand | None:
        if isinstance(value.raw, str):
            self._check_text(value.raw, value)
            return AgentCommand(name, value.raw, trusted=self._trusted)
        fields: Fields = value.raw
        agent = fields.text("agent")
        if agent and agent not in self._agents:
            known = hint(agent, self._agents)
            self._findings.error(fields.at("agent"), f"unknown agent '{agent}'{known}")
        if "url" in fields:
            return self._page(name, fields)
        if not {"instruction", "description", "agent"} & fields.seen:
            self._findings.error(fields.place, f"the command '{name}' needs an 'instruction' or an 'agent'")
            return None
        instruction = fields.text("instruction")
        if "instruction" in fields:
            self._check_text(instruction, fields.values["instruction"])
        elif not agent:
            instruction = fields.text("description")
        return AgentCommand(name, instruction, fields.text("description"), agent or None, self._trusted)

    def _page(self, name: str, fields: Fields) -> AgentCommand:
        url, place = fields.text("url"), fields.at("url")
        if {"instruction", "agent"} & fields.seen:
            what = f"the command '{name}' has a 'url', so it sends nothing; remove 'instruction' and 'agent'"
            self._findings.error(place, what)
        if (why := why_no_page(url)) is not None:
            self._findings.error(place, f"'{url}' cannot be opened: {why}")
        if "${" in url:
            self._findings.warning(
                place, "`${` in the URL of a command is not supported yet: it stays as it is"
            )
        return AgentCommand(name, "", fields.text("description"), trusted=self._trusted, url=url)

    def _check_text(self, text: str, value: Value) -> None:
        for unknown in unknown_expressions(text):
            what = f"`{unknown}` in a command is not supported yet: it is sent to the agent as text"
            self._findings.warning(value.place, what)
        if not self._trusted and uses_environment(text):
            what = "commands of an agent file from a URL get no environment variables: they are left out"
            self._findings.warning(value.place, what)


def _pairs(value: Value | None) -> Iterator[tuple[str, Value]]:
    """A mapping, or a list of mappings."""
    if value is None:
        return
    for one in value.raw if isinstance(value.raw, list) else [value]:
        yield from one.raw.items()
