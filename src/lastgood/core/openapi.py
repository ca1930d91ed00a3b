"""Decides which tools an OpenAPI document describes, and how the arguments of a call become a request.

A document comes from elsewhere: what it may refer to, how deep and how many tools it may make is limited, and
what does not fit is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

MOST_OPERATIONS = 200
_DEEPEST = 12
_MOST_CHARACTERS = 1024
_METHODS = ("get", "post", "put", "patch", "delete", "head", "options")
#: These change nothing, by the definition of HTTP.
READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})
#: What a schema of an argument keeps.
_KEPT = ("type", "enum", "default", "format", "minimum", "maximum", "items", "properties", "required")


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
    if not isinstance(url, str) or not url.strip():
        return urljoin(where, "/").rstrip("/")
    variables = first.get("variables")
    for name, variable in variables.items() if isinstance(variables, dict) else ():
        default = variable.get("default", "") if isinstance(variable, dict) else ""
        url = url.replace(f"{{{name}}}", str(default))
    return urljoin(where, url).rstrip("/")


def same_host(one: str, other: str) -> bool:
    return urlsplit(one)[:2] == urlsplit(other)[:2]


def operations_of(document: Mapping[str, Any]) -> tuple[Sequence[Operation], int]:
    """The operations in the order of the document, and how many were left out."""
    found: dict[str, Operation] = {}
    surplus = 0
    for path, method, operation, shared in _described(document):
        made = _operation(document, path, method, operation, shared)
        if made.tool in found or len(found) >= MOST_OPERATIONS:
            surplus += 1
        else:
            found[made.tool] = made
    return tuple(found.values()), surplus


def _described(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], list[Any]]]:
    paths = document.get("paths")
    for path, item in paths.items() if isinstance(paths, dict) else ():
        item = resolved(document, item)
        if not isinstance(item, dict) or not isinstance(path, str):
            continue
        shared = item.get("parameters")
        for method in _METHODS:
            operation = item.get(method)
            if isinstance(operation, dict):
                yield path, method.upper(), operation, shared if isinstance(shared, list) else []


def _operation(
    document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any], shared: list[Any]
) -> Operation:
    own = operation.get("parameters")
    properties: dict[str, Any] = {}
    required: list[str] = []
    arguments: dict[str, Argument] = {}
    for one in (*shared, *(own if isinstance(own, list) else ())):
        parameter = resolved(document, one)
        place = parameter.get("in") if isinstance(parameter, dict) else None
        name = parameter.get("name") if isinstance(parameter, dict) else None
        if place not in ("path", "query") or not isinstance(name, str):
            continue
        properties[name] = _with_about(schema_of(document, parameter.get("schema")), parameter)
        arguments[name] = Argument(name, name, place)
        if (place == "path" or parameter.get("required") is True) and name not in required:
            required.append(name)
    body, is_needed = _body(document, operation)
    fields = body.get("properties") if body is not None else None
    whole = body is not None and not isinstance(fields, dict)
    if whole:
        properties["body"] = body
        required += ["body"] if is_needed else []
    for name, schema in fields.items() if isinstance(fields, dict) else ():
        properties[f"body_{name}"] = schema
        arguments[f"body_{name}"] = Argument(f"body_{name}", name, "body")
    if isinstance(fields, dict) and body is not None:
        wanted = body.get("required")
        named = [f"body_{name}" for name in wanted] if isinstance(wanted, list) else []
        required += [name for name in named if name in properties]
    schema = {"type": "object", "properties": properties, "required": required}
    about = operation.get("summary") or operation.get("description") or f"{method} {path}"
    tool = _tool_name(operation.get("operationId") or f"{method.lower()}_{path}")
    return Operation(
        tool, method, path, str(about)[:_MOST_CHARACTERS], schema, tuple(arguments.values()), whole
    )


def _tool_name(said: Any) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", str(said)).strip("_")[:64] or "call"


def _body(document: Mapping[str, Any], operation: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The schema of its JSON body, and whether there must be one."""
    body = resolved(document, operation.get("requestBody"))
    content = body.get("content") if isinstance(body, dict) else None
    described = content.get("application/json") if isinstance(content, dict) else None
    if not isinstance(described, dict) or not isinstance(body, dict):
        return None, False
    return schema_of(document, described.get("schema")), body.get("required") is True


def _with_about(schema: dict[str, Any], parameter: Mapping[str, Any]) -> dict[str, Any]:
    about = parameter.get("description")
    return {**schema, "description": about[:_MOST_CHARACTERS]} if isinstance(about, str) else schema


def resolved(document: Mapping[str, Any], node: Any) -> Any:
    """What a reference into the document leads to. Any other one leads nowhere."""
    for _ in range(_DEEPEST):
        ref = node.get("$ref") if isinstance(node, dict) else None
        if not isinstance(ref, str):
            return node
        if not ref.startswith("#/"):
            return {}
        found: Any = document
        for name in ref[2:].split("/"):
            name = name.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        node = {} if found is None else found
    return {}


def schema_of(document: Mapping[str, Any], node: Any, depth: int = 0) -> dict[str, Any]:
    """Without references. What lies too deep, or contains itself, can be anything."""
    plain = resolved(document, node)
    if not isinstance(plain, dict) or depth > _DEEPEST:
        return {}
    parts = plain.get("allOf")
    for part in parts if isinstance(parts, list) else ():
        plain = _joined(plain, schema_of(document, part, depth + 1))
    schema: dict[str, Any] = {key: plain[key] for key in _KEPT if key in plain}
    if isinstance(schema.get("items"), dict):
        schema["items"] = schema_of(document, schema["items"], depth + 1)
    if isinstance(fields := schema.get("properties"), dict):
        schema["properties"] = {
            str(name): schema_of(document, one, depth + 1) for name, one in fields.items()
        }
    if not isinstance(schema.get("type"), str | list):
        schema.pop("type", None)
    if isinstance(about := plain.get("description"), str):
        schema["description"] = about[:_MOST_CHARACTERS]
    return schema


def _joined(plain: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Of `allOf`: the properties of both."""
    joined = {**part, **plain}
    fields, own = part.get("properties"), plain.get("properties")
    if isinstance(fields, dict) and isinstance(own, dict):
        joined["properties"] = {**fields, **own}
    wanted, needed = part.get("required"), plain.get("required")
    if isinstance(wanted, list) and isinstance(needed, list):
        joined["required"] = [*wanted, *needed]
    return joined


def request_of(operation: Operation, base: str, arguments: Mapping[str, Any]) -> OperationRequest:
    """No value leaves its place: all are encoded."""
    path, query, body = operation.path, list[tuple[str, str]](), dict[str, Any]()
    for argument in operation.arguments:
        value = arguments.get(argument.key)
        if argument.place == "path":
            path = path.replace(f"{{{argument.name}}}", quote(_text(value), safe=""))
        elif value is None:
            continue
        elif argument.place == "query":
            values = value if isinstance(value, list) else [value]
            query += [(argument.name, _text(one)) for one in values]
        else:
            body[argument.name] = value
    url = f"{base}/{path.lstrip('/')}" + (f"?{urlencode(query)}" if query else "")
    if operation.whole_body:
        sent = arguments.get("body")
        return OperationRequest(url, None if sent is None else json.dumps(sent).encode())
    return OperationRequest(url, json.dumps(body).encode() if body else None)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
