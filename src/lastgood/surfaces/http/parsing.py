"""From JSON or a query to a checked value, or an error that names the place in the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lastgood.core.limits import check_body
from lastgood.errors import InvalidRequest
from lastgood.time_slices import paced_map

#: Messages, and parts of each, that are validated at once.
_FEW = 500

_Model = TypeVar("_Model", bound=BaseModel)


class StrictModel(BaseModel):
    """Where a word that is misspelt would be taken for none: rules that somebody relies on."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Body(BaseModel):
    """Request bodies of the session API: types are not coerced, and unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


def parse(model: type[_Model], plain: Any) -> _Model:
    check_countable(plain)
    return _validated(model, plain, plain)


async def parse_paced(model: type[_Model], message: type[BaseModel], plain: Any) -> _Model:
    """As `parse`, for a model whose `messages` may be many: each of them is a slice of work."""
    check_countable(plain)
    messages = plain.get("messages")
    if not isinstance(messages, list) or _is_small(messages):
        return _validated(model, plain, plain)

    def check(numbered: tuple[int, Any]) -> BaseModel:
        return _validated(message, numbered[1], plain, "messages", numbered[0])

    checked = await paced_map(check, enumerate(messages))
    return _validated(model, {**plain, "messages": checked}, plain)


def check_countable(plain: Any) -> None:
    """Counts come first: validating takes a hundred times as long as counting."""
    if not isinstance(plain, dict):
        raise InvalidRequest("The body must be a JSON object")
    check_body(plain)


def _is_small(messages: list[Any]) -> bool:
    return len(messages) <= _FEW and all(
        not isinstance(message, dict)
        or not isinstance(message.get("content"), list)
        or len(message["content"]) <= _FEW
        for message in messages
    )


def _validated(model: type[_Model], value: Any, plain: Any, *prefix: int | str) -> _Model:
    """`value` is at `prefix` of the body, which is `plain`."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # Of the ways in which a value could have been right, the one that it came nearest to.
        nearest = max(error.errors(include_url=False, include_input=False), key=lambda one: len(one["loc"]))
        where = _where((*prefix, *nearest["loc"]), plain)
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
        raise InvalidRequest(f"`{name}` must be an integer from {least} to {most}", param=name)
    return int(given)


def flag(query: Mapping[str, str], name: str, default: bool) -> bool:
    given = query.get(name, "")
    if given not in ("", "0", "1"):
        raise InvalidRequest(f"`{name}` must be 0 or 1", param=name)
    return given == "1" if given else default
