"""The smallest tool: says what it was given."""

from __future__ import annotations

from lastgood.engine.tools.tool import Tool, ToolUse
from lastgood.model.agents import Effect, OnUnknown


async def _echo(use: ToolUse) -> str:
    return str(use.arguments.get("text", ""))


ECHO = Tool(
    name="echo",
    description="Returns the text it is given.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    run=_echo,
    on_unknown=OnUnknown.REPEAT,
    effect=Effect.SAFE,
)
