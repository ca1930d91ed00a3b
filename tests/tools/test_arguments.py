"""A call must have the arguments its tool asks for; if not, it is told what was expected."""

from typing import Any

import pytest

from lastgood.engine.tools.arguments import arguments_of, check
from lastgood.engine.tools.tool import ToolFailed
from lastgood.model.messages import ToolCall

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "who"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "share": {"type": "number"},
        "loud": {"type": "boolean"},
        "tone": {"type": "string", "enum": ["low", "high"]},
        "items": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "edits": {
            "type": "array",
            "items": {"type": "object", "properties": {"old": {"type": "string"}}, "required": ["old"]},
        },
        "either": {"type": ["string", "integer"]},
        "anything": {},
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"count": 1, "share": 1, "loud": False, "tone": "low", "items": ["a"], "edits": [{"old": ""}]},
        {"share": 0.5, "either": "a", "anything": None, "unknown": object},
        {"either": 5, "anything": [1, {}]},
        {"count": 9, "edits": []},
    ],
)
def test_arguments_that_fit_come_as_they_are(arguments: dict[str, Any]) -> None:
    given = {"name": "a", **arguments}
    assert check(SCHEMA, given) == {name: value for name, value in given.items() if value is not None}


def test_a_whole_number_is_an_integer() -> None:
    checked = check(SCHEMA, {"name": "a", "count": 3.0})
    assert repr(checked["count"]) == "3"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`name` is missing; it must be of type string (who)"),
        ({"name": None}, "`name` is missing"),
        ({"name": 5}, "`name` must be of type string (who), not 5"),
        ({"count": "1"}, "`count` must be of type integer from 1 up to 9, not '1'"),
        ({"count": True}, "`count` must be of type integer"),
        ({"count": 1.5}, "`count` must be"),
        ({"count": 0}, "`count` must be"),
        ({"count": 10}, "`count` must be"),
        ({"count": float("nan")}, "`count` must be"),
        ({"share": "x"}, "`share` must be of type number"),
        ({"share": False}, "`share` must be of type number"),
        ({"loud": 1}, "`loud` must be of type boolean"),
        ({"tone": "middle"}, "`tone` must be one of low, high, not 'middle'"),
        ({"items": []}, "`items` must be of type array with at least 1 items"),
        ({"items": "a"}, "`items` must be of type array"),
        ({"items": ["a", 5]}, "`items[1]` must be of type string"),
        ({"edits": [{"old": ""}, {}]}, "`edits[1].old` is missing"),
        ({"edits": [{"old": 1}]}, "`edits[0].old` must be of type string"),
        ({"edits": ["a"]}, "`edits[0]` must be of type object"),
        ({"either": 1.5}, "`either` must be of type string or integer"),
        ({"name": "a\ud800"}, "`name` is not valid Unicode"),
        ({"items": ["\udfff"]}, "`items[0]` is not valid Unicode"),
        ({"name": ["x" * 1000]}, "…"),
    ],
)
def test_arguments_that_do_not_fit_are_explained(arguments: dict[str, Any], words: str) -> None:
    given = arguments if not arguments or "name" in arguments else {"name": "a", **arguments}
    with pytest.raises(ToolFailed) as failed:
        check(SCHEMA, given)
    assert words in str(failed.value)
    assert len(str(failed.value)) < 300


@pytest.mark.parametrize("arguments", ['{"a":' * 100_000, "{", "[]", '"text"'], ids=lambda text: text[:8])
def test_arguments_that_are_no_object_are_an_error_of_the_call(arguments: str) -> None:
    """Whatever a model writes, its turn goes on."""
    with pytest.raises(ToolFailed):
        arguments_of(ToolCall("c1", "echo", arguments))
