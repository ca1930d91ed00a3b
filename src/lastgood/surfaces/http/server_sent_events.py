"""Frames of server-sent events that are stored nowhere and so have no id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def unnumbered(body: Mapping[str, Any], *, named: bool = False) -> bytes:
    """A frame for one client, without an id: it is not stored."""
    head = f"event: {body['type']}\n" if named else ""
    return head.encode() + b"data: " + orjson.dumps(body) + b"\n\n"
