"""A toolset, and a way to call its tools."""

import asyncio
import select
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lastgood.engine.tools.builtin import first_toolsets
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import ToolsetSpec
from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.messages import Message
from lastgood.outside.network import SYSTEM, Network
from lastgood.outside.secrets import Secrets
from lastgood.ports.notes import Notes

PATH = "/usr/local/bin:/usr/bin:/bin"


class Kit:
    """The tools of one toolset, in a working directory."""

    def __init__(
        self,
        kind: str,
        root: Path | None,
        *,
        environment: Mapping[str, str] | None = None,
        network: Network = SYSTEM,
        trusted: bool = True,
        tools: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        environment = {"PATH": PATH, **(environment or {})}
        toolsets = first_toolsets(Secrets(environment), environment=environment, network=network)
        wanted = None if tools is None else tuple(tools)
        spec = ToolsetSpec(kind, wanted, options=options, trusted=trusted)
        self.tools: dict[str, Tool] = {tool.name: tool for tool in toolsets[kind](spec)}
        self.root = root
        self.messages: tuple[Message, ...] = ()
        self.notes: Notes | None = None
        self.said: list[str] = []
        self.received = asyncio.Event()  # something was said

    async def __call__(self, name: str, /, **arguments: Any) -> str:
        return await self.tools[name].run(self.use(arguments))

    def use(self, arguments: dict[str, Any]) -> ToolUse:
        return ToolUse(
            arguments=arguments,
            key="turn:1:call",
            session=SessionId("ses"),
            turn=TurnId("turn"),
            attempt=AttemptId("att"),
            attempt_number=3,
            working_dir=self.root,
            messages=self.messages,
            say=self._receive,
            notes=self.notes,
        )

    def _receive(self, text: str) -> None:
        self.said.append(text)
        self.received.set()

    async def fails(self, name: str, /, **arguments: Any) -> str:
        """What the model is told when it does not work."""
        with pytest.raises(ToolFailed) as failed:
            await self(name, **arguments)
        return str(failed.value)


def has_ended(process: int, within: float = 0.0) -> bool:
    """Of a process held by its pidfd. It has ended, whether or not somebody has reaped it."""
    return bool(select.select([process], [], [], within)[0])
