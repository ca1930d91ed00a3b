"""Frames of server-sent events that are stored nowhere and so have no id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def unnumbered(told: Mapping[str, Any], *, named: bool = False) -> bytes:
    """What is told to one watcher alone, and is stored nowhere."""
    head = f"event: {told['type']}\n" if named else ""
    return head.encode() + b"data: " + orjson.dumps(told) + b"\n\n"
