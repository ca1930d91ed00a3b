"""Derives the to-do list of a conversation.

The list is not stored. It is the result of all successful calls of the conversation, in order. So a failed
turn leaves no trace in it, a fork has its own, a reset empties it, and a restart loses nothing.

The conversation of a sub-agent is no part of the history, but the result of its task is. If it changed a list
that agents share, that result ends with the list, and later calls continue from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from lastgood.core.call_arguments import arguments_in
from lastgood.model.messages import Message, Role, ToolCall

CREATE_ONE = "create_todo"
CREATE = "create_todos"
UPDATE = "update_todos"
LIST = "list_todos"

#: A longer list would fill every result. Old completed entries are removed first.
MOST = 100
#: Of an entry of a shared list, because the whole list follows the result of a task.
MOST_SHARED_CHARACTERS = 1000
#: How the line begins with which the result of a task ends, if it changed the shared list.
SHARED = "The shared to-do list is now: "
_DELEGATING = ("transfer_task", "run_skill")


class Status(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in-progress"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Todo:
    id: str
    description: str
    status: Status = Status.PENDING


@dataclass(frozen=True, slots=True)
class Todos:
    items: tuple[Todo, ...] = ()
    created: int = 0  # ever; ids are not used twice


NOTHING = Todos()


@dataclass(frozen=True, slots=True)
class TodoResult:
    """What a call makes of the list, and what it did in particular."""

    todos: Todos
    created: tuple[Todo, ...] = ()
    updated: tuple[Todo, ...] = ()
    not_found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TodoRefused:
    reason: str


def apply(todos: Todos, tool: str, arguments: Mapping[str, Any]) -> TodoResult | TodoRefused:
    """One call; the arguments have the shape that the tool asks for."""
    match tool:
        case "create_todo":
            return _create(todos, [arguments["description"]])
        case "create_todos":
            return _create(todos, arguments["descriptions"])
        case "update_todos":
            return _update(todos, [(one["id"], Status(one["status"])) for one in arguments["updates"]])
        case _:
            return TodoResult(todos)


def _create(todos: Todos, descriptions: Sequence[str]) -> TodoResult | TodoRefused:
    created = tuple(
        Todo(f"todo_{number}", description)
        for number, description in enumerate(descriptions, todos.created + 1)
    )
    items = [*todos.items, *created]
    for old in todos.items:
        if len(items) > MOST and old.status is Status.COMPLETED:
            items.remove(old)
    if len(items) > MOST:
        return TodoRefused(f"the todo list is full (limit {MOST}); complete some todos first")
    return TodoResult(Todos(tuple(items), todos.created + len(created)), created=created)


def _update(todos: Todos, updates: Sequence[tuple[str, Status]]) -> TodoResult | TodoRefused:
    items = {todo.id: todo for todo in todos.items}
    updated: list[Todo] = []
    for id_, status in updates:
        if id_ in items:
            items[id_] = replace(items[id_], status=status)
            updated.append(items[id_])
    not_found = tuple(id_ for id_, _ in updates if id_ not in items)
    if not_found and not updated:
        known = ", ".join(items) or "none"
        return TodoRefused(f"unknown todo ids: {', '.join(not_found)}; existing ids: {known}")
    return TodoResult(
        replace(todos, items=tuple(items.values())), updated=tuple(updated), not_found=not_found
    )


def todos_of(messages: Sequence[Message]) -> Todos:
    """The list of the conversation after these messages."""
    todos = NOTHING
    for call, result in _answered(messages):
        todos = _again(todos, call, result)
    return todos


def shared_todos_of(messages: Sequence[Message], before: Todos, *, counts: bool = True) -> Todos:
    """The list that agents share, after these messages. `before`: as it was when the task began. `counts`:
    whether the calls in these messages are about this list."""
    todos = before
    for call, result in _answered(messages):
        if call.name in _DELEGATING:
            todos = _shared_after(result) or todos
        elif counts:
            todos = _again(todos, call, result)
    return todos


def _answered(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, str]]:
    """Calls and results are paired by adjacency: providers reuse ids."""
    waiting: list[ToolCall] = []
    for message in messages:
        if message.role is not Role.TOOL:
            waiting = list(message.tool_calls)
            continue
        call = next((call for call in waiting if call.id == message.tool_call_id), None)
        if call is not None:
            waiting.remove(call)
            yield call, message.content


def shared_note(result: str, before: Todos, after: Todos) -> str:
    """Returns what is appended to the result of a task. An imitated list is followed by the true one."""
    if before == after and SHARED not in result:
        return ""
    return f"\n\n{SHARED}{json.dumps(asdict(after), ensure_ascii=False)}"


def _shared_after(result: str) -> Todos | None:
    """None: the task did not change it."""
    _, found, text = result.rpartition(f"\n{SHARED}")
    if not found:
        return None
    try:
        plain = json.loads(text)
        items = tuple(Todo(one["id"], one["description"], Status(one["status"])) for one in plain["items"])
        return Todos(items, int(plain["created"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None  # an old result, of which only a part is shown


def _again(todos: Todos, call: ToolCall, result: str) -> Todos:
    # Only a success is a JSON object. Whatever else was answered, the list did not change.
    if call.name not in (CREATE_ONE, CREATE, UPDATE) or not result.startswith("{"):
        return todos
    try:
        done = apply(todos, call.name, arguments_in(call))
    except (ValueError, LookupError, TypeError, AttributeError):
        return todos  # another tool of that name
    return done.todos if isinstance(done, TodoResult) else todos
