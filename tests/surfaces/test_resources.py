"""One list of fields gives the JSON of a noun and its schema."""

import jsonschema  # type: ignore[import-untyped]

from lastgood.surfaces.api.resources import AGENT, ListedAgent
from lastgood.surfaces.http.json_schema import COUNT, TEXT
from lastgood.surfaces.http.resource import Resource, ResourceField

NUMBERED: Resource[int] = Resource(
    ResourceField("number", COUNT, lambda number: number),
    ResourceField("odd", TEXT, lambda number: "yes" if number % 2 else None, optional=True),
    ResourceField("added", TEXT, optional=True),
)


def test_required_fields_are_always_there_and_optional_ones_only_with_a_value() -> None:
    assert NUMBERED.json(1) == {"number": 1, "odd": "yes"}
    assert NUMBERED.json(2) == {"number": 2}
    assert NUMBERED.schema["required"] == ["number"]
    assert set(NUMBERED.schema["properties"]) == {"number", "odd", "added"}


def test_an_agent_that_cannot_be_loaded_is_listed_with_its_error() -> None:
    found = AGENT.json(ListedAgent("team", None, "agent_invalid"))
    assert found == {"name": "team", "description": "", "multi": False, "error": "agent_invalid"}
    jsonschema.validate(found, AGENT.schema)
