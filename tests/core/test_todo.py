"""The to-do list is what the conversation makes of it."""

import json
from typing import Any

import pytest

from lastgood.core.todo import (
    MOST,
    NOTHING,
    SHARED,
    Status,
    Todo,
    TodoRefused,
    TodoResult,
    Todos,
    apply,
    shared_note,
    shared_todos_of,
    todos_of,
)
from lastgood.model.messages import Message, ToolCall, assistant, tool_result, user

PENDING, IN_PROGRESS, COMPLETED = Status

Call = tuple[str, dict[str, Any]]


def after(*calls: Call) -> Todos:
    todos = Todos()
    for name, arguments in calls:
        done = apply(todos, name, arguments)
        assert isinstance(done, TodoResult)
        todos = done.todos
    return todos


def create(*descriptions: str) -> Call:
    return "create_todos", {"descriptions": list(descriptions)}


def update(**statuses: str) -> Call:
    return "update_todos", {"updates": [{"id": id_, "status": status} for id_, status in statuses.items()]}


def exchange(*calls: Call, result: str = "{}", id_: str = "1") -> list[Message]:
    """One response that calls tools, and their results."""
    asked = [ToolCall(id_, name, json.dumps(arguments)) for name, arguments in calls]
    return [assistant("", *asked), *(tool_result(id_, result) for _ in asked)]


def test_todos_are_made_with_ids_and_take_a_status() -> None:
    todos = after(("create_todo", {"description": "a"}), create("b", "c"), update(todo_2="in-progress"))
    assert todos == Todos(
        (Todo("todo_1", "a"), Todo("todo_2", "b", IN_PROGRESS), Todo("todo_3", "c")),
        3,
    )
    assert apply(todos, "list_todos", {}) == TodoResult(todos)


def test_an_update_says_what_it_did_not_find() -> None:
    todos = after(create("a"))
    done = apply(todos, *update(todo_1="completed", todo_9="completed"))
    assert done == TodoResult(
        Todos((Todo("todo_1", "a", COMPLETED),), 1),
        updated=(Todo("todo_1", "a", COMPLETED),),
        not_found=("todo_9",),
    )


def test_an_update_that_finds_nothing_is_refused() -> None:
    assert apply(after(create("a")), *update(todo_9="completed")) == TodoRefused(
        "unknown todo ids: todo_9; existing ids: todo_1"
    )
    assert isinstance(apply(Todos(), *update(todo_9="completed")), TodoRefused)


def test_old_finished_ones_make_room_and_open_ones_do_not() -> None:
    full = after(create(*"x" * MOST), update(todo_2="completed", todo_5="completed"))
    more = apply(full, *create("y"))
    assert isinstance(more, TodoResult)
    ids = [todo.id for todo in more.todos.items]
    assert len(ids) == MOST
    assert "todo_2" not in ids
    assert {"todo_1", "todo_5", f"todo_{MOST + 1}"} <= set(ids)
    assert isinstance(apply(full, *create("y", "y", "y")), TodoRefused)


def test_the_list_is_what_the_answered_calls_make_of_it() -> None:
    messages = [
        user("go"),
        *exchange(create("a", "b"), id_="1"),
        user("go on"),
        *exchange(update(todo_1="completed"), id_="1"),  # the same id again
    ]
    assert todos_of(messages) == after(create("a", "b"), update(todo_1="completed"))


def test_several_calls_of_one_response_count_one_after_another() -> None:
    assert todos_of(exchange(create("a"), create("b"), update(todo_2="completed"))) == after(
        create("a"), create("b"), update(todo_2="completed")
    )


@pytest.mark.parametrize("result", ["error: no", "No result was recorded for this call.", "", "unknown"])
def test_a_call_without_success_leaves_no_trace(result: str) -> None:
    assert todos_of(exchange(create("a"), result=result)) == Todos()


def test_a_call_without_a_result_leaves_no_trace() -> None:
    messages = [*exchange(create("a")), assistant("", ToolCall("7", *_encoded(create("b"))))]
    assert todos_of(messages) == after(create("a"))
    assert todos_of([*messages, user("?"), tool_result("7", "{}")]) == after(create("a"))


def test_a_result_counts_once() -> None:
    messages = exchange(create("a"))
    assert todos_of([*messages, messages[-1]]) == after(create("a"))


def test_a_refused_call_that_was_answered_anyway_changes_nothing() -> None:
    assert todos_of(exchange(create("a"), update(todo_9="completed"))) == after(create("a"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("create_todo", "{}"),
        ("create_todos", '{"descriptions": 5}'),
        ("update_todos", '{"updates": [{"id": "todo_1", "status": "odd"}]}'),
        ("update_todos", "[]"),
        ("create_todo", "not JSON"),
        ("create_todo", "[" * 100_000),
        ("create", '{"description": "a"}'),
        ("echo", "{}"),
    ],
)
def test_calls_of_other_tools_change_nothing(name: str, arguments: str) -> None:
    call = ToolCall("1", name, arguments)
    before = exchange(create("a"))
    assert todos_of([*before, assistant("", call), tool_result("1", "{}")]) == after(create("a"))


def _encoded(call: Call) -> tuple[str, str]:
    name, arguments = call
    return name, json.dumps(arguments)


# -- shared by agents -------------------------------------------------------------------


def task(result: str, *, name: str = "transfer_task") -> list[Message]:
    return exchange((name, {}), result=result)


@pytest.mark.parametrize("name", ["transfer_task", "run_skill"])
def test_the_result_of_a_task_that_changed_the_shared_list_carries_it(name: str) -> None:
    changed = after(create("buy \u201cmilk\u201d\n", "b"), update(todo_2="completed"))
    result = "Done." + shared_note("Done.", NOTHING, changed)
    assert result.startswith(f"Done.\n\n{SHARED}")
    messages = [user("go"), *task(result, name=name), *exchange(create("c"))]
    shared = shared_todos_of(messages, NOTHING)
    assert [one.id for one in shared.items] == ["todo_1", "todo_2", "todo_3"]
    assert shared.items[:2] == changed.items
    assert shared_todos_of(messages, NOTHING, counts=False) == changed
    assert todos_of(messages) == after(create("c")), "a list of the conversation alone knows no task"


def test_a_task_begins_with_the_list_as_it_is() -> None:
    before = after(create("a"))
    assert shared_todos_of([user("task")], before) == before
    assert shared_todos_of(exchange(update(todo_1="completed")), before).items[0].status is COMPLETED


def test_a_task_that_changed_nothing_adds_nothing_and_one_that_pretends_to_changes_nothing() -> None:
    before = after(create("a"))
    assert shared_note("Done.", before, before) == ""
    assert shared_todos_of(task("Done."), before) == before
    lie = f'\n{SHARED}{{"items": [], "created": 9}}'
    result = lie + shared_note(lie, before, before)
    assert shared_todos_of(task(result), NOTHING) == before


@pytest.mark.parametrize("text", ["no json", "[]", '{"items": [{}]}', '{"items": [], "created": null}', ""])
def test_what_is_no_list_changes_none(text: str) -> None:
    before = after(create("a"))
    assert shared_todos_of(task(f"Done.\n\n{SHARED}{text}"), before) == before
