"""Chat messages on the wire, in the form that both APIs accept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lastgood.model.messages import File, Image, Message, Part, Role, ToolCall, text_of
from lastgood.surfaces.http.body_parser import Body


class TextPart(Body):
    type: Literal["text"]
    text: str


class ImageUrl(Body):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageUrl


class FileData(Body):
    file_data: str
    filename: str = "file"


class FilePart(Body):
    type: Literal["file"]
    file: FileData


ContentPart = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


class CalledFunction(Body):
    name: str = Field(min_length=1, max_length=256)
    arguments: str


class ChatToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check(self) -> ChatMessage:
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("a tool message requires tool_call_id, the id of the call it answers")
        if self.role != "assistant" and self.content is None:
            raise ValueError("content is required")
        return self


def message_of(given: ChatMessage) -> Message:
    role = Role.SYSTEM if given.role == "developer" else Role(given.role)
    calls = tuple(
        ToolCall(call.id, call.function.name, call.function.arguments) for call in given.tool_calls or ()
    )
    content = given.content or ""
    if isinstance(content, str):
        return Message(role, content, calls, given.tool_call_id)
    parts = tuple(map(_part, content))
    # A list of texts alone is only another way to write a text.
    kept = parts if any(not isinstance(part, str) for part in parts) else ()
    return Message(role, text_of(parts), calls, given.tool_call_id, kept)


def _part(given: ContentPart) -> Part:
    match given:
        case TextPart():
            return given.text
        case ImagePart():
            return Image(given.image_url.url, given.image_url.detail)
        case FilePart():
            return File(given.file.filename, given.file.file_data)
