"""`user_prompt`: a tool that asks a person a question; the answer is its result.

The question waits outside this process. The call is made again when it is answered, and returns the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from lastgood.engine.tools.tool import NeedsInput, Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.model.answers import AnswerAction

_PARAMETERS = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The question for the user"},
        "title": {"type": "string", "description": "A title for the question"},
        "schema": {
            "type": "object",
            "description": "JSON schema of the answer: an object with properties of primitive types",
        },
    },
    "required": ["message"],
}
#: What is asked for if the model gives no schema.
_ANY_TEXT = {"type": "object", "properties": {"response": {"type": "string"}}, "required": ["response"]}


def user_prompt_toolset(spec: ToolsetSpec) -> Sequence[Tool]:
    return [
        Tool(
            "user_prompt",
            "Asks the user a question and waits for the answer. Use it if you need information, a choice or "
            "a confirmation that only the user can give. Returns the user's action (accept, decline or "
            "cancel) and, if accepted, the content of the answer.",
            _PARAMETERS,
            _ask,
            on_unknown=OnUnknown.REPEAT,
            effect=Effect.SAFE,
        )
    ]


async def _ask(use: ToolUse) -> str:
    if use.answer is None or not use.answer.is_about_input:
        schema = _as_object(use.arguments["schema"]) if use.arguments.get("schema") else _ANY_TEXT
        raise NeedsInput(use.arguments["message"], schema, title=use.arguments.get("title", ""))
    said = {"action": use.answer.action.value}
    if use.answer.action is not AnswerAction.ACCEPT:
        raise ToolFailed(orjson.dumps(said).decode())
    return orjson.dumps({**said, "content": dict(use.answer.content or {})}).decode()


def _as_object(schema: dict[str, object]) -> dict[str, object]:
    """A schema of one value becomes an object that holds it: content is always an object."""
    if schema.get("type", "object") == "object":
        return schema
    return {"type": "object", "properties": {"response": schema}, "required": ["response"]}
