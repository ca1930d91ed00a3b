"""Decides which of a server's tools a model can be offered.

All schemas are sent with every request. A model refuses a request that is too large, and every session of the
agent would fail with it. So such tools are left out, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

MOST_SCHEMA_BYTES = 64 * 1024
#: Of all tools of a server together.
MOST_BYTES = 1024 * 1024
_MOST_NAMED = 20
#: JSON is written up to a depth of 254. So much of that is left to what a schema is a part of.
_ROOM = 100


def sendable_bytes(plain: Any) -> int | None:
    """As JSON. None: it cannot be written as a part of a request or of a stored question."""
    nested = plain
    for _ in range(_ROOM):
        nested = [nested]
    try:
        return len(orjson.dumps(nested)) - 2 * _ROOM
    except TypeError:  # as orjson says both
        return None


def usable_tools(tools: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """The tools, as the SDK has them, in their order, and those that are left out with the reason."""
    usable: list[Any] = []
    left_out: list[str] = []
    total = 0
    for tool in tools:
        size = sendable_bytes(tool.input_schema)
        if size is None:
            left_out.append(f"{tool.name[:64]} (its schema is nested too deeply, or has too large a number)")
        elif size > MOST_SCHEMA_BYTES:
            left_out.append(f"{tool.name[:64]} (its schema has more than {MOST_SCHEMA_BYTES:,} bytes)")
        elif total + size > MOST_BYTES:
            left_out.append(f"{tool.name[:64]} (the tools before it have {MOST_BYTES:,} bytes, the limit)")
        else:
            total += size
            usable.append(tool)
    more = len(left_out) - _MOST_NAMED
    return usable, [*left_out[:_MOST_NAMED], f"and {more} more"] if more > 0 else left_out
