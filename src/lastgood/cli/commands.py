"""The commands of agents, which `lastgood run` understands in a chat and as its message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lastgood.cli.chat import Chat
from lastgood.core.command_prompts import command_prompt, command_url
from lastgood.model.agents import AgentCommand, AgentSpec

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class TypedCommand:
    """`typed`: the text after its name."""

    command: AgentCommand
    typed: str


@dataclass(frozen=True, slots=True)
class SlashCommands:
    """`source` is the key of the agent file, `environment` what commands find under `${env.NAME}`."""

    source: str
    agent: AgentSpec
    environment: Mapping[str, str]

    def known(self, talk: Chat) -> dict[str, AgentCommand]:
        """By its name with the slash, those of the agent that the chat talks to."""
        name = talk.agent.removeprefix(self.source).removeprefix("/")
        agent = self.agent.member(name) or self.agent
        return {f"/{command.name}": command for command in agent.commands}

    def find(self, talk: Chat, text: str) -> TypedCommand | None:
        word, _, typed = text.partition(" ")
        command = self.known(talk).get(word)
        return None if command is None else TypedCommand(command, typed.strip())

    def page(self, talk: Chat, found: TypedCommand) -> str:
        """The page that the command opens; "": it opens none."""
        return command_url(found.command.url, talk.session or "")

    def begin(self, talk: Chat, found: TypedCommand) -> str:
        """Returns the prompt; empty: there is nothing to send. A command may switch to another agent, which
        answers from then on."""
        command = found.command
        if command.agent is not None:
            talk.agent = f"{self.source}/{command.agent}"
            member = self.agent.member(command.agent)
            talk.agent_model = member.model if member else talk.agent_model
        environment = self.environment if command.trusted else _NOTHING
        return command_prompt(command.instruction, found.typed, environment)
