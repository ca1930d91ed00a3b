"""The form for a question of a tool: one field per property of its schema, and the content that comes back.

A model or an MCP server wrote the schema, so any part of it may be missing or wrong. Fields are named by the
position of their property. The form is only read if the question is still the one that was shown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lastgood.core.visible_text import visible
from lastgood.errors import InvalidRequest

_INTEGER = re.compile(r"[+-]?[0-9]{1,300}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FORMATS = {"email": "email", "uri": "url", "date": "date"}


def fields_of(schema: Any) -> list[dict[str, Any]]:
    """As the template shows them. `kind`: choice, text, integer, number, choices or json."""
    required = _list(_mapping(schema).get("required"))
    return [
        _field(place, str(name), _mapping(about), is_required=name in required)
        for place, (name, about) in enumerate(_properties(schema))
    ]


def _field(place: int, name: str, about: Mapping[str, Any], *, is_required: bool) -> dict[str, Any]:
    choices = _choices(about)
    default = about.get("default")
    return {
        "name": f"content.{place}",
        "property": visible(name),
        "label": visible(_text(about.get("title")) or name),
        "description": visible(_text(about.get("description"))),
        "required": is_required,
        "kind": _kind(about),
        "input": _FORMATS.get(_text(about.get("format")), "text"),
        "choices": [
            {"value": str(number), "label": visible(label), "chosen": _is_default(default, value, about)}
            for number, (value, label) in enumerate(choices)
        ],
        "value": _default_text(default, about),
        "least": _size(about.get("minLength")),
        "most": _size(about.get("maxLength")),
    }


def content_of(schema: Any, form: Mapping[str, str]) -> dict[str, Any]:
    """The typed values of the form. An empty field of an optional property is left out.

    InvalidRequest: a value is missing or not of its type; the message names the field as the form does.
    Limits and choices are checked where the answer is decided, for all clients alike."""
    content: dict[str, Any] = {}
    for field, (name, about) in zip(fields_of(schema), _properties(schema), strict=True):
        value = _value(field, _mapping(about), form)
        if value is not None:
            content[str(name)] = value
        elif field["required"]:
            raise InvalidRequest(f"`{field['label']}` is required", param=str(name))
    return content


def _value(field: Mapping[str, Any], about: Mapping[str, Any], form: Mapping[str, str]) -> Any:
    """None: nothing was entered."""
    values = [value for value, _ in _choices(about)]
    given = form.get(field["name"], "")
    kind, label = field["kind"], field["label"]
    if kind == "choices":
        chosen = [value for place, value in enumerate(values) if f"{field['name']}.{place}" in form]
        return chosen or ([] if field["required"] else None)
    if not given.strip():
        return None
    if kind == "text":
        return given
    if kind == "choice":
        if not given.isascii() or not given.isdecimal() or len(given) > 6 or int(given) >= len(values):
            raise InvalidRequest(f"`{label}` must be one of the choices", param=field["property"])
        return values[int(given)]
    if kind == "json":
        return _json(given, label)
    return _numeric(given.strip(), label, is_integer=kind == "integer")


def _numeric(given: str, label: str, *, is_integer: bool) -> int | float:
    if _INTEGER.fullmatch(given):
        return int(given)
    if is_integer:
        raise InvalidRequest(f"`{label}` must be a whole number, such as 3")
    number = float(given) if _NUMBER.fullmatch(given) else math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"`{label}` must be a number, such as 2.5")
    return number


def _json(given: str, label: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)  # NaN and Infinity are not JSON

    try:
        return json.loads(given, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise InvalidRequest(f'`{label}` must be JSON, such as [1, 2] or {{"a": 1}}') from None


# -- reading a schema that may be wrong ------------------------------------------------------


def _properties(schema: Any) -> Sequence[tuple[Any, Any]]:
    return tuple(_mapping(_mapping(schema).get("properties")).items())


def _kind(about: Mapping[str, Any]) -> str:
    type = _type(about)
    if type == "array":
        return "choices" if _choices(about) else "json"
    if _choices(about):
        return "choice"
    return {"string": "text", "integer": "integer", "number": "number"}.get(type, "json")


def _type(about: Mapping[str, Any]) -> str:
    """Of several types, the first that has a value. A property without a type is text."""
    given = about.get("type", "string")
    named = next((one for one in given if one != "null"), "string") if isinstance(given, list) else given
    return named if isinstance(named, str) else "string"


def _choices(about: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Values with labels: `enum`, `enumNames`, and `const` with a title; of arrays, those of `items`."""
    if _type(about) == "array":
        items = _mapping(about.get("items"))
        return _choices(items) if _type(items) != "array" else []
    named = _list(about.get("oneOf")) or _list(about.get("anyOf"))
    if named and all("const" in _mapping(one) for one in named):
        return [(one["const"], _text(one.get("title")) or _word(one["const"])) for one in named]
    values, labels = _list(about.get("enum")), _list(about.get("enumNames"))
    if values:
        words = [*map(_word, values if len(labels) != len(values) else labels)]
        return list(zip(values, words, strict=True))
    return [(True, "Yes"), (False, "No")] if _type(about) == "boolean" else []


def _is_default(default: Any, value: Any, about: Mapping[str, Any]) -> bool:
    if default is None:
        return False
    if _type(about) == "array":
        return isinstance(default, list) and value in default
    return bool(default == value and type(default) is type(value))


def _default_text(default: Any, about: Mapping[str, Any]) -> str:
    if default is None or _choices(about):
        return ""
    text = default if isinstance(default, str) and _kind(about) != "json" else _word(default)
    return text if visible(text) == text else ""  # nobody would see what they accept


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
