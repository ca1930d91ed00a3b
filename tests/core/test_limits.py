"""Is there too much of something?"""

from typing import Any

import pytest

from lastgood.core.limits import (
    FIELDS,
    IMPORT_TURNS,
    MESSAGES,
    RULE_CHARACTERS,
    RULES,
    TOOLS,
    check_body,
    check_import,
    check_rules,
)
from lastgood.errors import InvalidRequest, TooLarge


def test_I40_the_rules_of_a_session_are_counted_together() -> None:
    check_rules({"allow": None, "ask": ["a"], "deny": ["b" * RULE_CHARACTERS] * (RULES - 1)})
    with pytest.raises(InvalidRequest, match=r"permissions hold 201 rules; the limit is 200\."):
        check_rules({"allow": None, "ask": ["a"], "deny": ["b"] * RULES})


def test_I40_a_rule_that_is_too_long_is_named_with_its_place_and_the_limit() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_rules({"deny": ["a", 7, "b" * (RULE_CHARACTERS + 1)]})
    assert refused.value.message == (
        "permissions.deny[2] has 401 characters; the limit is 400. Use a shorter rule"
    )
    assert refused.value.detail == {"param": "permissions.deny[2]"}


TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({str(number): 1 for number in range(FIELDS + 1)}, "the body has 1,001 fields"),
        ({"messages": [1] * (MESSAGES + 1)}, "messages has 10,001 messages"),
        ({"messages": [1, {"content": [TEXT] * 1_001}]}, "messages[1].content has 1,001 parts"),
        ({"messages": [{"multi_content": [TEXT] * 1_001}]}, "messages[0].multi_content has 1,001 parts"),
        ({"message": {"content": [TEXT] * 1_001}}, "messages[0].content has 1,001 parts"),
        ({"messages": [{"content": [TEXT] * 1_000}] * 11}, "messages has 11,000 parts in all"),
        ({"messages": [{"tool_calls": [1] * 257}]}, "messages[0].tool_calls has 257 tool calls"),
        ({"tools": [1] * (TOOLS + 1)}, "tools has 129 tools"),
    ],
)
def test_I40_a_body_with_too_many_of_something_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(TooLarge) as refused:
        check_body(body)
    assert refused.value.message.startswith(f"{message}; the limit is ")


def test_a_body_within_every_limit_is_let_through_whatever_its_shape() -> None:
    check_body({"messages": [{"content": [TEXT] * 1_000}] * 10, "tools": [1] * TOOLS})
    check_body({"messages": "none", "message": 7, "tools": None})


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([{}] * (IMPORT_TURNS + 1), "turns has 20,001 turns"),
        ([7, {"messages": [1] * (MESSAGES + 1)}], "turns[1].messages has 10,001 messages"),
        ([{"messages": [1] * MESSAGES}] * 11, "turns has 110,000 messages in all"),
    ],
)
def test_I40_a_document_with_too_many_turns_or_messages_is_refused(turns: list[Any], message: str) -> None:
    with pytest.raises(TooLarge) as refused:
        check_import(turns)
    assert refused.value.message.startswith(f"{message}; the limit is ")
    check_import([{"messages": [1] * MESSAGES}] * 10)
    check_import("no list")
