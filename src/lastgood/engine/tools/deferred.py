"""`search_tool` and `add_tool`: tools that stay out of the prompt until the model has looked for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import orjson

from lastgood.core.deferred_tools import ADD, ADDED, SEARCH, added_tools, found_tools
from lastgood.engine.tools.arguments import checked
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown
from lastgood.model.messages import Message


def offered_tools(
    tools: Mapping[str, Tool], deferred: Collection[str], messages: Sequence[Message]
) -> Mapping[str, Tool]:
    """`tools` without the deferred ones that this conversation has not added, and with the search."""
    added = added_tools(messages)
    hidden = {name: tools[name].description for name in tools if name in deferred}
    shown = {name: tool for name, tool in tools.items() if name not in deferred or name in added}
    return {**_search_tools(hidden), **shown}


def _search_tools(hidden: Mapping[str, str]) -> dict[str, Tool]:
    async def search(use: ToolUse) -> str:
        found = found_tools(hidden, use.arguments["query"])
        if not found:
            return "No tool matches; try other words."
        return orjson.dumps([{"name": name, "description": text} for name, text in found.items()]).decode()

    async def add(use: ToolUse) -> str:
        name = use.arguments["name"]
        if name not in hidden:
            raise ToolFailed(f"there is no tool {name!r} to add; search with {SEARCH}")
        return f"{ADDED}{name} can be called from now on."

    about_search = "Searches the tools that are not listed yet, by words of their names and descriptions."
    about_add = f"Makes a tool that {SEARCH} has found available, so that it can be called."
    return {
        SEARCH: _tool(SEARCH, about_search, "query", search),
        ADD: _tool(ADD, about_add, "name", add),
    }


def _tool(name: str, description: str, argument: str, run: Callable[[ToolUse], Awaitable[str]]) -> Tool:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    made = Tool(name, description, parameters, run, on_unknown=OnUnknown.REPEAT, effect=Effect.SAFE)
    return checked(made)
