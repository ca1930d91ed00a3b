"""Reads the schemas of an OpenAPI document into the schemas of tools: without references, and limited.

What a schema of an argument keeps is JSON, whatever the document was written in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

#: Of the schemas of a tool, about as many as it has in JSON, and of all tools of a document together.
MOST_OF_TOOL = 64 * 1024
MOST_OF_TOOLS = 1024 * 1024
#: Of everything that is read, also for tools that turn out to be too large.
_MOST_READ = 16 * 1024 * 1024
#: What an entry costs beside its text.
_ENTRY = 8
_MOST_REFERENCES = 12
#: Of a description.
MOST_CHARACTERS = 1024
_DEEPEST_VALUE = 12
_NUMBERS = ("minimum", "maximum")


class OperationTooLarge(Exception):
    """The tool has more than fits."""


@dataclass(slots=True)
class Reading:
    """A document, and how much more of it may become tools."""

    document: Mapping[str, Any]
    left: int = MOST_OF_TOOLS
    left_to_read: int = _MOST_READ
    left_of_tool: int = 0
    deepest: int = 0

    @contextmanager
    def of_tool(self, deepest: int) -> Iterator[None]:
        """OperationTooLarge: the tool that is read in it does not fit."""
        self.deepest = deepest
        self.left_of_tool = room = min(MOST_OF_TOOL, self.left)
        yield
        self.left -= room - self.left_of_tool

    def take(self, characters: int) -> None:
        self.left_of_tool -= characters + _ENTRY
        self.left_to_read -= characters + _ENTRY
        if self.left_of_tool < 0 or self.left_to_read < 0:
            raise OperationTooLarge

    def resolved(self, node: Any) -> Any:
        ref = node.get("$ref") if isinstance(node, dict) else None
        self.take(len(ref) if isinstance(ref, str) else 0)
        return resolved(self.document, node)


def resolved(document: Mapping[str, Any], node: Any) -> Any:
    """What a reference into the document leads to. Any other one leads nowhere."""
    for _ in range(_MOST_REFERENCES):
        ref = node.get("$ref") if isinstance(node, dict) else None
        if not isinstance(ref, str):
            return node
        if not ref.startswith("#/") or len(ref) > MOST_CHARACTERS:
            return {}
        found: Any = document
        for name in ref[2:].split("/"):
            name = name.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        node = {} if found is None else found
    return {}


def schema_of(reading: Reading, node: Any, depth: int = 0) -> dict[str, Any]:
    """Without references. What lies too deep, or contains itself, can be anything."""
    plain = reading.resolved(node)
    if not isinstance(plain, dict) or depth > reading.deepest:
        return {}
    schema: dict[str, Any] = {}
    parts = plain.get("allOf")
    for part in parts if isinstance(parts, list) else ():
        schema = _joined(schema_of(reading, part, depth + 1), schema)
    schema = _joined(_own(reading, plain, depth), schema)
    if isinstance(about := plain.get("description"), str) and is_text(about):
        schema["description"] = about[:MOST_CHARACTERS]
        reading.take(len(schema["description"]))
    return schema


def _own(reading: Reading, plain: Mapping[str, Any], depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    kind = plain.get("type")
    if is_text(kind) or (isinstance(kind, list) and all(map(is_text, kind))):
        schema["type"] = json_of(reading, kind)
    if isinstance(plain.get("enum"), list):
        schema["enum"] = json_of(reading, plain["enum"])
    if "default" in plain:
        schema["default"] = json_of(reading, plain["default"])
    if is_text(plain.get("format")):
        schema["format"] = json_of(reading, plain["format"])
    schema |= {name: plain[name] for name in _NUMBERS if _is_number(plain.get(name))}
    if isinstance(plain.get("items"), dict):
        schema["items"] = schema_of(reading, plain["items"], depth + 1)
    if isinstance(fields := plain.get("properties"), dict):
        schema["properties"] = {
            json_of(reading, str(name)): schema_of(reading, one, depth + 1) for name, one in fields.items()
        }
    if isinstance(wanted := plain.get("required"), list):
        schema["required"] = [json_of(reading, name) for name in wanted if is_text(name)]
    return schema


def _joined(first: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Of `allOf`: the properties of both; of anything else, what the first one says."""
    joined = {**part, **first}
    if "properties" in first and "properties" in part:
        joined["properties"] = {**part["properties"], **first["properties"]}
    if "required" in first and "required" in part:
        joined["required"] = list(dict.fromkeys((*part["required"], *first["required"])))
    return joined


def json_of(reading: Reading, value: Any, depth: int = 0) -> Any:
    """The value, if JSON has it, else null: YAML has dates and bytes, too."""
    reading.take(len(value) if isinstance(value, str) else 0)
    match value:
        case None | bool():
            return value
        case str():
            return value if is_text(value) else None
        case int() | float():
            return value if _is_number(value) else None
        case list() if depth < _DEEPEST_VALUE:
            return [json_of(reading, one, depth + 1) for one in value]
        case dict() if depth < _DEEPEST_VALUE:
            return {
                name: json_of(reading, one, depth + 1)
                for key, one in value.items()
                if isinstance(name := json_of(reading, str(key)), str)
            }
        case _:
            return None


def is_text(value: Any) -> TypeGuard[str]:
    """Whether it is valid Unicode, which YAML does not promise."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_number(value: Any) -> bool:
    """Whether JSON parsers agree on it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63
