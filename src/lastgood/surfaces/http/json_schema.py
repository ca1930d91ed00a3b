"""Building blocks for JSON schemas, and the schema of the default error envelope."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}


def object_of(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """Self-contained: its definitions are inside it, under `$defs`. Shared: never change what it returns."""
    return model.model_json_schema(by_alias=True)


#: The session API's; the top-level copy is for docker-agent's clients.
ERROR = object_of(
    {
        "error": object_of(
            {"code": TEXT, "message": TEXT, "request_id": TEXT}, {"detail": {"type": "object"}}
        ),
        "message": TEXT,
    },
    {"code": TEXT},
)
