"""A noun of an API, defined once: one list of fields gives its JSON and its JSON schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from lastgood.surfaces.http.json_schema import Schema, object_of

T = TypeVar("T")

ANY: Schema = {"type": "object"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number", "minimum": 0}


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


@dataclass(frozen=True, slots=True)
class ResourceField(Generic[T]):
    """Optional fields are left out if `read` returns None. Without `read`, the caller adds the field."""

    name: str
    schema: Schema
    read: Callable[[T], Any] | None = None
    optional: bool = False


class Resource(Generic[T]):
    def __init__(self, *fields: ResourceField[T]) -> None:
        self._required = [(field.name, field.read) for field in fields if field.read and not field.optional]
        self._optional = [(field.name, field.read) for field in fields if field.read and field.optional]
        self.schema: Schema = object_of(
            {field.name: field.schema for field in fields if not field.optional},
            {field.name: field.schema for field in fields if field.optional},
        )

    def json(self, value: T) -> dict[str, Any]:
        found = {name: read(value) for name, read in self._required}
        for name, read in self._optional:
            if (optional := read(value)) is not None:
                found[name] = optional
        return found


def optional(name: str, schema: Schema, read: Callable[[T], Any] | None = None) -> ResourceField[T]:
    return ResourceField(name, schema, read, optional=True)


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
