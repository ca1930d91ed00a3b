"""`session_plan`: one plan for the session, written by one agent and carried out by another or later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lastgood.core.session_plan import WRITE_PLAN, WRITTEN, plan_of
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec

PLAN_CHARACTERS = 100_000


def session_plan_toolset(spec: ToolsetSpec) -> Sequence[Tool]:
    content = {"type": "string", "description": "The whole plan in Markdown; it replaces the one before"}
    return [
        _tool(
            WRITE_PLAN,
            "Writes the plan of this session, or replaces it. There is one plan for each session.",
            _write,
            content=content,
        ),
        _tool("read_session_plan", "Returns the plan of this session.", _read),
        _tool(
            "exit_plan_mode",
            "Says that the plan of this session is complete and ready for review. It switches no agent.",
            _ready,
        ),
    ]


async def _write(use: ToolUse) -> str:
    plan: str = use.arguments["content"]
    if not plan.strip():
        raise ToolFailed("`content` is empty")
    if len(plan) > PLAN_CHARACTERS:
        raise ToolFailed(f"the plan has {len(plan):,} characters; the limit is {PLAN_CHARACTERS:,}")
    return f"{WRITTEN}."


async def _read(use: ToolUse) -> str:
    return _plan(use)


async def _ready(use: ToolUse) -> str:
    _plan(use)
    return "The plan is ready for review. The user decides what happens next."


def _plan(use: ToolUse) -> str:
    plan = plan_of(use.messages)
    if plan is None:
        raise ToolFailed(f"this session has no plan yet; write one with {WRITE_PLAN}")
    return plan


def _tool(
    name: str, about: str, run: Callable[[ToolUse], Awaitable[str]], /, **properties: dict[str, Any]
) -> Tool:
    """What they remember is the conversation, so they may be called twice."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name, about, schema, run, on_unknown=OnUnknown.REPEAT, effect=Effect.SAFE)
