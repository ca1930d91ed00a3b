"""Derives the plan of a session from its conversation.

The plan is not stored: it is what the last successful call wrote. So a failed turn leaves no trace in it, a
fork has its own, and a restart loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.core.call_arguments import text_in
from lastgood.model.messages import Message, Role, ToolCall

WRITE_PLAN = "write_session_plan"
#: How the result of a successful call begins.
WRITTEN = "The plan was written"


def plan_of(messages: Sequence[Message]) -> str | None:
    """None: none was written."""
    written: list[ToolCall] = []
    waiting: list[ToolCall] = []
    for message in messages:
        if message.role is not Role.TOOL:
            waiting = list(message.tool_calls)
            continue
        call = next((call for call in waiting if call.id == message.tool_call_id), None)
        if call is None:
            continue
        waiting.remove(call)
        if call.name == WRITE_PLAN and message.content.startswith(WRITTEN):
            written.append(call)
    # From the end: a long conversation has many plans, and all but the last one are history.
    return next((plan for call in reversed(written) if (plan := text_in(call, "content"))), None)
