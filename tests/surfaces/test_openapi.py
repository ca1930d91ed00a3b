"""The description of the API against the API."""

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import schemathesis
from schemathesis.core.result import Ok

from lastgood.surfaces.http import json_schema
from lastgood.surfaces.http import openapi as shapes
from lastgood.surfaces.http.app import Route
from lastgood.surfaces.http.asgi import JSON, Reply, Request, Response
from lastgood.surfaces.http.openapi import openapi
from lastgood.surfaces.openai import response_schemas as theirs
from lastgood.surfaces.routes import DIALECTS
from tests.surfaces.asgi import route


async def nothing(request: Request) -> Response:
    return Reply(200)


TREE: dict[str, Any] = {
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    "type": "object",
    "properties": {"$ref": {"$ref": "#/$defs/Node"}, "mapping": {"type": "string"}},
}

ROUTES: tuple[Route, ...] = (
    route("GET", "/things/{thing}", nothing, gives={200: {JSON: shapes.HEALTH}}),
    route("DELETE", "/things/{thing}", nothing, gives={204: {}}),
    route("POST", "/v1/things", nothing, takes=TREE, headers={"x-it": ("it", {"type": "string"})}),
)


def test_every_route_is_in_it_and_every_reference_leads_somewhere() -> None:
    plain = openapi(ROUTES, DIALECTS)
    loaded = schemathesis.openapi.from_dict(plain)
    assert all(isinstance(operation, Ok) for operation in loaded.get_all_operations())
    described = {(method.upper(), path) for path, methods in plain["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    thing = plain["paths"]["/things/{thing}"]["get"]["parameters"]
    assert thing == [{"name": "thing", "in": "path", "required": True, "schema": {"type": "string"}}]
    properties = plain["paths"]["/v1/things"]["post"]["requestBody"]["content"][JSON]["schema"]["properties"]
    assert properties["$ref"] == {"$ref": "#/components/schemas/Node"}
    node = plain["components"]["schemas"]["Node"]
    assert node["properties"]["next"] == {"$ref": "#/components/schemas/Node"}


def test_each_surface_describes_its_own_errors() -> None:
    described = openapi(ROUTES, DIALECTS)

    def error_of(path: str, method: str, status: str) -> Any:
        reference = described["paths"][path][method]["responses"][status]["$ref"]
        response = described["components"]["responses"][reference.removeprefix("#/components/responses/")]
        return response["content"][JSON]["schema"]

    plain, openai = error_of("/things/{thing}", "get", "400"), error_of("/v1/things", "post", "400")
    assert "request_id" in plain["properties"]["error"]["properties"]
    assert "param" in openai["properties"]["error"]["properties"]
    assert "413" in described["paths"]["/v1/things"]["post"]["responses"]
    assert "413" not in described["paths"]["/things/{thing}"]["get"]["responses"]


@pytest.mark.parametrize(
    "schema",
    [shapes.HEALTH, shapes.READY, json_schema.ERROR, theirs.MODELS, theirs.COMPLETION, theirs.OPENAI_ERROR],
)
def test_response_schemas_reject_an_empty_object(schema: json_schema.Schema) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid({})
