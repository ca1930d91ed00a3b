"""From JSON or a query to a checked value, or an error that names the place in the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lastgood.core.limits import check_body
from lastgood.errors import InvalidRequest
from lastgood.time_slices import paced_map

#: Messages, and parts of each, that are validated at once.
_FEW = 500

#: What pydantic's errors of the wrong type mean for JSON.
_TYPES = {
    "string_type": "a string",
    "list_type": "an array",
    "tuple_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "bool_type": "true or false",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
}
#: The other errors of pydantic; `{names}` are those of its context.
_RULES = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "has the unknown type '{tag}'; use one of {expected_tags}",
    "union_tag_not_found": "requires a `type`",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "finite_number": "must be a finite number",
}

_Model = TypeVar("_Model", bound=BaseModel)


class StrictModel(BaseModel):
    """Rejects unknown fields, for bodies in which a misspelt field would silently have no effect: rules."""

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
        text, loc = _explained(error)
        where = _where((*prefix, *loc), plain)
        raise InvalidRequest(text(where), param=where or None) from None


def _explained(error: ValidationError) -> tuple[Callable[[str], str], tuple[int | str, ...]]:
    """Returns what is wrong, given a place, and the place.

    Of the ways in which a value could have been right, the one that it came nearest to counts. For a
    value whose type fits none of them, the message lists all the types.
    """
    found = error.errors(include_url=False, include_input=False)
    depth = max(len(one["loc"]) for one in found)
    nearest = [one for one in found if len(one["loc"]) == depth]
    first = next((one for one in nearest if one["type"] not in _TYPES), nearest[0])
    if first["type"] == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        return lambda where: f"{where}: {message}" if where else message, first["loc"]
    if first["type"] in _TYPES:
        # Members of a union differ in the last part of their place, which is the name of a type.
        types = [one["type"] for one in nearest if one["loc"][:-1] == first["loc"][:-1]]
        is_union = len(found) > 1 and all(kind in _TYPES for kind in types)
        nouns = dict.fromkeys(_TYPES[kind] for kind in (types if is_union else types[:1]))
        rule = f"must be {' or '.join(nouns)}"
    else:
        rule = _RULES.get(first["type"], "is invalid: {msg}").format(msg=first["msg"], **first.get("ctx", {}))
    return lambda where: f"`{where}` {rule}" if where else f"The body {rule}", first["loc"]


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
