"""Which tools a document describes, and the request of a call."""

import json
from datetime import date
from typing import Any

import orjson
import pytest

from lastgood.core import openapi
from lastgood.core.openapi import Operation, base_url, operations_of, request_of, same_host
from lastgood.core.openapi_schemas import MOST_OF_TOOL, MOST_OF_TOOLS, Reading
from lastgood.core.openapi_schemas import schema_of as schema_in

WHERE = "https://docs.example.com/v1/openapi.json"


def schema_of(document: dict[str, Any], node: Any) -> dict[str, Any]:
    reading = Reading(document)
    with reading.of_tool(12):
        return schema_in(reading, node)


def operation(path: str = "/pets", method: str = "get", **fields: Any) -> Operation:
    [made], surplus = operations_of({"paths": {path: {method: fields}}, "components": COMPONENTS})
    assert surplus == 0
    return made


COMPONENTS = {
    "parameters": {"limit": {"name": "limit", "in": "query", "schema": {"type": "integer"}}},
    "schemas": {
        "Pet": {
            "type": "object",
            "required": ["name", 7],
            "properties": {"name": {"type": "string"}, "mother": {"$ref": "#/components/schemas/Pet"}},
        },
        "Dog": {
            "allOf": [{"$ref": "#/components/schemas/Pet"}, {"properties": {"bark": {"type": "boolean"}}}]
        },
        "a/b": {"type": "string"},
    },
}


@pytest.mark.parametrize(
    ("document", "base"),
    [
        ({"servers": [{"url": "https://api.example.com/v2/"}]}, "https://api.example.com/v2"),
        ({"servers": [{"url": "/v3"}]}, "https://docs.example.com/v3"),
        ({"servers": [{"url": "api"}]}, "https://docs.example.com/v1/api"),
        (
            {"servers": [{"url": "https://{r}.example.com", "variables": {"r": {"default": "eu"}, "x": 1}}]},
            "https://eu.example.com",
        ),
        ({}, "https://docs.example.com"),
        ({"servers": [{"url": " "}]}, "https://docs.example.com"),
        ({"servers": ["x"]}, "https://docs.example.com"),
    ],
)
def test_the_first_server_is_seen_from_the_document(document: dict[str, Any], base: str) -> None:
    assert base_url(document, WHERE) == base


def test_two_urls_are_of_one_host_if_scheme_and_port_are_the_same_too() -> None:
    assert same_host(WHERE, "https://docs.example.com/x")
    for other in ("http://docs.example.com", "https://docs.example.com:8443", "https://example.com"):
        assert not same_host(WHERE, other)


def test_an_operation_is_a_tool_with_its_parameters_and_the_fields_of_its_body() -> None:
    made = operation(
        "/pets/{id}",
        "post",
        operationId="pets.update-one",
        summary="Updates a pet",
        parameters=[
            {"name": "id", "in": "path", "description": "which", "schema": {"type": "string", "x-secret": 1}},
            {"$ref": "#/components/parameters/limit"},
            {"name": "X-Key", "in": "header"},
            {"name": "q", "in": "query", "required": True, "schema": "wrong"},
            {"name": "q", "in": "query", "required": True},
            {"in": "query"},
            7,
        ],
        requestBody={
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Dog"}}},
        },
    )
    assert (made.tool, made.method, made.about) == ("pets_update_one", "POST", "Updates a pet")
    properties = made.parameters["properties"]
    assert list(properties) == ["id", "limit", "q", "body_bark", "body_name", "body_mother"] or set(
        properties
    ) == {"id", "limit", "q", "body_bark", "body_name", "body_mother"}
    assert properties["id"] == {"type": "string", "description": "which"}
    assert properties["limit"] == {"type": "integer"}
    assert made.parameters["required"] == ["id", "q", "body_name"]


