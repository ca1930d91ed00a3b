"""Thinking and to-dos live in the conversation and nowhere else."""

import json
from typing import Any

import pytest

from lastgood.core.history import repair
from lastgood.core.todo import Todos, todos_of
from lastgood.model.agents import Effect, OnUnknown
from lastgood.model.messages import Message, ToolCall, assistant, decode, encode, tool_result, user
from tests.tools.toolkit import Kit

pytestmark = pytest.mark.anyio


async def test_a_thought_is_kept_by_being_said() -> None:
    assert await Kit("think", None)("think", thought="hm") == "Thoughts:\nhm"


def test_both_may_be_repeated_without_harm() -> None:
    tools = {**Kit("think", None).tools, **Kit("todo", None).tools}
    assert set(tools) == {"think", "create_todo", "create_todos", "update_todos", "list_todos"}
    for tool in tools.values():
        assert (tool.effect, tool.on_unknown) == (Effect.SAFE, OnUnknown.REPEAT)


class Talk:
    """A conversation of turns, each of which is committed as a whole or not at all."""

    def __init__(self) -> None:
        self.committed: tuple[Message, ...] = ()
        self.own: tuple[Message, ...] = ()

    def turn(self, text: str = "go") -> None:
        self.own = (user(text),)

    async def call(self, name: str, **arguments: Any) -> Any:
        kit = Kit("todo", None)  # a new one each time: nothing is kept in it
        call = ToolCall("call_1", name, json.dumps(arguments))
        kit.messages = (*self.committed, *self.own, assistant("", call))
        result = await kit(name, **arguments)
        self.own += (assistant("", call), tool_result(call.id, result))
        return json.loads(result)

    def commit(self) -> None:
        self.committed, self.own = self.committed + self.own, ()

    def fail(self) -> None:
        self.own = ()

    def restart(self) -> None:
        """All that is left is what was stored."""
        self.committed = decode(encode(self.committed))


PENDING = "The following todos are still incomplete and MUST be completed:"


async def test_a_list_is_made_and_worked_off() -> None:
    talk = Talk()
    talk.turn()
    one = {"id": "todo_1", "description": "a", "status": "pending"}
    assert await talk.call("create_todo", description="a") == {
        "created": one,
        "all_todos": [one],
        "reminder": f"{PENDING} (pending) [todo_1] a",
    }
    made = await talk.call("create_todos", descriptions=["b", "c"])
    assert [todo["id"] for todo in made["created"]] == ["todo_2", "todo_3"]
    done = await talk.call("update_todos", updates=[{"id": "todo_1", "status": "completed"},
                                                    {"id": "todo_2", "status": "in-progress"},
                                                    {"id": "todo_9", "status": "completed"}])  # fmt: skip
    assert done["updated"] == [
        {"id": "todo_1", "status": "completed"},
        {"id": "todo_2", "status": "in-progress"},
    ]
    assert done["not_found"] == ["todo_9"]
    assert done["reminder"] == f"{PENDING} (in-progress) [todo_2] b (pending) [todo_3] c"
    listed = await talk.call("list_todos")
    assert [(todo["id"], todo["status"]) for todo in listed["todos"]] == [
        ("todo_1", "completed"),
        ("todo_2", "in-progress"),
        ("todo_3", "pending"),
    ]
    assert "all_todos" not in listed


async def test_I2_a_failed_turn_leaves_no_trace_in_the_list() -> None:
    talk = Talk()
    talk.turn()
    await talk.call("create_todo", description="kept")
    talk.commit()
    talk.turn()
    await talk.call("create_todos", descriptions=["lost", "lost too"])
    await talk.call("update_todos", updates=[{"id": "todo_1", "status": "completed"}])
    talk.fail()
    talk.turn()
    listed = await talk.call("list_todos")
    assert [(todo["description"], todo["status"]) for todo in listed["todos"]] == [("kept", "pending")]
    assert (await talk.call("create_todo", description="next"))["created"]["id"] == "todo_2"


async def test_I16_a_restart_loses_nothing_of_the_list() -> None:
    talk = Talk()
    talk.turn()
    await talk.call("create_todos", descriptions=["a", "ü\n🎉"])
    await talk.call("update_todos", updates=[{"id": "todo_2", "status": "completed"}])
    before = await talk.call("list_todos")
    talk.commit()
    talk.restart()
    talk.turn()
    assert await talk.call("list_todos") == before


async def test_a_list_is_read_off_the_prompt_as_history_repairs_it() -> None:
    talk = Talk()
    talk.turn()
    await talk.call("create_todo", description="a")
    talk.own += (assistant("", ToolCall("call_2", "create_todo", '{"description": "never answered"}')),)
    assert len(todos_of(repair(talk.own)).items) == 1


async def test_a_result_that_was_cut_short_still_counts() -> None:
    talk = Talk()
    talk.turn()
    await talk.call("create_todos", descriptions=["a", "b"])
    last = talk.own[-1]
    cut = tool_result(str(last.tool_call_id), last.content[:20])
    assert todos_of((*talk.own[:-1], cut)) == todos_of(talk.own) != Todos()


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("create_todo", {}, "`description` is missing"),
        ("create_todos", {"descriptions": []}, "at least 1"),
        ("update_todos", {"updates": [{"id": "todo_1", "status": "done"}]}, "one of pending, in-progress"),
        ("update_todos", {"updates": [{"id": "todo_1", "status": "completed"}]}, "unknown todo ids: todo_1"),
        ("create_todos", {"descriptions": ["x"] * 101}, "limit 100"),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_explained(name: str, arguments: dict[str, Any], words: str) -> None:
    assert words in await Kit("todo", None).fails(name, **arguments)
