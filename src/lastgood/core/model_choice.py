"""Decides which model an agent has chosen for itself.

The choice is not stored: it is the last successful call of the conversation. So a failed turn chooses
nothing, a fork has its own, and a handoff ends it, because it was the choice of another agent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lastgood.core.call_arguments import text_in
from lastgood.core.speaker import HANDOFF
from lastgood.model.messages import HANDED_OVER, Message, Role, ToolCall, is_handover_note

CHANGE = "change_model"
REVERT = "revert_model"
#: How the results of successful calls begin.
CHANGED = "The model is "
REVERTED = "The model is the agent's own again"


def chosen_model(messages: Sequence[Message], allowed: Collection[str]) -> str | None:
    """None: the agent's own. `allowed`: a choice that the file no longer offers does not count."""
    chosen: str | None = None
    waiting: list[ToolCall] = []
    for message in messages:
        if message.role is not Role.TOOL:
            waiting = list(message.tool_calls)
            chosen = None if is_handover_note(message) else chosen
            continue
        call = next((call for call in waiting if call.id == message.tool_call_id), None)
        if call is None:
            continue
        waiting.remove(call)
        if call.name == REVERT and message.content.startswith(REVERTED):
            chosen = None
        elif call.name == CHANGE and message.content.startswith(CHANGED):
            chosen = text_in(call, "model")
        elif call.name == HANDOFF and message.content.startswith(HANDED_OVER):
            chosen = None
    return chosen if chosen in allowed else None