def test_what_has_no_name_is_named_by_its_path() -> None:
    made = operation("/pets/{id}/toys", "delete", description="d" * 5000)
    assert made.tool == "delete__pets_id_toys"
    assert len(made.about) == 1024
    assert operation("/", "get").about == "GET /"
    assert operation("/", "get", operationId="//").tool == "call"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"paths": []},
        {"paths": {"/a": 7, 8: {"get": {}}, "/b": {"get": 7, "trace": {}}}},
        {"paths": {"/a": {"$ref": "other.json#/x"}, "/b": {"$ref": "#/paths/~1b"}, "/c": {"$ref": "#/none"}}},
    ],
)
def test_what_is_no_operation_is_left_out(document: dict[Any, Any]) -> None:
    assert operations_of(document) == ((), 0)


def test_I40_so_many_operations_are_tools_and_the_rest_is_counted() -> None:
    paths: dict[str, Any] = {f"/{number}": {"get": {}} for number in range(openapi.MOST_OPERATIONS + 5)}
    made, surplus = operations_of({"paths": paths})
    assert (len(made), surplus) == (openapi.MOST_OPERATIONS, 5)
    same = {"/a": {"get": {"operationId": "x"}, "post": {"operationId": "x"}}}
    made, surplus = operations_of({"paths": same})
    assert ([one.method for one in made], surplus) == (["GET"], 1)


def test_parameters_of_a_path_are_those_of_its_operations() -> None:
    item = {"parameters": [{"name": "id", "in": "path"}], "get": {"parameters": "wrong"}}
    [made], _ = operations_of({"paths": {"/{id}": item}})
    assert made.parameters["required"] == ["id"]


def test_I40_a_schema_that_contains_itself_ends() -> None:
    document = {"components": COMPONENTS}
    deep: Any = schema_of(document, {"$ref": "#/components/schemas/Pet"})
    depth = 0
    while "mother" in deep.get("properties", {}):
        deep, depth = deep["properties"]["mother"], depth + 1
    assert depth < 20
    circle = {"components": {"schemas": {"A": {"$ref": "#/components/schemas/A"}}}}
    assert schema_of(circle, {"$ref": "#/components/schemas/A"}) == {}
    assert schema_of(document, {"$ref": "#/components/schemas/a~1b"}) == {"type": "string"}
    assert schema_of(document, {"$ref": "#/components/schemas/Pet/required/0"}) == {}
    assert schema_of(document, {"type": "array", "items": {"type": "string", "x": 1}}) == {
        "type": "array",
        "items": {"type": "string"},
    }
    assert schema_of(document, {"type": "string", "format": "date"}) == {"type": "string", "format": "date"}
    assert schema_of(document, {"minimum": 1, "maximum": 2.5}) == {"minimum": 1, "maximum": 2.5}
    about = schema_of(document, {"type": "string", "description": "d" * 5000})["description"]
    assert len(about) == 1024
    assert schema_of(document, {"type": 7, "items": 8, "properties": 9, "minimum": "x", "required": 1}) == {}


def test_no_value_of_a_request_leaves_its_place() -> None:
    made = operation(
        "/pets/{id}",
        "put",
        parameters=[
            {"name": "id", "in": "path"},
            {"name": "tag", "in": "query"},
            {"name": "n", "in": "query"},
        ],
        requestBody={"content": {"application/json": {"schema": {"properties": {"name": {}, "age": {}}}}}},
    )
    asked = request_of(
        made,
        "https://a.example/v1",
        {"id": "../x?y#z", "tag": ["a&b", "c"], "body_name": "N", "body_age": None},
    )
    assert asked.url == "https://a.example/v1/pets/..%2Fx%3Fy%23z?tag=a%26b&tag=c"
    assert json.loads(asked.body or b"") == {"name": "N"}
    asked = request_of(made, "https://a.example", {"id": 5, "n": 7})
    assert (asked.url, asked.body) == ("https://a.example/pets/5?n=7", None)


def test_a_body_that_is_no_object_is_one_argument() -> None:
    content = {"content": {"application/json": {"schema": {"type": "array", "items": {"type": "string"}}}}}
    made = operation("/x", "post", requestBody={**content, "required": True})
    assert made.parameters["required"] == ["body"]
    assert request_of(made, "https://a", {"body": ["x"]}).body == b'["x"]'
    assert request_of(made, "https://a", {}).body is None
    assert operation("/x", "post", requestBody=content).parameters["required"] == []
    nothing: list[Any] = [
        {"content": {"text/plain": {}}},
        {"content": 7},
        {"content": {"application/json": 7}},
        7,
    ]
    for none in nothing:
        assert operation("/x", "post", requestBody=none).parameters["properties"] == {}


