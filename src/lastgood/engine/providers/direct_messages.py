"""Our messages as pydantic-ai's, and its answers as ours.

Thoughts and signatures are kept as a skeleton of the answer: what was thought, in
full, and where the text and the calls stood. It goes back to the model that made it
and to no other; other models get only the text and the calls.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from lastgood.engine.providers.completion_builder import priced
from lastgood.engine.providers.provider import ModelAnswer
from lastgood.errors import ModelError
from lastgood.model.agents import ModelSpec
from lastgood.model.messages import File, Image, Message, Part, Reasoning, Role, ToolCall

#: What a part carries for its provider, beside what it says.
_CARRIED = ("id", "signature", "provider_name", "provider_details")


def to_pydantic(messages: Sequence[Message], model: ModelSpec, system: str) -> list[ModelMessage]:
    """`system` is what pydantic-ai calls the model's provider."""
    converted: list[ModelMessage] = []
    asked: list[ModelRequestPart] = []
    names: dict[str, str] = {}  # of the tools called last, by the id of the call
    for message in messages:
        match message.role:
            case Role.SYSTEM:
                asked.append(SystemPromptPart(message.content))
            case Role.USER:
                asked.append(UserPromptPart(_said(message, model)))
            case Role.TOOL:
                call_id = message.tool_call_id or ""
                asked.append(ToolReturnPart(names.get(call_id, "unknown"), message.content, call_id))
            case Role.ASSISTANT:
                if asked:
                    converted.append(ModelRequest(asked))
                    asked = []
                names = {call.id: call.name for call in message.tool_calls}
                converted.append(ModelResponse(list(_answered(message, model.ref)), provider_name=system))
    converted.append(ModelRequest(asked))
    return converted


def _said(message: Message, model: ModelSpec) -> str | list[UserContent]:
    return [_part(part, model) for part in message.parts] if message.parts else message.content


def _part(part: Part, model: ModelSpec) -> UserContent:
    match part:
        case str():
            return part
        case Image(url) if url.startswith("data:"):
            return _binary(url)
        case Image(url):
            if model.provider != "anthropic":
                # The provider is to read it, not this server: what it names may be within reach of here only.
                raise ModelError(f"{model.ref} does not accept image URLs; send the image as a data: URL")
            return ImageUrl(url)
        case File(_, data):
            return _binary(data)


def _binary(url: str) -> BinaryContent:
    head, comma, body = url.removeprefix("data:").partition(",")
    media_type, _, coding = head.partition(";")
    try:
        if not comma or coding != "base64":
            raise ValueError
        return BinaryContent(base64.b64decode(body, validate=True), media_type=media_type)
    except (ValueError, binascii.Error):
        pass
    raise ModelError("an image or file is not a valid data URL; send it as data:TYPE;base64,DATA")


# -- answers ---------------------------------------------------------------------


def _answered(message: Message, ref: str) -> Iterator[ModelResponsePart]:
    reasoning = message.reasoning
    if reasoning is not None and reasoning.opaque and reasoning.model == ref:
        whole = _rebuilt(message, orjson.loads(reasoning.opaque))
        if whole is not None:
            yield from whole
            return
    if message.content:
        yield TextPart(message.content)
    for call in message.tool_calls:
        yield ToolCallPart(call.name, call.arguments, call.id)


def _rebuilt(message: Message, skeleton: list[dict[str, Any]]) -> list[ModelResponsePart] | None:
    """The answer as it was given. None: the message is no longer the one that the skeleton belongs to."""
    text, calls = message.content, {call.id: call for call in message.tool_calls}
    parts: list[ModelResponsePart] = []
    for bone in skeleton:
        carried = {name: bone[name] for name in _CARRIED if name in bone}
        match bone["kind"]:
            case "thinking":
                parts.append(ThinkingPart(bone["text"], **carried))
            case "text":
                said, text = text[: bone["length"]], text[bone["length"] :]
                parts.append(TextPart(said, **carried))
            case _:
                identity = carried.pop("id", None)
                call = calls.pop(bone["call"], None)
                if call is None:
                    return None
                parts.append(ToolCallPart(call.name, call.arguments, call.id, id=identity, **carried))
    return parts if not text and not calls else None


def to_answer(response: ModelResponse, model: ModelSpec) -> ModelAnswer:
    said = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    calls = tuple(
        ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str())
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )
    message = Message(Role.ASSISTANT, said, calls, reasoning=_reasoning(response, model.ref))
    used = response.usage
    cached = used.cache_read_tokens, used.cache_write_tokens
    usage = priced(model, used.input_tokens, used.output_tokens, *cached)
    return ModelAnswer(message, usage, response.finish_reason == "length")


def _reasoning(response: ModelResponse, ref: str) -> Reasoning | None:
    thoughts = "".join(part.content for part in response.parts if isinstance(part, ThinkingPart))
    skeleton = [bone for bone in map(_bone, response.parts) if bone]
    keeps = any(name in bone for bone in skeleton for name in ("signature", "provider_details"))
    opaque = orjson.dumps(skeleton).decode() if keeps else ""
    return Reasoning(ref, thoughts, opaque) if thoughts or opaque else None


def _bone(part: ModelResponsePart) -> dict[str, Any]:
    match part:
        case ThinkingPart():
            bone: dict[str, Any] = {"kind": "thinking", "text": part.content}
        case TextPart():
            bone = {"kind": "text", "length": len(part.content)}
        case ToolCallPart():
            bone = {"kind": "call", "call": part.tool_call_id}
        case _:
            return {}
    return bone | {name: getattr(part, name) for name in _CARRIED if getattr(part, name, None)}
