"""What the loop needs of a tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import Message


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
    #: Shows output as it comes. What counts is what the tool returns.
    say: Callable[[str], None] = _silent


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema
    run: Callable[[ToolUse], Awaitable[str]]
    on_unknown: OnUnknown = OnUnknown.FAIL
    effect: Effect = Effect.UNKNOWN

    def as_json(self) -> dict[str, Any]:
        """A copy of its own for every caller: what a provider does to it stays there."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        copied: dict[str, Any] = orjson.loads(orjson.dumps({"type": "function", "function": function}))
        return copied


class ToolFailed(Exception):
    """The tool did not do what it was asked; its text is the result the model sees."""


#: Makes the tools of a toolset. Starts nothing.
Toolset = Callable[[ToolsetSpec], Sequence[Tool]]
#: By the type an agent file names.
Toolsets = Mapping[str, Toolset]