def test_of_all_of_both_lists_of_required_fields_count() -> None:
    part = {"required": ["a"], "properties": {"a": {}}}
    assert schema_of({}, {"allOf": [part], "required": ["b"]})["required"] == ["a", "b"]


@pytest.mark.parametrize("value", ["..", ".", "", None])
def test_a_value_in_a_path_leads_to_no_other_path(value: str | None) -> None:
    made = operation("/pets/{id}/toys", "delete", parameters=[{"name": "id", "in": "path"}])
    with pytest.raises(ValueError, match=r"path|empty"):
        request_of(made, "https://a.example/v1", {"id": value})
    assert request_of(made, "https://a.example", {"id": "..."}).url == "https://a.example/pets/.../toys"


def many(levels: int, make: Any) -> dict[str, Any]:
    """A document in which each schema refers to the next one several times."""
    schemas = {f"S{at}": make({"$ref": f"#/components/schemas/S{at + 1}"}) for at in range(levels)}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    post = {"operationId": "bomb", "requestBody": body}
    paths = {"/a": {"post": post}, "/b": {"get": {"operationId": "small"}}}
    return {"paths": paths, "components": {"schemas": {**schemas, f"S{levels}": {"type": "string"}}}}


@pytest.mark.parametrize(
    "make",
    [
        lambda ref: {"type": "object", "properties": {f"p{number}": ref for number in range(9)}},
        lambda ref: {"allOf": [ref] * 9},
        lambda ref: {"enum": ["x" * 90_000], "items": ref},
    ],
)
def test_I40_a_few_lines_that_describe_very_much_are_read_in_part_or_left_out(make: Any) -> None:
    made, surplus = operations_of(many(11, make))
    assert len(made) + surplus == 2
    assert made[-1].tool == "small"
    assert all(len(json.dumps(one.parameters)) <= MOST_OF_TOOL for one in made)


def test_I40_all_tools_of_a_document_are_of_a_limited_size() -> None:
    body = {"content": {"application/json": {"schema": {"enum": ["x" * 40_000]}}}}
    paths: dict[str, Any] = {f"/{number}": {"post": {"requestBody": body}} for number in range(100)}
    made, surplus = operations_of({"paths": paths})
    assert len(made) + surplus == 100
    assert len(made) >= 20
    assert sum(len(json.dumps(one.parameters)) for one in made) <= MOST_OF_TOOLS


def test_I8_what_json_does_not_have_is_in_no_tool() -> None:
    odd: list[Any] = [date(2026, 1, 1), b"x", {3: {4}}, 2**70, float("nan"), "\ud800", (1,), True, 7, "x"]
    schema = {"enum": odd, "default": odd, "minimum": 2**70, "format": "\ud800", "type": ["string", 8]}
    described = {"summary": "\ud800", "requestBody": {"content": {"application/json": {"schema": schema}}}}
    [made], _ = operations_of({"paths": {"/a": {"post": described}, "/\ud800": {"get": {}}}})
    kept = json.loads(orjson.dumps(made.parameters))["properties"]["body"]
    plain = [None, None, {"3": None}, None, None, None, None, True, 7, "x"]
    assert kept == {"enum": plain, "default": plain}
    assert (made.tool, made.about) == ("post__a", "POST /a")


def test_I40_a_value_that_contains_one_value_very_often_is_never_written_out() -> None:
    nested: Any = "end"
    for _ in range(40):
        nested = [nested, nested]
    made = operation("/a", "post", operationId=nested, summary=nested)
    assert (made.tool, made.about) == ("post__a", "POST /a")
    variables = {"x": {"default": nested}}
    assert base_url({"servers": [{"url": "https://a{x}", "variables": variables}]}, WHERE) == "https://a"
    long = {"x": {"default": "x" * 5000}}
    with pytest.raises(ValueError, match="too long"):
        base_url({"servers": [{"url": "https://{x}", "variables": long}]}, WHERE)
