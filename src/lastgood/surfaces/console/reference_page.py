"""The API reference, rendered from the same description as /openapi.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.text_format import pretty
from lastgood.surfaces.http.asgi import Request

Describe = Callable[[], Mapping[str, Any]]

#: Chapters by the beginning of the path, in the order of reading. The last one takes the rest.
_CHAPTERS = (
    ("/v1/", "OpenAI-compatible"),
    ("/api/sessions", "Sessions"),
    ("/api/worker", "Workers"),
    ("/api/tasks", "Tasks"),
    ("/api/runtimes", "Runtimes"),
    ("/api/agents", "Agents"),
    ("/api/", "Administration"),
    ("/", "Probes"),
)
_LONGEST_SCHEMA = 6000


class ReferencePage:
    def __init__(self, describe: Describe) -> None:
        self._describe = describe

    async def show(self, request: Request) -> Page:
        described = self._describe()
        chapters: dict[str, list[dict[str, Any]]] = {title: [] for _, title in _CHAPTERS}
        for path, methods in described["paths"].items():
            title = next(title for start, title in _CHAPTERS if path.startswith(start))
            chapters[title] += [_operation(described, path, method, one) for method, one in methods.items()]
        listed: list[dict[str, Any]] = [
            {"title": title, "operations": sorted(operations, key=_place)}
            for title, operations in chapters.items()
            if operations
        ]
        data = {"chapters": listed}
        return Page("reference.html", "API reference", data)


def _place(operation: Mapping[str, Any]) -> tuple[str, str]:
    return operation["path"], operation["method"]


def _operation(
    described: Mapping[str, Any], path: str, method: str, one: Mapping[str, Any]
) -> dict[str, Any]:
    responses = {status: _resolved(described, given) for status, given in one["responses"].items()}
    body = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    good = [status for status in one["responses"] if status < "400"]
    return {
        "id": one["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": one["summary"],
        "parameters": [
            {
                "name": given["name"],
                "where": given["in"],
                "about": given.get("description", ""),
                "kind": _kind(given["schema"]),
            }
            for given in one["parameters"]
        ],
        "body": pretty(dict(body))[:_LONGEST_SCHEMA] if body else "",
        "responses": [
            {"status": status, "about": given["description"]} for status, given in responses.items()
        ],
        "good": ", ".join(good),
    }


def _resolved(described: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follows a reference into the components of the description."""
    found: Mapping[str, Any] = given
    if "$ref" in given:
        found = described
        for name in given["$ref"].removeprefix("#/").split("/"):
            found = found[name]
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    return str(schema.get("format") or schema.get("type") or "")
