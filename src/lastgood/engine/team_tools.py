"""The two tools of a team: delegating a task, and handing the conversation over.

A handoff is an ordinary tool: the active agent is derived from the conversation. A task is not: the loop runs
it itself, because the other agent's steps are steps of this attempt.
"""

from __future__ import annotations

from typing import Any

from lastgood.core.speaker import HANDOFF, TRANSFER
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import AgentSpec, Effect, OnUnknown
from lastgood.model.messages import HANDED_OVER, Message, user

#: A task within a task within a task; a team that needs more has lost its thread.
DEEPEST = 5


async def _not_run(use: ToolUse) -> str:
    raise AssertionError("the loop delegates tasks itself")


#: What rules and hooks judge a task by: giving one to another agent changes nothing by itself.
TASK_TOOL = Tool(TRANSFER, "", {"type": "object"}, _not_run, on_unknown=OnUnknown.REPEAT, effect=Effect.SAFE)


def handoff_tool(agent: AgentSpec, team: AgentSpec) -> Tool | None:
    names = [name for name in agent.handoffs if team.member(name) is not None]
    if not names:
        return None

    async def run(use: ToolUse) -> str:
        name = use.arguments.get("agent")
        if name not in names:
            raise ToolFailed(f"unknown agent {name!r}; you can hand over to {', '.join(names)}")
        return f"{HANDED_OVER}{name}. You are {name} now; continue with the request of the user."

    return Tool(
        HANDOFF,
        "Hands the conversation over to another agent, which then answers the user.",
        {
            "type": "object",
            "properties": {
                "agent": {
                    "type": "string",
                    "enum": names,
                    "description": "the name of the agent that takes over",
                }
            },
            "required": ["agent"],
        },
        run,
        on_unknown=OnUnknown.REPEAT,
        effect=Effect.SAFE,
    )


def task_definition(agent: AgentSpec, team: AgentSpec) -> dict[str, Any] | None:
    names = [name for name in agent.sub_agents if team.member(name) is not None]
    if not names:
        return None
    return {
        "type": "function",
        "function": {
            "name": TRANSFER,
            "description": "Delegates a task to another agent and returns its answer. It does not see this "
            "conversation: include everything it needs.",
            "parameters": {
                "type": "object",
                "properties": {
                    "agent": {"type": "string", "enum": names, "description": "the name of the agent"},
                    "task": {"type": "string", "description": "the task, with all the context it needs"},
                    "expected_output": {
                        "type": "string",
                        "description": "the expected format of the answer",
                    },
                },
                "required": ["agent", "task"],
            },
        },
    }


def task_of(agent: AgentSpec, team: AgentSpec, arguments: dict[str, Any]) -> tuple[AgentSpec, Message]:
    """Returns the agent and its prompt: the task, and nothing else of the conversation."""
    name, task, expected = (arguments.get(key) for key in ("agent", "task", "expected_output"))
    other = team.member(name) if name in agent.sub_agents else None
    if other is None:
        raise ToolFailed(f"unknown agent {name!r}; you can delegate to {', '.join(agent.sub_agents)}")
    if not isinstance(task, str) or not task.strip():
        raise ToolFailed("`task` must be a non-empty string")
    if isinstance(expected, str) and expected.strip():
        task = f"{task}\n\nThe answer should be: {expected}"
    return other, user(task)
