"""Encodes a ModelCall as the body of a request to OpenAI's Responses API.

Nothing is stored at the provider: every request has the whole conversation, and reasoning goes back to the
model that made it, encrypted, as it came.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import orjson

from lastgood.engine.providers.chat_request import effort_of
from lastgood.engine.providers.provider import ModelCall
from lastgood.errors import ModelError
from lastgood.model.agents import StructuredOutput
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import File, Image, Message, Part, Role, ToolCall
from lastgood.time_slices import paced

#: Under which a response keeps its reasoning, and where its text and its calls stood between.
ITEMS = "response_items"
#: Models that reason. Others refuse to be asked for encrypted reasoning.
_REASONS = re.compile(r"(?:o\d|codex|gpt-(?:[5-9]|\d\d)(?!\S*chat))")
_LONGEST_ID = 64
#: Messages encoded between two pauses.
_BATCH = 100


async def body_of(call: ModelCall) -> bytes:
    """Encoded in slices, as a chat completion is."""
    model = call.model
    if call.options.stop:
        raise ModelError(
            f"{model.ref} is called with the Responses API, which has no stop sequences; leave out `stop`"
        )
    try:
        items = await paced(_encoding(call.messages, model.ref))
        return orjson.dumps(_body(call, items))
    except TypeError as error:
        raise ModelError(f"the request to {model.ref} cannot be encoded as JSON: {error}") from None


def _body(call: ModelCall, items: bytes) -> dict[str, Any]:
    model, options = call.model, call.options
    body: dict[str, Any] = {
        "model": model.model,
        "input": orjson.Fragment(items),
        "stream": True,
        "store": False,
        "temperature": model.temperature,
        "top_p": model.top_p,
        "max_output_tokens": model.max_tokens,
        "service_tier": model.options.get("service_tier"),
    }
    if call.tools:
        body["tools"] = [_tool(tool) for tool in call.tools]
        body["tool_choice"] = _choice(options.tool_choice)
        body["parallel_tool_calls"] = model.parallel_tool_calls
    effort = effort_of(model)
    if effort is not None:
        body["reasoning"] = {"effort": effort}
    if effort not in (None, "none") or _REASONS.match(model.model):
        body["include"] = ["reasoning.encrypted_content"]
    text = {"format": _format(call.output, options), "verbosity": options.verbosity}
    body["text"] = {name: value for name, value in text.items() if value is not None} or None
    extra = model.options.get("extra_body")
    set_ones = {name: value for name, value in body.items() if value is not None}
    return set_ones | (extra if isinstance(extra, dict) else {})


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Here a function is strict unless it says that it is not, and most schemas would be refused then."""
    function = tool["function"]
    return {"type": "function", **function, "strict": bool(function.get("strict"))}


def _choice(choice: Any) -> Any:
    """A function is named one level higher than in chat completions."""
    return {"type": "function", **choice["function"]} if isinstance(choice, Mapping) else choice


def _format(output: StructuredOutput | None, options: CallOptions) -> dict[str, Any] | None:
    """What the request itself asks for wins over the file."""
    asked = options.response_format
    if asked is not None:
        return {"type": asked["type"], **asked.get("json_schema", {})}
    if output is None:
        return None
    about = {"description": output.description} if output.description else {}
    schema = {"schema": dict(output.schema), "strict": output.strict}
    return {"type": "json_schema", "name": output.name, **about, **schema}


# -- the conversation ------------------------------------------------------------------


def _encoding(messages: Sequence[Message], ref: str) -> Generator[None, None, bytes]:
    """The JSON array of the items."""
    batches: list[bytes] = []
    ids = _CallIds()
    for start in range(0, len(messages), _BATCH):
        items = [item for message in messages[start : start + _BATCH] for item in _items(message, ref, ids)]
        batches.append(orjson.dumps(items)[1:-1])
        yield
    return b"[" + b",".join(filter(None, batches)) + b"]"


class _CallIds:
    """Calls and results are paired by id over the whole conversation, and other providers number theirs from
    the start in each response."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._now: dict[str, str] = {}  # of the last response: its ids, and those that are sent

    def begin(self, calls: Sequence[ToolCall]) -> None:
        self._now = {}
        for call in calls:
            id = call.id
            if id in self._used or len(id) > _LONGEST_ID:
                id = f"call_{len(self._used)}_{id}"[:_LONGEST_ID]
            self._used.add(id)
            self._now[call.id] = id

    def of(self, id: str | None) -> str:
        return self._now.get(id or "", id or "")


def _items(message: Message, ref: str, ids: _CallIds) -> Iterator[dict[str, Any]]:
    match message.role:
        case Role.TOOL:
            id = ids.of(message.tool_call_id)
            yield {"type": "function_call_output", "call_id": id, "output": message.content}
        case Role.ASSISTANT:
            ids.begin(message.tool_calls)
            yield from _as_it_came(message, ref, ids) or _plain(message, ids)
        case _:
            parts = [_part(part) for part in message.parts]
            yield {"role": message.role.value, "content": parts or message.content}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case str():
            return {"type": "input_text", "text": part}
        case Image(url, detail):
            return {"type": "input_image", "image_url": url, "detail": detail or "auto"}
        case File(name, data):
            return {"type": "input_file", "filename": name, "file_data": data}


def _plain(message: Message, ids: _CallIds) -> list[dict[str, Any]]:
    text = [{"role": "assistant", "content": message.content}] if message.content else []
    return [*text, *(_call(call, ids) for call in message.tool_calls)]


def _call(call: ToolCall, ids: _CallIds) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": ids.of(call.id),
        "name": call.name,
        "arguments": call.arguments,
    }


def _as_it_came(message: Message, ref: str, ids: _CallIds) -> list[dict[str, Any]]:
    """The response with its reasoning where it stood. Empty: it has none for this model, or the message is no
    longer the one that the reasoning belongs to."""
    reasoning = message.reasoning
    if reasoning is None or not reasoning.opaque or reasoning.model != ref:
        return []
    kept = orjson.loads(reasoning.opaque)
    text, calls = message.content, {call.id: call for call in message.tool_calls}
    items: list[dict[str, Any]] = []
    for bone in kept.get(ITEMS, ()) if isinstance(kept, dict) else ():
        match bone:
            case {"text": length}:
                items.append({"role": "assistant", "content": text[:length]})
                text = text[length:]
            case {"call": id} if id in calls:
                items.append(_call(calls.pop(id), ids))
            case {"call": _}:
                return []
            case _:
                items.append(bone)
    return items if not text and not calls else []
