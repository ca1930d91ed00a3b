"""What the loop needs of a tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lastgood.core.todo import NOTHING, Todos
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.model.answers import Answer
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import Message
from lastgood.ports.notes import Notes


def _silent(text: str) -> None:
    """Discards the output."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call. Outside effects are at least once: `key` is the same in every attempt at the turn."""

    arguments: dict[str, Any]
    key: str
    session: SessionId
    turn: TurnId
    attempt: AttemptId
    attempt_number: int
    working_dir: Path | None = None
    #: The conversation up to this call. A tool that remembers something remembers it here.
    messages: tuple[Message, ...] = ()
    #: A person's answer to the question that this call asked before.
    answer: Answer | None = None
    #: Shows output as it comes. What counts is what the tool returns.
    say: Callable[[str], None] = _silent
    #: The names of all tools of the program that this one belongs to, as the agent has them.
    program_tools: frozenset[str] = frozenset()
    #: What the agent keeps beyond its sessions.
    notes: Notes | None = None
    #: The to-do list that agents share, before this conversation began.
    shared_todos: Todos = NOTHING


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema
    run: Callable[[ToolUse], Awaitable[str]]
    on_unknown: OnUnknown = OnUnknown.FAIL
    effect: Effect = Effect.UNKNOWN
    #: What it does, where that is not in the agent file: an approval is for this.
    definition: str = ""

    def as_json(self) -> dict[str, Any]:
        """A copy of its own for every caller: what a provider does to it stays there."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        copied: dict[str, Any] = orjson.loads(orjson.dumps({"type": "function", "function": function}))
        return copied


#: The argument by which a call says what it is for, where the agent's file asks for it.
DESCRIPTION = "description"


def is_described(tool: Tool) -> bool:
    """Whether the tool has an argument of this name itself."""
    return DESCRIPTION in (tool.parameters.get("properties") or {})


class ToolFailed(Exception):
    """The tool failed; its message is the result that the model sees."""


class ToolInterrupted(ToolFailed):
    """The call was cut off: whether it took effect is unknown."""


class NeedsInput(Exception):
    """The call has to be made again with a person's answer, in this process or in another one.

    `state` comes back with the answer; it is JSON. `schema`: of the answer. `url`: where the person has to
    go instead of sending content.
    """

    def __init__(
        self,
        message: str,
        schema: Mapping[str, Any] | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        url: str | None = None,
        title: str = "",
    ) -> None:
        super().__init__(message)
        self.message, self.schema, self.state, self.url, self.title = message, schema, state, url, title


class ForkRequested(Exception):
    """The result of this call is the answer of the same agent to `prompt` alone, apart from the conversation.

    `allowed_tools`: globs over the names of its tools; none: all of them. `toolsets`: names of the file's
    toolsets that it has beside them. `is_trusted`: the model itself cannot have written it.
    """

    def __init__(
        self,
        skill: str,
        prompt: str,
        *,
        model: str = "",
        allowed_tools: Sequence[str] = (),
        toolsets: Sequence[str] = (),
        is_trusted: bool = True,
    ) -> None:
        super().__init__(skill)
        self.skill, self.prompt, self.model, self.is_trusted = skill, prompt, model, is_trusted
        self.allowed_tools, self.toolsets = tuple(allowed_tools), tuple(toolsets)


#: Makes the tools of a toolset. Starts nothing.
Toolset = Callable[[ToolsetSpec], Sequence[Tool]]
#: By the type an agent file names.
Toolsets = Mapping[str, Toolset]
