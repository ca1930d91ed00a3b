"""Requests and responses of OpenAI's chat completions.

Parameters are validated and used, or rejected: none that would change the response is ignored. Unknown fields
are accepted and ignored: clients of other servers send many.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lastgood.core.limits import MESSAGES, TOOLS
from lastgood.errors import InvalidRequest
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import Message, Role, ToolCall
from lastgood.model.sessions import Usage
from lastgood.surfaces.http.body_parser import Body, parse_paced
from lastgood.surfaces.http.message_schemas import ChatMessage, message_of


class ToolFunction(Body):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,256}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Body):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Body):
    name: str
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is required")
        return self


class StreamOptions(Body):
    include_usage: bool | None = None


StopText = Annotated[str, Field(min_length=1)]


class ChatRequest(Body):
    model: str = Field(
        min_length=1, max_length=2048, description="Agent key, or key/name for a member of its team"
    )
    messages: list[ChatMessage] = Field(min_length=1, max_length=MESSAGES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, le=2**31)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=2**31)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    n: int | None = Field(default=None, ge=1, le=1, description="Only 1 is supported")
    tools: list[ChatTool] | None = Field(default=None, max_length=TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    user: str | None = Field(default=None, max_length=512)


# -- in ------------------------------------------------------------------------------


#: OpenAI's parameters that are not supported. Ignoring them would change the response.
_NOT_HERE = {
    "functions": "use tools instead",
    "function_call": "use tool_choice instead",
    "logprobs": "remove it",
    "top_logprobs": "remove it",
    "logit_bias": "remove it",
    "audio": "responses are text only",
    "web_search_options": "add a web tool to the agent instead",
    # Of vLLM and servers like it.
    "guided_json": "use response_format instead",
    "guided_regex": "use response_format instead",
    "guided_choice": "use response_format instead",
    "guided_grammar": "use response_format instead",
    "chat_template_kwargs": "set provider_opts.extra_body in the agent file instead",
}


async def parse_chat(plain: Any) -> ChatRequest:
    chat = await parse_paced(ChatRequest, ChatMessage, plain)
    _check(chat)
    return chat


def _check(chat: ChatRequest) -> None:
    """Checks that involve several fields."""
    for name, advice in _NOT_HERE.items():
        if (chat.model_extra or {}).get(name):
            raise InvalidRequest(f"`{name}` is not supported; {advice}", param=name)
    names = [tool.function.name for tool in chat.tools or ()]
    if len(set(names)) < len(names):
        raise InvalidRequest("Duplicate tool name; give each tool a unique name", param="tools")
    choice = chat.tool_choice
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise InvalidRequest(
            f"`tool_choice` names the tool {choice.function.name!r}, which is not in `tools`",
            param="tool_choice",
        )


def messages_of(request: ChatRequest) -> tuple[Message, ...]:
    """Without blank system messages: many clients send one if their user has set no instructions."""
    messages = map(message_of, request.messages)
    return tuple(one for one in messages if one.role is not Role.SYSTEM or not one.is_blank)


def options_of(request: ChatRequest) -> CallOptions:
    stop = request.stop or []
    choice = request.tool_choice
    form = request.response_format
    return CallOptions(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        seed=request.seed,
        stop=tuple([stop] if isinstance(stop, str) else stop),
        response_format=None if form is None else form.model_dump(by_alias=True, exclude_none=True),
        tools=tuple(tool.model_dump(exclude_none=True) for tool in request.tools or ()),
        tool_choice=choice.model_dump() if isinstance(choice, NamedTool) else choice,
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning_effort,
        verbosity=request.verbosity,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
    )


# -- out -----------------------------------------------------------------------------


def usage_json(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def calls_json(calls: tuple[ToolCall, ...], *, streamed: bool = False) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return [{"index": index, **call} for index, call in enumerate(plain)] if streamed else plain


def completion_json(
    id: str, model: str, created: int, text: str, calls: tuple[ToolCall, ...], finish: str, usage: Usage
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
    if calls:
        message["tool_calls"] = calls_json(calls)
    elif not text:
        message["content"] = ""
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": usage_json(usage),
    }


def chunk_json(
    id: str, model: str, created: int, delta: dict[str, Any], finish: str | None = None
) -> dict[str, Any]:
    return {
        "id": id,
        "object": "chat.completion.chunk",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}],
    }
