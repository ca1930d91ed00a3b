"""From JSON or a query to a checked value, or an error that names the place in the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lastgood.errors import InvalidRequest

_Model = TypeVar("_Model", bound=BaseModel)


class Exact(BaseModel):
    """Where a word that is misspelt would be taken for none: rules that somebody relies on."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Body(BaseModel):
    """What the session API takes: types are not guessed, and a field nobody knows is let through."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


def parse(model: type[_Model], plain: Any) -> _Model:
    if not isinstance(plain, dict):
        raise InvalidRequest("the body must be a JSON object")
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        # Of the ways in which a value could have been right, the one that it came nearest to.
        nearest = max(error.errors(include_url=False, include_input=False), key=lambda one: len(one["loc"]))
        where = _where(nearest["loc"], plain)
        message = nearest["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"{where}: {message}" if where else message, param=where or None) from None


def _where(loc: tuple[int | str, ...], value: Any) -> str:
    """`messages[2].content`: only what is a place in the request, no names of types."""
    text = ""
    for number, part in enumerate(loc, 1):
        if isinstance(part, int):
            if not isinstance(value, list) or part >= len(value):
                return text  # it was moved before it was checked
            text += f"[{part}]"
            value = value[part]
        elif isinstance(value, dict) and (part in value or (number == len(loc) and part != "str")):
            text += f".{part}" if text else part
            value = value.get(part)
    return text


def whole_number(query: Mapping[str, str], name: str, default: Any, *, least: int = 0, most: int) -> Any:
    given = query.get(name, "")
    if not given:
        return default
    is_number = given.isascii() and given.isdecimal() and len(given) <= 19
    if not is_number or not least <= int(given) <= most:
        raise InvalidRequest(f"{name} must be a whole number from {least} to {most}", param=name)
    return int(given)


def flag(query: Mapping[str, str], name: str, default: bool) -> bool:
    given = query.get(name, "")
    if given not in ("", "0", "1"):
        raise InvalidRequest(f"{name} is 0 or 1", param=name)
    return given == "1" if given else default
