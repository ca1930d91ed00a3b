"""Who of a team speaks is read off the conversation."""

import json

import pytest

from lastgood.core.call_arguments import text_in
from lastgood.core.speaker import HANDED_OVER, HANDOFF, speaker
from lastgood.model.agents import AgentSpec
from lastgood.model.messages import Message, ToolCall, assistant, tool_result, user


def agent(name: str, *handoffs: str) -> AgentSpec:
    return AgentSpec("team", name, "builtin/scripted", "sha256:1", handoffs=handoffs)


WRITER, EDITOR = agent("writer", "root"), agent("editor")
ROOT = AgentSpec(
    "team",
    "root",
    "builtin/scripted",
    "sha256:1",
    handoffs=("writer", "editor"),
    members={"writer": WRITER, "editor": EDITOR},
)


def handed(to: str, *, call: str = HANDOFF, result: str | None = None) -> tuple[Message, ...]:
    calls = (ToolCall("x", "think", "{}"), ToolCall("h", call, json.dumps({"agent": to})))
    said = f"{HANDED_OVER}{to}." if result is None else result
    return user("q"), assistant("", *calls), tool_result("x", ""), tool_result("h", said)


@pytest.mark.parametrize(
    ("messages", "speaks"),
    [
        ((), ROOT),
        ((user("q"), assistant("a")), ROOT),
        (handed("writer"), WRITER),
        ((*handed("writer"), assistant("done"), user("again")), WRITER),
        ((*handed("writer"), *handed("editor")), EDITOR),
        ((*handed("writer"), *handed("root")), ROOT),
        ((*handed("writer"), *handed("editor", result="error: no")), WRITER),
        (handed("gone"), ROOT),
        (handed("writer", call="shell"), ROOT),
        ((tool_result("h", f"{HANDED_OVER}writer."),), ROOT),
        ((assistant("", ToolCall("h", HANDOFF, "no json")), tool_result("h", f"{HANDED_OVER}x")), ROOT),
    ],
)
def test_the_last_good_handoff_decides_who_speaks(messages: tuple[Message, ...], speaks: AgentSpec) -> None:
    assert speaker(ROOT, messages) is speaks


def test_a_team_without_handoffs_is_not_searched_for_them() -> None:
    alone = agent("alone")
    assert speaker(alone, handed("writer")) is alone


@pytest.mark.parametrize("arguments", ["[]", '{"agent": 1}', "{}", "{"])
def test_arguments_that_name_nobody(arguments: str) -> None:
    assert text_in(ToolCall("c", HANDOFF, arguments), "agent") is None
