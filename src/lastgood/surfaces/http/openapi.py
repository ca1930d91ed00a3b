"""The OpenAPI description, made from the routes, and the shapes of answers that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lastgood import __version__
from lastgood.surfaces.http.app import Contents, Route
from lastgood.surfaces.http.asgi import JSON
from lastgood.surfaces.http.error_responses import ErrorDialects, dialect_of
from lastgood.surfaces.http.json_schema import TEXT, Schema, object_of

# -- shapes of answers -------------------------------------------------------------------

HEALTH = object_of({"status": {"const": "ok"}, "version": TEXT})
_FLAG: Schema = {"type": "boolean"}
READY = object_of(
    {"status": {"enum": ["ready", "not ready"]}, "ready": _FLAG}, {"store_connected": _FLAG, "reason": TEXT}
)

#: What may come instead of an answer, by whether the route needs a token and takes a body.
_EVERYWHERE = {
    400: "Malformed request",
    403: "Scope, Host or Origin not allowed",
    405: "Method not allowed",
    500: "The turn or the server failed; nothing was committed",
}
_WITH_TOKEN = {
    401: "Missing or invalid bearer token",
    404: "Not found: unknown, deleted, or owned by another tenant",
    409: "Session busy, or conflict with its current state",
    412: "The expected turn is not the head of the session",
    422: "Unknown model, or idempotency key reused with another body",
    424: "The turn failed after a non-repeatable tool ran, or its outcome is unknown; do not retry",
    429: "Rate limit exceeded",
    503: "Temporarily unavailable; retry shortly",
}
_WITH_BODY = {
    413: "Request too large",
    415: "Body is not JSON, or is compressed",
}

_REQUEST_ID = {
    "x-request-id": {"description": "Request id, also in the server log", "required": True, "schema": TEXT}
}


# -- the description ---------------------------------------------------------------------


def openapi(routes: Sequence[Route], dialects: ErrorDialects) -> Schema:
    paths: dict[str, Schema] = {}
    shared = SharedParts()
    for route in routes:
        if route.is_page:
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, dialects, shared)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lastgood", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": shared.schemas,
            "responses": shared.responses,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What routes refer to. Every route can fail in a dozen ways; spelled out at each, they would be most of
    the description."""

    schemas: Schema = field(default_factory=dict)
    responses: Schema = field(default_factory=dict)


def _operation(route: Route, dialects: ErrorDialects, shared: SharedParts) -> Schema:
    operation: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route, dialects, shared),
    }
    if route.takes is not None:
        body = _moved(route.takes, shared.schemas)
        required = not route.may_be_empty
        operation["requestBody"] = {"required": required, "content": {JSON: {"schema": body}}}
    if route.scope is not None:
        # Where the server asks for no token, none is needed.
        operation["security"] = [{"token": []}, {}]
    return operation


def _parameters(route: Route) -> list[Schema]:
    holes = re.findall(r"{(\w+)}", route.path)
    return [
        *({"name": hole, "in": "path", "required": True, "schema": TEXT} for hole in holes),
        *(
            {"name": name, "in": place, "description": about, "schema": schema}
            for place, named in (("header", route.headers), ("query", route.query))
            for name, (about, schema) in named.items()
        ),
    ]


def _responses(route: Route, dialects: ErrorDialects, shared: SharedParts) -> Schema:
    refusals = dict(_EVERYWHERE)
    if route.scope is not None:
        refusals |= _WITH_TOKEN
    if route.takes is not None:
        refusals |= _WITH_BODY
    error, prefix = dialect_of(route.path, dialects).schema, _dialect_name(route.path, dialects)
    responses: dict[int, Schema] = {}
    for status, about in refusals.items():
        name = f"{prefix}Error{status}"
        shared.responses[name] = _response(about, {JSON: error}, shared.schemas)
        responses[status] = {"$ref": f"#/components/responses/{name}"}
    for status, contents in route.gives.items():
        responses[status] = _response("Success", contents, shared.schemas)
    return {str(status): response for status, response in sorted(responses.items())}


def _dialect_name(path: str, dialects: ErrorDialects) -> str:
    """`V1` for errors of `/v1/…`; nothing for those of the session API."""
    prefix = next((prefix for prefix in dialects if path.startswith(prefix)), "")
    return re.sub(r"\W", "", prefix).capitalize()


def _response(about: str, contents: Contents, definitions: Schema) -> Schema:
    content = {
        kind: {} if schema is None else {"schema": _moved(schema, definitions)}
        for kind, schema in contents.items()
    }
    return {"description": about, "headers": _REQUEST_ID, "content": content}


def _moved(schema: Mapping[str, Any], definitions: Schema) -> Any:
    """Definitions belong to the components of the whole description."""
    plain = dict(schema)
    for name, definition in plain.pop("$defs", {}).items():
        definitions[name] = _refer(definition)
    return _refer(plain)


def _refer(value: Any) -> Any:
    match value:
        case str() if value.startswith("#/$defs/"):
            return value.replace("#/$defs/", "#/components/schemas/", 1)
        case dict():
            return {key: _refer(item) for key, item in value.items()}
        case list():
            return [_refer(item) for item in value]
        case _:
            return value
