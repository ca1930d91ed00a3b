"""Lastgood from Python: sessions, and runs as typed events.

    async with AsyncClient("http://127.0.0.1:8080") as client:
        session = await client.create("default")
        async for event in client.run(session.id, "Hello"):
            ...

`Client` makes the same calls for code that does not wait for anything. What fails is an error of
`lastgood.errors`. The events are in `lastgood.client.events`, the nouns in `lastgood.client.models`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastgood.client.blocking import Client
    from lastgood.client.calls import AsyncClient

__all__ = ["AsyncClient", "Client"]

_HOMES = {"AsyncClient": "lastgood.client.calls", "Client": "lastgood.client.blocking"}


def __getattr__(name: str) -> Any:
    # Late: commands that only print a session need its noun, and no HTTP client.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
