"""Decides which agent of a team speaks.

A handoff is an ordinary tool call, so the active agent is derived from the conversation: a failed turn hands
nothing over, and a restart loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.core.call_arguments import text_in
from lastgood.model.agents import AgentSpec
from lastgood.model.messages import Message, Role

HANDOFF = "handoff"
TRANSFER = "transfer_task"
#: How the result of a handoff that happened begins.
HANDED_OVER = "The conversation was handed over to "


def speaker(entry: AgentSpec, messages: Sequence[Message]) -> AgentSpec:
    """The agent the conversation was handed to last, or the one it began with."""
    if not any(agent.handoffs for agent in (entry, *entry.members.values())):
        return entry
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.role is not Role.TOOL or not message.content.startswith(HANDED_OVER):
            continue
        name = _handed_to(messages, position)
        if name is not None:
            # An agent that its file no longer has cannot speak; the one it began with can.
            return entry.member(name) or entry
    return entry


def _handed_to(messages: Sequence[Message], result: int) -> str | None:
    """Whom the call of this result named; None: it is the result of something else."""
    caller = result
    while caller > 0 and messages[caller].role is Role.TOOL:
        caller -= 1
    for call in messages[caller].tool_calls:
        if call.id == messages[result].tool_call_id:
            return text_in(call, "agent") if call.name == HANDOFF else None
    return None
