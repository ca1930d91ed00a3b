"""Which deferred tools a conversation has added, and which a search finds."""

from __future__ import annotations

import pytest

from lastgood.core.deferred_tools import added_tools, found_tools
from lastgood.model.messages import Message, Role, ToolCall, tool_result, user


def call(name: str, arguments: str, result: str) -> tuple[Message, Message]:
    asked = Message(Role.ASSISTANT, "", (ToolCall("c1", name, arguments),))
    return asked, tool_result("c1", result)


@pytest.mark.parametrize(
    ("messages", "added"),
    [
        ((), set()),
        (call("add_tool", '{"name": "shell"}', "Added: shell"), {"shell"}),
        (call("add_tool", '{"name": "shell"}', "error: no"), set()),
        (call("add_tool", "[]", "Added: shell"), {""}),
        (call("other", '{"name": "shell"}', "Added: shell"), set()),
        ((*call("add_tool", '{"name": "a"}', "Added: a"), user("x"), tool_result("c1", "Added: b")), {"a"}),
    ],
)
def test_a_tool_is_added_by_a_call_that_succeeded(messages: tuple[Message, ...], added: set[str]) -> None:
    assert added_tools(messages) == added


def test_a_search_finds_by_words_and_lists_the_best_first() -> None:
    tools = {"read_file": "reads a file", "shell": "runs a command", "list_files": "lists"}
    assert list(found_tools(tools, "Read file")) == ["read_file", "list_files"]
    assert found_tools(tools, "weather") == {}
