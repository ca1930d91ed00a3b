"""Responses of the OpenAI-compatible API as JSON schemas."""

from __future__ import annotations

from lastgood.surfaces.http.json_schema import COUNT, TEXT, object_of, or_null

MODEL = object_of({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT})
MODELS = object_of({"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}})

_CALL = object_of(
    {
        "id": TEXT,
        "type": {"const": "function"},
        "function": object_of({"name": TEXT, "arguments": TEXT}),
    }
)
_MESSAGE = object_of(
    {"role": {"const": "assistant"}, "content": or_null(TEXT)},
    {"refusal": {"type": "null"}, "tool_calls": {"type": "array", "items": _CALL, "minItems": 1}},
)
COMPLETION = object_of(
    {
        "id": TEXT,
        "object": {"const": "chat.completion"},
        "created": COUNT,
        "model": TEXT,
        "choices": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": object_of(
                {
                    "index": {"const": 0},
                    "message": _MESSAGE,
                    "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
                }
            ),
        },
        "usage": object_of({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}),
    }
)

OPENAI_ERROR = object_of(
    {
        "error": object_of({"message": TEXT, "type": TEXT, "param": or_null(TEXT), "code": or_null(TEXT)}),
    }
)
