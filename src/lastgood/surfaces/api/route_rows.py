"""What the rows of the session API's route tables have in common: scope, path and content type."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from lastgood.model.tokens import Scope
from lastgood.surfaces.http.app import Contents, Route
from lastgood.surfaces.http.asgi import JSON, Handler
from lastgood.surfaces.http.json_schema import schema_of

ONE = "/api/sessions/{session}"


def json_of(schema: Any, status: int = 200) -> dict[int, Contents]:
    return {status: {JSON: schema}}


def reads(path: str, handler: Handler, summary: str, gives: dict[int, Contents], **more: Any) -> Route:
    return Route("GET", path, handler, Scope.READ, summary, gives=gives, **more)


def takes(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    body: type[BaseModel] | None,
    gives: dict[int, Contents],
    **more: Any,
) -> Route:
    takes = None if body is None else schema_of(body)
    return Route(method, path, handler, Scope.SESSION, summary, takes=takes, gives=gives, **more)
