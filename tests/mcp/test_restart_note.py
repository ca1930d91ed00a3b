"""A conversation learns once that a server was started again, and nothing else looks like that."""

from __future__ import annotations

from lastgood.engine.mcp.restart_note import STARTED_AGAIN, restart_note
from lastgood.model.messages import Message, ToolCall, assistant, tool_result

TOOLS = {"read", "write"}


def used(call: str, tool: str = "read", text: str = "done") -> tuple[Message, ...]:
    return assistant("", ToolCall(call, tool, "{}")), tool_result(call, text)


def test_a_result_of_another_process_is_disclosed_whichever_tool_it_was() -> None:
    assert restart_note(used("call_1", "write"), TOOLS, ()) == STARTED_AGAIN


def test_a_result_of_this_process_needs_no_note() -> None:
    assert restart_note(used("call_1"), TOOLS, {"call_1"}) == ""
    assert restart_note((*used("call_1"), *used("call_2")), TOOLS, {"call_2"}) == ""


def test_a_second_restart_is_disclosed_too() -> None:
    assert restart_note((*used("call_1"), *used("call_2")), TOOLS, ()) == STARTED_AGAIN


def test_first_calls_in_one_response_need_no_note() -> None:
    both = (assistant("", ToolCall("call_1", "read", "{}"), ToolCall("call_2", "write", "{}")),)
    assert restart_note(both, TOOLS, ()) == ""
    assert restart_note((*both, tool_result("call_1", "done")), TOOLS, {"call_1"}) == ""


def test_other_tools_are_no_use_of_the_server() -> None:
    assert restart_note(used("call_1", "shell"), TOOLS, ()) == ""


def test_a_denied_call_is_no_use_of_the_server() -> None:
    assert restart_note(used("call_1", text="error: read was denied by a rule"), TOOLS, ()) == ""


def test_a_death_in_the_last_call_is_disclosed() -> None:
    text = "error: MCP server notes ended during this call; whether the call took effect is unknown"
    assert restart_note(used("call_1", text=text), TOOLS, ()) == STARTED_AGAIN
