"""Decides which tools an OpenAPI document describes, and how the arguments of a call become a request.

A document comes from elsewhere: what it may refer to, how deep, how many and how large the tools are that it
may make is limited, and what does not fit is left out. A few lines can refer to each other so often that they
describe more than fits into any memory, so what is read is counted, not what is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from lastgood.core.openapi_schemas import (
    MOST_CHARACTERS,
    OperationTooLarge,
    Reading,
    is_text,
    resolved,
    schema_of,
)
from lastgood.core.url_template import encoded, without_dots

MOST_OPERATIONS = 200
#: How deep schemas are read; less, if the tool would be too large otherwise.
_DEPTHS = (12, 4, 1)
_LONGEST_BASE = 4096
_MOST_CHARACTERS = 1024
_METHODS = ("get", "post", "put", "patch", "delete", "head", "options")
#: These change nothing, by the definition of HTTP.
READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Argument:
    """`place` is path, query or body; `name` what the API calls it. In the tool's schema it is `key`."""

    key: str
    name: str
    place: str


@dataclass(frozen=True, slots=True)
class Operation:
    tool: str
    method: str
    path: str
    about: str
    parameters: Mapping[str, Any]  # JSON schema
    arguments: tuple[Argument, ...]
    whole_body: bool = False  # the argument `body` is the body, not an object of arguments


@dataclass(frozen=True, slots=True)
class OperationRequest:
    url: str
    body: bytes | None


def base_url(document: Mapping[str, Any], where: str) -> str:
    """Where the API is: the document's first server, seen from the document itself."""
    servers = document.get("servers")
    first = servers[0] if isinstance(servers, list) and servers and isinstance(servers[0], dict) else {}
    url = first.get("url")
    if not is_text(url) or not url.strip():
        return urljoin(where, "/").rstrip("/")
    variables = first.get("variables")
    for name, variable in variables.items() if isinstance(variables, dict) else ():
        default = variable.get("default", "") if isinstance(variable, dict) else ""
        url = url.replace(f"{{{name}}}", str(default) if isinstance(default, str | int) else "")
        if len(url) > _LONGEST_BASE or not is_text(url):
            raise ValueError("the URL of its first server is too long or no valid text")
    return urljoin(where, url).rstrip("/")


def same_host(one: str, other: str) -> bool:
    return urlsplit(one)[:2] == urlsplit(other)[:2]


def operations_of(document: Mapping[str, Any]) -> tuple[Sequence[Operation], int]:
    """The operations in the order of the document, and how many were left out."""
    found: dict[str, Operation] = {}
    surplus = 0
    reading = Reading(document)
    for path, method, operation, shared in _described(document):
        made = _fitting(reading, path, method, operation, shared) if len(found) < MOST_OPERATIONS else None
        if made is None or made.tool in found:
            surplus += 1
        else:
            found[made.tool] = made
    return tuple(found.values()), surplus


def _fitting(
    reading: Reading, path: str, method: str, operation: Mapping[str, Any], shared: list[Any]
) -> Operation | None:
    """With schemas as deep as its size allows. None: it is too large."""
    for depth in _DEPTHS:
        try:
            with reading.of_tool(depth):
                return _operation(reading, path, method, operation, shared)
        except OperationTooLarge:
            pass
    return None


def _described(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], list[Any]]]:
    paths = document.get("paths")
    for path, item in paths.items() if isinstance(paths, dict) else ():
        item = resolved(document, item)
        if not isinstance(item, dict) or not is_text(path):
            continue
        shared = item.get("parameters")
        for method in _METHODS:
            operation = item.get(method)
            if isinstance(operation, dict):
                yield path, method.upper(), operation, shared if isinstance(shared, list) else []


def _operation(
    reading: Reading, path: str, method: str, operation: Mapping[str, Any], shared: list[Any]
) -> Operation:
    own = operation.get("parameters")
    properties: dict[str, Any] = {}
    required: list[str] = []
    arguments: dict[str, Argument] = {}
    for one in (*shared, *(own if isinstance(own, list) else ())):
        parameter = reading.resolved(one)
        place = parameter.get("in") if isinstance(parameter, dict) else None
        name = parameter.get("name") if isinstance(parameter, dict) else None
        if place not in ("path", "query") or not is_text(name):
            continue
        reading.take(2 * len(name))
        properties[name] = _with_about(schema_of(reading, parameter.get("schema")), parameter)
        arguments[name] = Argument(name, name, place)
        if (place == "path" or parameter.get("required") is True) and name not in required:
            required.append(name)
    body, is_needed = _body(reading, operation)
    fields = body.get("properties") if body is not None else None
    whole = body is not None and not isinstance(fields, dict)
    if whole:
        properties["body"] = body
        required += ["body"] if is_needed else []
    for name, schema in fields.items() if isinstance(fields, dict) else ():
        properties[f"body_{name}"] = schema
        arguments[f"body_{name}"] = Argument(f"body_{name}", name, "body")
    if isinstance(fields, dict) and body is not None:
        needed = [f"body_{name}" for name in body.get("required", ())]
        required += [name for name in needed if name in properties]
    schema = {"type": "object", "properties": properties, "required": required}
    said = operation.get("summary") or operation.get("description")
    about = said if is_text(said) else f"{method} {path}"
    reading.take(len(path))
    named = operation.get("operationId")
    tool = _tool_name(named if is_text(named) and named else f"{method.lower()}_{path}")
    return Operation(tool, method, path, about[:MOST_CHARACTERS], schema, tuple(arguments.values()), whole)


def _tool_name(said: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", said[:MOST_CHARACTERS]).strip("_")[:64] or "call"


def _body(reading: Reading, operation: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The schema of its JSON body, and whether there must be one."""
    body = reading.resolved(operation.get("requestBody"))
    content = body.get("content") if isinstance(body, dict) else None
    described = content.get("application/json") if isinstance(content, dict) else None
    if not isinstance(described, dict) or not isinstance(body, dict):
        return None, False
    return schema_of(reading, described.get("schema")), body.get("required") is True


def _with_about(schema: dict[str, Any], parameter: Mapping[str, Any]) -> dict[str, Any]:
    about = parameter.get("description")
    return {**schema, "description": about[:MOST_CHARACTERS]} if is_text(about) else schema


def request_of(operation: Operation, base: str, arguments: Mapping[str, Any]) -> OperationRequest:
    """No value leaves its place: all are encoded. ValueError: one of them would be another path."""
    path, query, body = operation.path, list[tuple[str, str]](), dict[str, Any]()
    for argument in operation.arguments:
        value = arguments.get(argument.key)
        if argument.place == "path":
            if not _text(value):
                raise ValueError(f"`{argument.key}` is empty")
            path = path.replace(f"{{{argument.name}}}", encoded(value))
        elif value is None:
            continue
        elif argument.place == "query":
            values = value if isinstance(value, list) else [value]
            query += [(argument.name, _text(one)) for one in values]
        else:
            body[argument.name] = value
    url = f"{base}/{without_dots(path.lstrip('/'))}" + (f"?{urlencode(query)}" if query else "")
    if operation.whole_body:
        sent = arguments.get("body")
        return OperationRequest(url, None if sent is None else json.dumps(sent).encode())
    return OperationRequest(url, json.dumps(body).encode() if body else None)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
