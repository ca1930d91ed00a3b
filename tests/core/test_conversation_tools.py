"""What is derived from the conversation: the model that an agent chose, and the plan of a session."""

import pytest

from lastgood.core.model_choice import CHANGE, CHANGED, REVERTED, chosen_model
from lastgood.core.session_plan import WRITE_PLAN, WRITTEN, plan_of
from lastgood.model.messages import (
    HANDED_OVER,
    Message,
    ToolCall,
    assistant,
    handover_note,
    tool_result,
    user,
)

ALLOWED = ("cheap", "clever")


def call(name: str, arguments: str, result: str, id: str = "c") -> tuple[Message, Message]:
    return assistant("", ToolCall(id, name, arguments)), tool_result(id, result)


def change(model: str) -> tuple[Message, Message]:
    return call("change_model", f'{{"model": "{model}"}}', f"{CHANGED}{model} from now on.")


BACK = call("revert_model", "{}", f"{REVERTED}.")


@pytest.mark.parametrize(
    ("messages", "model"),
    [
        ((), None),
        (change("cheap"), "cheap"),
        ((*change("cheap"), *change("clever")), "clever"),
        ((*change("cheap"), *BACK), None),
        ((*change("cheap"), user("next turn"), assistant("yes")), "cheap"),
        (change("elsewhere"), None),
        (call("change_model", '{"model": "cheap"}', "error: not allowed"), None),
        (call("change_model", "{", f"{CHANGED}x"), None),
        (call("change_model", "[]", f"{CHANGED}x"), None),
        (call("change_model", '{"model": 7}', f"{CHANGED}7"), None),
        ((*change("cheap"), *call("revert_model", "{}", "error: denied")), "cheap"),
        ((*change("cheap"), *call("handoff", '{"agent": "x"}', f"{HANDED_OVER}x")), None),
        ((*change("cheap"), handover_note("x")), None),
        ((*change("cheap"), *call("handoff", '{"agent": "x"}', "error: unknown agent")), "cheap"),
        ((tool_result("c", f"{CHANGED}cheap"),), None),
        ((user(f"{CHANGED}cheap"),), None),
    ],
)
def test_the_last_successful_choice_counts(messages: tuple[Message, ...], model: str | None) -> None:
    assert chosen_model(messages, ALLOWED) == model


def write(content: str, result: str = f"{WRITTEN}.") -> tuple[Message, Message]:
    return call("write_session_plan", content, result)


@pytest.mark.parametrize(
    ("messages", "plan"),
    [
        ((), None),
        (write('{"content": "# one"}'), "# one"),
        ((*write('{"content": "# one"}'), user("x"), *write('{"content": "# two"}')), "# two"),
        ((*write('{"content": "# one"}'), *write('{"content": "# two"}', "error: denied")), "# one"),
        ((*write('{"content": "# one"}'), *write("{")), "# one"),
        (write("[]"), None),
        (write('{"content": 7}'), None),
        (call("other", '{"content": "x"}', f"{WRITTEN}."), None),
        ((tool_result("c", WRITTEN),), None),
    ],
)
def test_the_plan_is_what_the_last_successful_call_wrote(
    messages: tuple[Message, ...], plan: str | None
) -> None:
    assert plan_of(messages) == plan


def test_I8_what_is_computed_from_a_call_that_cannot_be_read_is_nothing() -> None:
    for arguments in ("[" * 100_000, '{"model":' + "[" * 5000 + "]" * 5000 + "}", "{", "[]", '{"model": 1}'):
        calls = (ToolCall("a", CHANGE, arguments), ToolCall("b", WRITE_PLAN, arguments))
        results = (tool_result("a", f"{CHANGED}x"), tool_result("b", f"{WRITTEN}."))
        messages = (user("x"), assistant("", *calls), *results)
        assert chosen_model(messages, ("x",)) is None
        assert plan_of(messages) is None
