"""Decides which deferred tools a conversation has added, and which of them a search finds.

As with the to-do list, nothing is kept: an added tool is one whose call of `add_tool` was answered with
success. So a failed turn adds nothing, a fork has its own, and a restart loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lastgood.core.call_arguments import text_in
from lastgood.model.messages import Message, Role, ToolCall

SEARCH = "search_tool"
ADD = "add_tool"
#: How the result of a successful `add_tool` begins.
ADDED = "Added: "


def added_tools(messages: Sequence[Message]) -> frozenset[str]:
    """Calls and results are paired by adjacency: providers reuse ids."""
    added: set[str] = set()
    waiting: list[ToolCall] = []
    for message in messages:
        if message.role is not Role.TOOL:
            waiting = list(message.tool_calls)
            continue
        call = next((call for call in waiting if call.id == message.tool_call_id), None)
        if call is not None:
            waiting.remove(call)
            if call.name == ADD and message.content.startswith(ADDED):
                added.add(text_in(call, "name") or "")
    return frozenset(added)


def found_tools(descriptions: Mapping[str, str], query: str) -> dict[str, str]:
    """Those whose name or description has a word of the query; those with the most words come first."""
    words = query.lower().replace("_", " ").split()

    def hits(name: str) -> int:
        text = f"{name} {descriptions[name]}".lower()
        return sum(word in text for word in words)

    names = sorted((name for name in descriptions if hits(name)), key=lambda name: (-hits(name), name))
    return {name: descriptions[name] for name in names}
