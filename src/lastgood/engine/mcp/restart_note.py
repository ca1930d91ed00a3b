"""Decides whether the model must know that a server was started again since it was last used.

What a server kept in memory is gone then. The conversation is what knows of earlier uses: they may have been
in another process of ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from lastgood.core.history import NO_RESULT
from lastgood.model.messages import Message, Role

STARTED_AGAIN = (
    "\n[The MCP server was started again since its tools were last used in this conversation: state that "
    "it kept in memory is gone.]"
)
_ERROR = "error: "
_SERVER_ERROR = "error: MCP server "


def short_id(call_id: str) -> str:
    """Of the id of a call, or of the key of its use, which ends with it."""
    return call_id.rpartition(":")[2]


def restart_note(messages: Sequence[Message], tools: Collection[str], answered: Collection[str]) -> str:
    """`tools`: the names of the server's tools. `answered`: the short ids of the calls that reached the
    process that runs now."""
    for call, text in _results(messages, tools):
        if short_id(call) in answered:
            return ""
        if text == NO_RESULT:  # still open, as the call that asks is
            continue
        # A call that was denied, or failed otherwise before it was sent, is no use of the server.
        if not text.startswith(_ERROR) or text.startswith(_SERVER_ERROR):
            return STARTED_AGAIN
    return ""


def _results(messages: Sequence[Message], tools: Collection[str]) -> Iterator[tuple[str, str]]:
    """Ids of calls and their results, the latest first."""
    names: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for message in messages:
        names.update((call.id, call.name) for call in message.tool_calls)
        call_id = message.tool_call_id
        if message.role is Role.TOOL and call_id is not None and names.get(call_id) in tools:
            found.append((call_id, message.content))
    return reversed(found)
