"""Reads the arguments of a tool call that a conversation has.

Conversations come from clients, too. Whatever stands there, what is computed from them must not fail: the
session could never answer again.
"""

from __future__ import annotations

import json
from typing import Any

from lastgood.model.messages import ToolCall


def arguments_in(call: ToolCall) -> dict[str, Any]:
    """Empty if they are no JSON object, or nested too deeply to be read."""
    try:
        plain = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def text_in(call: ToolCall, name: str) -> str | None:
    """The argument if it is a text."""
    value = arguments_in(call).get(name)
    return value if isinstance(value, str) else None
