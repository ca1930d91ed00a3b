"""Decides which agent of a team speaks.

A handoff is an ordinary tool call, so the active agent is derived from the conversation: a failed turn hands
nothing over, and a restart loses nothing. A forced handoff is part of the response before it, and lasts until
its turn ends: the next one begins with the first agent of the chain again.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.core.call_arguments import text_in
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Step
from lastgood.model.messages import HANDED_OVER, Message, Role, is_handover_note

HANDOFF = "handoff"
TRANSFER = "transfer_task"


def speaker(entry: AgentSpec, messages: Sequence[Message], first: AgentSpec | None = None) -> AgentSpec:
    """The agent the conversation was handed to last, or the one it began with: `first`, else `entry`."""
    first = first or entry
    if not any(agent.handoffs for agent in (entry, *entry.members.values())):
        return first
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.role is not Role.TOOL or not message.content.startswith(HANDED_OVER):
            continue
        name = _handed_to(messages, position)
        if name is not None:
            # An agent that its file no longer has cannot speak; the one it began with can.
            return entry.member(name) or entry
    return first


def speaker_after(entry: AgentSpec, messages: Sequence[Message], steps: Sequence[Step]) -> AgentSpec:
    """The same, after these steps of a turn that began with these messages."""
    agent, said = speaker(entry, messages), list[Message]()
    for step in steps:
        if step.is_said:
            said.append(step.message)
        if step.hands_to:
            agent, said = entry.member(step.hands_to) or entry, []
    return speaker(entry, said, agent)


def goes_on_as(entry: AgentSpec, agent: AgentSpec) -> str:
    """Returns the agent that continues after the final response of this one, or "" for none. One that was
    given a task does it alone: such an entry has no members."""
    forced = agent.force_handoff
    return forced if forced is not None and entry.member(forced) is not None else ""


def may_speak(entry: AgentSpec) -> list[AgentSpec]:
    """The agents that the conversation may be handed to, and the one that it begins with."""
    found = {entry.name: entry}
    waiting = [entry]
    while waiting:
        agent = waiting.pop()
        for name in (*agent.handoffs, *filter(None, [agent.force_handoff])):
            other = entry.member(name)
            if other is not None and name not in found:
                found[name] = other
                waiting.append(other)
    return list(found.values())


def last_request(messages: Sequence[Message]) -> str:
    """Returns the last message of the user, whichever agents continued since."""
    said = (one.content for one in reversed(messages) if one.role is Role.USER and not is_handover_note(one))
    return next(said, "")


def _handed_to(messages: Sequence[Message], result: int) -> str | None:
    """Whom the call of this result named; None: it is the result of something else."""
    caller = result
    while caller > 0 and messages[caller].role is Role.TOOL:
        caller -= 1
    for call in messages[caller].tool_calls:
        if call.id == messages[result].tool_call_id:
            return text_in(call, "agent") if call.name == HANDOFF else None
    return None
