"""`think` and `todo`: tools that touch nothing but the conversation.

What they remember is the conversation itself. So they do no harm when called twice, and a
turn that failed has no trace in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson

from lastgood.core.todo import (
    CREATE,
    CREATE_ONE,
    LIST,
    MOST_SHARED_CHARACTERS,
    UPDATE,
    Status,
    TodoRefused,
    TodoResult,
    Todos,
    apply,
    shared_todos_of,
    todos_of,
)
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec


def think_toolset(spec: ToolsetSpec) -> Sequence[Tool]:
    return [
        Tool(
            "think",
            "Use the tool to think about something. It obtains no new information and changes nothing; it "
            "only keeps the thought. Use it when complex reasoning is needed.",
            _schema(thought={"type": "string", "description": "The thought to think about"}),
            _think,
            on_unknown=OnUnknown.REPEAT,
            effect=Effect.SAFE,
        )
    ]


async def _think(use: ToolUse) -> str:
    return f"Thoughts:\n{use.arguments['thought']}"


_TEXT = {"type": "string"}
_STATUS = {"type": "string", "enum": [status.value for status in Status], "description": "New status"}
_UPDATE = {
    "type": "object",
    "properties": {"id": {"type": "string", "description": "ID of the todo item"}, "status": _STATUS},
    "required": ["id", "status"],
}


def todo_toolset(spec: ToolsetSpec) -> Sequence[Tool]:
    _todo_tool = partial(_todo_tool_of, bool(spec.options.get("shared")))
    return [
        _todo_tool(
            CREATE_ONE,
            "Create a new todo item with a description",
            description={"type": "string", "description": "Description of the todo item"},
        ),
        _todo_tool(
            CREATE,
            "Create a list of new todo items with descriptions",
            descriptions={
                "type": "array",
                "items": _TEXT,
                "minItems": 1,
                "description": "Descriptions of the todo items",
            },
        ),
        _todo_tool(
            UPDATE,
            "Update the status of one or more todo item(s)",
            updates={"type": "array", "items": _UPDATE, "minItems": 1, "description": "List of todo updates"},
        ),
        _todo_tool(LIST, "List all current todos with their status"),
    ]


def _todo_tool_of(is_shared: bool, name: str, about: str, **properties: dict[str, Any]) -> Tool:
    async def run(use: ToolUse) -> str:
        if not is_shared:
            todos = todos_of(use.messages)
        elif any(len(text) > MOST_SHARED_CHARACTERS for text in _descriptions(use.arguments)):
            raise ToolFailed(f"a description has more than {MOST_SHARED_CHARACTERS:,} characters; shorten it")
        else:
            todos = shared_todos_of(use.messages, use.shared_todos)
        done = apply(todos, name, use.arguments)
        if isinstance(done, TodoRefused):
            raise ToolFailed(done.reason)
        return _result_json(name, done)

    return Tool(name, about, _schema(**properties), run, on_unknown=OnUnknown.REPEAT, effect=Effect.SAFE)


def _descriptions(arguments: Mapping[str, Any]) -> list[str]:
    return [*arguments.get("descriptions", ()), *filter(None, [arguments.get("description")])]


def _result_json(name: str, done: TodoResult) -> str:
    """A JSON object: that is how the fold over the conversation knows a success."""
    everything = [asdict(todo) for todo in done.todos.items]
    result: dict[str, Any] = {"todos": everything} if name == LIST else {}
    if done.created:
        created = [asdict(todo) for todo in done.created]
        result["created"] = created[0] if name == CREATE_ONE else created
    if done.updated:
        result["updated"] = [{"id": todo.id, "status": todo.status} for todo in done.updated]
    if done.not_found:
        result["not_found"] = list(done.not_found)
    if name != LIST:
        result["all_todos"] = everything
    if reminder := _reminder(done.todos):
        result["reminder"] = reminder
    return orjson.dumps(result).decode()


def _reminder(todos: Todos) -> str:
    open_ = [
        f"({status}) [{todo.id}] {todo.description}"
        for status in (Status.IN_PROGRESS, Status.PENDING)
        for todo in todos.items
        if todo.status is status
    ]
    return (
        "The following todos are still incomplete and MUST be completed: " + " ".join(open_) if open_ else ""
    )


def _schema(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}
