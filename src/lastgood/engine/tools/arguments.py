"""Decides whether a call has the arguments its tool asks for.

Knows the part of JSON Schema that tools use to describe themselves. What a model leaves
out or sends as null is absent; unknown arguments are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.messages import ToolCall

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def checked(tool: Tool) -> Tool:
    """Returns the same tool, which fails with a description of its schema if the arguments do not match."""
    run: Callable[[ToolUse], Awaitable[str]] = tool.run

    async def run_checked(use: ToolUse) -> str:
        return await run(replace(use, arguments=check(tool.parameters, use.arguments)))

    return replace(tool, run=run_checked)


def check(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are there, whole numbers as integers."""
    return _object(schema, {name: value for name, value in arguments.items() if value is not None}, "")


def _object(schema: Mapping[str, Any], value: Mapping[str, Any], where: str) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            raise ToolFailed(f"`{where}{name}` is missing; it must be {_expected(properties.get(name, {}))}")
    known = {
        name: _value(properties[name], value[name], f"{where}{name}") for name in value if name in properties
    }
    return {**value, **known}


def _value(schema: Mapping[str, Any], value: Any, where: str) -> Any:
    if isinstance(value, float) and schema.get("type") == "integer" and value.is_integer():
        value = int(value)
    if not _fits(schema, value):
        raise ToolFailed(f"`{where}` must be {_expected(schema)}, not {_short(value)}")
    if isinstance(value, str) and not _is_text(value):
        raise ToolFailed(f"`{where}` is not valid Unicode")
    if isinstance(value, dict):
        return _object(schema, value, f"{where}.")
    if isinstance(value, list):
        return [_value(schema.get("items", {}), item, f"{where}[{at}]") for at, item in enumerate(value)]
    return value


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    # Only in Python is a boolean an int.
    right = not types or any(
        isinstance(value, _TYPES.get(one, (object,))) and (one == "boolean") >= isinstance(value, bool)
        for one in types
    )
    if not right or ("enum" in schema and value not in schema["enum"]):
        return False
    if isinstance(value, list):
        return bool(len(value) >= schema.get("minItems", 0))
    if isinstance(value, int | float):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _expected(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    kind = schema.get("type", "given")
    words = [f"of type {kind}" if isinstance(kind, str) else "of type " + " or ".join(kind)]
    if schema.get("minItems"):
        words.append(f"with at least {schema['minItems']} items")
    if "minimum" in schema:
        words.append(f"from {schema['minimum']}")
    if "maximum" in schema:
        words.append(f"up to {schema['maximum']}")
    described = schema.get("description")
    return " ".join(words) + (f" ({described})" if described else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def arguments_of(call: ToolCall) -> dict[str, Any]:
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolFailed(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ToolFailed("the arguments are not a JSON object")
    return arguments
