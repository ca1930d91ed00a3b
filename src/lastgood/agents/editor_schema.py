"""The schema as JSON schema, for editors: they complete keys, show what they mean and underline mistakes.

It accepts what the reader accepts, as far as JSON schema can express it. Where text is expected, an unquoted
number or flag is accepted, too, because YAML parses it as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lastgood.agents.schema.file import FILE
from lastgood.agents.schema.kinds import (
    Anything,
    Either,
    Flag,
    Key,
    Kind,
    ListOf,
    MapOf,
    Number,
    Section,
    Span,
    Text,
    Typed,
    Variant,
    Whole,
)

_SPAN = r"^([0-9]+(\.[0-9]*)?(ns|us|µs|μs|ms|s|m|h))+$|^[0-9]+(\.[0-9]*)?$"
# A number in quotes is a number where one is expected.
_WHOLE = r"^[-+]?[0-9][0-9_]*$"
_NUMBER = r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"
JsonSchema = dict[str, Any]


def json_schema() -> JsonSchema:
    writer = _SchemaWriter()
    top = writer.section(FILE)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Lastgood agent file",
        **top,
        "definitions": dict(sorted(writer.definitions.items())),
    }


class _SchemaWriter:
    def __init__(self) -> None:
        self.definitions: dict[str, JsonSchema] = {}
        self._written: dict[str, Section | Typed] = {}

    def _refer(self, name: str, kind: Section | Typed) -> JsonSchema:
        if name not in self._written:
            self._written[name] = kind
            self.definitions[name] = self.section(kind) if isinstance(kind, Section) else self._typed(kind)
        assert self._written[name] is kind, f"two sections are called {name!r}"
        return {"$ref": f"#/definitions/{name}"}

    def of(self, kind: Kind) -> JsonSchema:
        match kind:
            case Section(name):
                return self._refer(name, kind)
            case Typed(section):
                return self._refer(section.name, kind)
            case Either(kinds):
                return {"anyOf": [self.of(one) for one in kinds]}
            case ListOf(of, least, or_one):
                item = self.of(of)
                many: JsonSchema = {"type": "array", "items": item, **({"minItems": least} if least else {})}
                return {"anyOf": [item, many]} if or_one else many
            case MapOf(of, least, most):
                return {
                    "type": "object",
                    "additionalProperties": self.of(of),
                    **({"minProperties": least} if least else {}),
                    **({} if most is None else {"maxProperties": most}),
                }
            case Anything(mapping):
                return {"type": "object"} if mapping else {}
            case Text() | Flag() | Whole() | Number() | Span():
                return _scalar(kind)

    def section(self, section: Section) -> JsonSchema:
        needed = [name for name, key in section.keys.items() if key.required]
        return {
            "type": "object",
            "properties": {name: self._key(key) for name, key in section.keys.items()},
            **({"required": needed} if needed else {}),
            **({} if section.open else {"additionalProperties": False}),
        }

    def _typed(self, typed: Typed) -> JsonSchema:
        """One branch for each type, so that a key of another type is a mistake."""
        keys = typed.section.keys
        here = f"#/definitions/{typed.section.name}/definitions"
        used = {name for variant in typed.types.values() for name in (*typed.shared, *variant.keys)} - {
            "type"
        }
        written: JsonSchema = {"definitions": {name: self._key(keys[name]) for name in keys if name in used}}
        types = {"enum": list(typed.types), "description": keys["type"].about}
        if typed.implied:
            only = _variant(typed, typed.types[typed.implied], here)
            return {**written, **only, "properties": {**only["properties"], "type": types}}
        branches = [
            {
                "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
                "then": _variant(typed, variant, here),
            }
            for name, variant in typed.types.items()
        ]
        return {
            **written,
            "type": "object",
            "required": ["type"],
            "properties": {"type": types},
            "allOf": branches,
        }

    def _key(self, key: Key) -> JsonSchema:
        about = key.about[0].upper() + key.about[1:] + "."
        if key.until is not None:
            about += f" Only up to version {key.until}."
        if key.later:
            about += f" Not supported yet: {key.later}."
        shape = self.of(key.kind)
        # Beside a $ref nothing counts in this draft, so the reference gets a place of its own.
        return {"description": about, **({"allOf": [shape]} if "$ref" in shape else shape)}


def _variant(typed: Typed, variant: Variant, here: str) -> JsonSchema:
    own = (*typed.shared, *variant.keys)
    rules: JsonSchema = {"required": list(variant.needs)} if variant.needs else {}
    if variant.exactly_one:
        rules["oneOf"] = [{"required": [name]} for name in variant.exactly_one]
    if variant.not_together:
        rules["not"] = {"required": list(variant.not_together)}
    properties: Mapping[str, JsonSchema] = {
        name: {} if name == "type" else {"$ref": f"{here}/{name}"} for name in own
    }
    return {"type": "object", "properties": properties, "additionalProperties": False, **rules}


def _scalar(kind: Text | Flag | Whole | Number | Span) -> JsonSchema:
    match kind:
        case Text(choices):
            return {"enum": list(choices)} if choices else {"type": ["string", "number", "boolean"]}
        case Flag():
            return {"enum": [True, False, "yes", "no", "on", "off"]}
        case Whole(least, most):
            return {"type": ["integer", "string"], "pattern": _WHOLE, **_bounds("minimum", least, most)}
        case Number(least, most, above):
            lower = "exclusiveMinimum" if above else "minimum"
            return {"type": ["number", "string"], "pattern": _NUMBER, **_bounds(lower, least, most)}
        case Span():
            return {"type": ["string", "number"], "pattern": _SPAN, "minimum": 0}


def _bounds(lower: str, least: float | None, most: float | None) -> JsonSchema:
    bounds = {lower: least, "maximum": most}
    return {name: value for name, value in bounds.items() if value is not None}
