"""Encodes a ModelCall as the body of a chat completions request."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

import orjson

from lastgood.engine.providers.provider import ModelCall
from lastgood.errors import ModelError
from lastgood.model.agents import ModelSpec, StructuredOutput
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import Message, Role, as_chat
from lastgood.time_slices import paced

#: Reasoning fields that a model expects back, under the names it used.
THOUGHTS = ("reasoning_content", "reasoning_details")

#: provider_opts that are parameters of the request. Others are for us, or for other dialects.
_SAMPLING = ("top_k", "repetition_penalty", "seed", "min_p", "typical_p", "service_tier")

_OPENAI = ("openai", "azure")
#: Models that can be asked not to think; older ones reject the word, and think as they like.
_STOPS_THINKING = re.compile(r"gpt-(?:5\.(?:[6-9]|\d\d)|[6-9]|\d\d)")

#: A budget of tokens as an effort: OpenAI's dialect knows only these words.
_EFFORTS = ((2048, "low"), (8192, "medium"))


#: Messages encoded between two pauses.
_BATCH = 100


async def body_of(call: ModelCall) -> bytes:
    """A prompt may hold 100,000 messages; they are encoded in slices, so that others run meanwhile."""
    model = call.model
    try:
        messages = await paced(_encoding(_one_system(call.messages), model.ref))
        return orjson.dumps(_body(call, messages))
    except TypeError as error:
        raise ModelError(f"the request to {model.ref} cannot be encoded as JSON: {error}") from None


def _body(call: ModelCall, messages: bytes) -> dict[str, Any]:
    model = call.model
    body: dict[str, Any] = {
        "model": model.model,
        "messages": orjson.Fragment(messages),
        "stream": True,
    }
    if model.options.get("stream_options") is not False:
        body["stream_options"] = {"include_usage": True}
    if call.tools:
        body["tools"] = call.tools
        if model.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = model.parallel_tool_calls
    if call.output is not None:
        body["response_format"] = _response_format(call.output)
    body.update(_settings(model))
    body.update(_asked(call.options, bool(call.tools)))
    return body


def _asked(options: CallOptions, has_tools: bool) -> dict[str, Any]:
    """What the request itself asks for; it wins over the file."""
    asked: dict[str, Any] = {}
    if options.stop:
        asked["stop"] = list(options.stop)
    if options.seed is not None:
        asked["seed"] = options.seed
    if options.response_format is not None:
        asked["response_format"] = dict(options.response_format)
    if options.verbosity is not None:
        asked["verbosity"] = options.verbosity
    if options.tool_choice is not None and has_tools:
        asked["tool_choice"] = options.tool_choice
    return asked


def _one_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Many a server's template knows one system message, and that at the beginning."""
    leading = 0
    while leading < len(messages) and messages[leading].role is Role.SYSTEM:
        leading += 1
    if leading <= 1:
        return messages
    text = "\n\n".join(message.content for message in messages[:leading])
    return Message(Role.SYSTEM, text), *messages[leading:]


def _encoding(messages: Sequence[Message], ref: str) -> Generator[None, None, bytes]:
    """The JSON array of the messages."""
    batches: list[bytes] = []
    for start in range(0, len(messages), _BATCH):
        plain = [_message(message, ref) for message in messages[start : start + _BATCH]]
        batches.append(orjson.dumps(plain)[1:-1])
        yield
    return b"[" + b",".join(batches) + b"]"


def _message(message: Message, ref: str) -> dict[str, Any]:
    plain = as_chat(message)
    reasoning = message.reasoning
    if reasoning is not None and reasoning.opaque and reasoning.model == ref:
        kept = orjson.loads(reasoning.opaque)
        plain.update((name, kept[name]) for name in THOUGHTS if name in kept)
    return plain


def _response_format(output: StructuredOutput) -> dict[str, Any]:
    schema: dict[str, Any] = {"name": output.name, "schema": dict(output.schema), "strict": output.strict}
    if output.description:
        schema["description"] = output.description
    return {"type": "json_schema", "json_schema": schema}


def _settings(model: ModelSpec) -> dict[str, Any]:
    # OpenAI's newer models refuse the old name, and most other servers do not know the new one.
    limit = "max_completion_tokens" if model.provider in _OPENAI else "max_tokens"
    settings: dict[str, Any] = {
        "temperature": model.temperature,
        "top_p": model.top_p,
        limit: model.max_tokens,
        "frequency_penalty": model.frequency_penalty,
        "presence_penalty": model.presence_penalty,
        "reasoning_effort": effort_of(model),
        **{name: model.options.get(name) for name in _SAMPLING},
    }
    set_ones = {name: value for name, value in settings.items() if value is not None}
    extra = model.options.get("extra_body")
    return set_ones | (extra if isinstance(extra, dict) else {})


def effort_of(model: ModelSpec) -> str | None:
    match model.thinking:
        case 0 | "none":
            return "none" if model.provider in _OPENAI and _STOPS_THINKING.match(model.model) else None
        case None | "adaptive":
            return None
        case int() as tokens:
            if tokens < 0:  # as much as the model likes
                return None
            return next((effort for most, effort in _EFFORTS if tokens <= most), "high")
        case effort:
            return effort
