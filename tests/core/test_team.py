"""Who of a team speaks is read off the conversation."""

import json
from dataclasses import replace

import pytest

from lastgood.core.call_arguments import text_in
from lastgood.core.speaker import (
    HANDOFF,
    goes_on_as,
    last_request,
    may_speak,
    speaker,
    speaker_after,
)
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Step, StepKind, said
from lastgood.model.messages import HANDED_OVER, Message, ToolCall, assistant, tool_result, user


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


# -- forced handoffs -----------------------------------------------------------------------


def final(text: str, hands_to: str = "") -> Step:
    return Step(StepKind.MODEL, assistant(text), hands_to=hands_to)


def handoff_steps(to: str) -> tuple[Step, ...]:
    _, asked, _, result = handed(to)
    return Step(StepKind.MODEL, asked), Step(StepKind.TOOL, result)


@pytest.mark.parametrize(
    ("messages", "steps", "speaks"),
    [
        ((), (), ROOT),
        ((), (final("a"),), ROOT),
        ((), (final("a", "writer"),), WRITER),
        ((), (final("a", "writer"), final("b", "editor")), EDITOR),
        ((), (final("a", "gone"),), ROOT),
        (handed("writer"), (), WRITER),
        (handed("writer"), (final("a", "root"),), ROOT),
        # The order of the turn counts, whichever kind they are of.
        ((), (*handoff_steps("writer"), final("a", "editor")), EDITOR),
        ((), (final("a", "editor"), *handoff_steps("writer")), WRITER),
        ((), (Step(StepKind.HOOK, assistant("", ToolCall("h", HANDOFF, "{}"))),), ROOT),
    ],
)
def test_steps_of_the_turn_decide_who_speaks(
    messages: tuple[Message, ...], steps: tuple[Step, ...], speaks: AgentSpec
) -> None:
    assert speaker_after(ROOT, messages, steps) is speaks


def test_who_goes_on_after_a_final_response() -> None:
    forced = replace(WRITER, force_handoff="editor")
    assert goes_on_as(ROOT, forced) == "editor"
    assert goes_on_as(ROOT, replace(forced, force_handoff="root")) == "root"
    assert goes_on_as(ROOT, replace(forced, force_handoff="gone")) == ""
    assert goes_on_as(ROOT, WRITER) == ""
    assert goes_on_as(forced, forced) == ""  # alone with a task


def test_a_response_that_was_handed_over_is_followed_by_a_note() -> None:
    """No prompt ends with a response, and the note is nothing that the user asked for."""
    conversation = (user("q"), *said([final("a", "writer")]))
    assert [message.role for message in conversation] == ["user", "assistant", "user"]
    assert last_request(conversation) == "q"
    assert last_request(()) == ""


def test_who_may_speak_is_whoever_the_conversation_may_be_handed_to() -> None:
    chain = agent("first", "second", "gone")
    second = replace(agent("second", "first"), force_handoff="third")
    members = {"second": second, "third": agent("third"), "helper": agent("helper")}
    entry = replace(chain, members=members)
    assert [one.name for one in may_speak(entry)] == ["first", "second", "third"]
    assert [one.name for one in may_speak(ROOT)] == ["root", "writer", "editor"]
